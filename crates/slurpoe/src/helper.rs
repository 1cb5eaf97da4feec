//! The thread that moves the protocol on when the program does not.

use crate::endpoint::Shared;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
/// The longest pause, and the longest when the link wakes: what is due meanwhile because of what the program has said waits as long.
const LONGEST: Duration = Duration::from_millis(1);
const LONGEST_DOZE: Duration = Duration::from_millis(10);

/// Starts it; it ends with the endpoint.
pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<()> {
    let shared = Arc::downgrade(shared);
    thread::Builder::new().name("millrace-slurpoe".to_owned()).spawn(move || run(&shared)).map(drop)
}

fn run(shared: &Weak<Shared>) {
    let (mut seen, mut pause) = (0, PATIENCE);
    let mut waker = None;
    loop {
        sleep(pause, waker.take());
        let Some(shared) = shared.upgrade() else { return };
        // Relaxed: only whether it has changed matters.
        let calls = shared.calls.load(Ordering::Relaxed);
        let is_ours = calls == seen;
        let moved = is_ours && look_on(&shared, seen);
        pause = if moved { PATIENCE / 5 } else { (pause * 2).min(LONGEST) };
        // While the program polls, nobody needs to ring.
        if is_ours
            && !moved
            && pause == LONGEST
            && let Some((fd, left)) = shared.doze()
        {
            (waker, pause) = (Some(fd), left.map_or(LONGEST_DOZE, |left| left.min(LONGEST_DOZE)));
        }
        seen = calls;
    }
}

/// Until so much time has passed, or something has come.
fn sleep(pause: Duration, waker: Option<OwnedFd>) {
    let Some(waker) = waker else { return thread::sleep(pause) };
    let most = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
    // Whatever it says, it is looked.
    let _ = poll(&mut [PollFd::new(&waker, PollFlags::IN)], Some(&most));
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
