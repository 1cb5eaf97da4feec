//! Who gets the next buffer: pairs in turns, one buffer at a time.

use super::pair::{Out, Segment, SegmentState, Stage, Way, part};
use super::{Doing, Engine, PairId, Source, What, Work};
use crate::control::{Control, Message};
use crate::step::Step;

/// What a pair wants a send buffer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wish {
    message: Message,
    /// There is no grant for it yet.
    hoped: bool,
}

impl Engine {
    /// What a pair wants next: first what has a grant, then what is wanted at the other end, then the first part of what may be.
    fn wish(&self, id: PairId) -> Option<Wish> {
        let pair = self.pairs.get(id.0 as usize).filter(|pair| !pair.lost && pair.way == Way::Staged)?;
        let (mut wanted, mut announced) = (None, None);
        for (&message, sending) in &pair.sends {
            match sending.stage {
                Stage::Accepted if sending.begun < sending.parts => {
                    let without = sending.segments.iter().filter(|segment| segment.slot.is_none()).count();
                    if sending.grants.len() > without {
                        return Some(Wish { message, hoped: false });
                    }
                    wanted = wanted.or(Some(message));
                }
                Stage::Announced | Stage::Unannounced if sending.direct.is_none() && sending.begun == 0 => {
                    announced = announced.or(Some(message));
                }
                _ => {}
            }
        }
        let may_hope = pair.hoping < self.limits.hopes_of_pair();
        wanted.or(announced).filter(|_| may_hope).map(|message| Wish { message, hoped: true })
    }

    /// Puts a pair among those who want a send buffer.
    fn line_up(&mut self, id: PairId) {
        let Some(wish) = self.wish(id) else { return };
        let pair = &mut self.pairs[id.0 as usize];
        let (is_in, queue) =
            if wish.hoped { (&mut pair.hopes, &mut self.hopes) } else { (&mut pair.needs, &mut self.needs) };
        if !core::mem::replace(is_in, true) {
            queue.push_back(id);
        }
    }

    /// Gives out send buffers, as long as there are some and somebody may have one.
    fn feed(&mut self) {
        while !self.smbs.is_empty() {
            let (id, hoped) = if let Some(id) = self.needs.pop_front() {
                (id, false)
            } else if self.hoping < self.limits.hopes()
                && let Some(id) = self.hopes.pop_front()
            {
                (id, true)
            } else {
                return;
            };
            let Some(pair) = self.live(id) else { continue };
            if !core::mem::take(if hoped { &mut pair.hopes } else { &mut pair.needs }) {
                continue;
            }
            // What it wants may have changed since.
            if let Some(wish) = self.wish(id)
                && (hoped || !wish.hoped)
            {
                self.fill(id, wish);
            }
            self.line_up(id);
        }
    }

    /// Takes a send buffer for the next part of a message.
    fn fill(&mut self, id: PairId, wish: Wish) {
        let Some(smb) = self.smbs.pop() else { return };
        let pair = &mut self.pairs[id.0 as usize];
        let Some(sending) = pair.sends.get_mut(&wish.message) else {
            self.smbs.push(smb);
            return;
        };
        let segment = sending.begun;
        let (offset, len) = part(segment, sending.len, pair.mtu);
        let request = sending.request;
        sending.begun += 1;
        let state = SegmentState::Copying;
        sending.segments.push_back(Segment { smb: Some(smb), slot: None, state, hoped: wish.hoped });
        if wish.hoped {
            pair.hoping += 1;
            self.hoping += 1;
        }
        self.trace.note(Step::AllocateSmb, id, wish.message, segment);
        self.trace.note(Step::CopyIn, id, wish.message, segment);
        let doing = Doing { pair: id, message: wish.message, request, what: What::CopyIn { segment, smb } };
        self.begin(doing, (offset, len.into()), Work::CopyIn { smb });
    }

    /// A send buffer is free again.
    pub(super) fn free_smb(&mut self, smb: u16) {
        self.smbs.push(smb);
        self.feed();
    }

    /// Buffers of both kinds are free again.
    pub(super) fn refill(&mut self) {
        self.feed();
        self.grant();
    }

    /// Something has changed for the messages that go to a pair: sends what can be sent.
    pub(super) fn push(&mut self, id: PairId) {
        if self.live(id).is_none() {
            return;
        }
        self.launch(id);
        self.line_up(id);
        self.feed();
        self.ask(id);
    }

    /// Sends parts that are ready to where there is a buffer for them.
    fn launch(&mut self, id: PairId) {
        let pair = &mut self.pairs[id.0 as usize];
        let is_mapped = pair.way == Way::Mapped;
        let mut launched = Vec::new();
        for (&message, sending) in &mut pair.sends {
            if sending.stage != Stage::Accepted {
                continue;
            }
            while let Some(&slot) = sending.grants.front() {
                let number = if is_mapped {
                    if sending.begun >= sending.parts {
                        break;
                    }
                    sending.begun += 1;
                    let state = SegmentState::Flying;
                    sending.segments.push_back(Segment { smb: None, slot: Some(slot), state, hoped: false });
                    sending.begun - 1
                } else {
                    // In order, and not before what is still copied.
                    let Some(at) = sending.segments.iter().position(|segment| segment.slot.is_none()) else { break };
                    let segment = &mut sending.segments[at];
                    if segment.state != SegmentState::Ready {
                        break;
                    }
                    (segment.state, segment.slot) = (SegmentState::Flying, Some(slot));
                    if core::mem::take(&mut segment.hoped) {
                        pair.hoping -= 1;
                        self.hoping -= 1;
                    }
                    sending.done + at as u32
                };
                sending.grants.pop_front();
                let smb = sending.segments[(number - sending.done) as usize].smb;
                let (offset, len) = part(number, sending.len, pair.mtu);
                launched.push((message, sending.request, number, smb, slot, offset, len));
            }
        }
        for (message, request, segment, smb, slot, offset, len) in launched {
            self.trace.note(Step::Transfer, id, message, segment);
            let doing = Doing { pair: id, message, request, what: What::Transfer { segment, smb } };
            let from = smb.map_or(Source::Message, Source::Smb);
            self.begin(doing, (offset, len.into()), Work::Transfer { slot, from });
        }
    }

    /// Without optimisation 2: asks for a buffer for each part that is copied, or for the next part if none can be copied before.
    fn ask(&mut self, id: PairId) {
        let pair = &mut self.pairs[id.0 as usize];
        let mut asks = Vec::new();
        for (&message, sending) in &mut pair.sends {
            if sending.ahead || sending.stage != Stage::Accepted {
                continue;
            }
            let copying =
                sending.segments.iter().filter(|segment| segment.state == SegmentState::Copying).count() as u32;
            let unsent = sending.segments.iter().filter(|segment| segment.slot.is_none()).count();
            let is_idle = unsent == 0 && sending.asked == sending.granted && sending.grants.is_empty();
            let is_quiet = pair.way == Way::Staged || sending.segments.is_empty();
            let copied = if pair.way == Way::Staged { sending.begun - copying } else { 0 };
            while sending.asked < sending.parts
                && (sending.asked < copied || is_idle && is_quiet && sending.asked == sending.granted)
            {
                sending.asked += 1;
                asks.push((message, sending.asked - 1));
            }
        }
        for (message, segment) in asks {
            self.trace.note(Step::RequestRmb, id, message, segment);
            self.say(id, Out::Control(Control::Ask(message)));
        }
    }

    /// Puts a pair among those who are to be granted receive buffers.
    pub(super) fn want(&mut self, id: PairId) {
        let Some(pair) = self.live(id) else { return };
        if !core::mem::replace(&mut pair.wants, true) {
            self.wants.push_back(id);
        }
        self.grant();
    }

    /// Grants receive buffers, as long as there are some.
    pub(super) fn grant(&mut self) {
        let slots = self.limits.slots;
        while self.rmbs < self.limits.rmbs {
            let Some(id) = self.wants.pop_front() else { return };
            let Some(pair) = self.live(id) else { continue };
            if !core::mem::take(&mut pair.wants) {
                continue;
            }
            let slot = (pair.granted | pair.copying).trailing_ones() as u8;
            if slot >= slots {
                // When one of its own is free again, it is back.
                continue;
            }
            let next = pair
                .incoming
                .iter_mut()
                .find(|(_, incoming)| incoming.direct.is_none() && incoming.granted < incoming.asked);
            let Some((&message, incoming)) = next else { continue };
            let segment = incoming.granted;
            incoming.granted += 1;
            incoming.slots |= 1 << slot;
            pair.granted |= 1 << slot;
            pair.wants = true;
            self.rmbs += 1;
            self.wants.push_back(id);
            self.trace.note(Step::Grant, id, message, segment);
            self.say(id, Out::Control(Control::Grant(message, slot)));
        }
    }
}
