//! What comes and what goes.

use super::Engine;
use crate::memory::Memory;
use crate::number::Moment;
use crate::transport::{Origin, Out, Step};
use crate::wire::Packet;

/// Packets of a queue pair in one turn.
const TURN: usize = 16;
/// Queue pairs without room on their way that are tried in one call; others have their turns at the next.
const BLOCKED: usize = 64;

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

    /// Sends at most `budget` packets, of all queue pairs in turn; a request that is done without packets costs some, by its bytes. How
    /// many were sent: if it is fewer, there is nothing more to
    /// send before [`next_deadline`](Self::next_deadline), or `out` is full.
    pub fn transmit<O: Out>(&mut self, now: Moment, budget: usize, out: &mut O) -> usize {
        if !self.late.is_empty() {
            self.start_late_timers(now);
        }
        self.expire(now);
        let (mut sent, mut blocked) = (0, 0);
        while sent < budget && (blocked == 0 || blocked < self.active.len().min(BLOCKED)) {
            let Some(slot) = self.active.pop_front() else { break };
            let turn = TURN.min(budget - sent);
            let (pairs, mut env) = self.split(now);
            let Some(pair) = pairs.get_mut(slot as usize) else { continue };
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
            sent += count;
            let deadline = pair.deadline(now);
            match last {
                // What failed may have something to say about it.
                Step::Sent | Step::Reached(_) | Step::Broken => self.schedule(slot),
                Step::Full => {
                    pair.scheduled = true;
                    self.active.push_front(slot);
                }
                Step::Blocked => {
                    pair.scheduled = true;
                    self.active.push_back(slot);
                    blocked += 1;
                }
                Step::Idle => {}
            }
            if let Some(time) = deadline {
                self.timers.want(slot, time);
            }
            if !self.events.overrun.is_empty() {
                self.fail_overrun(now);
            }
            if last == Step::Full {
                break;
            }
        }
        sent
    }

    /// When [`transmit`](Self::transmit) is to be called although nothing comes and nothing is posted. It may turn out that there
    /// was nothing to do.
    #[inline]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.timers.first()
    }

    /// Whether one call of [`transmit`](Self::transmit) tries all queue pairs that have something to send.
    pub(crate) fn tries_all(&self) -> bool {
        self.active.len() <= BLOCKED
    }

    /// Whether no queue pair has anything to send now, and nothing is to be told.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.active.is_empty() && self.events.is_empty()
    }

    fn expire(&mut self, now: Moment) {
        while let Some(slot) = self.timers.take(now) {
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
