//! A connection that is spoken to past the client: nothing is waited for, nothing has to be right.

use std::io::IoSlice;
use std::path::Path;

use millrace_abi::message::{MAX_MESSAGE, Request, VERSION, encode};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};

/// A connection that does not wait.
pub struct Peer {
    socket: OwnedFd,
}

impl Peer {
    /// Connects, without introducing itself.
    pub fn connect(path: &Path) -> Result<Self, Errno> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &address)?;
        Ok(Self { socket })
    }

    /// Connects and says hello.
    pub fn introduced(path: &Path) -> Result<Self, Errno> {
        let peer = Self::connect(path)?;
        peer.send(&Request::Hello { version: VERSION }, &[])?;
        Ok(peer)
    }

    /// Sends a request; `Errno::AGAIN` when the card is not to be told more now.
    pub fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let bytes = encode(request).map_err(|_| Errno::MSGSIZE)?;
        let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL);
        }
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
    }

    /// Takes the replies that have come, and says how many.
    pub fn drain(&self) -> Result<u64, Errno> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut count = 0;
        loop {
            match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty()) {
                Ok((1.., _)) => count += 1,
                Ok(_) => return Err(Errno::CONNRESET),
                Err(Errno::AGAIN) => return Ok(count),
                Err(errno) => return Err(errno),
            }
        }
    }
}
