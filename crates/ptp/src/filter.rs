//! What becomes of measurements: statime hands them to a filter, which leads the clock. This one is a [`Servo`], behind the middle
//! one of the last delays; it says what it was told, and keeps what it has found out of the oscillator for the next master. No path is
//! shorter than nothing: a delay below zero is none, and when several come, somebody's stamps are wrong, and nothing is led by them.

use millrace_clock::{Correction, Servo};
use statime::filters::{Filter, FilterEstimate, FilterUpdate};
use statime::port::Measurement;
use statime::time::Duration;
use std::cell::Cell;
use std::rc::Rc;

/// What the filter was told last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// The time, in ns of anything that goes on and that nobody on the wire moves: the engine says it.
    pub now: u64,
    /// Offsets that it was told.
    pub offsets: u64,
    /// Offsets that it was told besides, too soon after others.
    pub passed_over: u64,
    /// The last one, in ns.
    pub offset_ns: i64,
    /// The middle one of the last offsets since the clock was stepped, in ns.
    pub middle_ns: Option<i64>,
    /// The middle one of the last delays, in ns.
    pub delay_ns: Option<i64>,
    /// Of the last delays in a row, how many cannot have been, ...
    pub impossible: u32,
    /// ... and the last one of them, in ns.
    pub impossible_ns: i64,
    /// At which speed the clock neither gains nor loses, in millionths from nominal.
    pub ppm: f64,
}

/// Offsets above it are stepped, in ns.
const STEP_ABOVE: i64 = 1_000_000;
/// How far the clock is steered at most, in millionths.
const MOST_PPM: f64 = 1_000.0;
/// In which time offsets go away, in s.
const SECONDS: f64 = 2.0;
/// Delays of which the middle one counts.
const DELAYS: usize = 9;
/// By how much stamps may be wrong, in ns: a delay that is not further below zero is one.
const RESOLUTION: i64 = 10_000;
/// By how much a program that was interrupted between two looks at the clock may be wrong, in ns: a delay further below zero than
/// that, and than clocks of different speeds make of it, cannot be.
const SLACK: i64 = 100_000;
/// As many of those in a row are no chance.
const DOUBTED: u32 = 3;
/// From a peer's answer to its request's coming, in ns, at the most.
const TURNAROUND: i64 = 100_000_000;
/// A clock is led by one offset in so many ns at the most, which is twice as often as the shortest interval of Sync: each costs the
/// card a request and its workers a look at the clock, and whoever sends a flood of Sync is not to decide how many.
const EACH: u64 = 4_000_000;
/// As much later, in ns, may those that come together have come one by one.
const TOGETHER: u64 = 32 * EACH;

/// The filter.
pub struct Watched {
    servo: Servo,
    seen: Rc<Cell<Seen>>,
    delays: [i64; DELAYS],
    count: usize,
    pace: Pace,
    // When the last Sync came, by the clock, unless that was stepped since.
    synced: Option<i64>,
}

/// What a delay is.
#[derive(Debug, PartialEq)]
enum Path {
    Measured,
    /// The clocks go too differently, or a stamp is somewhat late: it says nothing.
    Unsure,
    Impossible,
}

impl Path {
    /// Of a delay between two stamps of which one was taken so many ns after the other.
    fn of(delay: i64, apart: i64) -> Self {
        // Half of what the clocks can differ by meanwhile is in it.
        let drift = (apart.unsigned_abs() as f64 * MOST_PPM * 0.5e-6) as i64;
        match delay {
            _ if delay >= -RESOLUTION => Self::Measured,
            _ if delay >= -SLACK.saturating_add(drift) => Self::Unsure,
            _ => Self::Impossible,
        }
    }
}

/// How often something happens.
#[derive(Default)]
struct Pace {
    // When the next is due, if there is one in each `EACH`.
    due: u64,
}

impl Pace {
    /// Whether one more is not too much.
    fn allows(&mut self, now: u64) -> bool {
        let due = self.due.max(now);
        let is_fine = due - now <= TOGETHER;
        if is_fine {
            self.due = due + EACH;
        }
        is_fine
    }
}

impl Seen {
    /// Whether stamps are wrong: no offset is taken for one.
    pub fn is_in_doubt(&self) -> bool {
        self.impossible >= DOUBTED
    }
}

/// Of the clock, since 1970.
fn to_ns(time: statime::time::Time) -> i64 {
    time.nanos().to_num::<u128>().min(i64::MAX as u128) as i64
}

fn nanoseconds(duration: Duration) -> i64 {
    duration.nanos_rounded().clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

impl Watched {
    fn take_delay(&mut self, delay: Duration) -> i64 {
        self.delays[self.count % DELAYS] = nanoseconds(delay);
        self.count += 1;
        let (mut delays, count) = (self.delays, self.count.min(DELAYS));
        delays[..count].sort_unstable();
        delays[count / 2]
    }

    /// Takes what was measured of the path, and returns how long it is, if that is known better now.
    fn take_path(&mut self, measurement: &Measurement, seen: &mut Seen) -> Option<Duration> {
        let delay = measurement.delay.or(measurement.peer_delay)?;
        let apart = match (measurement.delay, self.synced) {
            (None, _) => TURNAROUND,
            (Some(_), Some(synced)) => to_ns(measurement.event_time).saturating_sub(synced),
            // The clock was stepped between the two.
            (Some(_), None) => return None,
        };
        match Path::of(nanoseconds(delay), apart) {
            Path::Measured => {
                let delay = self.take_delay(delay);
                (seen.delay_ns, seen.impossible) = (Some(delay), 0);
                Some(Duration::from_nanos(delay))
            }
            // No offset comes without one, and no clock goes right without offsets.
            Path::Unsure => {
                seen.impossible = 0;
                (self.count == 0).then_some(Duration::from_nanos(0))
            }
            Path::Impossible => {
                seen.impossible = seen.impossible.saturating_add(1);
                seen.impossible_ns = nanoseconds(delay);
                None
            }
        }
    }
}

impl Filter for Watched {
    type Config = Rc<Cell<Seen>>;

    fn new(seen: Self::Config) -> Self {
        let servo = Servo::new(STEP_ABOVE, MOST_PPM, SECONDS, seen.get().ppm);
        Self { servo, seen, delays: [0; DELAYS], count: 0, pace: Pace::default(), synced: None }
    }

    fn measurement<C: statime::Clock>(&mut self, measurement: Measurement, clock: &mut C) -> FilterUpdate {
        let mut seen = self.seen.get();
        let mean_delay = self.take_path(&measurement, &mut seen);
        let update = FilterUpdate { mean_delay, ..FilterUpdate::default() };
        if measurement.raw_sync_offset.is_some() {
            self.synced = Some(to_ns(measurement.event_time));
        }
        if let Some(offset) = measurement.offset.filter(|_| !seen.is_in_doubt()) {
            if !self.pace.allows(seen.now) {
                self.seen.set(Seen { passed_over: seen.passed_over + 1, ..seen });
                return update;
            }
            (seen.offsets, seen.offset_ns) = (seen.offsets + 1, nanoseconds(offset));
            let now = to_ns(measurement.event_time) as u64;
            // What the clock refuses its owner hears of by itself.
            let _ = match self.servo.sample(now, seen.offset_ns) {
                Correction::Frequency(ppm) => clock.set_frequency(ppm),
                Correction::Step(ns, ppm) => {
                    self.synced = None;
                    clock.set_frequency(ppm).and_then(|_| clock.step_clock(Duration::from_nanos(ns)))
                }
            };
            (seen.ppm, seen.middle_ns) = (self.servo.holdover(), self.servo.offset());
        }
        self.seen.set(seen);
        update
    }

    fn update<C: statime::Clock>(&mut self, clock: &mut C) -> FilterUpdate {
        let _ = clock.set_frequency(self.servo.holdover());
        FilterUpdate::default()
    }

    fn demobilize<C: statime::Clock>(self, clock: &mut C) {
        let _ = clock.set_frequency(self.servo.holdover());
    }

    fn current_estimates(&self) -> FilterEstimate {
        let seen = self.seen.get();
        FilterEstimate {
            offset_from_master: Duration::from_nanos(seen.offset_ns),
            mean_delay: Duration::from_nanos(seen.delay_ns.unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_not_shorter_than_nothing() {
        for (delay, apart, path) in [
            (0, 0, Path::Measured),
            (3_000_000_000, 0, Path::Measured),
            (-RESOLUTION, 0, Path::Measured),
            (-RESOLUTION - 1, 0, Path::Unsure),
            (-SLACK, 0, Path::Unsure),
            (-SLACK - 1, 0, Path::Impossible),
            // Clocks that differ by 1000 ppm, a second later.
            (-SLACK - 500_000, 1_000_000_000, Path::Unsure),
            (-SLACK - 500_001, -1_000_000_000, Path::Impossible),
            (i64::MIN, i64::MIN, Path::Impossible),
        ] {
            assert_eq!(Path::of(delay, apart), path, "{delay} {apart}");
        }
    }
}
