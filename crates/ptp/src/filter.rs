//! What becomes of measurements: statime hands them to a filter, which leads the clock. This one is a [`Servo`], behind the middle
//! one of the last delays; it says what it was told, and keeps what it has found out of the oscillator for the next master.

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
}

impl Filter for Watched {
    type Config = Rc<Cell<Seen>>;

    fn new(seen: Self::Config) -> Self {
        let servo = Servo::new(STEP_ABOVE, MOST_PPM, SECONDS, seen.get().ppm);
        Self { servo, seen, delays: [0; DELAYS], count: 0, pace: Pace::default() }
    }

    fn measurement<C: statime::Clock>(&mut self, measurement: Measurement, clock: &mut C) -> FilterUpdate {
        let mut seen = self.seen.get();
        let mut update = FilterUpdate::default();
        if let Some(delay) = measurement.delay.or(measurement.peer_delay) {
            let delay = self.take_delay(delay);
            seen.delay_ns = Some(delay);
            update.mean_delay = Some(Duration::from_nanos(delay));
        }
        if let Some(offset) = measurement.offset {
            if !self.pace.allows(seen.now) {
                self.seen.set(Seen { passed_over: seen.passed_over + 1, ..seen });
                return update;
            }
            (seen.offsets, seen.offset_ns) = (seen.offsets + 1, nanoseconds(offset));
            let now = measurement.event_time.nanos().to_num::<u128>() as u64;
            // What the clock refuses its owner hears of by itself.
            let _ = match self.servo.sample(now, seen.offset_ns) {
                Correction::Frequency(ppm) => clock.set_frequency(ppm),
                Correction::Step(ns, ppm) => {
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
