//! Messages that go out.

use super::pair::{Out, SegmentState, Sending, Stage, Way, parts};
use super::{Breach, Cancel, Doing, Engine, Outcome, PairId, RequestError, RequestId, Role, Ticket, What, Work};
use crate::control::{Control, Message, Origin, Tag};
use crate::cost::Scheme;
use crate::step::Step;
use std::collections::VecDeque;

impl Engine {
    /// Sends a message of `len` bytes. What is too long to be eager goes by buffers.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn send(&mut self, id: PairId, tag: Tag, len: u64, scheme: Scheme) -> Result<RequestId, RequestError> {
        if self.live(id).is_none() {
            return Err(RequestError::Lost);
        }
        let is_too_long = scheme == Scheme::Eager && len > u64::from(self.limits.eager);
        let scheme = if is_too_long { Scheme::OneCopy } else { scheme };
        let request = self.request(Role::Send { pair: id, tag, len, scheme });
        self.pairs[id.0 as usize].waiting.push_back(request);
        self.advance(id);
        Ok(request)
    }

    /// Whether an eager message of `len` bytes may be said at once, by who calls [`Engine::sent_eager`] then.
    #[inline]
    pub fn is_free(&self, id: PairId, len: usize) -> bool {
        let Some(pair) = self.pairs.get(id.0 as usize) else { return false };
        pair.waiting.is_empty()
            && pair.outbox.is_empty()
            && pair.sent.wrapping_sub(pair.credited) < pair.window
            && len <= usize::from(self.limits.eager)
            && pair.unannounced.is_none()
            && !pair.lost
    }

    /// An eager message was said.
    #[inline]
    pub fn sent_eager(&mut self, id: PairId) {
        if let Some(pair) = self.pairs.get_mut(id.0 as usize) {
            pair.sent = pair.sent.wrapping_add(1);
        }
    }

    /// Says the envelopes of messages that wait, in order, as far as there are credits.
    pub(super) fn advance(&mut self, id: PairId) {
        while let Some(pair) = self.live(id)
            && pair.unannounced.is_none()
            && pair.sent.wrapping_sub(pair.credited) < pair.window
            && let Some(request) = pair.waiting.pop_front()
        {
            pair.sent = pair.sent.wrapping_add(1);
            let (mtu, way) = (pair.mtu, pair.way);
            let Role::Send { tag, len, scheme, .. } = self.requests[request.0 as usize].role else { continue };
            if scheme == Scheme::Eager {
                self.say(id, Out::Eager(request));
                continue;
            }
            let Some(parts) = parts(len, mtu) else {
                self.end(request, Outcome::TooLong { len });
                let pair = &mut self.pairs[id.0 as usize];
                pair.sent = pair.sent.wrapping_sub(1);
                continue;
            };
            let pair = &mut self.pairs[id.0 as usize];
            let message = Message(pair.next);
            pair.next = pair.next.wrapping_add(1);
            let early = self.limits.early_request;
            pair.sends.insert(
                message,
                Sending {
                    request,
                    tag,
                    len,
                    direct: None,
                    ahead: early,
                    stage: if scheme == Scheme::ZeroCopy { Stage::Exposing } else { Stage::Unannounced },
                    parts,
                    begun: 0,
                    done: 0,
                    segments: VecDeque::new(),
                    asked: if early { parts } else { 1 },
                    granted: 0,
                    grants: VecDeque::new(),
                },
            );
            pair.unannounced = Some(message);
            if scheme == Scheme::ZeroCopy {
                self.begin(Doing { pair: id, message, request, what: What::Expose }, (0, len), Work::Expose);
                continue;
            }
            if !early && scheme == Scheme::OneCopy && way == Way::Staged {
                self.push(id);
                // If no buffer may be filled before a grant, it is asked for at once.
                if self.pairs[id.0 as usize].sends.get(&message).is_none_or(|sending| sending.begun > 0) {
                    continue;
                }
            }
            self.announce(id, message);
        }
    }

    pub(super) fn announce(&mut self, id: PairId, message: Message) {
        let pair = &mut self.pairs[id.0 as usize];
        pair.unannounced = None;
        let Some(sending) = pair.sends.get_mut(&message) else { return };
        sending.stage = Stage::Announced;
        let (tag, len, direct, ahead) = (sending.tag, sending.len, sending.direct, sending.ahead);
        self.trace.note(Step::RequestRmb, id, message, 0);
        self.say(id, Out::Control(Control::Request { message, tag, len, direct, ahead }));
        self.push(id);
    }

    pub(super) fn credited(&mut self, id: PairId, count: u32) -> Result<(), Breach> {
        let pair = &mut self.pairs[id.0 as usize];
        // Not more than were sent, and not fewer than before.
        if count.wrapping_sub(pair.credited) > pair.sent.wrapping_sub(pair.credited) {
            return Err(Breach::Credit);
        }
        pair.credited = count;
        self.advance(id);
        Ok(())
    }

    pub(super) fn granted(&mut self, id: PairId, message: Message, slot: u8) -> Result<(), Breach> {
        let pair = &mut self.pairs[id.0 as usize];
        if pair.failed.contains(&message) {
            return Ok(());
        }
        let is_possible = slot < pair.their_slots && pair.held >> slot & 1 == 0;
        let sending = pair.sends.get_mut(&message).filter(|_| is_possible).ok_or(Breach::Grant)?;
        let is_open = matches!(sending.stage, Stage::Announced | Stage::Withdrawing | Stage::Accepted | Stage::Failing);
        if !is_open || sending.granted >= sending.asked {
            return Err(Breach::Grant);
        }
        pair.held |= 1 << slot;
        sending.granted += 1;
        sending.grants.push_back(slot);
        if sending.stage != Stage::Failing {
            sending.stage = Stage::Accepted;
        }
        self.push(id);
        Ok(())
    }

    /// The other end can read a message at `origin`; `None`: it cannot, and the message goes by buffers.
    pub fn exposed(&mut self, ticket: Ticket, origin: Option<Origin>) {
        let Some(doing) = self.complete(ticket) else { return };
        let (id, message) = (doing.pair, doing.message);
        if let Some(pair) = self.live(id)
            && let Some(sending) = pair.sends.get_mut(&message).filter(|sending| sending.request == doing.request)
        {
            sending.direct = origin;
            self.announce(id, message);
            self.advance(id);
        }
        self.settle(&doing);
    }

    /// The other end has read all of a message.
    pub(super) fn was_moved(&mut self, id: PairId, message: Message) -> Result<(), Breach> {
        let pair = &mut self.pairs[id.0 as usize];
        let sending = pair.sends.get(&message).ok_or(Breach::Answer)?;
        let may = sending.direct.is_some() && matches!(sending.stage, Stage::Announced | Stage::Withdrawing);
        if !may {
            return Err(Breach::Answer);
        }
        let request = sending.request;
        pair.sends.remove(&message);
        self.end(request, Outcome::Sent);
        Ok(())
    }

    pub(super) fn copied_in(&mut self, id: PairId, message: Message, segment: u32, is_good: bool) {
        let pair = &mut self.pairs[id.0 as usize];
        let Some(sending) = pair.sends.get_mut(&message) else { return };
        if let Some(segment) = sending.segments.get_mut((segment - sending.done) as usize) {
            segment.state = SegmentState::Ready;
        }
        if !is_good || sending.stage == Stage::Failing {
            self.fail(id, message);
        } else if pair.unannounced == Some(message) {
            self.announce(id, message);
            self.advance(id);
        } else {
            self.push(id);
        }
    }

    pub(super) fn transferred(&mut self, id: PairId, message: Message, segment: u32, is_good: bool) {
        let pair = &mut self.pairs[id.0 as usize];
        let Some(sending) = pair.sends.get_mut(&message) else { return };
        if let Some(segment) = sending.segments.get_mut((segment - sending.done) as usize) {
            (segment.state, segment.smb) = (SegmentState::Landed, None);
        }
        if !is_good || sending.stage == Stage::Failing {
            self.fail(id, message);
            return;
        }
        let mut told = Vec::new();
        while let Some(front) = sending.segments.front().filter(|front| front.state == SegmentState::Landed) {
            if let Some(slot) = front.slot {
                pair.held &= !(1 << slot);
                told.push((sending.done, slot));
            }
            sending.segments.pop_front();
            sending.done += 1;
        }
        let finished = (sending.done == sending.parts).then_some(sending.request);
        for (segment, slot) in told {
            self.trace.note(Step::Done, id, message, segment);
            self.say(id, Out::Control(Control::Done(message, slot)));
        }
        if let Some(request) = finished {
            self.pairs[id.0 as usize].sends.remove(&message);
            self.end(request, Outcome::Sent);
        }
        self.push(id);
    }

    /// A message cannot be sent. The other end is told when nothing of it is on the way any more, because it gives its buffers to others then.
    fn fail(&mut self, id: PairId, message: Message) {
        if let Some(request) = self.unsay(id, message) {
            self.end(request, Outcome::Failed);
            self.advance(id);
            return;
        }
        let pair = &mut self.pairs[id.0 as usize];
        let Some(sending) = pair.sends.get_mut(&message) else { return };
        sending.stage = Stage::Failing;
        if sending.segments.iter().any(|segment| segment.state == SegmentState::Flying) {
            return;
        }
        let request = sending.request;
        // What the other end has said before it hears of it is no breach.
        pair.failed.insert(message);
        self.drop_sending(id, message);
        self.say(id, Out::Control(Control::Failed(message)));
        self.end(request, Outcome::Failed);
        self.push(id);
    }

    /// Forgets a message: its send buffers are free, but for those that are in use.
    pub(super) fn drop_sending(&mut self, id: PairId, message: Message) {
        let pair = &mut self.pairs[id.0 as usize];
        let Some(sending) = pair.sends.remove(&message) else { return };
        let mut free = Vec::new();
        for segment in &sending.segments {
            if let Some(slot) = segment.slot {
                pair.held &= !(1 << slot);
            }
            if segment.hoped {
                pair.hoping -= 1;
                self.hoping -= 1;
            }
            if segment.state == SegmentState::Ready {
                free.extend(segment.smb);
            }
        }
        sending.grants.iter().for_each(|slot| pair.held &= !(1 << slot));
        free.into_iter().for_each(|smb| self.free_smb(smb));
        // Others may hope for what it has hoped for.
        self.push(id);
    }

    /// What the other end says of a message that it does not take.
    pub(super) fn refused(&mut self, id: PairId, message: Message, outcome: Outcome) -> Result<(), Breach> {
        let pair = &mut self.pairs[id.0 as usize];
        if pair.failed.remove(&message) {
            return Ok(());
        }
        let sending = pair.sends.get(&message).ok_or(Breach::Answer)?;
        let may = match outcome {
            Outcome::Cancelled => sending.stage == Stage::Withdrawing,
            _ => matches!(sending.stage, Stage::Announced | Stage::Withdrawing),
        };
        if !may {
            return Err(Breach::Answer);
        }
        let (request, len) = (sending.request, sending.len);
        self.drop_sending(id, message);
        self.end(request, if outcome == Outcome::Cancelled { outcome } else { Outcome::TooLong { len } });
        Ok(())
    }

    /// Takes back a message of which the other end has not heard: whose it is. Who calls this ends it, and advances.
    fn unsay(&mut self, id: PairId, message: Message) -> Option<RequestId> {
        let pair = &mut self.pairs[id.0 as usize];
        let request = pair.sends.get(&message)?.request;
        if pair.unannounced == Some(message) {
            pair.unannounced = None;
        } else {
            let is_it =
                |out: &Out| matches!(out, Out::Control(Control::Request { message: said, .. }) if *said == message);
            let at = pair.outbox.iter().position(is_it)?;
            pair.outbox.remove(at);
        }
        pair.sent = pair.sent.wrapping_sub(1);
        self.drop_sending(id, message);
        Some(request)
    }

    /// Withdraws a message whose envelope was made.
    pub(super) fn withdraw(&mut self, id: PairId, request: RequestId) -> Cancel {
        let pair = &mut self.pairs[id.0 as usize];
        let found = pair.sends.iter().find(|(_, sending)| sending.request == request);
        let Some((&message, _)) = found else { return Cancel::TooLate };
        if self.unsay(id, message).is_some() {
            self.end(request, Outcome::Cancelled);
            self.advance(id);
            return Cancel::Done;
        }
        let pair = &mut self.pairs[id.0 as usize];
        let Some(sending) = pair.sends.get_mut(&message).filter(|sending| sending.stage == Stage::Announced) else {
            return Cancel::TooLate;
        };
        sending.stage = Stage::Withdrawing;
        self.say(id, Out::Control(Control::Withdraw(message)));
        Cancel::Asked
    }
}
