//! When the frames of a source are due.

use std::time::{Duration, Instant};

/// A clock that starts when it is first asked, so that a port that was opened long before anyone used it does not begin
/// with all the frames it missed.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    opened: Instant,
    started: Option<Instant>,
}

impl Stopwatch {
    pub(crate) fn new() -> Self {
        Self { opened: Instant::now(), started: None }
    }

    /// Nanoseconds since the first call.
    pub(crate) fn elapsed_ns(&mut self) -> u64 {
        let now = Instant::now();
        let started = *self.started.get_or_insert(now);
        u64::try_from(now.duration_since(started).as_nanos()).unwrap_or(u64::MAX)
    }

    /// The moment `ns` after the start; before the start, one in the past, because it is time to start.
    pub(crate) fn at(&self, ns: u64) -> Instant {
        match self.started {
            // What does not fit into the clock comes in a year, when somebody may look again.
            Some(started) => started
                .checked_add(Duration::from_nanos(ns))
                .unwrap_or_else(|| started + Duration::from_secs(365 * 24 * 3600)),
            None => self.opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_when_first_asked() {
        let mut watch = Stopwatch::new();
        assert!(watch.at(u64::MAX) <= Instant::now());
        assert_eq!(watch.elapsed_ns(), 0);
        let before = Instant::now();
        assert!(watch.at(3_600_000_000_000) > before + Duration::from_secs(3000));
        assert!(watch.at(u64::MAX) > before + Duration::from_secs(1_000_000));
    }
}
