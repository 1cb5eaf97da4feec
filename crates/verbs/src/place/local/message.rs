//! What two processes say to each other by their socket: one record, with descriptors.

use super::LocalError;
use crate::address::Address;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr};

const MAGIC: &[u8; 8] = b"mrverb02";
const LEN: usize = 56;
/// Descriptors of a greeting: directory, channel, bell. More than that are closed by the system.
const MOST_FDS: usize = 3;

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Who calls. With directory, channel and bell.
    Hello(Address),
    /// Who answers. With directory and bell.
    Welcome(Address),
    /// Which file of the other process is wanted.
    Want(u32),
    /// That part of a file, with its offset and length; without descriptor there is none.
    File(u32, u64, u64),
    /// What this process is doing is wanted: the answer is one record of JSON.
    Tell,
    /// Copies of packets are wanted from now on (`tap`).
    Capture,
}

impl Message {
    fn write(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(MAGIC);
        let (kind, address, file, offset, len) = match *self {
            Self::Hello(address) => (1, Some(address), 0, 0, 0),
            Self::Welcome(address) => (2, Some(address), 0, 0, 0),
            Self::Want(file) => (3, None, file, 0, 0),
            Self::File(file, offset, len) => (4, None, file, offset, len),
            Self::Tell => (5, None, 0, 0, 0),
            Self::Capture => (6, None, 0, 0, 0),
        };
        bytes[8] = kind;
        if let Some(Address { mac, ip }) = address {
            let ip = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[10..16].copy_from_slice(&mac);
            bytes[16..32].copy_from_slice(&ip.octets());
        }
        bytes[32..36].copy_from_slice(&file.to_le_bytes());
        bytes[40..48].copy_from_slice(&offset.to_le_bytes());
        bytes[48..56].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8; LEN]) -> Option<Self> {
        let [m0, m1, m2, m3, m4, m5, m6, m7, kind, _, rest @ ..] = bytes;
        if [*m0, *m1, *m2, *m3, *m4, *m5, *m6, *m7] != *MAGIC {
            return None;
        }
        let mac = core::array::from_fn(|at| rest[at]);
        let ip: [u8; 16] = core::array::from_fn(|at| rest[6 + at]);
        let file = u32::from_le_bytes(core::array::from_fn(|at| rest[22 + at]));
        let long = |from: usize| u64::from_le_bytes(core::array::from_fn(|at| rest[from + at]));
        let (offset, len) = (long(30), long(38));
        let address = Address { mac, ip: Ipv6Addr::from(ip).to_canonical() };
        Some(match kind {
            1 => Self::Hello(address),
            2 => Self::Welcome(address),
            3 => Self::Want(file),
            4 => Self::File(file, offset, len),
            5 => Self::Tell,
            6 => Self::Capture,
            _ => return None,
        })
    }

    /// Sends it. Never waits: who does not read has no session.
    pub fn send(&self, socket: impl AsFd, fds: &[BorrowedFd<'_>]) -> Result<(), LocalError> {
        let bytes = self.write();
        let mut space = [const { core::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(LocalError::Greeting);
        }
        loop {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
                Err(Errno::INTR) => continue,
                other => return Ok(other.map(drop)?),
            }
        }
    }

    /// Takes what has come. `Ok(None)`: nothing.
    pub fn receive(socket: impl AsFd) -> Result<Option<(Self, Vec<OwnedFd>)>, LocalError> {
        let mut bytes = [0; LEN];
        let mut space = [const { core::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(None),
                other => break other?,
            }
        };
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let message = Some(&bytes).filter(|_| received.bytes == LEN).and_then(Self::read);
        message.map(|message| Some((message, fds))).ok_or(LocalError::Greeting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, send, socketpair};

    #[test]
    fn messages_come_as_they_went() {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let four = Address { mac: [2, 1, 2, 3, 4, 5], ip: "198.18.0.1".parse().unwrap() };
        let six = Address { ip: "2001:db8::1".parse().unwrap(), ..four };
        let file = Message::File(7, 1 << 40, u64::MAX);
        let asked = [Message::Want(u32::MAX), file, Message::Tell, Message::Capture];
        for message in [Message::Hello(four), Message::Welcome(six)].into_iter().chain(asked) {
            message.send(&one, &[one.as_fd(), other.as_fd()]).unwrap();
            let (came, fds) = Message::receive(&other).unwrap().unwrap();
            assert_eq!((came, fds.len()), (message, 2));
        }
        assert!(Message::receive(&other).unwrap().is_none());
        for nonsense in [&b"mrverb02"[..], &[0; LEN], &[1; 2 * LEN], b""] {
            send(&one, nonsense, SendFlags::empty()).unwrap();
            assert!(Message::receive(&other).is_err(), "{nonsense:?}");
        }
    }
}
