//! Send queues: requests from the time when they are posted until they have ended, in order (volume 1, 10.8.2).

use super::{Data, Operation, Piece, Request, Status, Target};
use crate::number::Psn;

/// How far a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing was sent of it.
    #[default]
    Posted,
    /// It has sequence numbers, and some of it was sent.
    Begun,
    /// It needs no answer, and was done.
    Done,
    /// It cannot be done. What is before it goes on.
    Failed(Status),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub id: u64,
    pub operation: Operation,
    /// Bytes of the message.
    pub len: u32,
    /// Sequence number of its first packet, when it has begun.
    pub first: Psn,
    /// How many sequence numbers it takes.
    pub packets: u32,
    /// How many messages the queue pair sent before it, modulo 2^24.
    pub message: u32,
    pub progress: Progress,
    pub pieces: u8,
    pub inline: bool,
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
}

const EMPTY: Slot = Slot {
    id: 0,
    operation: Operation::Send,
    len: 0,
    first: Psn::new(0),
    packets: 0,
    message: 0,
    progress: Progress::Posted,
    pieces: 0,
    inline: false,
    signaled: false,
    solicited: false,
    fence: false,
};

/// A send queue. Its memory is there from the beginning, and is touched when the first request comes to it: to fill all of it at once takes as
/// long as whoever wants the queue likes.
#[derive(Debug)]
pub(crate) struct SendQueue {
    slots: Vec<Slot>,
    pieces: Vec<Piece>,
    inline: Vec<u8>,
    targets: Vec<Option<Target>>,
    /// The number of slots that there will be, a power of two, less one.
    mask: usize,
    datagrams: bool,
    piece_stride: usize,
    inline_stride: usize,
    depth: u32,
    /// The oldest that has not ended.
    pub first: u32,
    /// One behind the newest.
    pub end: u32,
}

impl SendQueue {
    /// With room for `depth` requests of at most `pieces` pieces or `inline` bytes; with targets for datagrams.
    pub fn new(depth: u32, pieces: u32, inline: u32, datagrams: bool) -> Self {
        let slots = if depth == 0 { 0 } else { depth.next_power_of_two() as usize };
        let (piece_stride, inline_stride) = (pieces as usize, inline as usize);
        Self {
            slots: Vec::with_capacity(slots),
            pieces: Vec::with_capacity(slots * piece_stride),
            inline: Vec::with_capacity(slots * inline_stride),
            targets: Vec::with_capacity(if datagrams { slots } else { 0 }),
            mask: slots.saturating_sub(1),
            datagrams,
            piece_stride,
            inline_stride,
            depth,
            first: 0,
            end: 0,
        }
    }

    #[inline]
    fn place(&self, position: u32) -> usize {
        position as usize & self.mask
    }

    /// The next slot, for the first time. Positions go up one by one from 0, so that it is the one behind the last.
    #[cold]
    #[inline(never)]
    fn add_slot(&mut self) {
        self.slots.push(EMPTY);
        self.pieces.resize(self.slots.len() * self.piece_stride, Piece::default());
        self.inline.resize(self.slots.len() * self.inline_stride, 0);
        if self.datagrams {
            self.targets.push(None);
        }
    }

    #[inline]
    pub fn len(&self) -> u32 {
        self.end.wrapping_sub(self.first)
    }

    /// Requests that there is room for.
    pub fn room(&self) -> u32 {
        self.depth.saturating_sub(self.len())
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() >= self.depth
    }

    pub fn piece_stride(&self) -> usize {
        self.piece_stride
    }

    pub fn inline_stride(&self) -> usize {
        self.inline_stride
    }

    /// Adds a request that the caller has checked, of `len` bytes; the queue is not full.
    #[inline(always)]
    pub fn post(&mut self, request: &Request<'_>, len: u32, signaled: bool) {
        let place = self.place(self.end);
        if place >= self.slots.len() {
            self.add_slot();
        }
        let slot = &mut self.slots[place];
        slot.id = request.id;
        slot.operation = request.operation;
        slot.len = len;
        slot.progress = Progress::Posted;
        slot.signaled = signaled;
        slot.solicited = request.flags.solicited;
        slot.fence = request.flags.fence;
        match request.data {
            Data::Pieces(pieces) => {
                (slot.pieces, slot.inline) = (pieces.len() as u8, false);
                self.pieces[place * self.piece_stride..][..pieces.len()].copy_from_slice(pieces);
            }
            Data::Inline(parts) => {
                (slot.pieces, slot.inline) = (0, true);
                let mut at = place * self.inline_stride;
                for part in parts {
                    self.inline[at..][..part.len()].copy_from_slice(part);
                    at += part.len();
                }
            }
        }
        if let Some(target) = self.targets.get_mut(place) {
            *target = request.target.copied();
        }
        self.end = self.end.wrapping_add(1);
    }

    /// The request at a position from `first` to before `end`.
    #[inline]
    pub fn slot(&self, position: u32) -> Option<&Slot> {
        if position.wrapping_sub(self.first) >= self.len() {
            return None;
        }
        Some(&self.slots[self.place(position)])
    }

    /// The same, to change it.
    #[inline(always)]
    pub fn slot_mut(&mut self, position: u32) -> Option<&mut Slot> {
        if position.wrapping_sub(self.first) >= self.len() {
            return None;
        }
        let place = self.place(position);
        Some(&mut self.slots[place])
    }

    /// The pieces of a request that is there.
    #[inline]
    pub fn pieces(&self, position: u32) -> &[Piece] {
        let place = self.place(position);
        &self.pieces[place * self.piece_stride..][..usize::from(self.slots[place].pieces)]
    }

    /// The bytes given with a request that is there.
    #[inline]
    pub fn inline(&self, position: u32) -> &[u8] {
        let place = self.place(position);
        &self.inline[place * self.inline_stride..][..self.slots[place].len as usize]
    }

    /// To whom a datagram that is there goes.
    #[inline]
    pub fn target(&self, position: u32) -> Option<&Target> {
        self.targets.get(self.place(position))?.as_ref()
    }

    /// An empty queue begins with its first place again.
    #[inline]
    pub fn rewind(&mut self) {
        (self.first, self.end) = (0, 0);
    }

    pub fn clear(&mut self) {
        self.first = self.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Flags;

    #[test]
    fn memory_is_touched_when_requests_come_and_none_is_made_then() {
        let mut queue = SendQueue::new(12, 2, 8, true);
        let sizes = |queue: &SendQueue| {
            let SendQueue { slots, pieces, inline, targets, .. } = queue;
            [slots.len(), pieces.len(), inline.len(), targets.len()]
        };
        let room = |queue: &SendQueue| {
            let SendQueue { slots, pieces, inline, targets, .. } = queue;
            [slots.capacity(), pieces.capacity(), inline.capacity(), targets.capacity()]
        };
        let before = room(&queue);
        assert_eq!(sizes(&queue), [0; 4]);
        for id in 0..100 {
            let bytes = [id as u8; 8];
            let parts = [&bytes[..]];
            let pieces = [Piece { address: id, ..Piece::default() }; 2];
            let data = if id % 2 == 0 { Data::Inline(&parts) } else { Data::Pieces(&pieces) };
            let request = Request { id, operation: Operation::Send, data, flags: Flags::default(), target: None };
            queue.post(&request, 8, true);
            let position = queue.end.wrapping_sub(1);
            assert_eq!(queue.slot(position).map(|slot| slot.id), Some(id));
            match id % 2 {
                0 => assert_eq!(queue.inline(position), bytes),
                _ => assert_eq!(queue.pieces(position), pieces),
            }
            let count = (id as usize + 1).min(16);
            assert_eq!(sizes(&queue), [count, 2 * count, 8 * count, count]);
            if queue.len() > 7 {
                queue.first = queue.first.wrapping_add(5);
            }
        }
        assert_eq!(room(&queue), before);
    }
}
