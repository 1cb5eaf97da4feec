//! Descriptors whose closing takes long: a TCP connection with data that nobody reads lingers when it is closed for the
//! last time. In a message that the card throws away, it is the card that closes it.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use millrace_abi::message::Request;
use millrace_tool::failure::Failure;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};

use super::attack::{Attack, cannot};
use super::peer::Peer;

/// How long each would hold whoever closes it.
const LINGER: Duration = Duration::from_secs(600);
/// Requests before it in the same connection.
const AHEAD: u32 = 4;
/// Between two of them.
const REST: Duration = Duration::from_millis(100);

/// Such descriptors, one after the other.
pub struct Linger {
    path: PathBuf,
    listener: TcpListener,
    // The other ends, which never read.
    deaf: Vec<TcpStream>,
}

impl Linger {
    /// Listens for the other ends.
    pub fn new(path: &Path) -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| cannot("listen", error))?;
        Ok(Self { path: path.to_owned(), listener, deaf: Vec::new() })
    }

    /// A socket in whose queue lies the last descriptor of a connection that lingers.
    fn trap(&mut self) -> std::io::Result<OwnedFd> {
        let stream = TcpStream::connect(self.listener.local_addr()?)?;
        self.deaf.push(self.listener.accept()?.0);
        sockopt::set_socket_linger(&stream, Some(LINGER))?;
        stream.set_nonblocking(true)?;
        while rustix::net::send(&stream, &[0; 1 << 16], SendFlags::NOSIGNAL).is_ok() {}
        let (near, far) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        pass(&near, stream.as_fd())?;
        // What was the near end is closed here, the descriptor stays in the queue of the far one.
        Ok(far)
    }
}

fn pass(socket: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let fds = [fd];
    let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::INVAL);
    }
    rustix::net::sendmsg(socket, &[std::io::IoSlice::new(b"x")], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

impl Attack for Linger {
    fn step(&mut self) -> Result<u64, Failure> {
        let trap = self.trap().map_err(|error| cannot("make a socket that lingers", error))?;
        let path = self.path.clone();
        // Whoever closes it last is the one who waits. Should that be us, it is not the thread that makes the next.
        thread::spawn(move || send_trap(&path, trap));
        thread::sleep(REST);
        Ok(1)
    }
}

/// Sends the trap behind other requests, so that it is likely closed here before the card comes to it.
fn send_trap(path: &Path, trap: OwnedFd) -> Result<(), Errno> {
    let peer = Peer::introduced(path)?;
    for _ in 0..AHEAD {
        peer.send(&Request::DeviceTree, &[])?;
    }
    peer.send(&Request::Stats, &[trap.as_fd()])?;
    drop(trap);
    Ok(())
}
