//! The exchange itself: private pages out, shared pages in, at the same addresses. May use `unsafe`.
//!
//! While pages are aside, a thread that touches them waits until they are back, and so would this one, for ever. So
//! nothing here is allocated or locked, every argument is on the stack, and every system call goes by the one function
//! `syscall`, which is linked before anything is taken.

use super::error::Refusal;
use super::sys::{self, MODE_MISSING, MOVE_WAKES_NOBODY, ioctl, last_error};
use rustix::fd::RawFd;
use rustix::io::Errno;

/// What is exchanged for what. Lengths and addresses are whole pages.
#[derive(Clone, Copy)]
pub(super) struct Exchange {
    /// A userfaultfd without events.
    pub(super) faults: RawFd,
    /// Where the pages are.
    pub(super) first: u64,
    /// How many bytes.
    pub(super) len: u64,
    /// Where they are moved to: as many bytes of our own addresses, with nothing in them.
    pub(super) aside: u64,
    /// What is mapped instead; its memory is there already.
    pub(super) file: RawFd,
    /// From where on.
    pub(super) offset: u64,
}

/// How far it came.
pub(super) struct Exchanged {
    /// Bytes from the first on that are shared now.
    pub(super) len: u64,
    /// Why it went no further.
    pub(super) stopped: Option<Refusal>,
}

/// Times that the kernel may be interrupted while it moves pages.
const INTERRUPTIONS: u32 = 1024;

/// Exchanges as many pages as it can, from the first on. The others are as they were.
///
/// The caller has made sure that the range is private anonymous memory that can be read and written, without a stack,
/// control block or thread-local variable of the calling thread; that `aside` is its own, and the bytes of the file nobody's.
/// None of it is a matter of memory safety: pages that are not so are refused by the kernel, or the thread waits for ever.
pub(super) fn exchange(job: Exchange) -> Exchanged {
    let Exchange { faults, first, len, aside, .. } = job;
    for at in [aside, first] {
        // SAFETY: from now on, whoever finds no page waits, which nobody does before pages are moved.
        if let Err(error) = unsafe { ioctl(faults, sys::UFFDIO_REGISTER, &mut [at, len, MODE_MISSING, 0]) } {
            forget(faults, aside, len);
            let why = if error == Errno::BUSY { Refusal::Userfault } else { Refusal::System(error) };
            return Exchanged { len: 0, stopped: Some(why) };
        }
    }
    // SAFETY: both ranges are as promised.
    let (moved, mut stopped) = unsafe { shift(faults, first, aside, len) };
    // What is not there is zeros when it is read here: nobody waits for it.
    forget(faults, aside, len);
    let mut shared = 0;
    if moved > 0 {
        match put_in_place(&job, moved) {
            Ok(()) => shared = moved,
            Err(error) => {
                // SAFETY: back where they came from; the range is still registered.
                let (back, _) = unsafe { shift(faults, aside, first, moved) };
                if back != moved {
                    // Pages of the program that nobody could find.
                    std::process::abort();
                }
                stopped = Some(error);
            }
        }
    }
    // Wakes whoever waits, here and in what was not exchanged.
    // SAFETY: wakes threads, no more.
    let _ = unsafe { ioctl(faults, sys::UFFDIO_WAKE, &mut [first, len]) };
    if shared < len {
        forget(faults, first + shared, len - shared);
    }
    Exchanged { len: shared, stopped: stopped.map(why_not) }
}

/// What the kernel means when it does not move a page.
fn why_not(error: Errno) -> Refusal {
    match error {
        // In use, or given back a moment ago by another thread.
        Errno::BUSY | Errno::AGAIN | Errno::NOENT => Refusal::Busy,
        Errno::INVAL => Refusal::Locked,
        _ => Refusal::System(error),
    }
}

/// Nobody waits there any more.
fn forget(faults: RawFd, first: u64, len: u64) {
    // SAFETY: changes no byte. It fails where nothing is mapped, and then nobody waits there either.
    let _ = unsafe { ioctl(faults, sys::UFFDIO_UNREGISTER, &mut [first, len]) };
}

/// Moves pages without copying them; how many bytes, and why not all.
///
/// # Safety
/// As [`exchange`]; where they go is registered.
unsafe fn shift(faults: RawFd, from: u64, to: u64, len: u64) -> (u64, Option<Errno>) {
    let mut moved = 0;
    for _ in 0..INTERRUPTIONS {
        let mut words = [to + moved, from + moved, len - moved, MOVE_WAKES_NOBODY, 0];
        // SAFETY: as promised.
        match unsafe { ioctl(faults, sys::UFFDIO_MOVE, &mut words) } {
            Ok(()) => return (len, None),
            Err(Errno::AGAIN) => moved += u64::try_from(words[4].cast_signed()).unwrap_or(0).min(len - moved),
            Err(error) => return (moved, Some(error)),
        }
    }
    (moved, Some(Errno::BUSY))
}

/// Copies what was moved aside to the file, and maps the file where it was.
fn put_in_place(job: &Exchange, len: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        let (from, left, to) = (job.aside + done, len - done, job.offset + done);
        // SAFETY: the pages moved aside are this process's own, and nobody writes them.
        let wrote = unsafe { libc::syscall(libc::SYS_pwrite64, job.file, from, left, to) };
        match u64::try_from(wrote) {
            Ok(0) => return Err(Errno::IO),
            Ok(wrote) => done += wrote,
            Err(_) if last_error() == Errno::INTR => {}
            Err(_) => return Err(last_error()),
        }
    }
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: replaces addresses that have no pages any more by the same bytes with the same rights.
    let at = unsafe { libc::syscall(libc::SYS_mmap, job.first, len, rights, flags, job.file, job.offset) };
    if at.cast_unsigned() == job.first { Ok(()) } else { Err(last_error()) }
}

/// Links what [`exchange`] calls, so that the loader touches nothing later.
pub(super) fn warm_up() {
    // SAFETY: there is no such descriptor, nor such a request.
    let _ = unsafe { ioctl(-1, 0, &mut [0; 1]) };
}
