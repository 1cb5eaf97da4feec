//! Receive queues: buffers for what comes, in the order in which they were posted (volume 1, 10.8.3).

use super::Piece;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    id: u64,
    pieces: u8,
}

/// A receive queue, of one queue pair or shared. Its memory is touched as that of a [`SendQueue`](super::SendQueue).
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    slots: Vec<Slot>,
    pieces: Vec<Piece>,
    /// The number of slots that there will be, a power of two, less one.
    mask: usize,
    /// Pieces of a slot.
    stride: usize,
    depth: u32,
    head: u32,
    tail: u32,
}

/// A buffer that a message comes to. Its memory is used again for the next one.
#[derive(Debug)]
pub(crate) struct Taken {
    pub id: u64,
    pieces: Box<[Piece]>,
    count: usize,
    /// Bytes of all pieces.
    pub room: u64,
    pub in_use: bool,
}

impl Taken {
    pub fn new(pieces: usize) -> Self {
        Self { id: 0, pieces: vec![Piece::default(); pieces].into_boxed_slice(), count: 0, room: 0, in_use: false }
    }

    #[inline]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.count]
    }
}

impl ReceiveQueue {
    /// With room for `depth` buffers of at most `stride` pieces.
    pub fn new(depth: u32, stride: u32) -> Self {
        let slots = if depth == 0 { 0 } else { depth.next_power_of_two() as usize };
        let stride = stride as usize;
        Self {
            slots: Vec::with_capacity(slots),
            pieces: Vec::with_capacity(slots * stride),
            mask: slots.saturating_sub(1),
            stride,
            depth,
            head: 0,
            tail: 0,
        }
    }

    #[inline]
    fn place(&self, position: u32) -> usize {
        position as usize & self.mask
    }

    /// The next slot, for the first time: the one behind the last.
    #[cold]
    #[inline(never)]
    fn add_slot(&mut self) {
        self.slots.push(Slot::default());
        self.pieces.resize(self.slots.len() * self.stride, Piece::default());
    }

    #[inline]
    pub fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub fn stride(&self) -> usize {
        self.stride
    }

    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Adds a buffer; the caller has counted its pieces. Without room, nothing.
    #[inline]
    pub fn post(&mut self, id: u64, pieces: &[Piece]) -> bool {
        if self.len() >= self.depth || pieces.len() > self.stride {
            return false;
        }
        let place = self.place(self.tail);
        if place >= self.slots.len() {
            self.add_slot();
        }
        self.slots[place] = Slot { id, pieces: pieces.len() as u8 };
        self.pieces[place * self.stride..][..pieces.len()].copy_from_slice(pieces);
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Takes the oldest buffer.
    #[inline]
    pub fn take(&mut self, to: &mut Taken) -> bool {
        if self.len() == 0 {
            return false;
        }
        let place = self.place(self.head);
        let slot = self.slots[place];
        // A queue pair made for fewer pieces than its shared queue has would have no room; its creation sees to that.
        let count = usize::from(slot.pieces).min(to.pieces.len());
        let pieces = &self.pieces[place * self.stride..][..count];
        (to.count, to.id) = (count, slot.id);
        // Nearly always it is one.
        if let ([piece], [to_piece, ..]) = (pieces, &mut *to.pieces) {
            *to_piece = *piece;
            to.room = piece.len.into();
        } else {
            to.pieces[..count].copy_from_slice(pieces);
            to.room = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        }
        to.in_use = true;
        self.head = self.head.wrapping_add(1);
        true
    }

    /// Takes the name of the oldest buffer, which nothing comes to any more.
    pub fn drop_first(&mut self) -> Option<u64> {
        if self.len() == 0 {
            return None;
        }
        let id = self.slots[self.place(self.head)].id;
        self.head = self.head.wrapping_add(1);
        Some(id)
    }

    pub fn clear(&mut self) {
        self.head = self.tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_touched_when_buffers_come_and_none_is_made_then() {
        let mut queue = ReceiveQueue::new(12, 2);
        let room = (queue.slots.capacity(), queue.pieces.capacity());
        assert_eq!(queue.slots.len(), 0);
        let mut taken = Taken::new(2);
        for id in 0..100 {
            assert!(queue.post(id, &[Piece { address: id, ..Piece::default() }; 2]));
            assert_eq!(queue.slots.len(), (id as usize + 1).min(16));
            if id >= 5 {
                assert!(queue.take(&mut taken));
                assert_eq!((taken.id, taken.pieces()[1].address), (id - 5, id - 5));
            }
        }
        assert_eq!((queue.slots.capacity(), queue.pieces.capacity()), room);
    }
}
