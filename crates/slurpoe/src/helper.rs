//! The thread that moves the protocol on when the program does not.

use crate::endpoint::Shared;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How long the program may not have polled before this thread takes over.
const PATIENCE: Duration = Duration::from_micros(100);
/// How long it looks on when something has come.
const LINGER: Duration = Duration::from_micros(200);
/// The longest pause.
const LONGEST: Duration = Duration::from_millis(1);

/// Starts it; it ends with the endpoint.
pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<()> {
    let shared = Arc::downgrade(shared);
    thread::Builder::new().name("millrace-slurpoe".to_owned()).spawn(move || run(&shared)).map(drop)
}

fn run(shared: &Weak<Shared>) {
    let (mut seen, mut pause) = (0, PATIENCE);
    loop {
        thread::sleep(pause);
        let Some(shared) = shared.upgrade() else { return };
        // Relaxed: only whether it has changed matters.
        let calls = shared.calls.load(Ordering::Relaxed);
        let moved = calls == seen && look_on(&shared, seen);
        pause = if moved { PATIENCE / 5 } else { (pause * 2).min(LONGEST) };
        seen = calls;
    }
}

/// Moves the protocol on while something comes and the program does not do it. Whether something came.
fn look_on(shared: &Shared, seen: u64) -> bool {
    let mut last = None;
    // Relaxed: as above.
    while shared.calls.load(Ordering::Relaxed) == seen {
        let now = Instant::now();
        if shared.progress() {
            last = Some(now);
        }
        // Where something came, more comes soon.
        if last.is_none_or(|last| now - last > LINGER) {
            break;
        }
        thread::yield_now();
    }
    last.is_some()
}
