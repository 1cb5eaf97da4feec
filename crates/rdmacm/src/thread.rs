//! The thread that looks at what comes to queue pair 1, and at the clock. It sleeps when there is nothing.

use crate::state;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::{read, write};
use std::sync::OnceLock;
use std::time::Duration;

/// Wakes the thread.
static BELL: OnceLock<OwnedFd> = OnceLock::new();
/// The longest sleep. Nothing depends on it.
const LONGEST: Duration = Duration::from_secs(3600);

/// Starts it. `fd` is readable when something has come, and stays open as long as the process.
pub(crate) fn start(fd: i32) -> Result<(), i32> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| error.raw_os_error())?;
    let bell = BELL.get_or_init(|| bell);
    std::thread::Builder::new()
        .name("millrace-cm".to_owned())
        .spawn(move || run(fd, bell))
        .map_err(|_| libc::EAGAIN)?;
    Ok(())
}

/// Somebody has something for the thread to do.
pub(crate) fn wake() {
    if let Some(bell) = BELL.get() {
        let _ = write(bell, &1u64.to_ne_bytes());
    }
}

fn run(fd: i32, bell: &OwnedFd) {
    loop {
        let sleep = {
            let Ok(mut state) = state::lock() else { return };
            // Who starts this thread sets the card before it unlocks the state. It is taken away when it has gone, or the process ends;
            // the next one has its own thread.
            let has_gone = |state: &state::State| state.card.as_ref().is_none_or(|card| card.fd() != fd);
            if has_gone(&state) {
                return;
            }
            let sleep = state.step();
            if has_gone(&state) {
                // What this thread was woken for may be the next one's.
                wake();
                return;
            }
            sleep
        };
        wait(fd, bell, sleep.unwrap_or(LONGEST));
    }
}

fn wait(fd: i32, bell: &OwnedFd, time: Duration) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let came = crate::card::borrow(fd);
    let mut fds = [PollFd::from_borrowed_fd(came, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
    let _ = poll(&mut fds, Some(&time));
    let _ = read(bell, &mut [0; 8]);
}
