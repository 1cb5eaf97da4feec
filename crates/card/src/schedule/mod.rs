//! When the frames of a port's queues may leave: gates, the wire, rates (decision 102). All times are ns of the card's clock.
//!
//! * `windows`: when the gate of a class is open. `discipline`: one ring and what it has to keep to. Here: what the rings of a port share.

mod discipline;
mod windows;

pub(crate) use discipline::{Discipline, Scheduled};

use millrace_abi::schedule::{OVERHEAD, Schedule};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use windows::Windows;

/// Who finds the wire taken for longer than this, in ns, meets a clock that was set back.
const LONGEST_FRAME: u64 = 1_000_000_000;

/// The schedule of a port, as all workers have it.
pub(crate) struct PortSchedule {
    pub said: Schedule,
    windows: Windows,
    /// From when on it counts.
    pub from: u64,
    /// What counts until then; `None`: all gates are open.
    before: Option<Arc<PortSchedule>>,
    // When the last frame will have gone over the wire. Whoever moves it with a compare-and-exchange has the wire until then;
    // nothing else is read behind it, so Relaxed is enough.
    wire: AtomicU64,
}

/// When a frame may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    Now,
    /// Not before this time: its gate is closed, or the rest of its window too short, or its rate says so.
    At(u64),
    /// Not before this time: the wire is taken.
    Wire(u64),
    /// It is longer than any window of its class.
    Never,
}

impl PortSchedule {
    /// One that was checked. It takes the place of `before` with a cycle: at its base, or if that has passed with the next cycle that
    /// begins.
    pub fn new(said: Schedule, now: u64, before: Option<&Arc<PortSchedule>>) -> Self {
        let windows = Windows::new(&said);
        let cycle = said.cycle().max(1);
        let from = if said.base >= now { said.base } else { now + (cycle - (now - said.base) % cycle) % cycle };
        // What counts at the moment: one that was set and does not yet count is forgotten.
        let before = before.and_then(|before| before.at(now)).map(Self::alone);
        Self { said, windows, from, before, wire: AtomicU64::new(0) }
    }

    /// The one that counts at a time.
    fn at(self: &Arc<Self>, now: u64) -> Option<&Arc<Self>> {
        if now >= self.from { Some(self) } else { self.before.as_ref() }
    }

    /// The same without what was before it, so that no chain grows.
    fn alone(self: &Arc<Self>) -> Arc<Self> {
        let wire = AtomicU64::new(self.wire.load(Ordering::Relaxed));
        Arc::new(Self { said: self.said.clone(), windows: self.windows.clone(), from: 0, before: None, wire })
    }

    /// How long a frame of so many bytes without FCS is on the wire.
    pub fn duration(&self, len: usize) -> u64 {
        ((len as u64 + OVERHEAD) * 8_000_000_000).div_ceil(self.said.speed)
    }

    /// The earliest time from `now` on at which a frame that lasts so long may leave by its gate; `None`: never.
    fn gate(&self, class: u8, lasts: u64, now: u64) -> Option<u64> {
        if now < self.from {
            let until = match &self.before {
                Some(before) => before.windows.earliest(class, lasts, now),
                None => Some(now),
            };
            // What does not fit before the change meets what comes then.
            if let Some(at) = until.filter(|at| at.saturating_add(lasts) <= self.from) {
                return Some(at);
            }
        }
        self.windows.earliest(class, lasts, now.max(self.from))
    }

    /// Whether a frame of so many bytes may leave now. If so, the wire is taken for it.
    pub fn leave(&self, class: u8, len: usize, now: u64) -> Leave {
        let lasts = self.duration(len);
        match self.gate(class, lasts, now) {
            None => return Leave::Never,
            Some(at) if at > now => return Leave::At(at),
            Some(_) => {}
        }
        let taken = self.wire.load(Ordering::Relaxed);
        if taken > now && taken - now <= LONGEST_FRAME {
            return Leave::Wire(taken);
        }
        let end = now + lasts;
        match self.wire.compare_exchange(taken, end, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Leave::Now,
            // Another worker was faster.
            Err(taken) => Leave::Wire(taken.max(now + 1)),
        }
    }

    /// The frame for which the wire was taken at `now` has not left: there was no room.
    pub fn give_back(&self, len: usize, now: u64) {
        // Unless somebody has taken it since.
        let _ = self.wire.compare_exchange(now + self.duration(len), now, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
