//! A socket at a path, at which programs find whoever listens.

use crate::taking::Taking;
use millrace_dma::refuse_descriptors;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use rustix::process::umask;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

const BACKLOG: i32 = 32;

/// What a socket carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Records, one after the other (`SOCK_SEQPACKET`).
    Records,
    /// A stream of bytes (`SOCK_STREAM`).
    Streams,
}

/// A socket that programs find; it is removed when this is dropped.
pub struct Listener {
    path: PathBuf,
    device: u64,
    inode: u64,
    socket: Option<OwnedFd>,
    // Whether the socket goes with this.
    is_ours: bool,
}

impl Listener {
    /// Listens at `path` for records, where nothing may be but the socket of a card that has died. What is accepted from it takes no descriptors
    /// before [`millrace_dma::take_descriptors`], with Linux 6.16 and later. Who can connect is what the umask leaves.
    ///
    /// # Errors
    /// Those of the system; `EADDRINUSE` when something else is there.
    pub fn at(path: PathBuf) -> Result<Self, Errno> {
        Self::of_kind(path, Carries::Records, None)
    }

    /// The same with a socket to which nobody can connect but its owner and root, whatever the umask says.
    ///
    /// # Errors
    /// The same.
    pub fn private(path: PathBuf, kind: Carries) -> Result<Self, Errno> {
        Self::of_kind(path, kind, Some(Mode::RUSR | Mode::WUSR))
    }

    /// The same with a socket to which everybody can connect, whatever the umask says: whoever accepts looks who it is.
    ///
    /// For a moment this process has no umask: to be called before another thread makes files.
    ///
    /// # Errors
    /// The same.
    pub fn public(path: PathBuf, kind: Carries) -> Result<Self, Errno> {
        let read_write = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
        Self::of_kind(path, kind, Some(read_write))
    }

    fn of_kind(path: PathBuf, kind: Carries, mode: Option<Mode>) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = match kind {
            Carries::Records => SocketType::SEQPACKET,
            Carries::Streams => SocketType::STREAM,
        };
        let socket = || socket_with(AddressFamily::UNIX, kind, flags, None);
        let address = SocketAddrUnix::new(&path)?;
        // A socket that does not listen yet looks as one that is dead does.
        let _taking = Taking::begin(&path)?;
        if let Ok(found) = std::fs::symlink_metadata(&path) {
            let is_dead = found.file_type().is_socket() && connect(socket()?, &address) == Err(Errno::CONNREFUSED);
            if !is_dead {
                return Err(Errno::ADDRINUSE);
            }
            std::fs::remove_file(&path).map_err(|_| Errno::ADDRINUSE)?;
        }
        let socket = socket()?;
        match mode {
            Some(mode) => bind_as(&socket, &address, mode)?,
            None => bind(&socket, &address)?,
        }
        let (device, inode) = std::fs::symlink_metadata(&path).map_or((0, 0), |found| (found.dev(), found.ino()));
        // From here on it is removed when something fails.
        let mut own = Self { path, device, inode, socket: None, is_ours: true };
        // Who calls has to wait with descriptors until he is let in, if the system can do that.
        let _ = refuse_descriptors(&socket);
        listen(&socket, BACKLOG)?;
        own.socket = Some(socket);
        Ok(own)
    }

    /// A socket that another process listens at, and has handed over: until it is [taken](Self::keep) it stays where it is when this is dropped.
    pub fn handed_over(path: PathBuf, socket: OwnedFd) -> Self {
        let (device, inode) = std::fs::symlink_metadata(&path).map_or((0, 0), |found| (found.dev(), found.ino()));
        Self { path, device, inode, socket: Some(socket), is_ours: false }
    }

    /// Whether the socket at the path is removed when this is dropped, from now on: another process has it, or had it.
    pub fn keep(&mut self, is_ours: bool) {
        self.is_ours = is_ours;
    }

    /// Which socket it is, whatever it is called: the numbers of its file system, and there.
    pub fn socket(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// The socket, once, for whoever accepts.
    pub fn take(&mut self) -> Option<OwnedFd> {
        self.socket.take()
    }
}

/// Gives a socket its name, with these rights.
fn bind_as(socket: &OwnedFd, address: &SocketAddrUnix, mode: Mode) -> Result<(), Errno> {
    // Before it has a name: the system gives that the same rights, less the umask, and nobody comes in between. Nothing is changed at the path
    // afterwards: whoever may write to the folder could have put something else there.
    fchmod(socket, mode)?;
    if (mode - (Mode::RUSR | Mode::WUSR)).is_empty() {
        return bind(socket, address);
    }
    let before = umask(Mode::empty());
    let bound = bind(socket, address);
    umask(before);
    bound
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another card may have taken the place since somebody removed our socket.
        if self.is_ours
            && std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.socket())
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Barrier;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn modes_are_the_sockets_own_and_nothing_else_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, all) = (folder.path().join("private"), folder.path().join("public"));
        let before = umask(Mode::RWXG | Mode::RWXO);
        let listeners = (
            Listener::private(ours.clone(), Carries::Streams).unwrap(),
            Listener::public(all.clone(), Carries::Streams).unwrap(),
        );
        assert_eq!(umask(before), Mode::RWXG | Mode::RWXO, "the umask is as it was");
        assert_eq!((mode(&ours), mode(&all)), (0o600, 0o666));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        drop(listeners);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_dead_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let before = mode(&file);
        for path in [&file, &link] {
            assert_eq!(Listener::private(path.clone(), Carries::Streams).err(), Some(Errno::ADDRINUSE));
        }
        assert_eq!((std::fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("x", before));
    }

    #[test]
    fn of_many_who_want_a_path_at_once_one_has_it() {
        const MANY: usize = 8;
        let folder = tempfile::tempdir().unwrap();
        let (path, barrier) = (&folder.path().join("socket"), &Barrier::new(MANY));
        for round in 0..200 {
            // Somebody has died here.
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
            let have: Vec<_> = std::thread::scope(|scope| {
                let ask = move || {
                    barrier.wait();
                    Listener::private(path.clone(), Carries::Streams)
                };
                let asked: Vec<_> = (0..MANY).map(|_| scope.spawn(ask)).collect();
                asked.into_iter().map(|one| one.join().unwrap()).filter_map(Result::ok).collect()
            });
            assert_eq!(have.len(), 1, "round {round}");
            let found = std::fs::symlink_metadata(path).unwrap();
            assert_eq!(have[0].socket(), (found.dev(), found.ino()), "round {round}");
        }
    }
}
