//! Frames that go out and come back one at a time, and whether we were running meanwhile.

use millrace_packet::structured::{self, MIN_LEN};
use millrace_tool::clock::{Clock, Moment};
use millrace_tool::distribution::Distribution;
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{RxQueue, TxQueue};
use millrace_tool::send;
use millrace_tool::stop;

use millrace_tool::trips::no_room;

/// Two looks of a loop that polls are never so far apart, in ns, unless the loop was not running in between.
const GAP: u64 = 20_000;
/// A frame that is not back after so many nanoseconds is not waited for any longer, and counts as having taken them.
const LONGEST: u64 = 10_000_000_000;
/// Bytes of a frame.
const SIZE: u16 = if MIN_LEN > 64 { MIN_LEN as u16 } else { 64 };

/// Round trips of one frame at a time.
pub struct Trips {
    /// Those whose end this program was there to see.
    seen: Distribution,
    /// These and all others.
    all: Distribution,
    clock: Clock,
    number: u64,
}

impl Trips {
    /// None yet.
    pub fn new() -> Self {
        Self { seen: Distribution::new(), all: Distribution::new(), clock: Clock::start(), number: 0 }
    }

    /// Makes round trips for `seconds`.
    pub fn run(&mut self, rx: &mut RxQueue, tx: &mut TxQueue, seconds: f64) -> Result<(), Failure> {
        let start = Moment::now();
        while start.seconds() < seconds && !stop::asked() {
            self.go(rx, tx)?;
        }
        Ok(())
    }

    /// Makes one: its time from before `flush` until the frame is seen.
    pub fn go(&mut self, rx: &mut RxQueue, tx: &mut TxQueue) -> Result<(), Failure> {
        self.number += 1;
        let stamp = structured::Stamp::from_nanos(self.number);
        let fill = |_, slot: &mut [u8]| structured::fill_stamped(slot, structured::Sequence::ZERO, stamp);
        if send::burst(tx, &[SIZE], fill)? == 0 {
            return Err(no_room());
        }
        let start = self.clock.now();
        send::flush(tx)?;
        let mut last = start;
        loop {
            let burst = rx.get(1).doing(|| "cannot receive".to_owned())?;
            let is_ours = burst.iter().any(|packet| structured::stamp(packet.data) == Some(stamp));
            drop(burst);
            let now = self.clock.now();
            // Earlier gaps do not matter: there was a look after them, and it found nothing.
            let was_away = now.nanos_since(last) > GAP;
            last = now;
            let time = now.nanos_since(start);
            if is_ours {
                self.all.record(time);
                if !was_away {
                    self.seen.record(time);
                }
                return Ok(());
            }
            if time > LONGEST || stop::asked() {
                self.all.record(time);
                self.seen.record(time);
                return Ok(());
            }
        }
    }

    /// The times that count: those whose end was seen, or all where these are fewer than half.
    pub fn times(&self) -> &Distribution {
        if self.delayed() > self.seen.count() { &self.all } else { &self.seen }
    }

    /// How many ended while this program was not running.
    pub fn delayed(&self) -> u64 {
        self.all.count() - self.seen.count()
    }
}
