//! The path where a card listens: nothing is removed there but the socket of a card that has died.
//!
//! The new socket is made beside the path, listens, and is then renamed into place. So whoever finds it can connect, and
//! of two cards that start at once one is refused. It resembles what ports do with their sockets
//! (`crates/port/src/peer/connector.rs`); theirs are stream sockets.

use super::DriverError;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, RenameFlags, renameat_with, statat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Attempts to take the path while others come and go there.
const ATTEMPTS: usize = 8;

/// A socket file: which one it is, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketIdentity {
    /// Number of the device that the file system is on, as `stat` says it.
    pub device: u64,
    /// Number of the file there.
    pub inode: u64,
}

/// The path of a card that listens. Dropping it removes the socket there, if it still is the card's own.
#[derive(Debug)]
pub(super) struct ListenPath {
    path: PathBuf,
    pub own: SocketIdentity,
}

impl ListenPath {
    /// A path where a card before this one listened; `None`: no socket is there any more.
    pub fn handed_over(path: &Path) -> Option<Self> {
        let Ok(Found::Socket(own, _)) = look(path) else { return None };
        Some(Self { path: path.to_owned(), own })
    }

    /// Another card has it: nothing is removed.
    pub fn leave(mut self) {
        self.own = SocketIdentity { device: 0, inode: 0 };
    }
}

impl Drop for ListenPath {
    fn drop(&mut self) {
        // Another card may have taken the place since somebody removed our socket.
        if matches!(look(&self.path), Ok(Found::Socket(found, _)) if found == self.own) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What is at a path.
enum Found {
    Nothing,
    /// And whose it is.
    Socket(SocketIdentity, u32),
    /// In words.
    Other(&'static str),
}

/// Listens at `path`.
///
/// # Errors
/// [`DriverError::InUse`], [`DriverError::Occupied`], [`DriverError::Foreign`], [`DriverError::NoFolder`], [`DriverError::Listen`]; what was at
/// the path is untouched then.
pub(super) fn listen(path: &Path) -> Result<(OwnedFd, ListenPath), DriverError> {
    let failed = |source| DriverError::Listen { path: path.to_owned(), source };
    let (listener, new) = socket_beside(path)?;
    for _ in 0..ATTEMPTS {
        let moved = match look(path).map_err(failed)? {
            Found::Nothing => rename(&new.path, path, RenameFlags::NOREPLACE),
            Found::Other(what) => return Err(DriverError::Occupied { path: path.to_owned(), what }),
            Found::Socket(old, _) => {
                check_dead(path)?;
                exchange(&new.path, path, old)
            }
        };
        match moved {
            Ok(()) => return Ok((listener, new.taken(path))),
            // Somebody was there first, or has gone meanwhile: another look.
            Err(Errno::EXIST | Errno::NOENT | Errno::AGAIN) => {}
            // In a folder for all, only its owner may move it away.
            Err(Errno::PERM) => return Err(foreign(path).unwrap_or_else(|| failed(Errno::PERM))),
            Err(error) => return Err(failed(error)),
        }
    }
    Err(failed(Errno::BUSY))
}

/// What there is to say of what is at a path if it is somebody else's.
fn foreign(path: &Path) -> Option<DriverError> {
    let uid = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_uid;
    let is_ours = uid == rustix::process::geteuid().as_raw();
    (!is_ours).then(|| DriverError::Foreign { path: path.to_owned(), uid })
}

/// Whether a socket file is one of a card that has died: a socket of our kind could be there, and nobody listens.
fn check_dead(path: &Path) -> Result<(), DriverError> {
    let failed = |source| DriverError::Listen { path: path.to_owned(), source };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    // Without waiting: where many wait already somebody listens.
    match rustix::net::connect(socket(SocketFlags::NONBLOCK).map_err(failed)?, &address) {
        Err(Errno::CONNREFUSED) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => Err(DriverError::InUse(path.to_owned())),
        Err(Errno::PROTOTYPE) => {
            Err(DriverError::Occupied { path: path.to_owned(), what: "a socket of another kind, which is in use" })
        }
        // Whether a card listens cannot be told.
        Err(Errno::ACCESS) => Err(foreign(path).unwrap_or_else(|| failed(Errno::ACCESS))),
        // It went away meanwhile: the rename will tell.
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// Puts the new socket where the dead one `old` is and removes that; [`Errno::AGAIN`] when it was another by then.
fn exchange(new: &Path, path: &Path, old: SocketIdentity) -> Result<(), Errno> {
    rename(new, path, RenameFlags::EXCHANGE)?;
    if matches!(look(new), Ok(Found::Socket(found, _)) if found == old) {
        // The new one is in place whether or not the old one can be removed.
        let _ = std::fs::remove_file(new);
        return Ok(());
    }
    // Not what was looked at: back to where it was.
    rename(new, path, RenameFlags::EXCHANGE)?;
    Err(Errno::AGAIN)
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    renameat_with(CWD, from, CWD, to, flags)
}

fn look(path: &Path) -> Result<Found, Errno> {
    let found = match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(Found::Nothing),
        other => other?,
    };
    Ok(match FileType::from_raw_mode(found.st_mode) {
        FileType::Socket => Found::Socket(SocketIdentity { device: found.st_dev, inode: found.st_ino }, found.st_uid),
        FileType::RegularFile => Found::Other("a regular file"),
        FileType::Directory => Found::Other("a folder"),
        FileType::Symlink => Found::Other("a symbolic link"),
        FileType::Fifo => Found::Other("a FIFO"),
        _ => Found::Other("a device file"),
    })
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | flags, None)
}

/// A socket that listens under a name of its own, in the folder of `path`.
fn socket_beside(path: &Path) -> Result<(OwnedFd, NewName), DriverError> {
    let failed = |source| DriverError::Listen { path: path.to_owned(), source };
    // The path itself has to be one that programs can connect to.
    SocketAddrUnix::new(path).map_err(failed)?;
    let socket = socket(SocketFlags::NONBLOCK).map_err(failed)?;
    for attempt in 0..ATTEMPTS {
        let name = name_beside(path, attempt);
        match rustix::net::bind(&socket, &SocketAddrUnix::new(&name).map_err(failed)?) {
            Ok(()) => {
                let new = NewName::of(name).map_err(failed)?;
                // Who connects sends no descriptors before he is let in, if the system can do that.
                let _ = millrace_dma::refuse_descriptors(&socket);
                rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
                return Ok((socket, new));
            }
            // Left behind by a card that was killed while it started, under the same process id.
            Err(Errno::ADDRINUSE) => {}
            Err(Errno::NOENT) => return Err(DriverError::NoFolder(path.to_owned())),
            Err(error) => return Err(failed(error)),
        }
    }
    Err(failed(Errno::ADDRINUSE))
}

/// The name of a new socket until it is in its place; dropping it removes the socket.
struct NewName {
    path: PathBuf,
    own: SocketIdentity,
    in_place: bool,
}

impl NewName {
    fn of(path: PathBuf) -> Result<Self, Errno> {
        match look(&path)? {
            Found::Socket(own, owner) if owner == rustix::process::geteuid().as_raw() => {
                Ok(Self { path, own, in_place: false })
            }
            // Bound a moment ago: somebody plays with this folder.
            _ => Err(Errno::BUSY),
        }
    }

    /// It is at `path` now.
    fn taken(mut self, path: &Path) -> ListenPath {
        self.in_place = true;
        ListenPath { path: path.to_owned(), own: self.own }
    }
}

impl Drop for NewName {
    fn drop(&mut self) {
        if !self.in_place {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A name in the same folder that no other card of this machine takes; short where the path is as long as can be.
fn name_beside(path: &Path, attempt: usize) -> PathBuf {
    let tag = format!(".{:x}-{attempt}", std::process::id());
    let mut name = OsString::from(path);
    name.push(&tag);
    match SocketAddrUnix::new(Path::new(&name)) {
        Ok(_) => name.into(),
        Err(_) => path.with_file_name(tag),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixListener;

    fn what_is_there_stays(path: &Path, words: &str) {
        let before = std::fs::symlink_metadata(path).unwrap();
        let error = listen(path).expect_err("something is there").to_string();
        assert!(error.contains(words) && error.contains("nothing was touched"), "{error}");
        assert_eq!(std::fs::symlink_metadata(path).unwrap().ino(), before.ino());
    }

    /// Nothing is in the folder beside what is named.
    fn only(folder: &Path, names: &[&str]) {
        let mut found: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        found.sort();
        assert_eq!(found, names);
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "precious").unwrap();
        what_is_there_stays(&at("file"), "a regular file");
        assert_eq!(std::fs::read(at("file")).unwrap(), b"precious");
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        what_is_there_stays(&at("link"), "a symbolic link");
        std::fs::create_dir(at("folder")).unwrap();
        what_is_there_stays(&at("folder"), "a folder");
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        what_is_there_stays(&at("fifo"), "a FIFO");
        let stream = UnixListener::bind(at("stream")).unwrap();
        what_is_there_stays(&at("stream"), "a socket of another kind");
        drop(stream);
        let dead = socket(SocketFlags::empty()).unwrap();
        rustix::net::bind(&dead, &SocketAddrUnix::new(at("dead")).unwrap()).unwrap();
        drop(dead);
        let (_listener, place) = listen(&at("dead")).unwrap();
        assert!(matches!(listen(&at("dead")), Err(DriverError::InUse(_))), "one that lives is not replaced");
        drop(place);
        only(folder.path(), &["fifo", "file", "folder", "link", "stream"]);
    }

    #[test]
    fn a_card_does_not_remove_the_socket_of_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card");
        let (first, place) = listen(&path).unwrap();
        // Somebody takes the socket away, and another card its place.
        std::fs::remove_file(&path).unwrap();
        let (_second, next) = listen(&path).unwrap();
        drop((first, place));
        only(folder.path(), &["card"]);
        drop(next);
        only(folder.path(), &[]);
    }

    #[test]
    fn of_many_that_start_at_once_one_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card");
        for _ in 0..20 {
            let started: Vec<_> = std::thread::scope(|scope| {
                // Under names of their own, as processes have them.
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| listen(&path))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(started.iter().filter(|result| result.is_ok()).count(), 1, "{started:?}");
        }
        only(folder.path(), &[]);
    }

    #[test]
    fn it_is_said_whose_a_socket_is_that_cannot_be_taken_away() {
        use rustix::process::{Uid, geteuid};
        use std::os::unix::fs::{PermissionsExt, chown};
        if !geteuid().is_root() {
            eprintln!("skipped: sockets of another user take root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        mode(folder.path(), 0o1777);
        let path = folder.path().join("card");
        drop(UnixListener::bind(&path).unwrap());
        chown(&path, Some(64_001), None).unwrap();
        // It can be seen that nobody listens, and then that not even this can be seen.
        for rights in [0o777, 0o700] {
            mode(&path, rights);
            let path = path.clone();
            // This thread alone becomes another user.
            let refused = std::thread::spawn(move || {
                rustix::thread::set_thread_uid(Uid::from_raw(64_002)).unwrap();
                listen(&path).map(drop)
            });
            let said = refused.join().unwrap().unwrap_err().to_string();
            assert!(said.contains("belongs to user 64001") && said.contains("MILLRACE_SOCKET"), "{said}");
        }
        only(folder.path(), &["card"]);
        drop(listen(&path).unwrap());
    }

    #[test]
    fn a_missing_folder_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mistyped/card");
        assert!(matches!(listen(&path), Err(DriverError::NoFolder(_))));
        only(folder.path(), &[]);
    }

    #[test]
    fn the_longest_path_can_be_listened_at() {
        let folder = tempfile::tempdir().unwrap();
        let rest = 108 - folder.path().as_os_str().len() - 1;
        let path = folder.path().join("x".repeat(rest));
        let listening = listen(&path).unwrap();
        drop(listening);
        only(folder.path(), &[]);
        assert!(matches!(listen(&folder.path().join("x".repeat(rest + 1))), Err(DriverError::Listen { .. })));
    }
}
