//! How long this thread has waited for a processor since something woke it: by the clock, it was not there yet.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// What the scheduler counts for this thread (`Documentation/scheduler/sched-stats.rst`); a kernel that does not count says nothing.
#[derive(Debug)]
pub struct Waited {
    counts: Option<File>,
    before: u64,
}

impl Waited {
    /// For the thread that calls.
    pub fn of_this_thread() -> Self {
        Self { counts: File::open("/proc/thread-self/schedstat").ok(), before: 0 }
    }

    /// From now on.
    pub fn begin(&mut self) {
        self.before = self.read();
    }

    /// How long it was since then.
    pub fn since(&self) -> Duration {
        Duration::from_nanos(self.read().saturating_sub(self.before))
    }

    fn read(&self) -> u64 {
        let mut text = [0; 96];
        let length = self.counts.as_ref().and_then(|counts| counts.read_at(&mut text, 0).ok()).unwrap_or(0);
        waited(&text[..length]).unwrap_or(self.before)
    }
}

/// The second of three numbers: nanoseconds on the run queue.
fn waited(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line).ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    #[test]
    fn the_second_number_is_the_waiting() {
        assert_eq!((waited(b"408096 69383 1\n"), waited(b"408096"), waited(b"")), (Some(69383), None, None));
    }

    #[test]
    fn a_thread_that_shares_its_processor_waits() {
        let mut here = Waited::of_this_thread();
        if here.read() == 0 && here.counts.is_none() {
            return;
        }
        here.begin();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let crowd = std::thread::available_parallelism().map_or(1, usize::from) * 3;
            for _ in 0..crowd {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let begin = Instant::now();
            while here.since() < Duration::from_millis(1) && begin.elapsed() < Duration::from_secs(10) {
                std::hint::spin_loop();
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(here.since() >= Duration::from_millis(1), "{:?}", here.since());
    }
}
