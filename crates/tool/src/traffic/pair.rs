//! One queue pair of a worker.

use millrace_packet::probe::Probe;
use millrace_packet::structured::Stamp;

use super::board::Gauge;
use super::lengths::Lengths;
use super::plan::Plan;
use crate::clock::Clock;
use crate::failure::Failure;
use crate::host::{RxQueue, TxQueue};
use crate::send;

/// A queue pair, and where its sender stands.
pub struct Pair {
    /// Number of the queues.
    pub queue: u32,
    /// Where frames come from, if anyone wants to know.
    pub rx: Option<RxQueue>,
    tx: TxQueue,
    sender: Sender,
}

/// What one pair sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames.
    pub frames: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
}

struct Sender {
    lengths: Lengths,
    /// Lengths of the next frames; those from `ready` on are still to be chosen.
    lens: Box<[u16]>,
    ready: usize,
    next: Next,
    sent: Sent,
    /// Frames that did not come back and no longer count as being on their way.
    given_up: u64,
}

/// Flow and number of the next frame: flows take turns.
#[derive(Clone, Copy)]
struct Next {
    first: u32,
    flows: u32,
    flow: u32,
    sequence: u32,
}

impl Next {
    #[inline(always)]
    fn take(&mut self, stamp: Stamp) -> Probe {
        let probe = Probe { flow: self.first + self.flow, sequence: self.sequence, stamp };
        self.flow += 1;
        if self.flow == self.flows {
            self.flow = 0;
            self.sequence = self.sequence.wrapping_add(1);
        }
        probe
    }
}

impl Pair {
    /// The pair that is number `at` of all, with its queues started.
    pub fn new(queue: u32, at: usize, rx: Option<RxQueue>, tx: TxQueue, plan: &Plan) -> Self {
        let next = Next { first: at as u32 * plan.flows, flows: plan.flows, flow: 0, sequence: 0 };
        let lens = vec![0; plan.burst].into_boxed_slice();
        let sender = Sender { lengths: plan.lengths.clone(), lens, ready: 0, next, sent: Sent::default(), given_up: 0 };
        Self { queue, rx, tx, sender }
    }

    /// What was sent so far.
    pub fn sent(&self) -> Sent {
        self.sender.sent
    }

    /// Whether nothing more is to be sent.
    #[inline]
    pub fn is_done(&self, plan: &Plan) -> bool {
        plan.goal.is_some_and(|goal| self.sender.sent.frames >= goal)
    }

    /// When the next frame is due, in ns after the start.
    pub fn due(&self, plan: &Plan) -> u64 {
        let sent = self.sender.sent;
        plan.rate.map_or(0, |rate| rate.next(sent.frames, sent.bytes))
    }

    /// What is on its way will not come any more.
    pub fn give_up(&mut self, gauge: &Gauge) {
        self.sender.given_up = self.sender.sent.frames.saturating_sub(gauge.received.frames());
    }

    /// Sends a burst if one is due and there is room, `elapsed` ns after the start; whether it did.
    #[inline]
    pub fn send(&mut self, plan: &Plan, clock: Clock, elapsed: u64, gauge: &Gauge) -> Result<bool, Failure> {
        let Self { tx, sender, .. } = self;
        let most = sender.allowed(plan, elapsed, gauge);
        if most == 0 {
            return Ok(false);
        }
        let Sender { lens, next, .. } = sender;
        let sent = if plan.latency {
            send::burst(tx, &lens[..most], |_, slot| {
                plan.probes.write(slot, next.take(clock.now()));
            })?
        } else {
            send::burst(tx, &lens[..most], |_, slot| {
                plan.probes.write(slot, next.take(Stamp::default()));
            })?
        };
        if sent == 0 {
            return Ok(false);
        }
        send::flush(tx)?;
        let bytes = send::bytes(&lens[..sent]);
        sender.sent.frames += sent as u64;
        sender.sent.bytes += bytes;
        gauge.sent.add(sent as u64, bytes);
        lens.copy_within(sent..sender.ready, 0);
        sender.ready -= sent;
        Ok(true)
    }

    /// The queues, to be used for something else.
    pub fn into_queues(self) -> (Option<RxQueue>, TxQueue) {
        (self.rx, self.tx)
    }

    /// Ends the pair. What was sent has left the queue, or the card does not take it.
    pub fn finish(self) -> Result<(), Failure> {
        send::finish(self.tx)
    }
}

impl Sender {
    /// How many frames may go out now. Their lengths are chosen then.
    #[inline]
    fn allowed(&mut self, plan: &Plan, elapsed: u64, gauge: &Gauge) -> usize {
        let mut room = plan.goal.map_or(u64::MAX, |goal| goal.saturating_sub(self.sent.frames));
        if let Some(window) = plan.window {
            let gone = gauge.received.frames() + self.given_up;
            room = room.min(window.saturating_sub(self.sent.frames.saturating_sub(gone)));
        }
        let most = self.lens.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if most == 0 {
            return 0;
        }
        self.lengths.pick(&mut self.lens[self.ready..]);
        self.ready = self.lens.len();
        match plan.rate {
            None => most,
            Some(rate) => rate.allow(elapsed, self.sent.frames, self.sent.bytes, &self.lens[..most]),
        }
    }
}
