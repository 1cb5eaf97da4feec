//! Who calls.

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::process::geteuid;

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

/// Nobody but root, and the user who runs this: whoever that is when somebody calls.
pub fn owner_only() -> May {
    Box::new(|socket| caller_of(socket).filter(|caller| !caller.is_limited))
}
