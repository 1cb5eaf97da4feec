//! Who calls.

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

/// Who is at the other end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Number of the process; 0 in another container.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// It is another user's than the one who runs this, and not root's: there may not be many of it.
    pub is_limited: bool,
}

/// Says who is at the other end of a socket, if he may come in.
pub type May = Box<dyn Fn(BorrowedFd<'_>) -> Option<Caller> + Send>;

/// Who is at the other end of a socket, whether he may come in or not. `None`: the system does not say.
pub fn caller_of(socket: impl AsFd) -> Option<Caller> {
    let credentials = getsockopt(&socket, PeerCredentials).ok()?;
    let (pid, uid) = (u32::try_from(credentials.pid()).ok()?, credentials.uid());
    Some(Caller { pid, uid, is_limited: uid != 0 && uid != geteuid().as_raw() })
}

/// The process at the other end of a socket, which is readable when that has ended; `None`: it has ended already, or nobody knows which it is. To be
/// asked for when it has just called: later its number may be another's, where the system (before Linux 6.5) knows no more than that.
///
/// # Errors
/// There are no descriptors left.
pub fn process_of(socket: impl AsFd) -> Result<Option<OwnedFd>, Errno> {
    if let Ok(process) = getsockopt(&socket, PeerPidfd) {
        return Ok(Some(process));
    }
    let Some(pid) = caller_of(&socket).and_then(|caller| Pid::from_raw(caller.pid as i32)) else { return Ok(None) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => Ok(Some(process)),
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Nobody but root, and the user who runs this: whoever that is when somebody calls.
pub fn owner_only() -> May {
    Box::new(|socket| caller_of(socket).filter(|caller| !caller.is_limited))
}
