//! When the queues of a port may send: gates that open and close in a cycle, as in IEEE 802.1Qbv, and rates.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Traffic classes of a port; a higher number goes first.
pub const CLASSES: u8 = 8;
/// Most entries of a gate list.
pub const MOST_GATES: usize = 256;
/// Most queues that a schedule names.
pub const MOST_QUEUES: usize = 4096;
/// Longest cycle in ns.
pub const LONGEST_CYCLE: u64 = 1_000_000_000;
/// Lowest rate of a queue in bits per second: a shortest frame takes most of a second then.
pub const LEAST_RATE: u64 = 1000;
/// What goes over a wire beside a frame without its FCS, in bytes: FCS, preamble, and the gap behind it.
pub const OVERHEAD: u64 = 4 + 8 + 12;

/// One entry of a gate list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// Classes whose gates are open, a bit each.
    pub open: u8,
    /// For how long, in ns.
    pub lasts: u64,
}

/// What a schedule says of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueClass {
    /// Index of the TX queue.
    pub queue: u32,
    /// Its class, from 0.
    pub class: u8,
    /// A constant rate in bits per second on the wire, [`OVERHEAD`] included; 0: none.
    pub rate: u64,
}

/// The schedule of a port. Queues that it does not name are of class 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// When a cycle begins, in ns of the card's clock; cycles before and behind follow from it. In the future: when the schedule
    /// begins to count.
    pub base: u64,
    /// Bits per second that the wire carries.
    pub speed: u64,
    /// Classes that are never blocked, a bit each.
    pub always: u8,
    /// The gates, one after the other, in each cycle; none: all are open.
    pub gates: Vec<Gate>,
    /// Queues, each once.
    pub queues: Vec<QueueClass>,
}

/// What is wrong with a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// Too many or too short gates, or too long ones together.
    #[error("a cycle lasts 1 us to 1 s and has at most {MOST_GATES} gates, each of 100 ns at least")]
    Cycle,
    /// No speed.
    #[error("a wire carries 1 Mbit/s to 1 Tbit/s")]
    Speed,
    /// None of the classes may ever send.
    #[error("no class is open at any time: nothing would ever leave")]
    Shut,
    /// A queue's rate that is none.
    #[error("a queue's rate is 1 kbit/s at least, and at most the speed of the wire")]
    Rate,
    /// A class that is none, a queue twice, or too many.
    #[error("a queue is named once, with a class from 0 to 7, and at most {MOST_QUEUES} are")]
    Queues,
}

impl Schedule {
    /// How long a cycle lasts, in ns; 0 without gates.
    pub fn cycle(&self) -> u64 {
        self.gates.iter().fold(0, |sum, gate| sum.saturating_add(gate.lasts))
    }

    /// Whether it is one that a card can keep.
    ///
    /// # Errors
    /// [`ScheduleError`].
    pub fn check(&self) -> Result<(), ScheduleError> {
        let cycle = self.cycle();
        let fits = self.gates.is_empty() || (1000..=LONGEST_CYCLE).contains(&cycle);
        if !fits || self.gates.len() > MOST_GATES || self.gates.iter().any(|gate| gate.lasts < 100) {
            return Err(ScheduleError::Cycle);
        }
        if !(1_000_000..=1_000_000_000_000).contains(&self.speed) {
            return Err(ScheduleError::Speed);
        }
        if !self.gates.is_empty() && self.gates.iter().fold(self.always, |open, gate| open | gate.open) == 0 {
            return Err(ScheduleError::Shut);
        }
        let is_rate = |rate| rate == 0 || (LEAST_RATE..=self.speed).contains(&rate);
        if !self.queues.iter().all(|queue| is_rate(queue.rate)) {
            return Err(ScheduleError::Rate);
        }
        let mut queues: Vec<u32> = self.queues.iter().map(|queue| queue.queue).collect();
        queues.sort_unstable();
        let twice = queues.windows(2).any(|pair| pair[0] == pair[1]);
        if twice || queues.len() > MOST_QUEUES || self.queues.iter().any(|queue| queue.class >= CLASSES) {
            return Err(ScheduleError::Queues);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_card_cannot_keep_is_refused() {
        let gates = vec![Gate { open: 1, lasts: 500 }, Gate { open: 2, lasts: 500 }];
        let queues = vec![QueueClass { queue: 3, class: 7, rate: 0 }];
        let good = Schedule { base: 0, speed: 1_000_000_000, always: 0, gates, queues };
        assert_eq!((good.check(), good.cycle()), (Ok(()), 1000));
        let bad = |change: fn(&mut Schedule)| {
            let mut schedule = good.clone();
            change(&mut schedule);
            schedule.check().unwrap_err()
        };
        assert_eq!(bad(|schedule| schedule.gates[0].lasts = 99), ScheduleError::Cycle);
        assert_eq!(bad(|schedule| schedule.gates[0].lasts = u64::MAX), ScheduleError::Cycle);
        assert_eq!(bad(|schedule| schedule.gates = vec![Gate { open: 1, lasts: 100 }; 257]), ScheduleError::Cycle);
        assert_eq!(bad(|schedule| schedule.speed = 0), ScheduleError::Speed);
        assert_eq!(bad(|schedule| schedule.gates.iter_mut().for_each(|gate| gate.open = 0)), ScheduleError::Shut);
        for rate in [1, 999, 1_000_000_001] {
            let mut schedule = good.clone();
            schedule.queues[0].rate = rate;
            assert_eq!(schedule.check(), Err(ScheduleError::Rate), "{rate}");
        }
        assert_eq!(bad(|schedule| schedule.queues[0].class = 8), ScheduleError::Queues);
        assert_eq!(bad(|schedule| schedule.queues.push(schedule.queues[0])), ScheduleError::Queues);
    }
}
