//! The thread that moves the protocol on when the program does not: it computes, sleeps, or waits for something else. It also
//! answers other processes of this host.

use super::Place;
use super::local::{Serving, ask};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How long the program may not have polled before this thread takes over.
const PATIENCE: Duration = Duration::from_micros(100);
/// How long it looks on when something has come.
const LINGER: Duration = Duration::from_micros(200);
/// The longest pause when nothing comes, and others do not know that nobody looks.
const LONGEST: Duration = Duration::from_millis(1);
/// The longest when they know, and ring. Then it is only to learn that the card has gone.
const ASLEEP: Duration = Duration::from_millis(100);
/// So many pauses in which nothing comes, and then it sleeps.
const QUIET: u32 = 8;

/// Starts it; it ends with the place.
pub(super) fn start(place: &Arc<Place>, serving: Option<Serving>) -> io::Result<()> {
    let place = Arc::downgrade(place);
    thread::Builder::new().name("millrace-verbs".to_owned()).spawn(move || run(&place, serving)).map(drop)
}

fn run(place: &Weak<Place>, mut serving: Option<Serving>) {
    let (mut seen, mut pause, mut quiet) = (0, PATIENCE, 0);
    let mut call: Option<OwnedFd> = None;
    loop {
        let is_called = match &serving {
            Some(serving) => serving.wait(call.as_ref(), pause),
            None => {
                thread::sleep(pause);
                false
            }
        };
        let Some(place) = place.upgrade() else { return serving.map_or((), Serving::end) };
        if let Some(serving) = serving.as_mut().filter(|_| is_called) {
            serving.serve(&place);
        }
        if let Some(serving) = &mut serving {
            if let Ok(mut running) = place.running.try_lock() {
                running.put_out(place.now());
                ask(&mut running);
            }
            serving.pass_on(&place);
        }
        // Relaxed: only whether it has changed matters.
        let polls = place.polls.load(Ordering::Relaxed);
        call = None;
        if polls != seen && place.sleepers.load(Ordering::Relaxed) == 0 {
            // The program looks itself. Whoever rang gets no reason to do so again: each ring is a system call.
            (seen, quiet) = (polls, 0);
            pause = if is_called { PATIENCE } else { (pause * 2).min(LONGEST) };
            continue;
        }
        seen = polls;
        let moved = look_on(&place, &mut seen);
        pause = if moved { PATIENCE / 5 } else { (pause * 2).min(LONGEST) };
        quiet = if moved || is_called { 0 } else { quiet + 1 };
        if serving.is_some() {
            (call, pause) = sleep(&place, quiet >= QUIET, pause);
        }
    }
}

/// Nobody else looks: who sends something is to ring. What the card rings with, if it is to ring, too, and how long to wait.
fn sleep(place: &Place, is_long: bool, pause: Duration) -> (Option<OwnedFd>, Duration) {
    let Ok(mut running) = place.running.try_lock() else { return (None, pause) };
    if !is_long {
        return (None, if running.sessions.doze() { pause } else { Duration::ZERO });
    }
    let Some((call, first)) = running.doze() else { return (None, pause) };
    let now = place.now().nanoseconds();
    let left = first.map(|first| Duration::from_nanos(first.nanoseconds().saturating_sub(now)));
    (call, left.unwrap_or(ASLEEP).clamp(LONGEST, ASLEEP))
}

/// Moves the protocol on while something comes and the program does not do it. Whether something came.
fn look_on(place: &Place, seen: &mut u64) -> bool {
    let mut last = None;
    while let Ok(mut running) = place.running.try_lock() {
        let now = Instant::now();
        // Nobody polls: the line of the word that says it is in nobody's way.
        running.settle();
        if running.progress(place.now()) {
            last = Some(now);
        }
        drop(running);
        // Where something came, more comes soon. Who polls now goes on.
        let is_over = last.is_none_or(|last| now - last > LINGER);
        if is_over || place.polls.load(Ordering::Relaxed) != *seen {
            break;
        }
        thread::yield_now();
    }
    last.is_some()
}
