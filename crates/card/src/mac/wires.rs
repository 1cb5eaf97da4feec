//! What the wires behind a port count themselves: frames that left, and frames that were dropped out there.

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

/// Counters of all wires of a port together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WireCounts {
    pub sent: u64,
    pub sent_bytes: u64,
    pub rx_copies: u64,
    pub tx_copies: u64,
    pub rx_drops: Drops,
    pub tx_drops: Drops,
}

impl WireCounts {
    fn add(&mut self, wire: &PortCounters) {
        self.sent += wire.tx_frames();
        self.sent_bytes += wire.tx_bytes();
        self.rx_copies += wire.rx_copies();
        self.tx_copies += wire.tx_copies();
        self.rx_drops.add(wire.rx_drops());
        self.tx_drops.add(wire.tx_drops());
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

/// The wires that are plugged in, and what those counted that no longer are.
#[derive(Default)]
pub(super) struct Wires(Mutex<Plugged>);

#[derive(Default)]
struct Plugged {
    present: Vec<Arc<PortCounters>>,
    past: WireCounts,
}

impl Wires {
    fn lock(&self) -> MutexGuard<'_, Plugged> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Other wires from now on. Those that were there must not be used any more: what they counted is kept.
    pub fn replace(&self, present: Vec<Arc<PortCounters>>) {
        let mut plugged = self.lock();
        let past = core::mem::replace(&mut plugged.present, present);
        past.iter().for_each(|wire| plugged.past.add(wire));
    }

    /// Everything that wires of this port have counted.
    pub fn counts(&self) -> WireCounts {
        let plugged = self.lock();
        let mut counts = plugged.past;
        plugged.present.iter().for_each(|wire| counts.add(wire));
        counts
    }

    /// Whether a wire has a link. Without wires the card loops back by itself, unless the port is `unplugged`.
    pub fn link(&self, unplugged: bool) -> bool {
        let plugged = self.lock();
        if plugged.present.is_empty() { !unplugged } else { plugged.present.iter().any(|wire| wire.link()) }
    }

    /// What else happened to frames from the wires, and towards them. Of the wires that are there.
    pub fn events(&self) -> [Vec<(&'static str, u64)>; 2] {
        let plugged = self.lock();
        let sum = |of: fn(&PortCounters) -> Vec<(Event, u64)>| {
            let mut sums = Event::ALL.map(|event| (event.name(), 0));
            for (event, count) in plugged.present.iter().flat_map(|wire| of(wire)) {
                sums[event as usize].1 += count;
            }
            sums.to_vec()
        };
        [sum(|wire| wire.rx_events().collect()), sum(|wire| wire.tx_events().collect())]
    }

    /// How the wires are driven, in their own words; the same words once.
    pub fn mode(&self) -> String {
        let mut modes: Vec<String> = self.lock().present.iter().map(|wire| wire.mode()).collect();
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
        let wires = Wires::default();
        let wire = || {
            let wire = Arc::new(PortCounters::new());
            wire.count_tx(2, 120);
            wire.count_rx_drops(DropReason::NoRoom, 1);
            wire
        };
        wires.replace(vec![wire(), wire()]);
        assert_eq!((wires.counts().sent, wires.counts().rx_drops.sum()), (4, 2));
        wires.replace(vec![wire()]);
        assert_eq!((wires.counts().sent, wires.counts().sent_bytes), (6, 360));
        wires.replace(Vec::new());
        assert_eq!(wires.counts().rx_drops.of(DropReason::NoRoom), 3);
        assert_eq!(wires.counts().minus(&wires.counts()), WireCounts::default());
    }

    #[test]
    fn a_port_has_a_link_when_one_of_its_wires_has() {
        let wires = Wires::default();
        assert!(wires.link(false) && !wires.link(true));
        let (one, other) = (Arc::new(PortCounters::new()), Arc::new(PortCounters::new()));
        wires.replace(vec![one.clone(), other.clone()]);
        one.set_link(false);
        assert!(wires.link(false));
        other.set_link(false);
        assert!(!wires.link(false));
        one.set_mode("copper");
        other.set_mode("copper");
        assert_eq!(wires.mode(), "copper");
    }
}
