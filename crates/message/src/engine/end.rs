//! What ends: actions, messages that are cancelled, pairs.

use super::matching::Envelope;
use super::pair::{Out, Pair};
use super::{Doing, Engine, Outcome, PairId, RequestError, RequestId, Role, Ticket, What};
use crate::cost::Scheme;
use crate::step::Step;

/// What the other end of a pair has done that it may not. The pair is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Breach {
    /// It has gone, or was lost before.
    #[error("the other endpoint is gone")]
    Gone,
    /// Words that are no message.
    #[error("it has said what nobody says")]
    Nonsense,
    /// More messages than it had credits for.
    #[error("it has sent more messages than it had credits for")]
    Flood,
    /// It has given back credits for what was never sent.
    #[error("it has given credits back for messages that were not sent")]
    Credit,
    /// A buffer that it has granted already, that it does not have, or for no message.
    #[error("it has granted a buffer that it does not have, or twice, or for no message")]
    Grant,
    /// A buffer that it was not granted.
    #[error("it says of a buffer that it is full, which was not granted for that message")]
    Done,
    /// An answer to what was not asked.
    #[error("it has answered what it was not asked, or twice")]
    Answer,
    /// It wakes this end more often than it was asked to.
    #[error("it has rung more often than it was asked to")]
    Rings,
    /// Buffers, which it neither uses nor gives back, while others wait for them.
    #[error("it keeps buffers that others wait for")]
    Hoards,
}

/// What becomes of a message that is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// It was.
    Done,
    /// The other end is asked. The completion says what came of it.
    Asked,
    /// Too late: it takes its course.
    TooLate,
}

impl Engine {
    /// An action is done; `is_good`: it has worked. Its memory is not used any more.
    pub fn finished(&mut self, ticket: Ticket, is_good: bool) {
        let Some(doing) = self.complete(ticket) else { return };
        let (id, message) = (doing.pair, doing.message);
        let is_lost = self.live(id).is_none();
        match doing.what {
            What::CopyIn { segment, smb } => {
                if is_lost || !self.has_segment(&doing, segment) {
                    self.free_smb(smb);
                } else {
                    self.copied_in(id, message, segment, is_good);
                }
            }
            What::Transfer { segment, smb } => {
                if smb.is_some() {
                    self.trace.note(Step::ReleaseSmb, id, message, segment);
                }
                if !is_lost && self.has_segment(&doing, segment) {
                    self.transferred(id, message, segment, is_good);
                }
                if let Some(smb) = smb {
                    self.free_smb(smb);
                }
            }
            What::CopyOut { slot } => self.copied_out(id, message, slot, is_good),
            What::Move { len } if !is_lost => self.moved_piece(id, message, len, is_good),
            What::Hold if !is_lost => self.held(id, message, is_good),
            What::Move { .. } | What::Hold | What::Expose => {}
        }
        self.settle(&doing);
    }

    /// Whether a part of a message is what it was when the action began.
    fn has_segment(&self, doing: &Doing, segment: u32) -> bool {
        let sending = self.pairs[doing.pair.0 as usize].sends.get(&doing.message);
        sending.is_some_and(|sending| {
            sending.request == doing.request && (segment.wrapping_sub(sending.done) as usize) < sending.segments.len()
        })
    }

    /// Takes an action out, with its request kept alive until [`Engine::settle`].
    pub(super) fn complete(&mut self, ticket: Ticket) -> Option<Doing> {
        self.doing.try_remove(ticket.0 as usize)
    }

    /// The request and the pair of an action that is done are free of it.
    pub(super) fn settle(&mut self, doing: &Doing) {
        let request = &mut self.requests[doing.request.0 as usize];
        request.busy -= 1;
        if let Some(outcome) = request.outcome {
            self.end(doing.request, outcome);
        }
        let pair = &mut self.pairs[doing.pair.0 as usize];
        pair.acting -= 1;
        self.bury(doing.pair);
    }

    pub(super) fn bury(&mut self, id: PairId) {
        // That it was given up is said before somebody else has its number.
        let is_told = !self.given_up.iter().any(|(other, _)| *other == id);
        let is_over = |pair: &Pair| is_told && pair.lost && pair.acting == 0 && pair.unexpected.is_empty();
        if self.pairs.get(id.0 as usize).is_some_and(is_over) {
            self.pairs.remove(id.0 as usize);
        }
    }

    /// Whether a pair that was lost has left short messages.
    pub fn has_left(&self, id: PairId) -> bool {
        self.pairs.get(id.0 as usize).is_some_and(|pair| pair.lost && !pair.unexpected.is_empty())
    }

    /// Short messages that a pair that was lost has left are not wanted either.
    pub fn forget_pair(&mut self, id: PairId) {
        let Some(pair) = self.pairs.get_mut(id.0 as usize).filter(|pair| pair.lost) else { return };
        for left in core::mem::take(&mut pair.unexpected) {
            if let Envelope::Eager { words, .. } = left.envelope {
                self.recycle(words);
            }
        }
        self.bury(id);
    }

    /// Ends a message before its time, if that is possible.
    ///
    /// # Errors
    /// [`RequestError`]: there is none.
    pub fn cancel(&mut self, request: RequestId) -> Result<Cancel, RequestError> {
        let held = self.requests.get(request.0 as usize).filter(|held| !held.has_ended).ok_or(RequestError::Lost)?;
        if held.outcome.is_some() {
            return Ok(Cancel::TooLate);
        }
        let (id, scheme) = match held.role {
            Role::Receive { from } => {
                if !self.withdraw_receive(request, from) {
                    return Ok(Cancel::TooLate);
                }
                self.end(request, Outcome::Cancelled);
                return Ok(Cancel::Done);
            }
            Role::Send { pair, scheme, .. } => (pair, scheme),
        };
        let Some(pair) = self.live(id) else { return Ok(Cancel::TooLate) };
        if let Some(at) = pair.waiting.iter().position(|waiting| *waiting == request) {
            pair.waiting.remove(at);
            self.end(request, Outcome::Cancelled);
            return Ok(Cancel::Done);
        }
        Ok(if scheme == Scheme::Eager { Cancel::TooLate } else { self.withdraw(id, request) })
    }

    /// A pair has ended: its other end is gone, or is not wanted any more. What it had of buffers is free, but for those that
    /// actions are using; who waits for it is told. Short messages that are here can be received still; there is a pair until that has
    /// happened, or [`Engine::forget_pair`] was called. Others see nothing of it.
    pub fn lose(&mut self, id: PairId) {
        let Some(pair) = self.live(id) else { return };
        pair.lost = true;
        let sends = core::mem::take(&mut pair.sends);
        let incoming = core::mem::take(&mut pair.incoming);
        // Whoever has them does not lose them; but there is nobody to be told.
        pair.kept.clear();
        let (waiting, posted) = (core::mem::take(&mut pair.waiting), core::mem::take(&mut pair.posted));
        // Long ones cannot be fetched any more.
        pair.unexpected.retain(|left| matches!(left.envelope, Envelope::Eager { .. }));
        let outbox = core::mem::take(&mut pair.outbox);
        let hoping = core::mem::take(&mut pair.hoping);
        let granted = core::mem::take(&mut pair.granted);
        self.hoping -= hoping;
        self.rmbs -= granted.count_ones() as u16;
        let mut lost: Vec<RequestId> = waiting.into_iter().chain(posted.iter().map(|posted| posted.request)).collect();
        lost.extend(outbox.iter().filter_map(|out| if let Out::Eager(request) = out { Some(*request) } else { None }));
        lost.extend(incoming.values().map(|incoming| incoming.request));
        for sending in sends.values() {
            lost.push(sending.request);
            // The others are used by actions, and free when these are done.
            let ready = sending.segments.iter().filter(|part| part.state == super::pair::SegmentState::Ready);
            self.smbs.extend(ready.filter_map(|part| part.smb));
        }
        lost.into_iter().for_each(|request| self.end(request, Outcome::Lost));
        self.bury(id);
        self.refill();
    }

    /// The other end has written what is no message: the pair is lost.
    #[cold]
    pub fn refuse(&mut self, id: PairId) -> Breach {
        self.give_up(id, Breach::Nonsense);
        Breach::Nonsense
    }

    /// The other end has done what it may not.
    pub(crate) fn give_up(&mut self, id: PairId, breach: Breach) {
        if self.live(id).is_some() {
            self.given_up.push_back((id, breach));
            self.lose(id);
        }
    }

    /// Time goes on: to be called as often as the driver's idea of patience says. Who has had receive buffers for [`super::Limits::patience`]
    /// ticks without using one is lost if others wait for some.
    pub fn tick(&mut self) {
        let is_short = self.rmbs >= self.limits.rmbs;
        let waiting = self.pairs.iter().filter(|(_, pair)| pair.wants && !pair.lost).count();
        let patience = self.limits.patience;
        let mut hoards = Vec::new();
        for (id, pair) in &mut self.pairs {
            let is_idle = !core::mem::take(&mut pair.moved) && pair.granted != 0 && !pair.lost;
            pair.idle = if is_idle { pair.idle.saturating_add(1) } else { 0 };
            // Its own wishes are no reason.
            let others = waiting - usize::from(pair.wants && !pair.lost);
            if is_short && others > 0 && pair.idle >= patience {
                hoards.push((pair.idle, PairId(id as u32)));
            }
        }
        // One at a time: what it has had may be enough.
        if let Some(&(_, id)) = hoards.iter().max() {
            self.give_up(id, Breach::Hoards);
        }
    }
}
