//! Messages and fds over a `SOCK_SEQPACKET` socket.

use millrace_abi::message::{CodecError, MAX_FDS, MAX_MESSAGE, decode, encode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{IoSlice, IoSliceMut};

/// Why a message was not sent or received.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other side is gone.
    #[error("the connection is closed")]
    Closed,
    /// Nothing there, or no room, on a socket that does not wait.
    #[error("the socket is not ready")]
    NotReady,
    /// The system refused.
    #[error("the socket failed: {0}")]
    System(Errno),
    /// What came is no message, or what should go is too large.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// More came than a message may have.
    #[error("a message or its fds were cut off: at most {MAX_MESSAGE} bytes and {MAX_FDS} fds")]
    CutOff,
    /// Descriptors came for which this process has no place left.
    #[error("{}", no_place())]
    NoPlace,
}

/// What a program is told that has no place for more descriptors.
pub(crate) fn no_place() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
    format!(
        "this program has no place left for the files that the card sends (RLIMIT_NOFILE: {limit}); raise it, such as with \
         `ulimit -n 4096` before the program is started, or open fewer queues"
    )
}

impl From<Errno> for WireError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => WireError::Closed,
            Errno::AGAIN => WireError::NotReady,
            errno => WireError::System(errno),
        }
    }
}

/// Sends one message with its fds.
pub(crate) fn send<T: Serialize>(socket: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), WireError> {
    let bytes = encode(message)?;
    let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(WireError::CutOff);
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Most fds that the system lets travel with one packet (`SCM_MAX_FD`). There is room for all of them: what is left
/// over would be closed by the system then and there, and closing can take long.
pub(crate) const MOST_FDS: usize = 253;

/// What came at once: a message or not, and its fds, which are the receiver's to close in any case.
pub(crate) struct Packet {
    len: usize,
    flags: ReturnFlags,
    pub fds: Vec<OwnedFd>,
}

impl Packet {
    /// The message, whose bytes are in `buffer`.
    pub fn message<T: DeserializeOwned>(&self, buffer: &[u8]) -> Result<T, WireError> {
        if self.flags.contains(ReturnFlags::TRUNC) || self.fds.len() > MAX_FDS {
            return Err(WireError::CutOff);
        }
        Ok(decode(buffer.get(..self.len).ok_or(WireError::CutOff)?)?)
    }

    /// Whether fds came for which there was no place in this process.
    pub fn fds_were_lost(&self) -> bool {
        self.flags.contains(ReturnFlags::CTRUNC)
    }
}

/// Receives one packet.
pub(crate) fn receive_packet(socket: impl AsFd, buffer: &mut [u8], flags: RecvFlags) -> Result<Packet, WireError> {
    let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.bytes == 0 && fds.is_empty() {
        return Err(WireError::Closed);
    }
    Ok(Packet { len: received.bytes, flags: received.flags, fds })
}

/// Receives one message with its fds, from somebody who is trusted with them.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> Result<(T, Vec<OwnedFd>), WireError> {
    let packet = receive_packet(socket, buffer, flags)?;
    if packet.fds_were_lost() {
        return Err(WireError::NoPlace);
    }
    Ok((packet.message(buffer)?, packet.fds))
}

/// A buffer that holds the largest message.
pub(crate) fn buffer() -> Box<[u8]> {
    vec![0; MAX_MESSAGE].into_boxed_slice()
}
