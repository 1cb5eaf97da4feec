//! Messages and descriptors over a `SOCK_SEQPACKET` socket.

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
    #[error("a message or its descriptors were cut off: at most {MAX_MESSAGE} bytes and {MAX_FDS} descriptors")]
    CutOff,
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

/// Sends one message with its descriptors.
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

/// Receives one message with its descriptors.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> Result<(T, Vec<OwnedFd>), WireError> {
    let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
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
    if received.bytes == 0 {
        return Err(WireError::Closed);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(WireError::CutOff);
    }
    let bytes = buffer.get(..received.bytes).ok_or(WireError::CutOff)?;
    Ok((decode(bytes)?, fds))
}

/// A buffer that holds the largest message.
pub(crate) fn buffer() -> Box<[u8]> {
    vec![0; MAX_MESSAGE].into_boxed_slice()
}
