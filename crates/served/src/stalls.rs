//! How long the engine's thread has slept without having been asked to. It waits for nobody but for memory: who takes pages out of a file that he has
//! registered has whoever touches them meanwhile wait until that is done, seconds for gigabytes, and no seal forbids it
//! that leaves the file of use to him (decision 65). A thread that was made to give way has not slept; a core that was taken
//! away by a hypervisor looks like sleep, and is told from it by whether the thread has given way of itself.

use crate::pressure::Pressure;
use millrace_rdma::served::{Wait, Watcher};
use nix::sys::resource::{UsageWho, getrusage};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::pread;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// What is not worth a look.
const SHORT: Duration = Duration::from_micros(100);
/// How often it is looked whether memory is short.
const SHORTAGE: Duration = Duration::from_millis(100);

/// What the system counts of the thread.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    /// How long it has worked, or waited for a core.
    busy: Duration,
    /// How often it has given way of itself.
    sleeps: i64,
    /// Blocks that it has had read from disks.
    reads: i64,
}

/// The time that the thread which has made it has slept.
pub(crate) struct Stalls {
    /// Missing, if the system does not count: then it never slept.
    counted: Option<OwnedFd>,
    pressure: Pressure,
    last: Look,
    /// How long memory was short by then.
    short: (Instant, Duration),
    /// When memory of a program was about to be used.
    began: Instant,
}

impl Stalls {
    /// Of the calling thread.
    pub fn new() -> Self {
        let counted = open("/proc/thread-self/schedstat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        let pressure = Pressure::new();
        let (began, short) = (Instant::now(), (Instant::now(), pressure.total()));
        let last = Look { at: began, busy: Duration::ZERO, sleeps: 0, reads: 0 };
        let mut stalls = Self { counted, pressure, last, short, began };
        stalls.last = stalls.look();
        stalls
    }

    fn look(&self) -> Look {
        let mut text = [0; 96];
        let len = self.counted.as_ref().and_then(|file| pread(file, &mut text, 0).ok()).unwrap_or(0);
        let text = core::str::from_utf8(&text[..len]).unwrap_or_default();
        let waited = text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        let worked = clock_gettime(ClockId::ThreadCPUTime);
        let worked = Duration::new(worked.tv_sec as u64, worked.tv_nsec as u32);
        let usage = getrusage(UsageWho::RUSAGE_THREAD);
        let (sleeps, reads) = usage.map_or((0, 0), |usage| (usage.voluntary_context_switches(), usage.block_reads()));
        Look { at: Instant::now(), busy: worked + Duration::from_nanos(waited), sleeps, reads }
    }

    /// Counts from now on. How long it has slept since the last look, and whether memory was short; `None`: not worth a word.
    fn take(&mut self) -> Option<Wait> {
        let (last, now) = (self.last, self.look());
        self.last = now;
        if self.counted.is_none() || now.sleeps == last.sleeps {
            return None;
        }
        let slept = (now.at - last.at).saturating_sub(now.busy.saturating_sub(last.busy));
        if slept < SHORT {
            return None;
        }
        let short = self.pressure.total();
        let lacked = short.saturating_sub(core::mem::replace(&mut self.short, (now.at, short)).1);
        Some(Wait { slept, is_doubtful: now.reads > last.reads || lacked * 2 >= slept })
    }
}

impl Watcher for Stalls {
    fn restart(&mut self) {
        self.last = self.look();
        if self.last.at - self.short.0 >= SHORTAGE {
            self.short = (self.last.at, self.pressure.total());
        }
    }

    fn waited(&mut self) -> Option<Wait> {
        self.take()
    }

    fn begin(&mut self) {
        self.began = Instant::now();
    }

    fn end(&mut self) -> Option<Wait> {
        let took = self.began.elapsed();
        // What was before does not count.
        let wait = if took < SHORT { None } else { self.take() };
        wait.map(|wait| Wait { slept: wait.slept.min(took), ..wait })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn what_sleeps_is_told_from_what_works() {
        let mut stalls = Stalls::new();
        assert!(stalls.counted.is_some(), "Linux counts nothing here");
        work(Duration::from_millis(100));
        assert_eq!(stalls.waited(), None);
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        stalls.begin();
        work(Duration::from_millis(20));
        let counted = stalls.end();
        // On a busy machine that was longer.
        assert!(counted.is_none_or(|wait| wait.slept <= began.elapsed()), "what was before");
        stalls.begin();
        std::thread::sleep(Duration::from_millis(100));
        assert!(stalls.end().unwrap().slept > Duration::from_millis(50));
        assert_eq!(stalls.waited(), None, "that was told");
        std::thread::sleep(Duration::from_millis(100));
        stalls.restart();
        assert_eq!(stalls.waited(), None);
    }

    #[test]
    fn time_without_memory_is_doubtful() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory.pressure");
        let short =
            |total: u64| std::fs::write(&file, format!("some avg10=0 avg60=0 avg300=0 total={total}\n")).unwrap();
        short(5);
        let mut stalls = Stalls { pressure: Pressure::at(&file), ..Stalls::new() };
        stalls.short.1 = Duration::from_micros(5);
        for (lacked, is_doubtful) in [(0, false), (10_000, false), (90_000, true), (0, false)] {
            short(stalls.short.1.as_micros() as u64 + lacked);
            stalls.restart();
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(stalls.waited().unwrap().is_doubtful, is_doubtful, "{lacked}");
        }
    }
}
