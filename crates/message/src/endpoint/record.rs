//! What two endpoints say to each other by their socket: a record each when they meet (`docs/spec/message.md` §9), and from then on records of
//! a byte, which wake who sleeps, and files in which messages are.

use super::error::Refusal;
use super::name::{LONGEST, is_name};
use crate::engine::Terms;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, send, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

const MAGIC: &[u8; 8] = b"mrmess03";
const LEN: usize = 96;
const NAME: usize = 18;

/// What is said when two meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// Who calls: its terms, and its name if it has one.
    Hello(Terms, String),
    /// Who answers, with the memory that both will have.
    Welcome(Terms),
    /// It is not wanted.
    Refused(Refusal),
}

impl Greeting {
    fn write(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(MAGIC);
        let (kind, terms, refusal) = match self {
            Self::Hello(terms, _) => (1, Some(terms), 0),
            Self::Welcome(terms) => (2, Some(terms), 0),
            Self::Refused(Refusal::User) => (3, None, 1),
            Self::Refused(Refusal::Full) => (3, None, 2),
            Self::Refused(Refusal::Version) => (3, None, 3),
        };
        (bytes[8], bytes[16]) = (kind, refusal);
        if let Some(terms) = terms {
            bytes[9] = terms.slots;
            bytes[10..12].copy_from_slice(&terms.credits.to_le_bytes());
            bytes[12..16].copy_from_slice(&terms.mtu.to_le_bytes());
        }
        if let Self::Hello(_, name) = self {
            bytes[17] = name.len() as u8;
            bytes[NAME..NAME + name.len()].copy_from_slice(name.as_bytes());
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok().filter(|bytes: &&[u8; LEN]| bytes.starts_with(MAGIC))?;
        let terms = Terms {
            slots: bytes[9],
            credits: u16::from_le_bytes([bytes[10], bytes[11]]),
            mtu: u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
        };
        Some(match (bytes[8], bytes[16]) {
            (1 | 2, _) if !terms.is_possible() => return None,
            (1, 0) => {
                let len = usize::from(bytes[17]);
                let name = bytes[NAME..NAME + LONGEST].get(..len)?;
                let name = str::from_utf8(name).ok().filter(|name| name.is_empty() || is_name(name))?;
                Self::Hello(terms, name.to_owned())
            }
            (2, 0) => Self::Welcome(terms),
            (3, 1) => Self::Refused(Refusal::User),
            (3, 2) => Self::Refused(Refusal::Full),
            // Others may be those of a later version.
            (3, _) => Self::Refused(Refusal::Version),
            _ => return None,
        })
    }

    /// Sends it, with memory. Never waits: nothing was sent by this socket before.
    pub fn send(&self, socket: impl AsFd, memory: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        send_with(socket, &self.write(), memory)
    }

    /// Takes what has come; `Ok(None)`: nothing has. `EPIPE`: the other end has hung up, `EBADMSG`: it is none. Descriptors that came along are
    /// given to `fds`: closing them is the caller's matter.
    pub fn receive(socket: impl AsFd, fds: &mut Vec<OwnedFd>) -> Result<Option<Self>, Errno> {
        let mut bytes = [0; LEN + 1];
        match take(socket, &mut bytes, fds)? {
            None => Ok(None),
            Some(0) => Err(Errno::PIPE),
            Some(len) => Self::read(&bytes[..len]).map(Some).ok_or(Errno::BADMSG),
        }
    }
}

/// Sends a record, with a descriptor or none, without waiting.
pub(crate) fn send_with(socket: impl AsFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let fds = fd.as_slice();
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
}

/// Gives a file in which messages are, by a number from 1 on. Whether it was given.
#[must_use]
pub fn give(socket: impl AsFd, number: u8, file: BorrowedFd<'_>) -> bool {
    send_with(socket, &[number], Some(file)).is_ok()
}

/// As many descriptors as the system passes. If there were room for fewer, it would close the rest, and take as long as their maker likes.
const MOST_FDS: usize = 253;

/// Takes a record, without waiting. `None`: there is none.
pub(crate) fn take(socket: impl AsFd, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<Option<usize>, Errno> {
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut receive = || recvmsg(&socket, &mut [IoSliceMut::new(&mut *bytes)], &mut ancillary, flags);
    let received = match receive() {
        // Said once, when the other end was closed before it had read all; what it has said itself comes after.
        Err(Errno::CONNRESET) => receive(),
        other => other,
    };
    let received = match received {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        other => other?,
    };
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(Some(received.bytes))
}

/// Wakes who is at the other end. Never waits: where there is no room, it was woken. False: the system has no memory just now, and it has to be
/// tried again.
#[must_use]
pub fn ring(socket: impl AsFd) -> bool {
    match send(socket, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Err(error) => !matches!(error, Errno::INTR | Errno::NOMEM | Errno::NOBUFS),
        Ok(_) => true,
    }
}

/// What comes by a socket after the greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing more.
    Nothing,
    /// This end was woken.
    Ring,
    /// A file was given, by that number.
    File(u8),
    /// The other end has hung up.
    End,
    /// It has said what is not said here.
    Nonsense,
}

/// The next thing that has come. Descriptors are given to `fds`, which was empty: with a file it is one.
pub fn hear(socket: impl AsFd, fds: &mut Vec<OwnedFd>) -> Heard {
    let mut bytes = [0; 2];
    match take(socket, &mut bytes, fds) {
        Ok(None) => Heard::Nothing,
        Ok(Some(1)) if fds.is_empty() && bytes[0] == 0 => Heard::Ring,
        Ok(Some(1)) if fds.len() == 1 && bytes[0] != 0 => Heard::File(bytes[0]),
        Ok(Some(0)) | Err(_) if fds.is_empty() => Heard::End,
        _ => Heard::Nonsense,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Limits;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_greeting_is_that_of_the_specification() {
        // docs/spec/message.md §9
        let terms = Terms { mtu: 0x1_0203, slots: 4, credits: 0x506 };
        let mut bytes = [0; LEN];
        bytes[..22].copy_from_slice(b"mrmess03\x01\x04\x06\x05\x03\x02\x01\x00\x00\x04name");
        assert_eq!(Greeting::Hello(terms, "name".to_owned()).write(), bytes);
        bytes[17..22].fill(0);
        bytes[8] = 2;
        assert_eq!(Greeting::Welcome(terms).write(), bytes);
        bytes[9..16].fill(0);
        (bytes[8], bytes[16]) = (3, 2);
        assert_eq!(Greeting::Refused(Refusal::Full).write(), bytes);
    }

    #[test]
    fn greetings_come_as_they_went() {
        let (one, other) = pair();
        let limits = Limits::default();
        let terms = Terms { mtu: limits.mtu, slots: limits.slots, credits: limits.credits };
        let refused = [Refusal::User, Refusal::Full, Refusal::Version].map(Greeting::Refused);
        let hellos = ["", "x", &"y".repeat(LONGEST)].map(|name| Greeting::Hello(terms, name.to_owned()));
        for greeting in hellos.into_iter().chain([Greeting::Welcome(terms)]).chain(refused) {
            greeting.send(&one, Some(one.as_fd())).unwrap();
            let mut fds = Vec::new();
            let came = Greeting::receive(&other, &mut fds).unwrap().unwrap();
            assert!(came == greeting && fds.len() == 1);
        }
        let mut fds = Vec::new();
        assert!(Greeting::receive(&other, &mut fds).unwrap().is_none());
        let impossible = Terms { mtu: 1, ..terms };
        let wrong = [Greeting::Welcome(impossible), Greeting::Hello(terms, "no name".to_owned())].map(|it| it.write());
        for nonsense in [&b"mrmess03"[..], &[0; LEN], &[1; 2 * LEN], &wrong[0], &wrong[1]] {
            send(&one, nonsense, SendFlags::empty()).unwrap();
            assert_eq!(Greeting::receive(&other, &mut fds).unwrap_err(), Errno::BADMSG);
        }
        drop(one);
        assert_eq!(Greeting::receive(&other, &mut fds).unwrap_err(), Errno::PIPE);
    }

    #[test]
    fn a_ring_is_a_byte_and_a_file_a_number() {
        let ((one, other), mut fds) = (pair(), Vec::new());
        // It does not wait when nobody listens.
        assert!((0..100_000).all(|_| ring(&one)));
        assert_eq!(hear(&other, &mut fds), Heard::Ring);
        while hear(&other, &mut fds) == Heard::Ring {}
        assert_eq!(hear(&other, &mut fds), Heard::Nothing);
        let greeting = Greeting::Refused(Refusal::Full);
        greeting.send(&one, None).unwrap();
        assert_eq!(hear(&other, &mut fds), Heard::Nonsense);
        let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
        let (mut ancillary, sent) = (SendAncillaryBuffer::new(&mut space), [one.as_fd()]);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&sent)));
        sendmsg(&one, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::empty()).unwrap();
        assert_eq!(hear(&other, &mut fds), Heard::Nonsense, "a descriptor came along");
        fds.clear();
        assert!(give(&one, 3, one.as_fd()));
        assert_eq!((hear(&other, &mut fds), fds.len()), (Heard::File(3), 1));
        fds.clear();
        send(&one, &[3], SendFlags::empty()).unwrap();
        assert_eq!(hear(&other, &mut fds), Heard::Nonsense, "no file came along");
        drop(one);
        assert_eq!(hear(&other, &mut fds), Heard::End);
        // What was said before somebody hung up who had not read all.
        let (one, other) = pair();
        assert!(ring(&other) && ring(&one));
        drop(one);
        assert_eq!([hear(&other, &mut fds), hear(&other, &mut fds)], [Heard::Ring, Heard::End]);
    }
}
