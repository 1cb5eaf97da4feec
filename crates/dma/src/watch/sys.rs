//! The system calls of the watch. May use `unsafe`.

use super::gate::Taken;
use crate::mapping::{Backing, Mapping};
use crate::{RegionError, Window};
use core::ffi::c_int;
use core::ptr::NonNull;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::sync::Arc;

/// linux/userfaultfd.h.
const USER_MODE_ONLY: c_int = 1;
const API: u64 = 0xaa;
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
const UFFDIO_UNREGISTER: libc::Ioctl = 0x8010_aa01_u32 as libc::Ioctl;
const MODE_WP: u64 = 2;
const EVENTS: u64 = FEATURE_REMAP | FEATURE_REMOVE | FEATURE_UNMAP;
const FEATURE_REMAP: u64 = 1 << 2;
const FEATURE_REMOVE: u64 = 1 << 3;
const FEATURE_UNMAP: u64 = 1 << 6;
/// Write protection of shared memory (Linux 5.19).
const FEATURE_WP_SHARED: u64 = 1 << 12;
/// Write protection that the kernel resolves by itself: may be registered over any kind of mapping (Linux 6.7).
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// What happened to watched memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Unmapped,
    Removed,
    Moved,
}

/// A userfaultfd for events only.
pub(super) struct Events(OwnedFd);

/// The part of `struct uffd_msg` that these events use.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    words: [u64; 3],
}

/// Messages read at once.
const BATCH: usize = 16;

impl Events {
    /// The kernel's events for this process.
    pub(super) fn open() -> Result<Self, Errno> {
        let kinds = [EVENTS | FEATURE_WP_ASYNC | FEATURE_WP_SHARED, EVENTS | FEATURE_WP_SHARED, EVENTS];
        let mut outcome = Err(Errno::NOSYS);
        for features in kinds {
            outcome = Self::open_with(features);
            if !matches!(outcome, Err(Errno::INVAL)) {
                break;
            }
        }
        outcome
    }

    /// A descriptor says once what it is for, so that each attempt needs a new one.
    fn open_with(features: u64) -> Result<Self, Errno> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: makes a descriptor; nothing is watched yet.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(last_error)?;
        // SAFETY: just made, and nobody else's.
        let events = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        events.ask(UFFDIO_API, &mut [API, features, 0])?;
        Ok(events)
    }

    fn ask<const N: usize>(&self, request: libc::Ioctl, argument: &mut [u64; N]) -> Result<(), Errno> {
        // SAFETY: the requests above take a struct of as many 64-bit words; they change no memory but this one.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    }

    /// Watches whole pages from now on.
    pub(super) fn watch(&self, first: u64, len: u64) -> Result<(), Errno> {
        self.ask(UFFDIO_REGISTER, &mut [first, len, MODE_WP, 0])
    }

    /// Watches them no more.
    pub(super) fn forget(&self, first: u64, len: u64) -> Result<(), Errno> {
        self.ask(UFFDIO_UNREGISTER, &mut [first, len])
    }

    /// Waits until there is something to read, and returns whether the descriptor still works.
    pub(super) fn wait(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, None) {
                Err(Errno::INTR) => {}
                Err(_) => return false,
                Ok(_) => return fds[0].revents().contains(PollFlags::IN),
            }
        }
    }

    /// Reads some of the events; how many. The calls that made them go on.
    pub(super) fn read(&self, mut each: impl FnMut(Kind, Taken)) -> usize {
        let mut bytes = [0; BATCH * size_of::<Message>()];
        let Ok(len) = rustix::io::read(&self.0, &mut bytes) else { return 0 };
        let messages = bytes[..len].as_chunks::<{ size_of::<Message>() }>().0;
        for bytes in messages {
            // SAFETY: as many bytes, of which every pattern is a message.
            let message: Message = unsafe { core::mem::transmute(*bytes) };
            let [first, second, third] = message.words;
            match message.event {
                EVENT_UNMAP => each(Kind::Unmapped, Taken { first, end: second }),
                EVENT_REMOVE => each(Kind::Removed, Taken { first, end: second }),
                // From, to, and length.
                EVENT_REMAP => each(Kind::Moved, Taken { first, end: first.saturating_add(third) }),
                _ => {}
            }
        }
        messages.len()
    }
}

/// linux/membarrier.h.
const PRIVATE_EXPEDITED: c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;

/// Allows [`barrier`].
pub(super) fn register_barrier() -> Result<(), Errno> {
    membarrier(REGISTER_PRIVATE_EXPEDITED)
}

/// Returns when every thread of this process that runs has passed a full fence.
pub(super) fn barrier() {
    // Registered before, which is all that it can fail for.
    membarrier(PRIVATE_EXPEDITED).expect("membarrier was registered");
}

fn membarrier(command: c_int) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    if unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } == 0 { Ok(()) } else { Err(last_error()) }
}

/// A watch behind a pointer: null, or one that was leaked.
pub(super) fn leaked(at: *mut super::Watch) -> Option<&'static super::Watch> {
    // SAFETY: only `Watch::of_process` stores such pointers, after it has leaked what they lead to; its load with Acquire
    // pairs with its compare and exchange.
    unsafe { at.as_ref() }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// `len` zeroed bytes of this process alone. With `wiped`, a child that is forked finds zeros there.
pub(super) fn private(len: usize, wiped: bool) -> Result<Window, RegionError> {
    let failed = |source| RegionError::Map { len, source };
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh addresses; nothing of this process is replaced.
    let base = unsafe { mmap_anonymous(core::ptr::null_mut(), len, rights, MapFlags::PRIVATE) }.map_err(failed)?;
    let base = NonNull::new(base.cast::<u8>()).ok_or(failed(Errno::NOMEM))?;
    let mapping = Arc::new(Mapping::new(base, len, Backing::Mmap));
    if wiped {
        // SAFETY: of our own mapping; changes what a child finds there.
        unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxWipeOnFork) }.map_err(failed)?;
    }
    // SAFETY: mapped readable and writable for as long as the mapping lives.
    Ok(unsafe { Window::over(base, len, true, mapping) })
}

/// Keeps the signals of the program from running on this thread: a handler could unmap memory, and wait for us.
pub(super) fn block_signals() {
    // SAFETY: all zero is a valid set, which the next call fills; both only change what this thread is told.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, core::ptr::null_mut());
    }
}
