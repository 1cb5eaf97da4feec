//! By what one process wakes another: a pair of datagram sockets. An eventfd would do, if the other end were trusted: whoever has it can
//! take its flags away and fill it, and then whoever rings waits for ever. To send without waiting needs no flags, and what is
//! no socket is just not rung.

use rustix::event::{EventfdFlags, eventfd};
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

/// The bell of a card: the end that is heard (and polled) by [`heard_by_card`], and the end that is rung by [`ring_card`]. A program could
/// send descriptors by a socket, and closing them takes as long as it likes: an eventfd brings none.
///
/// # Errors
/// There are no descriptors.
pub fn of_card() -> Result<(OwnedFd, OwnedFd), Errno> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let other = bell.try_clone().map_err(|_| Errno::MFILE)?;
    Ok((bell, other))
}

/// Rings a card.
pub fn ring_card(bell: impl AsFd) {
    let _ = write(bell, &1_u64.to_ne_bytes());
}

/// The card was rung. Whoever has the other end can take its flags away, and what it counts.
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
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::pipe::pipe;

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
        heard_by_card(&ear);
        ring_card(&hand);
        ring_card(&hand);
        assert!(is_readable(&ear));
        heard_by_card(&ear);
        assert!(!is_readable(&ear));
        // Whoever rings takes the flags away, and what was rung.
        fcntl_setfl(&hand, OFlags::empty()).unwrap();
        heard_by_card(&ear);
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
