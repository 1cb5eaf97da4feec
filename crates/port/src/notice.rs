//! Lines for the log from threads that must not wait: a worker's, mostly. Whoever reads the log may be slow, or have
//! stopped reading a pipe, and would stop the worker with it. So a thread of its own writes them; when it does not keep
//! up, lines are dropped, and the next one that is written says how many. Lines that programs cause, by connecting for
//! example, are [limited](info) on top of that, so that none of them can fill a disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Lines that wait at most.
const MOST: usize = 256;

/// Lines of [`info`] in each [`PERIOD`]; more are counted.
const LIMIT: u64 = 50;
const PERIOD: Duration = Duration::from_secs(10);

/// Warns, some time later.
#[cold]
pub fn warn(line: String) {
    static TO: OnceLock<Lines> = OnceLock::new();
    TO.get_or_init(|| {
        Lines::to(|line, dropped| match dropped {
            0 => tracing::warn!("{line}"),
            _ => {
                tracing::warn!("{line} ({dropped} lines before this one were dropped: the log is not read fast enough)")
            }
        })
    })
    .add(line);
}

/// Tells of something that is as it should be, some time later, and not of each of a flood.
#[cold]
pub fn info(line: impl FnOnce() -> String) {
    static TO: OnceLock<Lines> = OnceLock::new();
    static ALLOWANCE: Mutex<Allowance> = Mutex::new(Allowance { since: None, said: 0, left_out: 0 });
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    let allowed = ALLOWANCE.lock().unwrap_or_else(PoisonError::into_inner).ask(Instant::now());
    let line = match allowed {
        None => return,
        Some(0) => line(),
        Some(left_out) => format!("{} ({left_out} such lines before this one were left out)", line()),
    };
    TO.get_or_init(|| Lines::to(|line, _| tracing::info!("{line}"))).add(line);
}

/// How much has been said in this period.
struct Allowance {
    since: Option<Instant>,
    said: u64,
    left_out: u64,
}

impl Allowance {
    /// Whether one more line may be written, and then how many were left out before it.
    fn ask(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= PERIOD) {
            (self.since, self.said) = (Some(now), 0);
        }
        if self.said == LIMIT {
            self.left_out += 1;
            return None;
        }
        self.said += 1;
        Some(core::mem::take(&mut self.left_out))
    }
}

/// Lines on their way.
struct Lines {
    // None: there is no thread to be had.
    to: Option<SyncSender<(String, u64)>>,
    dropped: AtomicU64,
}

impl Lines {
    /// Has `write` called for each line on a thread of its own, with how many lines were dropped before it.
    fn to(write: impl Fn(String, u64) + Send + 'static) -> Self {
        let (to, lines): (_, Receiver<(String, u64)>) = sync_channel(MOST);
        let thread = std::thread::Builder::new().name("millrace-log".into());
        let thread = thread.spawn(move || lines.into_iter().for_each(|(line, dropped)| write(line, dropped)));
        Self { to: thread.is_ok().then_some(to), dropped: AtomicU64::new(0) }
    }

    fn add(&self, line: String) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let sent = self.to.as_ref().map(|to| to.try_send((line, dropped)));
        if let None | Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) = sent {
            self.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_flood_is_counted_and_not_told() {
        let mut allowance = Allowance { since: None, said: 0, left_out: 0 };
        let begin = Instant::now();
        let told = (0..LIMIT + 7).filter(|_| allowance.ask(begin).is_some()).count();
        assert_eq!(told as u64, LIMIT);
        assert_eq!(allowance.ask(begin + PERIOD), Some(7));
        assert_eq!(allowance.ask(begin + PERIOD), Some(0));
    }

    #[test]
    fn a_log_that_nobody_reads_makes_nobody_wait() {
        let (go_on, stopped) = channel::<()>();
        let (written, read) = channel();
        let lines = Lines::to(move |line, dropped| {
            // As a pipe that is full; it is read again once the sender is gone.
            let _ = stopped.recv();
            written.send((line, dropped)).unwrap();
        });
        // One is with the writer at most, and the channel has room for so many.
        let sent = MOST + 101;
        (0..sent).for_each(|number| lines.add(number.to_string()));
        drop(go_on);
        let next = || read.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(next(), ("0".to_owned(), 0));
        // As soon as there is room again the loss is told.
        let mut told = 0;
        for _ in 0..1_000_000 {
            if told > 0 {
                break;
            }
            lines.add("last".to_owned());
            while let Ok((line, dropped)) = read.try_recv() {
                told += dropped;
                // A writer that begins late takes its first line when lines were lost already.
                let came_behind = line == "last" || line.parse::<usize>().is_ok_and(|number| number > MOST);
                assert!(dropped == 0 || came_behind, "{line} {dropped}");
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        assert!(told >= 100, "{told}");
    }
}
