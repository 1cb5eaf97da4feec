//! Ctrl-C: the first asks every loop to end with its statistics, the second ends the process.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

/// Relaxed is enough: the flag carries no data, and a loop that sees it one round later is as good.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Exit code of a process that was ended by Ctrl-C, as shells count it.
const INTERRUPTED: i32 = 130;

/// Catches SIGINT, SIGTERM and SIGHUP from here on.
pub fn install() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::Relaxed) {
            process::exit(INTERRUPTED);
        }
    })
    .map_err(|error| Failure::Usage(format!("cannot catch Ctrl-C: {error}")))
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
