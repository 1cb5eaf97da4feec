//! The userfaultfd of an adopter. May use `unsafe`.

use super::error::AdoptError;
use core::ffi::c_int;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// linux/userfaultfd.h.
const API: u64 = 0xaa;
const UFFDIO_API: libc::c_long = 0xc018_aa3f;
pub(super) const UFFDIO_REGISTER: libc::c_long = 0xc020_aa00;
pub(super) const UFFDIO_UNREGISTER: libc::c_long = 0x8010_aa01;
pub(super) const UFFDIO_WAKE: libc::c_long = 0x8010_aa02;
pub(super) const UFFDIO_MOVE: libc::c_long = 0xc028_aa05;
pub(super) const MODE_MISSING: u64 = 1;
/// Nobody waits where the pages are moved to.
pub(super) const MOVE_WAKES_NOBODY: u64 = 1;
const FEATURE_MOVE: u64 = 1 << 16;
const USERFAULTFD_IOC_NEW: libc::c_long = 0xaa00;
const FLAGS: c_int = libc::O_CLOEXEC | libc::O_NONBLOCK;

/// A request to a descriptor. Allocates nothing.
///
/// # Safety
/// The request takes a struct of at most as many 64-bit words, and what it does to memory is the caller's matter.
pub(super) unsafe fn ioctl<const N: usize>(
    fd: RawFd,
    request: libc::c_long,
    words: &mut [u64; N],
) -> Result<(), Errno> {
    // SAFETY: as promised.
    match unsafe { libc::syscall(libc::SYS_ioctl, fd, request, words.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// What the last system call said. Allocates nothing.
pub(super) fn last_error() -> Errno {
    // SAFETY: the address of this thread's error number.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// A userfaultfd that sees the kernel's accesses too: of the system call, or of the device, opened here or handed over.
pub(super) fn userfaultfd(device: Option<&OwnedFd>) -> Result<OwnedFd, AdoptError> {
    if let Some(fd) = device.and_then(|device| of_device(device).ok()) {
        return prepared(fd);
    }
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, FLAGS) };
    let call = match c_int::try_from(fd) {
        // SAFETY: just made, and nobody else's.
        Ok(fd) if fd >= 0 => return prepared(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => last_error(),
    };
    use rustix::fs::{Mode, OFlags, open};
    let opened = open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    match opened.and_then(|device| of_device(&device)) {
        Ok(fd) => prepared(fd),
        Err(device) => Err(AdoptError::Forbidden { call, device }),
    }
}

fn of_device(device: &OwnedFd) -> Result<OwnedFd, Errno> {
    // SAFETY: takes flags, and makes a descriptor for this process.
    let fd = unsafe { libc::syscall(libc::SYS_ioctl, device.as_raw_fd(), USERFAULTFD_IOC_NEW, FLAGS) };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(last_error)?;
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Without events: its own exchanges are nothing that anybody has to hear of.
fn prepared(fd: OwnedFd) -> Result<OwnedFd, AdoptError> {
    // SAFETY: the request takes three words and changes no memory but these.
    let outcome = unsafe { ioctl(fd.as_raw_fd(), UFFDIO_API, &mut [API, FEATURE_MOVE, 0]) };
    outcome.map(|()| fd).map_err(|_| AdoptError::NoMove)
}

/// Fresh private addresses that nobody else has, with nothing behind them yet.
pub(super) fn reserve(len: usize) -> Result<u64, Errno> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh addresses; nothing of this process is replaced.
    let base = unsafe { mmap_anonymous(core::ptr::null_mut(), len, rights, MapFlags::PRIVATE | MapFlags::NORESERVE)? };
    // SAFETY: our own mapping, which a child has no use for.
    unsafe { madvise(base, len, Advice::LinuxDontFork)? };
    Ok(base.expose_provenance() as u64)
}

/// Makes every page of the range this process's own, as if it had written there.
pub(super) fn populate(first: u64, len: u64) -> Result<(), Errno> {
    let at = core::ptr::with_exposed_provenance_mut(first as usize);
    // SAFETY: changes no byte; what is not mapped or not writable is refused.
    unsafe { madvise(at, len as usize, Advice::LinuxPopulateWrite) }
}

/// Gives the pages of our own addresses back.
pub(super) fn discard(first: u64, len: u64) {
    let at = core::ptr::with_exposed_provenance_mut(first as usize);
    // SAFETY: addresses of `reserve`, whose bytes nobody needs any more. It cannot fail there.
    let _ = unsafe { madvise(at, len as usize, Advice::LinuxDontNeed) };
}

/// Keeps the signals of the program from running on this thread, and says which were kept before.
pub(super) fn block_signals() -> libc::sigset_t {
    // SAFETY: all zero is a valid set, which the next calls fill; they only change what this thread is told.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (core::mem::zeroed(), core::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    }
}

/// Undoes [`block_signals`].
pub(super) fn unblock_signals(before: &libc::sigset_t) {
    // SAFETY: a set that the system has given.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, core::ptr::null_mut()) };
}

/// An adopter behind a pointer: null, or one that was leaked.
pub(super) fn leaked(at: *mut super::Adopter) -> Option<&'static super::Adopter> {
    // SAFETY: only `Adopter::of_process` stores such pointers, after it has leaked what they lead to; its load with Acquire
    // pairs with its store with Release.
    unsafe { at.as_ref() }
}
