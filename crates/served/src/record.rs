//! One record of a socket: words, and descriptors.

use crate::wire::{MOST_PARTS, MOST_WORDS, Words};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Resource, getrlimit};
use std::io::{IoSlice, IoSliceMut};

/// Descriptors of a record that is sent.
const MOST_FDS: usize = MOST_PARTS;
/// As many as the system passes (`SCM_MAX_FD`). If there were room for fewer, it would close the rest, and take as long as their maker likes.
const MOST_RECEIVED: usize = 253;

/// Whether there are descriptors for all that a record may bring: the system closes those for which there are none, at once. Numbers are given
/// from the lowest on, so that it is enough to look at the highest; some of these may be taken all the same. `any` is asked with.
pub fn has_room(any: impl AsFd) -> bool {
    let limit = getrlimit(Resource::Nofile).current.map_or(i32::MAX, |limit| i32::try_from(limit).unwrap_or(i32::MAX));
    let most = MOST_RECEIVED as i32 + 1;
    let first = limit.saturating_sub(2 * most).max(0);
    fcntl_dupfd_cloexec(any, first).is_ok_and(|found| limit - found.as_raw_fd() > most)
}

/// Sends a record without waiting.
///
/// # Errors
/// Those of `sendmsg`; `EAGAIN` when the other side does not read.
pub fn send(socket: impl AsFd, words: &Words, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    send_bytes(socket, &words.bytes(), fds)
}

/// The same with any bytes.
///
/// # Errors
/// The same.
pub fn send_bytes(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [const { core::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Takes a record that has come, without waiting; `None`: nothing has.
///
/// # Errors
/// Those of `recvmsg`; `EPIPE` when the other side has hung up; `EBADMSG` when it is too long, or no whole words.
pub fn receive(socket: impl AsFd) -> Result<Option<(Words, Vec<OwnedFd>)>, Errno> {
    let Some((words, fds)) = receive_any(socket)? else { return Ok(None) };
    words.map(|words| Some((words, fds)))
}

/// Takes what has come, without waiting; `None`: nothing has. The words, or why there are none, and the descriptors that came along in
/// any case: closing them is the caller's matter.
///
/// # Errors
/// Those of `recvmsg`: nothing was taken.
#[expect(clippy::type_complexity, reason = "two things, of which one may be missing")]
pub fn receive_any(socket: impl AsFd) -> Result<Option<(Result<Words, Errno>, Vec<OwnedFd>)>, Errno> {
    let mut bytes = [0; MOST_WORDS * 8 + 1];
    let mut space = [const { core::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(MOST_RECEIVED))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
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
    let words = match received.bytes {
        0 => Err(Errno::PIPE),
        len => bytes.get(..len).and_then(Words::from_bytes).ok_or(Errno::BADMSG),
    };
    Ok(Some((words, fds)))
}
