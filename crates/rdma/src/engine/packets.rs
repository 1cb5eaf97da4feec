//! What comes and what goes.

use super::Engine;
use crate::memory::Memory;
use crate::number::{Moment, Qpn};
use crate::transport::{Origin, Out, Step};
use crate::wire::Packet;

/// Packets of a queue pair in one turn.
const TURN: usize = 16;
/// Queue pairs whose times have come that are looked at in one call.
const EXPIRED: usize = 256;

impl<M: Memory> Engine<M> {
    /// A packet has come. Whatever it is, it does no more than its sender may do; what does nothing is
    /// [counted](super::Counters).
    #[inline]
    pub fn receive(&mut self, now: Moment, packet: &Packet<'_>, from: &Origin) {
        self.counters.received += 1;
        let Some(slot) = self.numbers.slot(packet.headers.destination) else {
            self.counters.no_queue_pair += 1;
            return;
        };
        let (pairs, mut env) = self.split(now);
        let Some(pair) = pairs.get_mut(slot as usize) else { return };
        pair.receive(&mut env, packet, from);
        if !self.events.overrun.is_empty() {
            self.fail_overrun(now);
        }
        self.schedule(slot);
    }

    /// Sends at most `budget` packets, of all groups in turn, and of each group's queue pairs; a request that is done without packets
    /// counts as some, by its bytes. How many were sent: if it is fewer, there is nothing more to send before
    /// [`next_deadline`](Self::next_deadline), or `out` is full.
    pub fn transmit<O: Out>(&mut self, now: Moment, budget: usize, out: &mut O) -> usize {
        if !self.late.is_empty() {
            self.start_late_timers(now);
        }
        self.expire(now);
        self.flush_on(now);
        let (tries, mut sent) = (self.turns.open(), 0);
        while sent < budget {
            let Some(group) = self.turns.begin() else { break };
            let (count, last) = self.transmit_group(now, group, (budget - sent, tries), out);
            sent += count;
            if self.turns.end(group, last == Step::Blocked) || last == Step::Full {
                break;
            }
        }
        self.turns.close();
        sent
    }

    /// The turn of a group. How many packets it has sent, and [`Step::Full`] or [`Step::Blocked`] if it has no room for more.
    #[inline]
    fn transmit_group<O: Out>(
        &mut self,
        now: Moment,
        group: u32,
        (budget, tries): (usize, usize),
        out: &mut O,
    ) -> (usize, Step) {
        let (mut sent, mut blocked) = (0, 0);
        while sent < budget {
            let Some(slot) = self.turns.take(group) else { break };
            let (count, last) = self.transmit_pair(now, (group, slot), TURN.min(budget - sent), out);
            sent += count;
            blocked += usize::from(last == Step::Blocked);
            if last == Step::Full || blocked > 0 && self.turns.holds(group, blocked, tries) {
                let end = if last == Step::Full { Step::Full } else { Step::Blocked };
                return (sent, end);
            }
        }
        (sent, Step::Idle)
    }

    /// The turn of a queue pair. How many packets it has sent, and what came of its last step.
    #[inline]
    fn transmit_pair<O: Out>(
        &mut self,
        now: Moment,
        (group, slot): (u32, u32),
        turn: usize,
        out: &mut O,
    ) -> (usize, Step) {
        let before = self.counters.sent_bytes;
        let (pairs, mut env) = self.split(now);
        let Some(pair) = pairs.get_mut(slot as usize) else { return (0, Step::Idle) };
        pair.scheduled = false;
        let (mut count, mut last) = (0, Step::Sent);
        while count < turn && matches!(last, Step::Sent | Step::Reached(_)) {
            last = pair.step(&mut env, out);
            count += match last {
                Step::Sent => 1,
                Step::Reached(cost) => cost as usize,
                _ => 0,
            };
        }
        let deadline = pair.deadline(now);
        match last {
            // What failed may have something to say about it.
            Step::Sent | Step::Reached(_) | Step::Broken => self.schedule(slot),
            Step::Full => {
                pair.scheduled = true;
                self.turns.put_back(group, slot);
            }
            Step::Blocked => {
                pair.scheduled = true;
                self.turns.add(group, slot);
            }
            Step::Idle => {}
        }
        self.turns.pay(group, count, self.counters.sent_bytes - before);
        if let Some(time) = deadline {
            self.timers.want(slot, time);
        }
        if !self.events.overrun.is_empty() {
            self.fail_overrun(now);
        }
        (count, last)
    }

    /// As [`acknowledge_again`](Self::acknowledge_again), out of turn: one packet at once, for which its group pays. Whether there was one.
    pub fn acknowledge_now<O: Out>(&mut self, now: Moment, qpn: Qpn, out: &mut O) -> bool {
        let Some(slot) = self.numbers.slot(qpn) else { return false };
        let (pairs, mut env) = self.split(now);
        let Some(pair) = pairs.get_mut(slot as usize) else { return false };
        let (group, is_sent) = (pair.group, pair.say_last(&mut env, out) == Step::Sent);
        self.turns.pay(group, usize::from(is_sent), 0);
        is_sent
    }

    /// When [`transmit`](Self::transmit) is to be called although nothing comes and nothing is posted. It may turn out that there
    /// was nothing to do.
    #[inline]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.timers.first()
    }

    /// Whether the last call of [`transmit`](Self::transmit), if it has sent nothing, has tried all queue pairs that have something to send.
    pub(crate) fn has_tried_all(&self) -> bool {
        self.turns.has_tried_all()
    }

    /// Whether no queue pair has anything to send now, and nothing is to be told.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.turns.is_empty() && self.events.is_empty() && self.flushes.is_empty()
    }

    fn expire(&mut self, now: Moment) {
        for _ in 0..EXPIRED {
            let Some(slot) = self.timers.take(now) else { break };
            let (pairs, mut env) = self.split(now);
            let Some(pair) = pairs.get_mut(slot as usize) else { continue };
            pair.expire(&mut env);
            // What is due now is due again only later: a time that stays would be found over and over.
            let later = pair.deadline(now).map(|time| time.max(Moment::new(now.nanoseconds() + 1)));
            if let Some(time) = later {
                self.timers.want(slot, time);
            }
            self.schedule(slot);
        }
        if !self.events.overrun.is_empty() {
            self.fail_overrun(now);
        }
    }
}
