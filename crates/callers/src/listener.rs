//! A socket at a path, at which programs find whoever listens.

use millrace_dma::refuse_descriptors;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
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

    fn of_kind(path: PathBuf, kind: Carries, mode: Option<Mode>) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = match kind {
            Carries::Records => SocketType::SEQPACKET,
            Carries::Streams => SocketType::STREAM,
        };
        let socket = || socket_with(AddressFamily::UNIX, kind, flags, None);
        let address = SocketAddrUnix::new(&path)?;
        if let Ok(found) = std::fs::symlink_metadata(&path) {
            let is_dead = found.file_type().is_socket() && connect(socket()?, &address) == Err(Errno::CONNREFUSED);
            if !is_dead {
                return Err(Errno::ADDRINUSE);
            }
            std::fs::remove_file(&path).map_err(|_| Errno::ADDRINUSE)?;
        }
        let socket = socket()?;
        if let Some(mode) = mode {
            // Before it has a name: the system gives that the same rights, less the umask, and nobody comes in between.
            fchmod(&socket, mode)?;
        }
        bind(&socket, &address)?;
        // Who calls has to wait with descriptors until he is let in, if the system can do that.
        let _ = refuse_descriptors(&socket);
        listen(&socket, BACKLOG)?;
        let (device, inode) = std::fs::symlink_metadata(&path).map_or((0, 0), |found| (found.dev(), found.ino()));
        Ok(Self { path, device, inode, socket: Some(socket) })
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

impl Drop for Listener {
    fn drop(&mut self) {
        // Another card may have taken the place since somebody removed our socket.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.socket()) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
