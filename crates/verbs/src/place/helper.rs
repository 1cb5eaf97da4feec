//! The thread that moves the protocol on when the program does not: it computes, sleeps, or waits for something else.

use super::Place;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// How long the program may not have polled before this thread takes over.
const PATIENCE: Duration = Duration::from_micros(100);
/// The longest pause when nothing comes.
const LONGEST: Duration = Duration::from_millis(1);

/// Starts it; it ends with the place.
pub(super) fn start(place: &Arc<Place>) -> io::Result<()> {
    let place = Arc::downgrade(place);
    thread::Builder::new().name("millrace-verbs".to_owned()).spawn(move || run(&place)).map(drop)
}

fn run(place: &Weak<Place>) {
    let (mut seen, mut pause) = (0, PATIENCE);
    loop {
        thread::sleep(pause);
        let Some(place) = place.upgrade() else { return };
        // Relaxed: only whether it has changed matters.
        let polls = place.polls.load(Ordering::Relaxed);
        if polls != seen {
            seen = polls;
            pause = (pause * 2).min(LONGEST);
            continue;
        }
        let mut moved = false;
        while let Ok(mut running) = place.running.try_lock() {
            if !running.progress(place.now()) {
                break;
            }
            moved = true;
            // Who polls now goes on.
            drop(running);
            if place.polls.load(Ordering::Relaxed) != seen {
                break;
            }
            thread::yield_now();
        }
        pause = if moved { PATIENCE / 5 } else { (pause * 2).min(LONGEST) };
    }
}
