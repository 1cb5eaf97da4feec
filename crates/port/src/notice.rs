//! Lines for the log from threads that must not wait: a worker's, mostly. Whoever reads the log may be slow, or have
//! stopped reading a pipe, and would stop the worker with it. So a thread of its own writes them; when it does not keep
//! up, lines are dropped, and the next one that is written says how many.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Lines that wait at most.
const MOST: usize = 256;

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
                assert!(dropped == 0 || line == "last");
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        assert!(told >= 100, "{told}");
    }
}
