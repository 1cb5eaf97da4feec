//! Ctrl-C: the first asks every loop to end with its statistics, the second ends the process.
//!
//! Loops look at a flag. What waits for a card that does not answer is ended by the host library a second later, and what
//! waits in the system, such as for the other end of a FIFO, [at once](at_once).

use std::io::{self, Read};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Relaxed is enough: the flag carries no data, and a loop that sees it one round later is as good.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Whether the user has asked. SeqCst pairs with that of [`WAITING`]: either the handler sees that somebody waits, or whoever
/// begins to wait sees that the user has asked.
static CAUGHT: AtomicBool = AtomicBool::new(false);

/// How many threads wait for something that cannot look at a flag.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Exit code of a process that was ended by Ctrl-C, as shells count it.
pub const INTERRUPTED: u8 = 130;

/// Catches SIGINT, SIGTERM and SIGHUP from here on.
pub fn install() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        if CAUGHT.swap(true, Ordering::SeqCst) || WAITING.load(Ordering::SeqCst) > 0 {
            process::exit(INTERRUPTED.into());
        }
        ask();
        millrace_driver::wait_no_longer();
    })
}

/// Whether the user, or a part of the program that failed, wants everything to end.
#[inline]
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Asks everything to end, as Ctrl-C does.
pub fn ask() {
    ASKED.store(true, Ordering::Relaxed);
}

/// Whether the user wants everything to end.
pub fn caught() -> bool {
    CAUGHT.load(Ordering::Relaxed)
}

/// Does something that may wait in the system for as long as others like: Ctrl-C ends the process there and then.
pub fn at_once<T>(work: impl FnOnce() -> T) -> T {
    WAITING.fetch_add(1, Ordering::SeqCst);
    if CAUGHT.load(Ordering::SeqCst) {
        process::exit(INTERRUPTED.into());
    }
    let done = work();
    WAITING.fetch_sub(1, Ordering::SeqCst);
    done
}

/// Waits until standard input is closed, and asks everything to end then: for a thread of a program that shall not outlive
/// whoever has started it.
pub fn with_standard_input() {
    let mut buffer = [0; 256];
    while matches!(io::stdin().read(&mut buffer), Ok(count) if count > 0) {}
    ask();
}
