//! What a server says to its clients (QEMU's `ivshmem-spec`, version 0): numbers of 64 bits, little-endian, some with a
//! descriptor. Clients say nothing.
//!
//! ```text
//! 0                          the version
//! id                         that of the client
//! -1   memory                the memory that all share
//! id   eventfd               one for each vector of that peer: of those who are there, then the client's own,
//!                            later of those who come
//! id                         that peer has gone
//! ```

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// The version of the protocol.
pub const VERSION: i64 = 0;
/// The number that the memory comes with.
pub const MEMORY: i64 = -1;
/// Bytes of a number.
const LEN: usize = 8;
/// As many descriptors as the system passes at once (`SCM_MAX_FD`).
const MOST_FDS: usize = 253;

/// A number, and what comes with it.
#[derive(Clone, Debug)]
pub struct Message {
    /// The version, an id, or [`MEMORY`].
    pub number: i64,
    /// The memory, or an eventfd.
    pub fd: Option<Arc<OwnedFd>>,
}

impl Message {
    /// A number alone.
    pub fn number(number: i64) -> Self {
        Self { number, fd: None }
    }

    /// A number with a descriptor.
    pub fn with(number: i64, fd: &Arc<OwnedFd>) -> Self {
        Self { number, fd: Some(Arc::clone(fd)) }
    }

    /// Sends it, without waiting.
    ///
    /// # Errors
    /// Those of `sendmsg`; `EAGAIN` when the other side does not read.
    pub fn send(&self, socket: impl AsFd) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = self.fd.iter().map(AsFd::as_fd).collect();
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::INVAL);
        }
        let bytes = self.number.to_le_bytes();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)? {
            LEN => Ok(()),
            // The rest would have to follow, and the system never cuts eight bytes.
            _ => Err(Errno::IO),
        }
    }
}

/// Takes numbers from a socket, in whatever pieces they come.
#[derive(Default)]
pub struct Reader {
    bytes: [u8; LEN],
    have: usize,
    fd: Option<OwnedFd>,
    /// A descriptor that came with it is lost.
    is_cut: bool,
}

impl Reader {
    /// The next number and the first descriptor that came with it, without waiting; `None`: it has not come as a whole.
    ///
    /// # Errors
    /// Those of `recvmsg`; `EPIPE` when the other side has hung up; `EMFILE` when there was no room for a descriptor: that number is lost, and the next
    /// one comes as it should.
    pub fn next(&mut self, socket: impl AsFd) -> Result<Option<(i64, Option<OwnedFd>)>, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [IoSliceMut::new(&mut self.bytes[self.have..])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let (count, is_cut) = match recvmsg(socket, &mut bytes, &mut ancillary, flags) {
            Ok(message) => (message.bytes, message.flags.contains(ReturnFlags::CTRUNC)),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                fds.for_each(|fd| {
                    self.fd.get_or_insert(fd);
                });
            }
        }
        if count == 0 {
            return Err(Errno::PIPE);
        }
        self.have += count;
        // A number alone says something else: it is not taken for that.
        self.is_cut |= is_cut;
        if self.have < LEN {
            return Ok(None);
        }
        self.have = 0;
        if core::mem::take(&mut self.is_cut) {
            self.fd = None;
            return Err(Errno::MFILE);
        }
        Ok(Some((i64::from_le_bytes(self.bytes), self.fd.take())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn numbers_come_as_they_went_in_whatever_pieces() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let event = Arc::new(eventfd(0, EventfdFlags::empty()).unwrap());
        let mut reader = Reader::default();
        assert!(matches!(reader.next(&other), Ok(None)));
        Message::number(7).send(&one).unwrap();
        Message::with(MEMORY, &event).send(&one).unwrap();
        assert!(matches!(reader.next(&other), Ok(Some((7, None)))));
        assert!(matches!(reader.next(&other), Ok(Some((-1, Some(_))))));
        one.write_all(&[1, 0, 0]).unwrap();
        assert!(matches!(reader.next(&other), Ok(None)));
        one.write_all(&[0, 0, 0, 0, 0x80]).unwrap();
        assert!(matches!(reader.next(&other), Ok(Some((number, None))) if number == i64::MIN + 1));
        drop(one);
        assert!(matches!(reader.next(&other), Err(Errno::PIPE)));
    }

    #[test]
    fn who_does_not_read_keeps_nobody() {
        let (one, _other) = UnixStream::pair().unwrap();
        let error = (0..100_000).find_map(|_| Message::number(1).send(&one).err());
        assert_eq!(error, Some(Errno::AGAIN));
    }
}
