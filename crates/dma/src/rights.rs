//! Which sockets take descriptors (`SCM_RIGHTS`), by which memory is shared. What lies in a socket is closed with it, and that takes as long as whoever has sent it
//! likes (a TCP socket that lingers): a socket should take none before it is known who is at the other end. May use `unsafe`.
//!
//! Linux can say so since 6.16. A listening socket hands it down to those that are accepted from it, before they are accepted, so that nothing can lie in
//! them. With an older system all sockets take descriptors, as they always did.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// `SO_PASSRIGHTS` of Linux 6.16 (`asm-generic/socket.h`), which `libc` does not know yet.
const SO_PASSRIGHTS: libc::c_int = 83;
/// How often it is tried again.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Who sends descriptors to this socket from now on gets `EPERM`; so does who sends them to what connects to it, if it listens.
///
/// # Errors
/// `ENOPROTOOPT`: the system is older than Linux 6.16, and the socket takes them.
pub fn refuse_descriptors(socket: impl AsFd) -> Result<(), Errno> {
    set(socket, 0)
}

/// This socket takes descriptors from now on.
///
/// # Errors
/// `ENOPROTOOPT`: the system is older than Linux 6.16, and it always does.
pub fn take_descriptors(socket: impl AsFd) -> Result<(), Errno> {
    set(socket, 1)
}

fn set(socket: impl AsFd, value: libc::c_int) -> Result<(), Errno> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the system reads one `int` here, during the call.
    let done = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const value).cast(), len)
    };
    if done == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)) }
}

/// Sends descriptors by a socket whose other end takes none before it has looked who calls: tries until it does, or says something, or hangs up.
///
/// # Errors
/// Those of `send`; `EPERM`: it takes none.
pub fn send_when_taken(
    socket: impl AsFd,
    patience: Duration,
    mut send: impl FnMut() -> Result<(), Errno>,
) -> Result<(), Errno> {
    let begin = Instant::now();
    loop {
        match send() {
            Err(Errno::PERM) if begin.elapsed() < patience => {}
            other => return other,
        }
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&AGAIN)) {
            // What it says is why.
            Ok(1..) => return send(),
            Ok(0) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::OwnedFd;
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
        accept, bind, connect, listen, sendmsg, socket_with,
    };
    use std::io::IoSlice;
    use std::mem::MaybeUninit;

    fn give(socket: &OwnedFd) -> Result<(), Errno> {
        let fds = [socket.as_fd()];
        let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(socket, &[IoSlice::new(&[1])], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
    }

    #[test]
    fn a_socket_takes_descriptors_when_it_is_known_who_calls() {
        let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let listener = socket();
        let address =
            SocketAddrUnix::new_abstract_name(format!("millrace-dma-rights-{}", std::process::id()).as_bytes())
                .unwrap();
        bind(&listener, &address).unwrap();
        listen(&listener, 4).unwrap();
        match refuse_descriptors(&listener) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, Errno::NOPROTOOPT);
                return;
            }
        }
        let caller = socket();
        connect(&caller, &address).unwrap();
        // Not before it is accepted, and not after.
        assert_eq!(give(&caller), Err(Errno::PERM));
        let accepted = accept(&listener).unwrap();
        assert_eq!(give(&caller), Err(Errno::PERM));
        assert_eq!(send_when_taken(&caller, Duration::from_millis(3), || give(&caller)), Err(Errno::PERM));
        // The way back is the caller's matter.
        assert_eq!(give(&accepted), Ok(()));
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            take_descriptors(&accepted).unwrap();
            accepted
        });
        assert_eq!(give(&later.join().unwrap()), Ok(()));
        assert_eq!(send_when_taken(&caller, Duration::from_secs(20), || give(&caller)), Ok(()));
    }
}
