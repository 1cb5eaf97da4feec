//! The round trip of a cache line between the two cores: the floor under every round trip, and how far apart they are.
//!
//! A virtual machine moves its processors without saying so: next to each other, where a line goes to and fro in 65 to
//! 200 ns, or far apart, where it takes 330 and more. Whatever is measured between two cores changes with that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use millrace_tool::clock::Moment;
use millrace_tool::cores;

use crate::rig::Cores;

/// Trips between two looks at the clock.
const BATCH: u64 = 64;
/// Batches at least.
const FEWEST: usize = 16;
/// What the other side takes for the end.
const END: u64 = u64::MAX;

/// A line that both cores write in turn, and nothing else in it or in its neighbour, which the processor fetches with it.
#[repr(align(256))]
struct Line(AtomicU64);

/// Round trips of a line between the two cores.
pub struct Trips {
    /// Mean of each batch in ns, in ascending order.
    batches: Vec<f64>,
}

impl Trips {
    /// Trips for `seconds`; `None` if there are not two cores.
    pub fn make(cores: Cores, seconds: f64) -> Option<Self> {
        let (app, card) = cores.app.zip(cores.card).filter(|(app, card)| app != card)?;
        let line = Line(AtomicU64::new(0));
        let mut batches = thread::scope(|scope| {
            scope.spawn(|| {
                // Whoever cannot be pinned was told so before.
                let _ = cores::pin(card);
                answer(&line);
            });
            let asking = scope.spawn(|| {
                let _ = cores::pin(app);
                ask(&line, seconds)
            });
            asking.join().expect("it only counts")
        });
        batches.sort_by(f64::total_cmp);
        Some(Self { batches })
    }

    /// The middle one.
    pub fn median(&self) -> f64 {
        self.batches[self.batches.len() / 2]
    }

    /// The distance of the cores: what a quarter of all batches stay below, because those during which somebody else had
    /// one of the cores say nothing about it.
    pub fn distance(&self) -> f64 {
        self.batches[self.batches.len() / 4]
    }
}

/// Sends numbers, each after the answer to the one before.
fn ask(line: &Line, seconds: f64) -> Vec<f64> {
    let (mut batches, mut next) = (Vec::new(), 1);
    let start = Moment::now();
    while batches.len() < FEWEST || start.seconds() < seconds {
        let begin = Moment::now();
        for _ in 0..BATCH {
            // Release pairs with the Acquire of the other side, as a doorbell's does.
            line.0.store(next, Ordering::Release);
            await_number(line, next + 1);
            next += 2;
        }
        batches.push(Moment::now().nanos_since(begin) as f64 / BATCH as f64);
    }
    line.0.store(END, Ordering::Release);
    // What is cold at first is no distance.
    batches.remove(0);
    batches
}

fn answer(line: &Line) {
    let mut next = 1;
    while await_number(line, next) == next {
        line.0.store(next + 1, Ordering::Release);
        next += 2;
    }
}

/// Without a pause: a pause is longer than the way of a line.
fn await_number(line: &Line, number: u64) -> u64 {
    loop {
        let seen = line.0.load(Ordering::Acquire);
        if seen == number || seen == END {
            return seen;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_to_and_fro_between_two_cores() {
        let allowed = cores::allowed();
        let (app, card) = (allowed.first().copied(), allowed.get(1).copied());
        let trips = Trips::make(Cores { app, card }, 0.001);
        assert_eq!(trips.is_some(), card.is_some());
        if let Some(trips) = trips {
            assert!(trips.distance() > 1.0 && trips.distance() <= trips.median());
        }
        assert!(Trips::make(Cores { app, card: app }, 0.001).is_none());
    }
}
