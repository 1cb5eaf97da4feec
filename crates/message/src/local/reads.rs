//! Messages that are read, or held, where they are: in the memory of another process, or in files that it has given.

use super::Local;
use super::copies::{AROUND_FROM, in_pieces};
use crate::buffer::Buffer;
use crate::control::Origin;
use crate::engine::{Action, PairId, RequestId, Work};
use crate::files::Files;
use millrace_dma::{OtherProcess, Window};
use std::sync::Arc;

/// With so many bytes left to be read the other end is woken: it takes about as long.
const NEARLY: u64 = 4 << 20;

/// One of the two, for one message.
enum From {
    Process(Arc<OtherProcess>),
    File(Arc<Files>),
}

/// A part of a message that is to be read where it is, in memory of another process: by whoever has it, who needs nothing of the endpoint
/// meanwhile, because that may take as long as the other one likes.
pub struct Reading<B> {
    action: Action,
    origin: Origin,
    from: From,
    /// Nothing of the message is left behind it.
    is_last: bool,
    buffer: B,
    /// It could be read, and the other end is there still.
    is_read: bool,
    is_there: bool,
}

impl<B: Buffer> Reading<B> {
    /// Reads it. What was read counts if the other end is there still when all was: it says that it is not before it uses the memory for
    /// something else.
    pub fn read(&mut self) {
        let Self { action, origin, from, is_last, buffer, .. } = self;
        let (offset, len, is_large) = (action.offset as usize, action.len as usize, buffer.len() >= AROUND_FROM);
        let mut read = |read_at: &mut dyn FnMut(u64, &mut [u8]) -> bool| {
            in_pieces(len, |done| {
                let to = buffer.piece_mut(offset + done, len - done);
                let address = origin.address.wrapping_add(action.offset + done as u64);
                if read_at(address, to) { to.len() } else { 0 }
            })
        };
        self.is_read = match from {
            From::Process(process) => read(&mut |address, to| process.read_bytes(address, to).is_ok()),
            From::File(files) => read(&mut |offset, to| files.read(origin.key, offset, to, is_large)),
        };
        if *is_last || !self.is_read {
            self.is_there = match from {
                From::Process(process) => process.is_there(),
                From::File(files) => files.is_there(),
            };
        }
    }
}

impl<B: Buffer> Local<B> {
    /// A pair of which a message is to be read in a file that was not given yet: it may have been said by the other way.
    pub fn misses_file(&mut self) -> Option<PairId> {
        self.pull();
        let is_missed = |(action, origin): &&(Action, Origin)| {
            origin.key != 0 && self.files(action.pair).is_some_and(|files| !files.has(origin.key))
        };
        self.moves.iter().find(is_missed).map(|(action, _)| action.pair)
    }

    /// The files of another end. `None`: it may give none.
    pub fn files(&self, pair: PairId) -> Option<&Arc<Files>> {
        self.peers.get(pair.0 as usize)?.as_ref()?.reach.files.as_ref()
    }

    /// The next part of a message that is to be read where it is. It comes back by [`Local::was_read`].
    pub fn reading(&mut self) -> Option<Reading<B>> {
        self.pull();
        while let Some((action, origin)) = self.moves.pop_front() {
            let Work::Move { rest, .. } = action.work else { continue };
            let peer = self.peers.get_mut(action.pair.0 as usize).and_then(Option::as_mut);
            let from = peer.and_then(|peer| {
                // Who sleeps until the message has ended is awake by then.
                peer.has_said |= rest < NEARLY;
                match origin.key {
                    0 => peer.reach.process.clone().map(From::Process),
                    _ => peer.reach.files.clone().map(From::File),
                }
            });
            let place = &mut self.buffers[action.request.0 as usize];
            if let Some(from) = from
                && let Some(buffer) = place.take()
            {
                let is_last = rest == 0;
                return Some(Reading { action, origin, from, is_last, buffer, is_read: false, is_there: true });
            }
            self.engine.finished(action.ticket, false);
        }
        None
    }

    /// Messages that are to stay where they are do.
    pub fn hold(&mut self) {
        self.pull();
        let is_hold = |(action, _): &(Action, Origin)| matches!(action.work, Work::Hold { .. });
        while let Some((action, origin)) = self.moves.iter().position(is_hold).and_then(|at| self.moves.remove(at)) {
            let files = self.files(action.pair);
            let window = files.and_then(|files| files.window(origin.key, origin.address, action.len));
            let is_there = window.is_some();
            self.held.extend(window.map(|window| (action.request, window)));
            self.engine.finished(action.ticket, is_there);
        }
    }

    /// A part of a message was read.
    pub fn was_read(&mut self, reading: Reading<B>) {
        let Reading { action, from, buffer, is_read, is_there, .. } = reading;
        // It was the message's all the time: one that uses memory does not end.
        self.buffers[action.request.0 as usize] = Some(buffer);
        if is_read && is_there {
            self.moved += action.len;
        } else if is_there
            && let From::Process(process) = from
            && let Some(peer) = self.peer(action.pair)
            && peer.reach.process.as_ref().is_some_and(|held| Arc::ptr_eq(held, &process))
        {
            // It may not be read, and is not tried again.
            peer.reach.process = None;
        }
        self.engine.finished(action.ticket, is_read && is_there);
    }

    /// Where a message is that is held, after it has ended ([`Outcome::Held`](crate::engine::Outcome::Held)).
    pub fn take_held(&mut self, request: RequestId) -> Option<Window> {
        self.held.remove(&request)
    }

    /// Bytes of messages that were read in the memory of another process.
    pub fn moved(&self) -> u64 {
        self.moved
    }
}
