//! Sending and receiving as programs know it: with waiting, time limits and all at once, over tries of a [`Stream`].

use crate::pieces::{Places, Sources};
use crate::poll::{self, Deadline};
use crate::stream::{Step, Stream};
use crate::sys;
use rustix::fs::OFlags;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::sockopt::Timeout;
use std::os::fd::RawFd;

/// What of the flags of a receive or send is ours to understand; what the kernel alone can do is left to it.
const ONLY_KERNEL: i32 = libc::MSG_OOB | libc::MSG_ERRQUEUE;

/// Whether a call may wait.
fn waits(fd: RawFd, flags: i32) -> bool {
    let is_open = || rustix::fs::fcntl_getfl(sys::borrow(fd)).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
    flags & libc::MSG_DONTWAIT == 0 && is_open()
}

/// As `recv`. `None`: the kernel is to do it.
pub(crate) fn receive(
    fd: RawFd,
    stream: &Stream,
    to: &mut [IoSliceMut<'_>],
    flags: i32,
) -> Option<Result<usize, Errno>> {
    stream.look(fd);
    if flags & ONLY_KERNEL != 0 {
        return unusual(fd, stream);
    }
    let outcome = receive_all(fd, stream, &mut Places::new(to), flags).transpose();
    stream.settle();
    outcome
}

fn receive_all(fd: RawFd, stream: &Stream, to: &mut Places<'_, '_>, flags: i32) -> Result<Option<usize>, Errno> {
    let (mut got, mut deadline) = (0, None);
    if to.room() == 0 {
        return Ok(stream.live().map(|_| 0));
    }
    loop {
        match stream.receive(fd, to, flags) {
            Ok(Step::Moved(count)) => {
                got += count;
                to.fill(count);
                let wants_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
                if !wants_all || to.room() == 0 {
                    return Ok(Some(got));
                }
            }
            Ok(Step::End) => return Ok(Some(got)),
            Ok(Step::Kernel) => return Ok((got > 0).then_some(got)),
            Ok(Step::Nothing) => {
                if !waits(fd, flags) {
                    return if got > 0 { Ok(Some(got)) } else { Err(Errno::AGAIN) };
                }
                match wait(fd, libc::POLLIN, &mut deadline, got == 0) {
                    Ok(()) => {}
                    Err(_) if got > 0 => return Ok(Some(got)),
                    Err(error) => return Err(error),
                }
            }
            Err(_) if got > 0 => return Ok(Some(got)),
            Err(error) => return Err(error),
        }
    }
}

/// As `send`. `None`: the kernel is to do it.
pub(crate) fn send(fd: RawFd, stream: &Stream, from: &[IoSlice<'_>], flags: i32) -> Option<Result<usize, Errno>> {
    stream.look(fd);
    if flags & (ONLY_KERNEL | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
        return unusual(fd, stream);
    }
    let outcome = send_all(fd, stream, &mut Sources::new(from), flags).transpose();
    stream.settle();
    outcome
}

fn send_all(fd: RawFd, stream: &Stream, from: &mut Sources<'_, '_>, flags: i32) -> Result<Option<usize>, Errno> {
    let (mut sent, mut deadline) = (0, None);
    if from.left() == 0 {
        return Ok(stream.live().map(|_| 0));
    }
    loop {
        // A part that was sent is no failure, and no reason for a signal.
        let quietly = if sent > 0 { libc::MSG_NOSIGNAL } else { 0 };
        match stream.send(fd, from, flags | quietly) {
            Ok(Step::Moved(count)) => {
                sent += count;
                from.pass(count);
                if from.left() == 0 {
                    return Ok(Some(sent));
                }
            }
            Ok(Step::Kernel | Step::End) if sent == 0 => return Ok(None),
            // The rest, as the kernel takes it.
            Ok(Step::Kernel | Step::End) => match stream.send_rest(fd, from, flags | quietly) {
                Ok(count) => {
                    sent += count;
                    from.pass(count);
                    if from.left() == 0 {
                        return Ok(Some(sent));
                    }
                }
                Err(Errno::AGAIN) if waits(fd, flags) && wait(fd, libc::POLLOUT, &mut deadline, false).is_ok() => {}
                Err(_) => return Ok(Some(sent)),
            },
            Ok(Step::Nothing) => {
                if !waits(fd, flags) {
                    return if sent > 0 { Ok(Some(sent)) } else { Err(Errno::AGAIN) };
                }
                match wait(fd, libc::POLLOUT, &mut deadline, sent == 0) {
                    Ok(()) => {}
                    Err(_) if sent > 0 => return Ok(Some(sent)),
                    Err(error) => return Err(error),
                }
            }
            Err(_) if sent > 0 => return Ok(Some(sent)),
            Err(error) => return Err(error),
        }
    }
}

/// Waits until it is worth to try again, or the socket's time limit is over. A signal ends that, unless its handler wants to go on and
/// nothing was moved (`may_go_on`).
fn wait(fd: RawFd, events: i16, deadline: &mut Option<Deadline>, may_go_on: bool) -> Result<(), Errno> {
    let which = if events & libc::POLLIN != 0 { Timeout::Recv } else { Timeout::Send };
    let limit = || rustix::net::sockopt::socket_timeout(sys::borrow(fd), which).ok().flatten();
    let deadline = deadline.get_or_insert_with(|| Deadline::new(limit()));
    let left = deadline.left();
    if may_go_on
        && left.is_none()
        && let Some(outcome) = poll::wait_alone(fd, events)
    {
        return outcome;
    }
    let mut entry = [libc::pollfd { fd, events, revents: 0 }];
    let count = poll::poll(&mut entry, left, 0).unwrap_or_else(|| sys::poll(&mut entry, left, 0))?;
    if count == 0 { Err(Errno::AGAIN) } else { Ok(()) }
}

/// What only the kernel can do: the connection is left to it. One that has met has nothing of the kind.
fn unusual(fd: RawFd, stream: &Stream) -> Option<Result<usize, Errno>> {
    if stream.leave(fd, crate::counters::Reason::Wanted) { None } else { Some(Err(Errno::INVAL)) }
}

/// As `sendfile`. `None`: the kernel is to do it.
pub(crate) fn send_file(
    fd: RawFd,
    stream: &Stream,
    file: RawFd,
    place: &mut u64,
    mut count: usize,
) -> Option<Result<usize, Errno>> {
    const PART: usize = 64 << 10;
    stream.look(fd);
    if stream.is_kernels() {
        return None;
    }
    let shared = stream.live();
    let may_wait = waits(fd, 0);
    let (mut buffer, mut sent) = (vec![0; PART.min(count)], 0);
    while count > 0 {
        let room = || shared.filter(|_| !may_wait).map_or(PART, |shared| shared.writer.room().unwrap_or(0));
        let mut room_now = room();
        if room_now == 0 && shared.is_some_and(|shared| !stream.is_full(shared)) {
            room_now = room();
        }
        if room_now == 0 {
            break;
        }
        let part = count.min(room_now).min(PART);
        let read = match sys::read_file(file, &mut buffer[..part], Some(*place)) {
            Ok(0) => return Some(Ok(sent)),
            Ok(read) => read,
            Err(error) => return Some(if sent > 0 { Ok(sent) } else { Err(error) }),
        };
        match send(fd, stream, &[IoSlice::new(&buffer[..read])], 0)? {
            Ok(done) => {
                (sent, count, *place) = (sent + done, count - done, *place + done as u64);
                if done < read {
                    return Some(Ok(sent));
                }
            }
            Err(_) if sent > 0 => return Some(Ok(sent)),
            Err(error) => return Some(Err(error)),
        }
    }
    Some(if sent > 0 || count == 0 { Ok(sent) } else { Err(Errno::AGAIN) })
}
