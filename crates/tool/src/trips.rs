//! Round trips of one packet, through a card that sends everything back.
//!
//! A round trip begins with the reading of the clock before `get` asks for a slot, and ends with the reading of the
//! clock after the `get` that found the packet. In between lie filling the slot, `put`, `flush`, the card's copy from
//! the transmit to the receive queue, and the empty `get`s meanwhile. Checking the contents comes afterwards.

use millrace_packet::structured::{self, Checker, Sequence, Stamping};

use crate::clock::{Clock, Moment};
use crate::distribution::Distribution;
use crate::echo::cannot_receive;
use crate::failure::{Failure, While};
use crate::host::{RxQueue, TxQueue};
use crate::{send, stop};

/// Round trips before those that count: caches, branch predictors and clocks settle.
const WARM_UP: u64 = 2_000;

/// A packet that is not back after so many nanoseconds is lost. Long enough for a machine that does something else
/// meanwhile: a long time belongs into the distribution, and leaving it out would flatter the card.
const LOST_AFTER: u64 = 5_000_000_000;

/// Round trips between two looks at the clock and for Ctrl-C.
const TRIPS_PER_LOOK: u64 = 64;

/// Empty polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 256;

/// What round trips came to.
#[derive(Clone, Debug)]
pub struct RoundTrips {
    /// How long they took.
    pub times: Distribution,
    /// Packets that did not come back in time.
    pub lost: u64,
    /// Packets that came back changed.
    pub corrupt: u64,
}

/// How many round trips to make.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// At most so many.
    pub count: u64,
    /// For at most so long.
    pub seconds: Option<f64>,
}

/// Makes round trips, after some that do not count, to the end of `extent` or until Ctrl-C.
pub fn round_trips(rx: &mut RxQueue, tx: &mut TxQueue, size: u16, extent: Extent) -> Result<RoundTrips, Failure> {
    travel(size, extent, |traveller| traveller.go(rx, tx))
}

/// The same on several pairs, which take turns.
pub fn round_trips_over(pairs: &mut [(RxQueue, TxQueue)], size: u16, extent: Extent) -> Result<RoundTrips, Failure> {
    let (mut next, count) = (0, pairs.len());
    travel(size, extent, |traveller| {
        let (rx, tx) = &mut pairs[next];
        next = if next + 1 == count { 0 } else { next + 1 };
        traveller.go(rx, tx)
    })
}

fn travel(
    size: u16,
    extent: Extent,
    mut go: impl FnMut(&mut Traveller) -> Result<Option<u64>, Failure>,
) -> Result<RoundTrips, Failure> {
    let mut traveller = Traveller::new(size);
    let mut trips = RoundTrips { times: Distribution::new(), lost: 0, corrupt: 0 };
    let is_over = |start: Moment| stop::asked() || extent.seconds.is_some_and(|seconds| start.seconds() > seconds);
    let start = Moment::now();
    for number in 0..WARM_UP.min(extent.count) {
        // On a machine that does something else meanwhile so many can take minutes.
        if number % TRIPS_PER_LOOK == 0 && is_over(start) {
            break;
        }
        go(&mut traveller)?;
    }
    let start = Moment::now();
    for number in 0..extent.count {
        if number % TRIPS_PER_LOOK == 0 && is_over(start) {
            break;
        }
        if let Some(time) = go(&mut traveller)? {
            trips.times.record(time);
        }
    }
    let found = traveller.checker.finish(traveller.next);
    (trips.lost, trips.corrupt) = (found.lost, found.corrupt + found.duplicates + found.strays);
    Ok(trips)
}

/// One packet that goes out and comes back again and again.
struct Traveller {
    lens: [u16; 1],
    next: Sequence,
    checker: Checker,
    clock: Clock,
}

impl Traveller {
    fn new(size: u16) -> Self {
        let checker = Checker::new(Stamping::On);
        Self { lens: [size], next: Sequence::ZERO, checker, clock: Clock::start() }
    }

    /// One round trip; its nanoseconds, or `None` if the packet did not come back in time.
    #[inline]
    fn go(&mut self, rx: &mut RxQueue, tx: &mut TxQueue) -> Result<Option<u64>, Failure> {
        let start = self.clock.now();
        let fill = |_, slot: &mut [u8]| structured::fill_stamped(slot, self.next, start);
        if send::burst(tx, &self.lens, fill)? == 0 {
            return Err(no_room());
        }
        send::flush(tx)?;
        self.next = self.next.next();
        let deadline = start.nanos() + LOST_AFTER;
        loop {
            for _ in 0..POLLS_PER_LOOK {
                let burst = rx.get(1).doing(cannot_receive)?;
                if burst.is_empty() {
                    continue;
                }
                let end = self.clock.now();
                // A packet that had been given up may come before the one that is waited for.
                let stamp = structured::stamp(&burst[0]);
                let _ = self.checker.check(&burst[0]);
                if stamp == Some(start) {
                    return Ok(Some(end.nanos_since(start)));
                }
            }
            if self.clock.now().nanos() > deadline || stop::asked() {
                return Ok(None);
            }
        }
    }
}

/// What it means when an empty queue has no room.
pub fn no_room() -> Failure {
    Failure::Found("the transmit queue has no room though it is empty: is the card alive?".to_owned())
}
