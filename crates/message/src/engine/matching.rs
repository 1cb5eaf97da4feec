//! Which message is for whom: by sender and tag, in the order in which messages came and receives were posted.

use super::pair::{Incoming, Out, parts};
use super::{Delivery, Doing, Engine, Outcome, PairId, RequestError, RequestId, Role, What, Work};
use crate::control::{Control, Message, Origin, Tag};
use std::collections::VecDeque;

/// Somebody who waits.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Posted {
    pub request: RequestId,
    pub tag: Tag,
    pub mask: u64,
    pub capacity: u64,
    /// A message that is in a file is held there.
    pub holds: bool,
    pub turn: u64,
}

/// A message that nobody waited for when it came.
#[derive(Clone, Debug, Hash)]
pub(super) struct Unexpected {
    pub tag: Tag,
    pub envelope: Envelope,
    pub turn: u64,
}

#[derive(Clone, Debug, Hash)]
pub(super) enum Envelope {
    Eager { words: Vec<u64>, len: u16 },
    Long { message: Message, len: u64, direct: Option<Origin>, ahead: bool },
}

impl Posted {
    /// Whether a message that is there stays there. Memory of a process (key 0) is nobody else's.
    fn may_hold(&self, direct: Option<Origin>) -> bool {
        self.holds && direct.is_some_and(|origin| origin.key != 0)
    }

    const fn fits(&self, tag: Tag) -> bool {
        (self.tag.0 ^ tag.0) & self.mask == 0
    }
}

fn first(posted: &VecDeque<Posted>, tag: Tag) -> Option<(usize, u64)> {
    let at = posted.iter().position(|posted| posted.fits(tag))?;
    Some((at, posted[at].turn))
}

impl Engine {
    /// The program waits for a message: from `from`, or from anybody, with the bits of `tag` that are in `mask`, of up to
    /// `capacity` bytes.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn receive(
        &mut self,
        from: Option<PairId>,
        tag: Tag,
        mask: u64,
        capacity: u64,
    ) -> Result<RequestId, RequestError> {
        self.post(from, (tag, mask), capacity, false)
    }

    /// The same; a message that is in a file of the sender is not moved, but held where it is until [`Engine::release`], whatever room there is.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn receive_held(
        &mut self,
        from: Option<PairId>,
        tag: Tag,
        mask: u64,
        capacity: u64,
    ) -> Result<RequestId, RequestError> {
        self.post(from, (tag, mask), capacity, true)
    }

    fn post(
        &mut self,
        from: Option<PairId>,
        (tag, mask): (Tag, u64),
        capacity: u64,
        holds: bool,
    ) -> Result<RequestId, RequestError> {
        let request = self.request(Role::Receive { from });
        self.turn += 1;
        let posted = Posted { request, tag, mask, capacity, holds, turn: self.turn };
        // What pairs have left that were lost, too.
        let found = match from {
            Some(pair) => self.waits(pair, &posted).map(|at| (pair, at.0)),
            None => {
                let pairs = self.pairs.iter().map(|(id, _)| PairId(id as u32));
                let found = pairs.filter_map(|pair| self.waits(pair, &posted).map(|at| (pair, at)));
                found.min_by_key(|(_, at)| at.1).map(|(pair, at)| (pair, at.0))
            }
        };
        if found.is_none() && from.is_some_and(|pair| self.live(pair).is_none()) {
            self.requests.remove(request.0 as usize);
            return Err(RequestError::Lost);
        }
        if let Some((pair, at)) = found
            && let Some(unexpected) = self.pairs[pair.0 as usize].unexpected.remove(at)
        {
            self.pair_up(pair, unexpected, &posted);
            self.bury(pair);
        } else if let Some(pair) = from {
            self.pairs[pair.0 as usize].posted.push_back(posted);
        } else {
            self.any.push_back(posted);
        }
        Ok(request)
    }

    /// Takes the first message of a pair that has waited and fits, if it is an eager one: what for, and its words and bytes. The words go back by
    /// [`Engine::recycle`].
    pub fn take_waiting(&mut self, id: PairId, tag: Tag, mask: u64) -> Option<(Tag, Vec<u64>, u16)> {
        let pair = self.pairs.get_mut(id.0 as usize)?;
        let at = pair.unexpected.iter().position(|unexpected| (unexpected.tag.0 ^ tag.0) & mask == 0)?;
        if !matches!(pair.unexpected[at].envelope, Envelope::Eager { .. }) {
            return None;
        }
        let Unexpected { tag, envelope: Envelope::Eager { words, len }, .. } = pair.unexpected.remove(at)? else {
            return None;
        };
        pair.consumed = pair.consumed.wrapping_add(1);
        self.credit(id);
        self.bury(id);
        Some((tag, words, len))
    }

    /// The first message of a pair that waits for such a receive: where, and when it came.
    fn waits(&self, pair: PairId, posted: &Posted) -> Option<(usize, u64)> {
        let unexpected = &self.pairs.get(pair.0 as usize)?.unexpected;
        let at = unexpected.iter().position(|unexpected| posted.fits(unexpected.tag))?;
        Some((at, unexpected[at].turn))
    }

    /// Who waits for a message that has come, taken out.
    #[inline]
    pub(super) fn waiter(&mut self, pair: PairId, tag: Tag) -> Option<Posted> {
        let own = &mut self.pairs[pair.0 as usize].posted;
        match (first(own, tag), first(&self.any, tag)) {
            (Some((at, turn)), any) if any.is_none_or(|any| turn < any.1) => own.remove(at),
            (_, Some((at, _))) => self.any.remove(at),
            _ => None,
        }
    }

    /// A message that has waited, or has just come, meets who waits for it.
    pub(super) fn pair_up(&mut self, id: PairId, found: Unexpected, posted: &Posted) {
        let request = posted.request;
        let tag = found.tag;
        match found.envelope {
            Envelope::Eager { words, len } if u64::from(len) > posted.capacity => {
                self.recycle(words);
                self.end(request, Outcome::TooLong { len: len.into() });
            }
            Envelope::Eager { words, len } => {
                self.deliveries.push_back(Delivery { request, words, len });
                self.end(request, Outcome::Received { pair: id, tag, len: len.into() });
            }
            Envelope::Long { message, len, direct, .. } if len > posted.capacity && !posted.may_hold(direct) => {
                self.say(id, Out::Control(Control::TooLong(message)));
                self.end(request, Outcome::TooLong { len });
            }
            Envelope::Long { message, len, direct, ahead } => {
                self.accept(id, (message, tag, len), (direct, ahead), posted)
            }
        }
        let pair = &mut self.pairs[id.0 as usize];
        pair.consumed = pair.consumed.wrapping_add(1);
        self.credit(id);
    }

    fn accept(
        &mut self,
        id: PairId,
        (message, tag, len): (Message, Tag, u64),
        (direct, ahead): (Option<Origin>, bool),
        posted: &Posted,
    ) {
        let pair = &mut self.pairs[id.0 as usize];
        // Looked at when it came.
        let parts = parts(len, pair.mtu).unwrap_or(u32::MAX);
        let asked = if ahead { parts } else { 1 };
        pair.incoming.insert(
            message,
            Incoming {
                request: posted.request,
                capacity: posted.capacity,
                tag,
                len,
                parts,
                asked,
                granted: 0,
                slots: 0,
                came: 0,
                copied: 0,
                direct: direct.map(|origin| (origin, 0)),
                failed: false,
            },
        );
        if let Some(origin) = direct.filter(|_| posted.may_hold(direct)) {
            let doing = Doing { pair: id, message, request: posted.request, what: What::Hold };
            self.begin(doing, (0, len), Work::Hold { origin });
        } else if direct.is_some() {
            self.move_on(id, message);
        } else {
            self.want(id);
        }
    }

    /// Memory of a message that was delivered.
    pub fn recycle(&mut self, mut words: Vec<u64>) {
        if self.spare.len() < usize::from(self.limits.credits) {
            words.clear();
            self.spare.push(words);
        }
    }
}
