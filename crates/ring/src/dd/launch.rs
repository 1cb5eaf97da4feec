//! Frames with a launch time: each leaves, or does not, with a verdict. Never early: the clock is read anew right before a
//! frame is handed over, and that reading is what its descriptor says.

use super::card_tx::CardTx;
use super::layout::{Outcome, Status};
use crate::serve::{After, Reader, Taken};
use crate::{EngineFault, Served};
use core::array;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, Ordering};
use millrace_abi::launch::{BUCKETS, FarPolicy, HORIZON, LatePolicy, LaunchPolicy, Reason, bucket_of};
use millrace_dma::{Access, Iova, Span};
use std::sync::Arc;

/// Readings of the clock while a launch time is waited for: they take longer than anybody's patience.
const MOST_READINGS: u32 = 500;

const REASONS: usize = Reason::ALL.len();

/// Verdicts of one queue by reason, and how late frames left. One worker writes, anybody reads; a reader may see a frame in one of
/// these numbers that it does not see in another yet.
#[derive(Debug)]
pub struct LaunchCounts {
    reasons: [AtomicU64; REASONS],
    late: [AtomicU64; BUCKETS],
    latest: AtomicU64,
}

impl Default for LaunchCounts {
    fn default() -> Self {
        let zero = |_| AtomicU64::new(0);
        Self { reasons: array::from_fn(zero), late: array::from_fn(zero), latest: AtomicU64::new(0) }
    }
}

/// One more. Only one thread writes, so that it need not be one step.
fn bump(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl LaunchCounts {
    fn count(&self, reason: Reason, late: u64) {
        bump(&self.reasons[reason as usize]);
        if let Reason::OnTime | Reason::Late = reason {
            bump(&self.late[bucket_of(late)]);
            let latest = self.latest.load(Ordering::Relaxed).max(late);
            self.latest.store(latest, Ordering::Relaxed);
        }
    }

    /// Frames by reason, in the order of [`Reason::ALL`].
    pub fn reasons(&self) -> [u64; REASONS] {
        array::from_fn(|at| self.reasons[at].load(Ordering::Relaxed))
    }

    /// Frames that left, by [bucket](bucket_of) of their lateness.
    pub fn late(&self) -> [u64; BUCKETS] {
        array::from_fn(|at| self.late[at].load(Ordering::Relaxed))
    }

    /// The latest frame that left, in ns.
    pub fn latest(&self) -> u64 {
        self.latest.load(Ordering::Relaxed)
    }
}

/// How a queue judges frames with a launch time.
#[derive(Default)]
pub(super) struct Judge {
    pub policy: LaunchPolicy,
    pub counts: Arc<LaunchCounts>,
}

/// What is to be done with a frame.
pub(super) enum Judged {
    Wait,
    Drop(Reason),
    Send(Reason),
}

impl Judge {
    /// Whether a launch time that lies so many ns ahead is one to wait for.
    pub fn waits(&self, ahead: u64) -> bool {
        ahead <= HORIZON || self.policy.far == FarPolicy::Hold
    }

    pub fn judge(&self, time: u64, now: u64) -> Judged {
        let (ahead, late) = (time.saturating_sub(now), now.saturating_sub(time));
        if ahead > 0 {
            return if self.waits(ahead) { Judged::Wait } else { Judged::Drop(Reason::TooFar) };
        }
        match self.policy.late {
            _ if late <= self.policy.slack.into() => Judged::Send(Reason::OnTime),
            LatePolicy::Drop => Judged::Drop(Reason::TooLate),
            LatePolicy::Send | LatePolicy::Mark => Judged::Send(Reason::Late),
        }
    }

    /// What the descriptor says of a frame that left the ring.
    fn outcome(&self, reason: Reason) -> Outcome {
        match reason {
            Reason::Dropped => Outcome::Dropped,
            Reason::Late if self.policy.late == LatePolicy::Mark => Outcome::Late,
            _ => Outcome::Passed,
        }
    }
}

impl CardTx {
    /// Sees to the frame at the head, of `len` bytes and with this launch time.
    ///
    /// # Errors
    /// [`EngineFault`] when its address cannot be reached.
    pub(super) fn launch(
        &mut self,
        time: u64,
        len: u16,
        take: &mut impl FnMut(&[Span<'_>], &[Iova]) -> Taken,
        served: &mut Served,
    ) -> Result<After, EngineFault> {
        if time > self.until {
            self.held = time;
            return Ok(After::Nothing);
        }
        // Once: what comes behind it is waited for by who asks.
        let patience = core::mem::take(&mut self.patience);
        // Before the clock is read, so that between that and the hand-over there is nothing. Nobody has judged the address yet.
        let iova = self.ring.address(self.head);
        let ahead = self.iotlb.peek(iova, len.into(), Access::Read).and_then(|reach| reach.span(iova, len.into()));
        let now = self.await_launch(time, patience);
        let reason = match self.judge.judge(time, now) {
            Judged::Wait => {
                self.held = time;
                return Ok(After::Nothing);
            }
            Judged::Drop(reason) => {
                let outcome = if reason == Reason::TooFar { Outcome::TooFar } else { Outcome::TooLate };
                self.end_launch(reason, time, now);
                self.drop_frame(outcome, len, served);
                return Ok(After::Frame);
            }
            Judged::Send(reason) => reason,
        };
        let frame = match ahead {
            Some(frame) => {
                self.iotlb.count_hits(1);
                frame
            }
            None => Reader::new(&self.iotlb).read(iova, len.into())?,
        };
        let taken = take(&[frame], &[iova]);
        if taken.frames == 0 {
            return Ok(After::Nothing);
        }
        served.frames += 1;
        served.bytes += u64::from(len);
        let reason = if taken.dropped { Reason::Dropped } else { reason };
        // Who looks at the clock once more, to see whether a gate is open, has the later word.
        let left = taken.at.filter(|at| *at > now).unwrap_or(now);
        self.end_launch(reason, time, left);
        self.take(Status { len, outcome: self.judge.outcome(reason) as u8, port: 0, done: self.at_once });
        Ok(After::Frame)
    }

    /// Waits for a launch time that comes within `patience` ns; returns the clock, read last of all. A clock that stands, or was set
    /// back, is not waited for.
    fn await_launch(&self, time: u64, patience: u64) -> u64 {
        let mut now = self.clock.now();
        for _ in 0..MOST_READINGS {
            if now >= time || time - now > patience {
                break;
            }
            spin_loop();
            now = self.clock.now();
        }
        now
    }

    /// The verdict on the frame at the head has fallen at `now`. Software sees it with the done bit.
    fn end_launch(&self, reason: Reason, time: u64, now: u64) {
        self.ring.set_time(self.head, now);
        self.judge.counts.count(reason, now.saturating_sub(time));
    }
}
