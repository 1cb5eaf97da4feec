//! By what one process wakes another: a pair of datagram sockets. An eventfd would do, if the other end were trusted: whoever has it can
//! take its flags away and fill it, and then whoever rings waits for ever. To send without waiting needs no flags, and what is
//! no socket is just not rung.

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, ReadWriteFlags, preadv2, write};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::io::IoSliceMut;

/// More than wait in a socket, by the room that it has.
const MOST: usize = 1024;

/// A bell: the end that is heard (and polled), and the end that is rung.
///
/// # Errors
/// There are no descriptors.
pub fn bell() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// The bell of a card: the end that is polled and heard ([`heard_at_card`]), and the end that is rung by [`ring_card`]. A program could
/// send descriptors by a socket, and closing them takes as long as it likes: an eventfd brings none. The card never reads it, since Linux would tell
/// all who watch it, a million perhaps: it has an epoll that watches for each ring anew.
///
/// # Errors
/// There are no descriptors.
pub fn of_card() -> Result<(OwnedFd, OwnedFd), Errno> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let ear = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&ear, &bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
    // It is watched as long as somebody has it.
    Ok((ear, bell))
}

/// The card was rung: nothing is readable at its end until it is rung again.
pub fn heard_at_card(ear: impl AsFd) {
    let mut one = [const { core::mem::MaybeUninit::uninit() }; 1];
    let _ = epoll::wait(ear, &mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
}

/// Rings a card.
pub fn ring_card(bell: impl AsFd) {
    let _ = write(bell, &1_u64.to_ne_bytes());
}

/// An eventfd that another process may have was rung: it can take its flags away, and what it counts.
pub fn heard_by_card(bell: impl AsFd) {
    // At no place of a file.
    let _ = preadv2(bell, &mut [IoSliceMut::new(&mut [0; 8])], u64::MAX, ReadWriteFlags::NOWAIT);
}

/// Rings. Never waits: where it is full, it has been rung.
pub fn ring(bell: impl AsFd) {
    let _ = send(bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Was heard: nothing is readable until it is rung again.
pub fn heard(bell: impl AsFd) {
    for _ in 0..MOST {
        if recv(&bell, &mut [0_u8; 8], RecvFlags::DONTWAIT).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_listeners::Listeners;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::pipe::pipe;
    use rustix::time::{ClockId, clock_gettime};
    use std::time::Duration;

    fn is_readable(fd: &OwnedFd) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)), Ok(1))
    }

    #[test]
    fn it_is_heard_once_however_often_it_is_rung() {
        let (ear, hand) = bell().unwrap();
        assert!(!is_readable(&ear));
        // Without its flags too: nobody waits.
        fcntl_setfl(&hand, OFlags::empty()).unwrap();
        fcntl_setfl(&ear, OFlags::empty()).unwrap();
        (0..1000).for_each(|_| ring(&hand));
        assert!(is_readable(&ear));
        heard(&ear);
        assert!(!is_readable(&ear));
        heard(&ear);
        drop(hand);
        assert!(!is_readable(&ear), "its end is no ringing");
    }

    #[test]
    fn nobody_makes_a_card_wait() {
        let (ear, hand) = of_card().unwrap();
        assert!(!is_readable(&ear));
        heard_at_card(&ear);
        for _ in 0..3 {
            ring_card(&hand);
            ring_card(&hand);
            assert!(is_readable(&ear));
            heard_at_card(&ear);
            assert!(!is_readable(&ear));
            // Whoever rings takes the flags away, and what was rung.
            fcntl_setfl(&hand, OFlags::empty()).unwrap();
            let _ = rustix::io::read(&hand, &mut [0; 8]);
        }
        // Rung, and read by whoever has rung.
        ring_card(&hand);
        rustix::io::read(&hand, &mut [0; 8]).unwrap();
        heard_at_card(&ear);
        drop(hand);
        assert!(!is_readable(&ear), "its end is no ringing");
        heard_at_card(&ear);
    }

    #[test]
    fn hearing_tells_nobody_who_watches_too() {
        let (ear, hand) = of_card().unwrap();
        let Some(_listeners) = Listeners::of(&hand) else { return };
        let worked = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        // Linux counts some of what it frees as work of whoever runs: the best of some says it.
        let hear = || {
            ring_card(&hand);
            assert!(is_readable(&ear));
            let began = worked();
            heard_at_card(&ear);
            worked() - began
        };
        let heard = (0..5).map(|_| hear()).min().unwrap();
        // To read it would tell 40,000.
        assert!(heard < Duration::from_millis(1), "{heard:?}");
    }

    #[test]
    fn what_is_no_bell_keeps_nobody() {
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        ring(&full);
        ring(&writer);
    }
}
