//! When the frames of a port's queues may leave: gates, the wire, rates (decision 102). All times are ns of the card's clock.
//!
//! * `windows`: when the gate of a class is open. `discipline`: one ring and what it has to keep to. `due`: which rings wait. Here: what
//!   the rings of a port share.

mod discipline;
mod due;
mod windows;

pub(crate) use discipline::{Discipline, Scheduled};
pub(crate) use due::Due;

use millrace_abi::schedule::{OVERHEAD, Schedule};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use windows::Windows;

/// Who finds the wire taken for longer than this, in ns, meets a clock that was set back.
const LONGEST_FRAME: u64 = 1_000_000_000;

/// The schedule of a port, as all workers have it.
pub(crate) struct PortSchedule {
    pub said: Schedule,
    windows: Windows,
    /// From when on it counts. Once it does, it goes on to, wherever the clock is set (IEEE 802.1Q-2022 8.6.9.3: what has become operative stays so).
    from: u64,
    // Somebody has found that it counts. It says so by itself, and nothing else is read behind it: Relaxed is enough. Whoever has not seen it yet finds
    // the same by the clock.
    has_begun: AtomicBool,
    /// What counts until then; `None`: all gates are open.
    before: Option<Arc<PortSchedule>>,
    // When the last frame will have gone over the wire. Whoever moves it with a compare-and-exchange has the wire until then;
    // nothing else is read behind it, so Relaxed is enough.
    wire: AtomicU64,
}

/// What a schedule says of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Terms {
    class: u8,
    // Bits per second; 0: no rate.
    rate: u64,
}

impl Terms {
    fn of(said: &Schedule, queue: u32) -> Self {
        let named = said.queues.iter().find(|said| said.queue == queue);
        named.map_or_else(Self::default, |said| Self { class: said.class, rate: said.rate })
    }
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
        Self { said, windows, from, has_begun: AtomicBool::new(false), before, wire: AtomicU64::new(0) }
    }

    /// Whether it counts at a time, or has begun to before.
    fn counts(&self, now: u64) -> bool {
        if self.has_begun.load(Ordering::Relaxed) {
            return true;
        }
        let counts = now >= self.from;
        if counts {
            self.has_begun.store(true, Ordering::Relaxed);
        }
        counts
    }

    /// The one that counts at a time.
    fn at(self: &Arc<Self>, now: u64) -> Option<&Arc<Self>> {
        if self.counts(now) { Some(self) } else { self.before.as_ref() }
    }

    /// The same without what was before it, so that no chain grows.
    fn alone(self: &Arc<Self>) -> Arc<Self> {
        let wire = AtomicU64::new(self.wire.load(Ordering::Relaxed));
        let (said, windows) = (self.said.clone(), self.windows.clone());
        Arc::new(Self { said, windows, from: 0, has_begun: AtomicBool::new(true), before: None, wire })
    }

    /// What is said of a queue until the schedule counts, and from then on.
    fn terms(&self, queue: u32) -> [Terms; 2] {
        let before = self.before.as_ref().map_or_else(Terms::default, |before| Terms::of(&before.said, queue));
        [before, Terms::of(&self.said, queue)]
    }

    /// How long a frame of so many bytes without FCS is on the wire.
    fn duration(&self, len: usize) -> u64 {
        ((len as u64 + OVERHEAD) * 8_000_000_000).div_ceil(self.said.speed)
    }

    /// The earliest time from `now` on at which a frame may leave by its gate; `None`: never. Its class, and how long it lasts, are those
    /// until the schedule counts, and from then on.
    fn gate(&self, [early, late]: [(u8, u64); 2], now: u64) -> Option<u64> {
        let counts = self.counts(now);
        if !counts {
            let (class, lasts) = early;
            let until = match &self.before {
                Some(before) => before.windows.earliest(class, lasts, now),
                None => Some(now),
            };
            // What does not fit before the change meets what comes then.
            if let Some(at) = until.filter(|at| at.saturating_add(lasts) <= self.from) {
                return Some(at);
            }
        }
        let first = if counts { now } else { now.max(self.from) };
        self.windows.earliest(late.0, late.1, first)
    }

    /// How long a frame is on the wire by what counts at a time; `None`: nothing counts yet.
    fn lasts(&self, len: usize, now: u64) -> Option<u64> {
        if self.counts(now) { Some(self.duration(len)) } else { Some(self.before.as_ref()?.duration(len)) }
    }

    /// Whether a frame of so many bytes may leave now, from a queue of which this is said until the schedule counts and from then on. If
    /// so, the wire is taken for it.
    fn leave(&self, [early, late]: [Terms; 2], len: usize, now: u64) -> Leave {
        let lasts = self.lasts(len, now);
        let late = (late.class, self.duration(len));
        let early = (early.class, lasts.unwrap_or(late.1));
        match self.gate([early, late], now) {
            None => return Leave::Never,
            Some(at) if at > now => return Leave::At(at),
            Some(_) => {}
        }
        // Without a schedule nobody knows how fast the wire is.
        let Some(lasts) = lasts else { return Leave::Now };
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
    fn give_back(&self, len: usize, now: u64) {
        if let Some(lasts) = self.lasts(len, now) {
            // Unless somebody has taken it since.
            let _ = self.wire.compare_exchange(now + lasts, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
