//! What the other end says, and messages that come in.

use super::matching::{Envelope, Posted, Unexpected};
use super::pair::{Out, part, parts};
use super::{Breach, Doing, Engine, Limits, Outcome, PIECE, PairId, RequestId, What, Work};
use crate::control::{Control, Message, Tag};
use crate::step::Step;

/// What is to be done at once with what has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// Nothing.
    Taken,
    /// The bytes of the eager message are for this request, whose completion is there already.
    Deliver(RequestId),
}

impl Engine {
    /// What the other end of a pair has said; `words` has the bytes of an eager message. What it may not say loses the pair.
    ///
    /// # Errors
    /// [`Breach`]. The pair is lost.
    #[inline]
    pub fn arrive(&mut self, id: PairId, control: Control, words: &[u64]) -> Result<Arrived, Breach> {
        let said = match control {
            Control::Eager { tag, len } => self.eager(id, tag, len, words),
            other => self.heard(id, other).map(|()| Arrived::Taken),
        };
        if let Err(breach) = said {
            self.give_up(id, breach);
        }
        said
    }

    /// One more envelope has come, if it may.
    #[inline]
    fn count(&mut self, id: PairId) -> Result<(), Breach> {
        let window = Limits::window(self.limits.credits);
        let pair = self.live(id).ok_or(Breach::Gone)?;
        if pair.arrived.wrapping_sub(pair.told) >= window {
            return Err(Breach::Flood);
        }
        pair.arrived = pair.arrived.wrapping_add(1);
        Ok(())
    }

    #[inline]
    fn eager(&mut self, id: PairId, tag: Tag, len: u16, words: &[u64]) -> Result<Arrived, Breach> {
        self.count(id)?;
        if words.len() < usize::from(len).div_ceil(8) {
            return Err(Breach::Nonsense);
        }
        let Some(posted) = self.waiter(id, tag) else {
            let mut kept = self.spare.pop().unwrap_or_default();
            kept.extend_from_slice(&words[..usize::from(len).div_ceil(8)]);
            self.keep(id, tag, Envelope::Eager { words: kept, len });
            return Ok(Arrived::Taken);
        };
        let pair = &mut self.pairs[id.0 as usize];
        pair.consumed = pair.consumed.wrapping_add(1);
        self.credit(id);
        if u64::from(len) > posted.capacity {
            self.end(posted.request, Outcome::TooLong { len: len.into() });
            return Ok(Arrived::Taken);
        }
        self.end(posted.request, Outcome::Received { pair: id, tag, len: len.into() });
        Ok(Arrived::Deliver(posted.request))
    }

    /// An eager message was taken from the ring for somebody who has not posted a receive, because nothing that waits here could be
    /// it ([`Engine::is_plain`]).
    ///
    /// # Errors
    /// [`Breach`]. The pair is lost.
    #[inline]
    pub fn took_eager(&mut self, id: PairId) -> Result<(), Breach> {
        if let Err(breach) = self.count(id) {
            self.give_up(id, breach);
            return Err(breach);
        }
        let pair = &mut self.pairs[id.0 as usize];
        pair.consumed = pair.consumed.wrapping_add(1);
        if pair.consumed.wrapping_sub(pair.told) >= u32::from(self.limits.credits) {
            self.credit(id);
        }
        Ok(())
    }

    /// Whether the next message of a pair is for whoever asks next: nothing waits, neither here nor there.
    #[inline]
    pub fn is_plain(&self, id: PairId) -> bool {
        self.any.is_empty()
            && self
                .pairs
                .get(id.0 as usize)
                .is_some_and(|pair| !pair.lost && pair.posted.is_empty() && pair.unexpected.is_empty())
    }

    fn keep(&mut self, id: PairId, tag: Tag, envelope: Envelope) {
        self.turn += 1;
        let turn = self.turn;
        self.pairs[id.0 as usize].unexpected.push_back(Unexpected { tag, envelope, turn });
    }

    fn heard(&mut self, id: PairId, control: Control) -> Result<(), Breach> {
        let pair = self.live(id).ok_or(Breach::Gone)?;
        match control {
            Control::Eager { .. } => Err(Breach::Nonsense),
            Control::Request { message, tag, len, direct, ahead } => {
                let is_new = !pair.incoming.contains_key(&message)
                    && !pair.kept.contains(&message)
                    && !pair.unexpected.iter().any(|held| is_it(&held.envelope, message));
                if !is_new || parts(len, pair.mtu).is_none() {
                    return Err(Breach::Nonsense);
                }
                self.count(id)?;
                let envelope = Envelope::Long { message, len, direct, ahead };
                match self.waiter(id, tag) {
                    Some(posted) => self.pair_up(id, Unexpected { tag, envelope, turn: 0 }, &posted),
                    None => self.keep(id, tag, envelope),
                }
                Ok(())
            }
            Control::Ask(message) => {
                let incoming = pair.incoming.get_mut(&message).filter(|incoming| incoming.asked < incoming.parts);
                incoming.ok_or(Breach::Nonsense)?.asked += 1;
                self.want(id);
                Ok(())
            }
            Control::Done(message, slot) => self.done(id, message, slot),
            Control::Moved(message) => self.was_moved(id, message),
            Control::Withdraw(message) => {
                self.forget(id, message);
                Ok(())
            }
            Control::Failed(message) => {
                let Some(incoming) = pair.incoming.get_mut(&message) else {
                    self.forget(id, message);
                    return Ok(());
                };
                // What it has had is ours again: nothing of it is on the way.
                let (request, slots) = (incoming.request, core::mem::take(&mut incoming.slots));
                pair.granted &= !slots;
                pair.incoming.remove(&message);
                self.rmbs -= slots.count_ones() as u16;
                self.say(id, Out::Control(Control::Withdrawn(message)));
                self.end(request, Outcome::Failed);
                self.want(id);
                Ok(())
            }
            Control::Grant(message, slot) => self.granted(id, message, slot),
            Control::Credit(count) => self.credited(id, count),
            Control::Withdrawn(message) => self.refused(id, message, Outcome::Cancelled),
            Control::TooLong(message) => self.refused(id, message, Outcome::TooLong { len: 0 }),
        }
    }

    /// The sender does not want to send it any more; it is done if nobody has been waiting for it.
    fn forget(&mut self, id: PairId, message: Message) {
        let pair = &mut self.pairs[id.0 as usize];
        let Some(at) = pair.unexpected.iter().position(|held| is_it(&held.envelope, message)) else { return };
        pair.unexpected.remove(at);
        pair.consumed = pair.consumed.wrapping_add(1);
        self.say(id, Out::Control(Control::Withdrawn(message)));
        self.credit(id);
    }

    /// A receive buffer is full.
    fn done(&mut self, id: PairId, message: Message, slot: u8) -> Result<(), Breach> {
        let pair = &mut self.pairs[id.0 as usize];
        let incoming = pair.incoming.get_mut(&message).ok_or(Breach::Done)?;
        if u32::from(slot) >= u64::BITS || incoming.slots >> slot & 1 == 0 || incoming.came >= incoming.parts {
            return Err(Breach::Done);
        }
        incoming.slots &= !(1 << slot);
        pair.granted &= !(1 << slot);
        pair.copying |= 1 << slot;
        pair.moved = true;
        let segment = incoming.came;
        incoming.came += 1;
        let (offset, len) = part(segment, incoming.len, pair.mtu);
        let request = incoming.request;
        self.trace.note(Step::CopyOut, id, message, segment);
        let doing = Doing { pair: id, message, request, what: What::CopyOut { slot } };
        self.begin(doing, (offset, len.into()), Work::CopyOut { slot });
        Ok(())
    }

    pub(super) fn copied_out(&mut self, id: PairId, message: Message, slot: u8, is_good: bool) {
        self.rmbs -= 1;
        let Some(pair) = self.live(id) else {
            self.grant();
            return;
        };
        pair.copying &= !(1 << slot);
        if let Some(incoming) = pair.incoming.get_mut(&message) {
            incoming.copied += 1;
            incoming.failed |= !is_good;
            let segment = incoming.copied - 1;
            if incoming.copied == incoming.parts {
                let (request, tag, len, failed) = (incoming.request, incoming.tag, incoming.len, incoming.failed);
                pair.incoming.remove(&message);
                let received = Outcome::Received { pair: id, tag, len };
                self.end(request, if failed { Outcome::Failed } else { received });
            }
            self.trace.note(Step::ReleaseRmb, id, message, segment);
        }
        self.want(id);
    }

    /// The next piece from memory to memory, or the end.
    pub(super) fn move_on(&mut self, id: PairId, message: Message) {
        let pair = &mut self.pairs[id.0 as usize];
        let Some(incoming) = pair.incoming.get(&message) else { return };
        let Some((origin, offset)) = incoming.direct else { return };
        let (request, tag, whole) = (incoming.request, incoming.tag, incoming.len);
        let len = (whole - offset).min(PIECE);
        if len > 0 {
            let doing = Doing { pair: id, message, request, what: What::Move { len } };
            self.begin(doing, (offset, len), Work::Move { origin, rest: whole - offset - len });
            return;
        }
        pair.incoming.remove(&message);
        self.say(id, Out::Control(Control::Moved(message)));
        self.end(request, Outcome::Received { pair: id, tag, len: whole });
    }

    /// A message can be seen where it is, or cannot.
    pub(super) fn held(&mut self, id: PairId, message: Message, is_good: bool) {
        let pair = &mut self.pairs[id.0 as usize];
        let Some(incoming) = pair.incoming.get_mut(&message) else { return };
        let (request, tag, len) = (incoming.request, incoming.tag, incoming.len);
        if is_good {
            pair.incoming.remove(&message);
            pair.kept.insert(message);
            self.end(request, Outcome::Held { pair: id, message, tag, len });
        } else if len > incoming.capacity {
            pair.incoming.remove(&message);
            self.say(id, Out::Control(Control::TooLong(message)));
            self.end(request, Outcome::TooLong { len });
        } else {
            incoming.direct = None;
            self.want(id);
        }
    }

    /// The program does not need a message any more that it holds ([`Outcome::Held`]): the sender's memory is its own again. Nothing happens if
    /// it does not.
    pub fn release(&mut self, id: PairId, message: Message) {
        if self.live(id).is_some_and(|pair| pair.kept.remove(&message)) {
            self.say(id, Out::Control(Control::Moved(message)));
        }
    }

    pub(super) fn moved_piece(&mut self, id: PairId, message: Message, len: u64, is_good: bool) {
        let incoming = self.pairs[id.0 as usize].incoming.get_mut(&message);
        let Some((incoming, (origin, moved))) = incoming.and_then(|it| it.direct.map(|direct| (it, direct))) else {
            return;
        };
        incoming.direct = is_good.then_some((origin, moved + len));
        if is_good {
            self.move_on(id, message);
        } else {
            // All of it comes by buffers.
            self.want(id);
        }
    }

    /// A receive that nobody answers any more.
    pub(super) fn withdraw_receive(&mut self, request: RequestId, from: Option<PairId>) -> bool {
        let is_it = |posted: &Posted| posted.request == request;
        let list = match from {
            Some(pair) => self.live(pair).map(|pair| &mut pair.posted),
            None => Some(&mut self.any),
        };
        let found = list.and_then(|list| list.iter().position(is_it).and_then(|at| list.remove(at)));
        found.is_some()
    }
}

fn is_it(envelope: &Envelope, number: Message) -> bool {
    matches!(envelope, Envelope::Long { message, .. } if *message == number)
}
