//! What the other end has beyond what is missing (decision 54).
//!
//! In a *round* each missing packet is sent once. What is still missing when something sent after the beginning of the
//! round has come is lost again: the next round. When the last packets are lost nothing comes that would say so; the last one
//! is sent again after a few round trips.

use super::Requester;
use crate::number::{Moment, Psn};
use crate::transport::{Broken, Config, Environment};
use crate::work::Progress;
use core::time::Duration;

/// How far ahead of the oldest packet without an answer others are known to have come.
pub(crate) const SPAN: u32 = 512;

/// Round trip time that is assumed before one was measured, in nanoseconds.
const FIRST_TRIP: u64 = 250_000;
/// The last packet is not sent again sooner.
const SHORTEST: u64 = 50_000;

/// A packet is there for each number modulo [`SPAN`].
#[derive(Clone, Debug, Default)]
pub(in crate::transport) struct Bits([u64; SPAN as usize / 64]);

impl Bits {
    #[inline]
    fn place(psn: Psn) -> (usize, u64) {
        let at = psn.value() % SPAN;
        ((at / 64) as usize, 1 << (at % 64))
    }

    #[inline]
    pub fn has(&self, psn: Psn) -> bool {
        let (word, bit) = Self::place(psn);
        self.0[word] & bit != 0
    }

    pub fn set(&mut self, psn: Psn) {
        let (word, bit) = Self::place(psn);
        self.0[word] |= bit;
    }

    pub fn clear(&mut self, psn: Psn) {
        let (word, bit) = Self::place(psn);
        self.0[word] &= !bit;
    }

    pub fn clear_all(&mut self) {
        self.0 = Default::default();
    }
}

/// What is known of the other end.
#[derive(Debug)]
pub(in crate::transport) struct Selective {
    there: Bits,
    /// One behind the highest number that is known to be there. At or below `una`: nothing is.
    highest: Psn,
    /// Missing ones before it were sent again in this round.
    scan: Psn,
    /// The request in which `scan` is, or one before it.
    scan_slot: u32,
    /// What was sent before this round had lower numbers.
    recover: Psn,
    is_open: bool,
    /// The last packet is to be sent again.
    probe: bool,
    /// The packet that goes out next is the last one, and not one of a round.
    is_probing: bool,
    probe_at: Option<Moment>,
    backoff: u32,
    /// A packet whose answer is waited for, and when it went.
    timed: Option<(Psn, Moment)>,
    /// Nanoseconds, smoothed.
    trip: u64,
}

impl Selective {
    fn new(una: Psn) -> Self {
        Self {
            there: Bits::default(),
            highest: una,
            scan: una,
            scan_slot: 0,
            recover: una,
            is_open: false,
            probe: false,
            is_probing: false,
            probe_at: None,
            backoff: 0,
            timed: None,
            trip: FIRST_TRIP,
        }
    }

    pub fn wants(&self) -> bool {
        self.probe || self.is_open && self.scan.since(self.highest) < 0
    }

    fn patience(&self) -> Duration {
        Duration::from_nanos((4 * self.trip).max(SHORTEST) << self.backoff)
    }
}

impl Requester {
    /// The other end has taken all before `expected`, and has, from `base` on, what `bits` say.
    pub(super) fn selectively<M>(
        &mut self,
        config: &Config,
        env: &mut Environment<'_, M>,
        expected: Psn,
        base: Psn,
        bits: u64,
    ) -> Result<(), Broken> {
        if expected.since(self.end) > 0 || base.since(expected) < 0 {
            env.counters.unexpected_answer += 1;
            return Ok(());
        }
        env.counters.sequence_errors_received += 1;
        if expected.since(self.una) < 0 {
            return Ok(());
        }
        if !self.advance(config, env, expected)? {
            self.go_back_once(env);
            return Ok(());
        }
        if bits == 0 {
            self.go_back_once(env);
            return Ok(());
        }
        let (una, end, first) = (self.una, self.end, self.queue.first);
        let known = self.selective.get_or_insert_with(|| Box::new(Selective::new(una)));
        let mut has_new = false;
        let mut left = bits;
        while left != 0 {
            let psn = base + left.trailing_zeros();
            left &= left - 1;
            let ahead = psn.since(una);
            if ahead <= 0 || ahead >= SPAN as i32 || psn.since(end) >= 0 {
                continue;
            }
            known.there.set(psn);
            has_new = true;
            if !known.is_open || psn.since(known.highest) >= 0 {
                known.highest = psn.next();
                if !known.is_open {
                    (known.is_open, known.recover, known.scan, known.scan_slot) = (true, end, una, first);
                }
            }
        }
        if has_new && known.highest.since(known.recover) > 0 {
            (known.recover, known.scan, known.scan_slot) = (end, una, first);
        }
        Ok(())
    }

    /// The next packet to send again: which request, and which packet of it.
    #[inline]
    pub(super) fn next_missing(&mut self) -> Option<(u32, u32)> {
        let known = self.selective.as_mut()?;
        known.is_probing = core::mem::take(&mut known.probe);
        if known.is_probing {
            return self.last_packet();
        }
        if !known.is_open {
            return None;
        }
        let first = self.queue.first;
        if known.scan_slot.wrapping_sub(first) > self.queue.len() {
            known.scan_slot = first;
        }
        while known.scan.since(known.highest) < 0 {
            let slot = self.queue.slot(known.scan_slot)?;
            let packet = known.scan.since(slot.first);
            let is_inside = slot.progress == Progress::Begun && packet >= 0 && packet < slot.packets as i32;
            if !is_inside {
                // Behind it, or it has no packets; one that comes later than the number has no part in it.
                if slot.progress == Progress::Begun && packet < 0 {
                    known.scan = slot.first;
                } else {
                    known.scan_slot = known.scan_slot.wrapping_add(1);
                }
                continue;
            }
            if slot.operation.asks() {
                let is_missing = packet == 0 && !known.there.has(slot.first);
                if is_missing {
                    return Some((known.scan_slot, 0));
                }
                known.scan = slot.first + slot.packets;
            } else if known.there.has(known.scan) {
                known.scan = known.scan.next();
            } else {
                return Some((known.scan_slot, packet.unsigned_abs()));
            }
        }
        None
    }

    /// The packet that was sent last, if the cursor is right behind it.
    fn last_packet(&self) -> Option<(u32, u32)> {
        let (position, packet) = match self.packet {
            0 => {
                let position = self.cursor.wrapping_sub(1);
                (position, self.queue.slot(position)?.packets.checked_sub(1)?)
            }
            packet => (self.cursor, packet - 1),
        };
        let slot = self.queue.slot(position)?;
        let is_last = slot.progress == Progress::Begun && (slot.first + packet).next() == self.end;
        (is_last && !slot.operation.asks()).then_some((position, packet))
    }

    /// A missing packet went out.
    pub(super) fn has_sent_missing(&mut self, now: Moment) {
        if let Some(known) = &mut self.selective {
            let was_probing = core::mem::take(&mut known.is_probing);
            if !was_probing && known.is_open && known.scan.since(known.highest) < 0 {
                known.scan = known.scan.next();
            }
            known.timed = None;
            known.probe_at = Some(now + known.patience());
        }
    }

    /// Whether the packet at the cursor needs not be sent again. The oldest without an answer always is: only it brings one.
    #[inline]
    pub(super) fn is_there_already(&self, slot: &crate::work::Slot) -> bool {
        let Some(known) = &self.selective else { return false };
        let psn = slot.first + self.packet;
        known.is_open
            && psn != self.una
            && psn.since(self.end) < 0
            && psn.since(self.una) < SPAN as i32
            && !slot.operation.asks()
            && known.there.has(psn)
    }

    /// A packet went out: its answer is timed, and if it is the last one, it may be sent again soon.
    #[inline]
    pub(super) fn watch(&mut self, now: Moment, psn: Psn, is_new: bool) {
        let una = self.una;
        let known = self.selective.get_or_insert_with(|| Box::new(Selective::new(una)));
        if is_new && known.timed.is_none() {
            known.timed = Some((psn, now));
        }
        known.probe_at = Some(now + known.patience());
    }

    /// What is on its way is not timed, and the other end is not asked early whether it has come: the clock was not read when an answer
    /// came.
    pub(in crate::transport) fn forget_times(&mut self) {
        if let Some(known) = &mut self.selective {
            (known.timed, known.probe_at) = (None, None);
        }
    }

    /// Answers came for what is from `before` to the oldest without one.
    #[inline]
    pub(super) fn forget_selected<M>(&mut self, _config: &Config, env: &Environment<'_, M>, before: Psn) {
        let (una, end) = (self.una, self.end);
        let Some(known) = &mut self.selective else { return };
        if known.is_open {
            if una.since(before) >= SPAN as i32 {
                known.there.clear_all();
            }
            for ahead in 0..una.since(before).clamp(0, SPAN as i32) as u32 {
                known.there.clear(before + ahead);
            }
            known.is_open = una.since(known.highest) < 0;
            if !known.is_open {
                known.there.clear_all();
            }
            if known.scan.since(una) < 0 {
                known.scan = una;
            }
        }
        known.backoff = 0;
        if let Some((psn, sent)) = known.timed
            && psn.since(una) < 0
        {
            let took = env.now.nanoseconds().saturating_sub(sent.nanoseconds());
            known.trip = (7 * known.trip + took) / 8;
            known.timed = None;
        }
        known.probe_at = (una != end).then(|| env.now + known.patience());
    }

    /// After a time without answers everything is sent again, but for what is known to be there.
    pub(super) fn forget_rounds(&mut self) {
        let una = self.una;
        if let Some(known) = &mut self.selective {
            (known.recover, known.scan, known.timed) = (una, known.highest, None);
        }
    }

    /// If nothing comes for a while, the last packet is sent again: its answer says what is missing.
    pub(super) fn look_for_tail(&mut self, now: Moment) {
        let una = self.una;
        let Some(known) = &mut self.selective else { return };
        if known.probe_at.is_none_or(|until| until > now) || self.waiting.is_some() {
            return;
        }
        known.backoff = (known.backoff + 1).min(8);
        known.timed = None;
        known.recover = una;
        known.probe_at = Some(now + known.patience());
        let asks = self.queue.slot(self.cursor.wrapping_sub(1)).is_some_and(|slot| slot.operation.asks());
        if asks && self.packet == 0 {
            self.go_back();
        } else if let Some(known) = &mut self.selective {
            known.probe = true;
        }
    }

    #[inline]
    pub(super) fn tail_deadline(&self) -> Option<Moment> {
        if self.waiting.is_some() || self.una == self.end {
            return None;
        }
        self.selective.as_ref()?.probe_at
    }
}
