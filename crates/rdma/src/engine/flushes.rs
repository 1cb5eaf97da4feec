//! What waits in queue pairs that have failed ends, turn by turn.

use super::Engine;
use crate::memory::Memory;
use crate::number::{Moment, Qpn};
use crate::work::Completion;

/// What ends of a queue pair before it is another one's turn.
const PART: u32 = 64;

impl<M: Memory> Engine<M> {
    /// Goes on with what has not ended, up to [`Options::flushed_in_turn`](super::Options::flushed_in_turn); what is left of that is for those that fail
    /// before the next turn.
    pub(super) fn flush_on(&mut self, now: Moment) {
        let mut left = self.options.flushed_in_turn;
        while left > 0
            && let Some(qpn) = self.flushes.next()
        {
            let part = left.min(PART);
            self.flushes.set_left(part);
            if let Some(slot) = self.numbers.slot(qpn) {
                let (pairs, mut env) = self.split(now);
                if let Some(pair) = pairs.get_mut(slot as usize).filter(|pair| pair.flushing) {
                    pair.flushing = false;
                    pair.flush(&mut env);
                }
            }
            // One that has gone meanwhile costs something, too.
            left -= (part - self.flushes.left()).max(1);
        }
        self.flushes.set_left(left);
        if !self.events.overrun.is_empty() {
            self.fail_overrun(now);
        }
    }

    /// Whether something of a group's queue pairs, which have failed, has not ended yet. What is asked of them meanwhile would come
    /// before it.
    #[inline]
    pub fn is_flushing(&self, group: u32) -> bool {
        self.flushes.has(group)
    }

    /// Whether that is so of any group.
    #[inline]
    pub fn has_flushes(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// Adds a line about a request that the queue pair has never had, behind all that it has. There is one of them at a time: see
    /// [`Engine::is_flushing`].
    pub fn complete_behind(&mut self, qpn: Qpn, cq: u32, completion: Completion) {
        let pair = self.numbers.slot(qpn).and_then(|slot| self.pairs.get_mut(slot as usize));
        match pair.filter(|pair| pair.flushing && pair.behind.is_none()) {
            Some(pair) => pair.behind = Some((cq, completion)),
            None => self.complete(cq, completion),
        }
    }
}
