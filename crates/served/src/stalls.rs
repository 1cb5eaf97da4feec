//! How long the engine's thread has slept without having been asked to. It waits for nobody but for memory: who takes pages out of a file that he has
//! registered has whoever touches them meanwhile wait until that is done, seconds for gigabytes, and no seal forbids it
//! that leaves the file of use to him (decision 65). A thread that was made to give way has not slept.

use millrace_rdma::served::Watcher;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::pread;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// What is not worth a look.
const SHORT: Duration = Duration::from_millis(1);

/// A look at the clock, and how long the thread had worked, or waited for a core, by then.
type Look = (Instant, Duration);

/// The time that the thread which has made it has slept.
pub(crate) struct Stalls {
    /// What the system counts of the thread. Missing, if the system does not count: then it never slept.
    counted: Option<OwnedFd>,
    last: Look,
}

impl Stalls {
    /// Of the calling thread.
    pub fn new() -> Self {
        let counted = open("/proc/thread-self/schedstat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        let mut stalls = Self { counted, last: (Instant::now(), Duration::ZERO) };
        stalls.restart();
        stalls
    }

    /// Counts from now on.
    pub fn restart(&mut self) {
        self.last = self.look();
    }

    /// How long it has slept since it was started.
    pub fn slept(&self) -> Duration {
        let ((then, busy), (now, busy_now)) = (self.last, self.look());
        if self.counted.is_none() {
            return Duration::ZERO;
        }
        (now - then).saturating_sub(busy_now.saturating_sub(busy))
    }

    fn look(&self) -> Look {
        let mut text = [0; 96];
        let len = self.counted.as_ref().and_then(|file| pread(file, &mut text, 0).ok()).unwrap_or(0);
        let text = core::str::from_utf8(&text[..len]).unwrap_or_default();
        let waited = text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        let worked = clock_gettime(ClockId::ThreadCPUTime);
        let worked = Duration::new(worked.tv_sec as u64, worked.tv_nsec as u32);
        (Instant::now(), worked + Duration::from_nanos(waited))
    }
}

impl Watcher for Stalls {
    fn begin(&mut self) {
        self.restart();
    }

    fn end(&mut self) -> Duration {
        if self.last.0.elapsed() < SHORT {
            return Duration::ZERO;
        }
        let slept = self.slept();
        if slept < SHORT { Duration::ZERO } else { slept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sleeps_is_told_from_what_works() {
        let mut stalls = Stalls::new();
        assert!(stalls.counted.is_some(), "Linux counts nothing here");
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        assert!(stalls.slept() < Duration::from_millis(50), "{:?}", stalls.slept());
        stalls.begin();
        std::thread::sleep(Duration::from_millis(100));
        assert!(stalls.end() > Duration::from_millis(50));
    }
}
