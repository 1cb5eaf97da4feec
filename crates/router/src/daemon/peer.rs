//! Who is at the other end of a socket.

use std::fmt;
use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, sockopt};
use rustix::io::Errno;

/// A process, as it was when it connected, or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// `None`: it cannot be seen from here, for it is in another namespace of processes.
    pub process: Option<i32>,
    /// Its user, as this process sees it.
    pub user: u32,
    /// The group of that.
    pub group: u32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(f, "process {process} of user {}", self.user),
            None => write!(f, "a process of user {} that is not seen from here", self.user),
        }
    }
}

/// Who is at the other end.
///
/// # Errors
/// Where nobody is.
pub fn of(socket: impl AsFd) -> Result<Peer, Errno> {
    let peer = getsockopt(&socket, sockopt::PeerCredentials).map_err(|error| Errno::from_raw_os_error(error as i32))?;
    Ok(Peer { process: Some(peer.pid()).filter(|process| *process != 0), user: peer.uid(), group: peer.gid() })
}
