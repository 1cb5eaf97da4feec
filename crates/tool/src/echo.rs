//! Structured frames out on one queue and back on another, every one of them checked.

use millrace_packet::structured::{self, Checker, Findings, Sequence, Stamping};

use crate::clock::{Clock, Moment};
use crate::distribution::Distribution;
use crate::failure::{Failure, While};
use crate::host::{RxQueue, TxQueue};
use crate::idle::Idle;
use crate::list::Sizes;
use crate::meter::Meter;
use crate::{send, stop};

/// How long nothing may come back before what is missing counts as lost, in seconds: more than a machine with too much to
/// do keeps one thread waiting.
pub const SILENCE: f64 = 5.0;

/// What to send, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many frames; fewer on Ctrl-C.
    pub goal: u64,
    /// Most frames on their way at once.
    pub window: u64,
    /// Most frames per call.
    pub burst: usize,
    /// Their sizes.
    pub sizes: Sizes,
    /// With time stamps, and so with latencies, or without.
    pub stamping: Stamping,
    /// Never sleep.
    pub poll: bool,
    /// Send no more after so many seconds.
    pub seconds: Option<f64>,
}

/// A run under way. What it found so far stands even when a call fails.
pub struct Echo {
    plan: Plan,
    random: fastrand::Rng,
    lens: Vec<u16>,
    clock: Clock,
    checker: Checker,
    latency: Distribution,
    sent: u64,
    received: u64,
}

impl Echo {
    /// Prepares a run.
    pub fn new(plan: Plan) -> Self {
        let most = plan.burst.min(usize::try_from(plan.window).unwrap_or(usize::MAX));
        Self {
            random: fastrand::Rng::new(),
            lens: vec![0; most],
            clock: Clock::start(),
            checker: Checker::new(plan.stamping),
            latency: Distribution::new(),
            sent: 0,
            received: 0,
            plan,
        }
    }

    /// Sends and receives until everything is back or nothing comes any more.
    pub fn run(&mut self, rx: &mut RxQueue, tx: &mut TxQueue, meter: &Meter) -> Result<(), Failure> {
        let (start, mut heard) = (Moment::now(), Moment::now());
        let mut idle = Idle::new(self.plan.poll);
        while self.received < self.sent || self.sent < self.plan.goal {
            if stop::asked() || self.plan.seconds.is_some_and(|seconds| start.seconds() > seconds) {
                // No more out; what is on its way is still waited for.
                self.plan.goal = self.sent;
            }
            let sent = self.send(tx, meter)?;
            if self.receive(rx)? {
                heard = Moment::now();
                idle.busy();
            } else if heard.seconds() > SILENCE {
                break;
            } else if !sent {
                idle.await_frame(rx)?;
            }
        }
        Ok(())
    }

    /// How many frames went out.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// How many frames came back, whatever was in them.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// What was found; what is still missing is lost.
    pub fn findings(&mut self) -> Findings {
        self.checker.finish(Sequence::new(self.sent))
    }

    /// How long the frames took, if they had time stamps.
    pub fn latency(self) -> Option<Distribution> {
        (self.plan.stamping == Stamping::On).then_some(self.latency)
    }

    /// Sends a burst if there is room for one; whether it did.
    #[inline]
    fn send(&mut self, tx: &mut TxQueue, meter: &Meter) -> Result<bool, Failure> {
        let on_the_way = self.sent.saturating_sub(self.received);
        let room = self.plan.window.saturating_sub(on_the_way).min(self.plan.goal - self.sent);
        let count = self.lens.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if count == 0 {
            return Ok(false);
        }
        self.plan.sizes.pick(&mut self.random, &mut self.lens[..count]);
        let count = self.put(tx, count)?;
        if count == 0 {
            return Ok(false);
        }
        self.sent += count as u64;
        meter.add(count as u64, send::bytes(&self.lens[..count]));
        send::flush(tx)?;
        Ok(true)
    }

    #[inline]
    fn put(&self, tx: &mut TxQueue, count: usize) -> Result<usize, Failure> {
        let first = Sequence::new(self.sent);
        match self.plan.stamping {
            Stamping::Off => send::burst(tx, &self.lens[..count], |at, slot| {
                structured::fill(slot, first.offset(at as i64));
            }),
            Stamping::On => send::burst(tx, &self.lens[..count], |at, slot| {
                structured::fill_stamped(slot, first.offset(at as i64), self.clock.now());
            }),
        }
    }

    /// Takes a burst and checks it; whether there was one.
    #[inline]
    fn receive(&mut self, rx: &mut RxQueue) -> Result<bool, Failure> {
        let burst = rx.get(self.lens.len()).doing(cannot_receive)?;
        for packet in burst.iter() {
            let _ = self.checker.check(packet.data);
            if self.plan.stamping == Stamping::On
                && let Some(stamp) = structured::stamp(packet.data)
            {
                self.latency.record(self.clock.now().nanos_since(stamp));
            }
        }
        self.received += burst.len() as u64;
        Ok(!burst.is_empty())
    }
}

/// What was being done when a `get` failed.
pub fn cannot_receive() -> String {
    "cannot receive".to_owned()
}
