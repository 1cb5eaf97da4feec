//! What all workers together have done so far.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::meter::Meter;

/// One queue pair. Its worker alone writes it.
#[derive(Debug, Default)]
pub struct Gauge {
    /// Frames sent.
    pub sent: Meter,
    /// Frames of this run that came, whatever became of them.
    pub received: Meter,
    /// Of these, frames that nothing more is to be expected of: each counts once.
    pub settled: Meter,
}

/// The gauges of all queue pairs.
#[derive(Debug)]
pub struct Board {
    gauges: Vec<Gauge>,
    /// Workers that still send. Relaxed is enough: a worker that sees the last one finish later waits a little longer.
    sending: AtomicUsize,
}

impl Board {
    /// A board for so many queue pairs and workers.
    pub fn new(pairs: usize, workers: usize) -> Self {
        Self { gauges: (0..pairs).map(|_| Gauge::default()).collect(), sending: AtomicUsize::new(workers) }
    }

    /// The queue pairs.
    pub fn gauges(&self) -> &[Gauge] {
        &self.gauges
    }

    /// A worker has sent everything.
    pub fn sent_everything(&self) {
        self.sending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a worker still sends.
    pub fn is_sending(&self) -> bool {
        self.sending.load(Ordering::Relaxed) > 0
    }

    /// Whether everything that went out is accounted for.
    pub fn is_complete(&self) -> bool {
        let sum = |meter: fn(&Gauge) -> &Meter| self.gauges.iter().map(|gauge| meter(gauge).frames()).sum::<u64>();
        !self.is_sending() && sum(|gauge| &gauge.settled) >= sum(|gauge| &gauge.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_accounted_for_when_all_have_sent_and_as_much_has_come_back() {
        let board = Board::new(2, 2);
        board.gauges()[0].sent.add(5, 320);
        assert!(!board.is_complete());
        board.sent_everything();
        board.gauges()[1].settled.add(5, 0);
        assert!(board.is_sending() && !board.is_complete(), "the other worker may still send");
        board.sent_everything();
        assert!(board.is_complete());
    }
}
