//! The agent's own files: beside the socket of its card, where nobody else can put anything there; otherwise beside the usual socket. That may be in a
//! folder for all, too, such as /tmp: what somebody else has put there is not the agent's.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use millrace_driver::place;
use rustix::fs::{Access, OFlags, access};
use rustix::process::geteuid;

/// A file beside the usual socket.
pub fn beside_usual(name: &str) -> PathBuf {
    place::usual().with_file_name(name)
}

/// Where an agent has its files, by the name of the card that it serves.
pub struct Beside {
    folder: PathBuf,
    /// What tells the card from others, whose files may be in the same folder.
    card: String,
}

impl Beside {
    /// That of a card.
    pub fn of(device: &str) -> Self {
        let usual = place::usual();
        let folder = || usual.parent().map(Path::to_owned).unwrap_or_default();
        let Some(socket) = device.strip_prefix("unix:").map(Path::new) else {
            let card = if device.starts_with("embedded") { "millrace".to_owned() } else { plain(device) };
            return Self { folder: folder(), card };
        };
        // However it is named, it is one card.
        let socket =
            socket.canonicalize().or_else(|_| std::path::absolute(socket)).unwrap_or_else(|_| socket.to_owned());
        let parent = socket.parent().map(Path::to_owned).unwrap_or_default();
        let is_usual = usual.canonicalize().unwrap_or_else(|_| usual.clone()) == socket;
        let is_own =
            || place::is_folder_trusted(&socket, geteuid().as_raw()) && access(&parent, Access::WRITE_OK).is_ok();
        if is_usual || is_own() {
            let stem = socket.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            return Self { folder: parent, card: stem };
        }
        Self { folder: folder(), card: plain(&socket.to_string_lossy()) }
    }

    /// A file there; its name says which card it is for.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The socket at which the agent of this user is asked.
    pub fn control(&self) -> PathBuf {
        self.file(&format!("{}-agent-{}.sock", self.card, geteuid().as_raw()))
    }
}

/// A path, or another name of a card, as a part of a file's name.
fn plain(name: &str) -> String {
    name.trim_matches('/').replace(|sign: char| !sign.is_ascii_alphanumeric(), "-")
}

/// Opens a regular file, and never waits, as one does for the other end of a FIFO.
pub fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    open(options, path, OFlags::NONBLOCK)
}

/// The same for one that nobody but root and this user has put there, and that is no link.
pub fn open_own(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = open(options, path, OFlags::NONBLOCK | OFlags::NOFOLLOW)?;
    // Of what is open, not of the name: that may be another file's by now.
    let (owner, me) = (file.metadata()?.uid(), geteuid().as_raw());
    if owner == 0 || owner == me || place::is_folder_trusted(path, me) { Ok(file) } else { Err(strange(owner)) }
}

/// Whose it is that is there, if it was not put there by this user or root.
pub fn stranger(path: &Path) -> Option<u32> {
    let there = path.symlink_metadata().ok()?;
    (!place::is_trusted(path, geteuid().as_raw())).then(|| there.uid())
}

fn open(options: &mut OpenOptions, path: &Path, flags: OFlags) -> io::Result<File> {
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

fn strange(owner: u32) -> io::Error {
    io::Error::other(format!(
        "user {owner} has put it there, into a folder for all: set XDG_RUNTIME_DIR or MILLRACE_SOCKET so that it is in one of your own"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn read(path: &Path) -> io::Result<File> {
        open_own(OpenOptions::new().read(true), path)
    }

    #[test]
    fn what_others_have_put_into_a_folder_for_all_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        assert!(read(&file).is_ok());
        assert!(read(&link).is_err(), "whoever made the link chose the file");
        assert_eq!(stranger(&file), None);
        // Only root can give a file away.
        if geteuid().is_root() {
            chown(&file, Some(64_001), None).unwrap();
            let error = read(&file).unwrap_err().to_string();
            assert!(error.contains("user 64001") && error.contains("XDG_RUNTIME_DIR"), "{error}");
            assert_eq!(stranger(&file), Some(64_001));
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
            assert!(read(&file).is_ok(), "nobody but root could put it there");
        }
    }

    #[test]
    fn each_card_has_files_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] =
            ["one.sock", "other.sock"].map(|name| format!("unix:{}", folder.path().join(name).display()));
        let [of_one, of_other] = [&one, &other].map(|name| Beside::of(name).control());
        assert_eq!(of_one.parent(), of_other.parent());
        assert_ne!(of_one, of_other);
        assert_eq!(of_one.parent(), Some(folder.path()), "beside the card's socket");
        // By another name it is the same.
        fs::write(folder.path().join("one.sock"), "").unwrap();
        symlink("one.sock", folder.path().join("link.sock")).unwrap();
        assert_eq!(Beside::of(&one.replace("one.sock", "link.sock")).control(), of_one);
        // In a folder for all anybody could put something there first.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let [of_one, of_other] = [&one, &other].map(|name| Beside::of(name).control());
        assert_eq!(of_one.parent(), place::usual().parent());
        assert_ne!(of_one, of_other);
    }

    #[test]
    fn nobody_waits_for_the_other_end_of_a_fifo() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("no regular file"));
        assert!(open_regular(OpenOptions::new().read(true), &path).is_err());
        assert!(open_own(OpenOptions::new().write(true), &path).is_err());
    }
}
