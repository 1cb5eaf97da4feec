//! Memory of the program that is watched: the system says when it is unmapped, moved or punched.
//!
//! The kernel's userfaultfd has events for that, and a call that takes watched memory away (`munmap`, `mmap` over it,
//! `mremap`, `brk`, `madvise`) returns to the program only when its event was read. One thread of the process reads
//! them, behind gates that are closed ([`Gate`]). So when the call returns, every worker is out of that memory and knows.
//! No page fault is ever delivered, because no page is protected: the range is registered for write protection, of
//! which no use is made. That needs no privilege (`UFFD_USER_MODE_ONLY`), unless a sandbox forbids the system call.

mod gate;
mod outside;
#[cfg(not(loom))]
mod process;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod sys;

pub use gate::{Entered, Gate, Taken};
pub use outside::{Outside, Presence, SEATS, Seat};
#[cfg(not(loom))]
pub use process::{Cover, Watch, WatchCounters, WatchError};

/// Lets others run while waiting.
fn relax() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}
