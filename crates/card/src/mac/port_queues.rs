//! What the port queues behind a port count themselves: frames that left, and frames that were dropped out there.

use millrace_port::{DropReason, Event, PortCounters};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Dropped frames by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    fn add(&mut self, drops: impl Iterator<Item = (DropReason, u64)>) {
        drops.for_each(|(reason, count)| self.0[reason as usize] += count);
    }

    pub fn minus(&self, zero: &Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at].wrapping_sub(zero.0[at])))
    }

    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Counters of all port queues of a port together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortQueueCounts {
    pub sent: u64,
    pub sent_bytes: u64,
    pub rx_copies: u64,
    pub tx_copies: u64,
    pub rx_drops: Drops,
    pub tx_drops: Drops,
}

impl PortQueueCounts {
    fn add(&mut self, port_queue: &PortCounters) {
        self.sent += port_queue.tx_frames();
        self.sent_bytes += port_queue.tx_bytes();
        self.rx_copies += port_queue.rx_copies();
        self.tx_copies += port_queue.tx_copies();
        self.rx_drops.add(port_queue.rx_drops());
        self.tx_drops.add(port_queue.tx_drops());
    }

    pub fn minus(&self, zero: &Self) -> Self {
        Self {
            // Saturating: a port whose file fails takes back frames that it counted as sent.
            sent: self.sent.saturating_sub(zero.sent),
            sent_bytes: self.sent_bytes.saturating_sub(zero.sent_bytes),
            rx_copies: self.rx_copies.wrapping_sub(zero.rx_copies),
            tx_copies: self.tx_copies.wrapping_sub(zero.tx_copies),
            rx_drops: self.rx_drops.minus(&zero.rx_drops),
            tx_drops: self.tx_drops.minus(&zero.tx_drops),
        }
    }
}

/// The port queues that are plugged in, and what those counted that no longer are.
#[derive(Default)]
pub(super) struct PortQueues(Mutex<Plugged>);

#[derive(Default)]
struct Plugged {
    present: Vec<Arc<PortCounters>>,
    past: PortQueueCounts,
}

impl PortQueues {
    fn lock(&self) -> MutexGuard<'_, Plugged> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Other port queues from now on. Those that were there must not be used any more: what they counted is kept.
    pub fn replace(&self, present: Vec<Arc<PortCounters>>) {
        let mut plugged = self.lock();
        let past = core::mem::replace(&mut plugged.present, present);
        past.iter().for_each(|port_queue| plugged.past.add(port_queue));
    }

    /// Everything that port queues of this port have counted.
    pub fn counts(&self) -> PortQueueCounts {
        let plugged = self.lock();
        let mut counts = plugged.past;
        plugged.present.iter().for_each(|port_queue| counts.add(port_queue));
        counts
    }

    /// Whether a port queue has a link. Without port queues the card loops back by itself, unless the port is
    /// `unplugged`.
    pub fn link(&self, unplugged: bool) -> bool {
        let plugged = self.lock();
        if plugged.present.is_empty() { !unplugged } else { plugged.present.iter().any(|port_queue| port_queue.link()) }
    }

    /// What else happened to frames from the port queues, and towards them. Of the port queues that are there.
    pub fn events(&self) -> [Vec<(&'static str, u64)>; 2] {
        let plugged = self.lock();
        let sum = |of: fn(&PortCounters) -> Vec<(Event, u64)>| {
            let mut sums = Event::ALL.map(|event| (event.name(), 0));
            for (event, count) in plugged.present.iter().flat_map(|port_queue| of(port_queue)) {
                sums[event as usize].1 += count;
            }
            sums.to_vec()
        };
        [sum(|port_queue| port_queue.rx_events().collect()), sum(|port_queue| port_queue.tx_events().collect())]
    }

    /// How the port queues are driven, in their own words; the same words once.
    pub fn mode(&self) -> String {
        let mut modes: Vec<String> = self.lock().present.iter().map(|port_queue| port_queue.mode()).collect();
        modes.retain(|mode| !mode.is_empty());
        modes.dedup();
        modes.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_unplugged_wire_counted_is_kept() {
        let port_queues = PortQueues::default();
        let port_queue = || {
            let port_queue = Arc::new(PortCounters::new());
            port_queue.count_tx(2, 120);
            port_queue.count_rx_drops(DropReason::NoRoom, 1);
            port_queue
        };
        port_queues.replace(vec![port_queue(), port_queue()]);
        assert_eq!((port_queues.counts().sent, port_queues.counts().rx_drops.sum()), (4, 2));
        port_queues.replace(vec![port_queue()]);
        assert_eq!((port_queues.counts().sent, port_queues.counts().sent_bytes), (6, 360));
        port_queues.replace(Vec::new());
        assert_eq!(port_queues.counts().rx_drops.of(DropReason::NoRoom), 3);
        assert_eq!(port_queues.counts().minus(&port_queues.counts()), PortQueueCounts::default());
    }

    #[test]
    fn a_port_has_a_link_when_one_of_its_wires_has() {
        let port_queues = PortQueues::default();
        assert!(port_queues.link(false) && !port_queues.link(true));
        let (one, other) = (Arc::new(PortCounters::new()), Arc::new(PortCounters::new()));
        port_queues.replace(vec![one.clone(), other.clone()]);
        one.set_link(false);
        assert!(port_queues.link(false));
        other.set_link(false);
        assert!(!port_queues.link(false));
        one.set_mode("copper");
        other.set_mode("copper");
        assert_eq!(port_queues.mode(), "copper");
    }
}
