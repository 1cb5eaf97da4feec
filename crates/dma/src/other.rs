//! Memory of another process of the same user, moved by system calls (`process_vm_readv`, `process_vm_writev`). May use
//! `unsafe`.

use crate::{Place, Vanished};
use core::ffi::c_void;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::sync::Arc;

/// Another process, as long as it is the one that it was: a number that was given to a new process, or a process that runs
/// another program by now, is never touched.
pub struct OtherProcess {
    pid: Pid,
    pidfd: OwnedFd,
    /// A socket whose other end that process has, closed by its end and by `execve`. Its children must not keep that.
    link: Arc<dyn AsFd + Send + Sync>,
}

impl OtherProcess {
    /// The process that holds the other end of `link`, by its number. `None` when it is not there.
    pub fn new(pid: Pid, link: Arc<dyn AsFd + Send + Sync>) -> Option<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Looked at once more: if the link still holds, the number was its own when it was opened.
        Some(Self { pid, pidfd, link }).filter(Self::is_there)
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        !matches!(poll(&mut fds, Some(&now)), Ok(0))
    }

    /// Readable when it has ended.
    pub fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Whether it lives and still has its end of the link.
    pub fn is_there(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds =
            [PollFd::new(&self.pidfd, PollFlags::IN), PollFd::from_borrowed_fd((*self.link).as_fd(), PollFlags::RDHUP)];
        matches!(poll(&mut fds, Some(&now)), Ok(0))
    }

    /// Writes bytes of `from` to its address `to`, the last byte last.
    ///
    /// # Errors
    /// [`Vanished`]: one of the two is not there, or the system does not allow it.
    pub fn write(&self, from: &Place, offset: usize, to: u64, len: usize) -> Result<(), Vanished> {
        self.moved(from.at(offset, len, false)?, to, len, true)
    }

    /// The same with bytes of this program.
    ///
    /// # Errors
    /// As [`OtherProcess::write`].
    pub fn write_bytes(&self, from: &[u8], to: u64) -> Result<(), Vanished> {
        self.moved(from.as_ptr().expose_provenance(), to, from.len(), true)
    }

    /// Reads from its address `from` to bytes of `to`.
    ///
    /// # Errors
    /// As [`OtherProcess::write`].
    pub fn read(&self, from: u64, to: &Place, offset: usize, len: usize) -> Result<(), Vanished> {
        self.moved(to.at(offset, len, true)?, from, len, false)
    }

    /// The same to bytes of this program.
    ///
    /// # Errors
    /// As [`OtherProcess::write`]. Some of the bytes may have been written.
    pub fn read_bytes(&self, from: u64, to: &mut [u8]) -> Result<(), Vanished> {
        self.moved(to.as_mut_ptr().expose_provenance(), from, to.len(), false)
    }

    fn moved(&self, here: usize, there: u64, len: usize, writes: bool) -> Result<(), Vanished> {
        let Some(most) = len.checked_sub(1) else { return Ok(()) };
        if !self.is_there() {
            return Err(Vanished);
        }
        let there = usize::try_from(there).map_err(|_| Vanished)?;
        let last = there.checked_add(most).ok_or(Vanished)?;
        let vector = |at: usize, len| {
            let iov_base: *mut c_void = core::ptr::with_exposed_provenance_mut(at);
            libc::iovec { iov_base, iov_len: len }
        };
        // The system goes from vector to vector: the last byte comes last, in a word of its own unless it is one store.
        let whole = len == 8 && there.is_multiple_of(8) || !writes || most == 0;
        let far = if whole { [vector(there, len), vector(last, 0)] } else { [vector(there, most), vector(last, 1)] };
        let (near, count, pid) = (vector(here, len), if whole { 1 } else { 2 }, self.pid.as_raw_nonzero().get());
        // SAFETY: the system checks the addresses of both sides. Those of this process are bytes that are read, or memory
        // that its owner has handed over (`Place`); those of the other one it has handed over to others.
        let moved = unsafe {
            match writes {
                true => libc::process_vm_writev(pid, &near, 1, far.as_ptr(), count, 0),
                false => libc::process_vm_readv(pid, &near, 1, far.as_ptr(), count, 0),
            }
        };
        if moved == len as isize { Ok(()) } else { Err(Vanished) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::process::{Command, Stdio};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn bytes_of_a_process_are_reached_while_its_link_holds() {
        let (ours, theirs) = pair();
        let me = OtherProcess::new(rustix::process::getpid(), Arc::new(ours)).unwrap();
        let (near, far) = (Region::heap(4096), Region::heap(4096));
        let (near, there) = (Place::window(near.window()), Place::window(far.window()));
        let address = there.first() as u64;
        for (at, len) in [(0, 1), (8, 8), (9, 8), (100, 3000)] {
            let pattern: Vec<u8> = (0..len).map(|i| (i + len) as u8).collect();
            near.write(0, &pattern, false).unwrap();
            me.write(&near, 0, address + at, len).unwrap();
            me.read(address + at, &near, 1, len).unwrap();
            let mut back = vec![0; len];
            near.read(1, &mut back).unwrap();
            assert_eq!(back, pattern);
        }
        me.write_bytes(b"some", address).unwrap();
        let mut some = [0; 4];
        me.read_bytes(address, &mut some).unwrap();
        assert_eq!(&some, b"some");
        assert_eq!(me.read_bytes(8, &mut some), Err(Vanished));
        assert_eq!(me.write_bytes(b"none", 8), Err(Vanished), "nothing is mapped there");
        assert_eq!(me.write_bytes(b"none", u64::MAX), Err(Vanished));
        drop(theirs);
        assert_eq!(me.write_bytes(b"gone", address), Err(Vanished));
        let mut back = [0; 4];
        there.read(0, &mut back).unwrap();
        assert_eq!(&back, b"some");
    }

    #[test]
    fn a_process_that_has_ended_is_not_reached() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let (ours, _theirs) = pair();
        let other = OtherProcess::new(pid, Arc::new(ours)).unwrap();
        assert!(!other.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(other.has_ended());
        assert_eq!(other.write_bytes(b"gone", 4096), Err(Vanished));
        let (ours, _theirs) = pair();
        assert!(OtherProcess::new(pid, Arc::new(ours)).is_none());
    }
}
