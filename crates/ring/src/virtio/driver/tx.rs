//! Frames to the device.

use super::queue::Queue;
use super::{Agreed, BEFORE_FRAME, BEFORE_HEADER, Broken, Place, Size, capacity};
use crate::virtio::{NetHeader, RingsError, descriptor_flag};
use millrace_dma::{Span, Window};

/// The queue with which a driver sends. Frames are copied into its buffers.
pub struct TxQueue {
    queue: Queue,
    buffers: Window,
    stride: usize,
    capacity: usize,
    in_order: bool,
    /// Descriptors that the device does not have, a ring from `free_first` with `free_count` entries.
    free: Box<[u16]>,
    free_first: u16,
    free_count: u16,
    notes: Box<[Note]>,
}

/// What we know of a descriptor; what stands in the table is for the device to read, and for a bad one to change.
#[derive(Clone, Copy)]
struct Note {
    /// Bytes of the frame in its buffer.
    len: u16,
    /// The descriptor with the rest of the frame, if this one is not the last.
    next: u16,
    is_last: bool,
    /// The header in the buffer is all zero.
    is_plain: bool,
}

impl TxQueue {
    /// A queue in zeroed memory, of which the device has nothing yet.
    ///
    /// # Errors
    /// [`RingsError`] when the place is too small for the size.
    pub fn new(place: &Place, size: Size, agreed: Agreed) -> Result<Self, RingsError> {
        let queue = Queue::new(place, size, agreed, 0, 0)?;
        for id in 0..usize::from(size.get()) {
            // Inside, as the queue has found.
            place
                .buffers
                .span_mut(id * place.stride + BEFORE_HEADER, NetHeader::LEN)
                .map(|header| header.write_from(&[0; NetHeader::LEN]));
        }
        Ok(Self {
            queue,
            buffers: place.buffers.clone(),
            stride: place.stride,
            capacity: capacity(place.stride),
            in_order: agreed.in_order,
            free: (0..size.get()).collect(),
            free_first: 0,
            free_count: size.get(),
            notes: vec![Note { len: 0, next: 0, is_last: true, is_plain: true }; usize::from(size.get())].into(),
        })
    }

    /// Takes back what the device is done with and returns how many descriptors are free: for as many frames that fit one
    /// buffer, see [`TxQueue::pieces`].
    #[inline(always)]
    pub fn room(&mut self) -> u16 {
        let used = self.queue.used();
        if self.in_order {
            self.queue.take_back_in_order(used);
            self.free_count += used;
            return self.free_count;
        }
        for _ in 0..used {
            let Some((head, _)) = self.queue.take_back() else { break };
            self.put_free(head);
            if !self.notes[usize::from(head)].is_last {
                self.put_rest_free(head);
            }
        }
        self.free_count
    }

    #[inline(always)]
    fn put_free(&mut self, id: u16) {
        let mask = self.queue.size() - 1;
        self.free[usize::from(self.free_first.wrapping_add(self.free_count) & mask)] = id;
        self.free_count += 1;
    }

    #[cold]
    fn put_rest_free(&mut self, mut id: u16) {
        while !self.notes[usize::from(id)].is_last {
            id = self.notes[usize::from(id)].next;
            self.put_free(id);
        }
    }

    #[inline(always)]
    fn take_free(&mut self) -> u16 {
        let id = self.free[usize::from(self.free_first)];
        self.free_first = (self.free_first + 1) & (self.queue.size() - 1);
        self.free_count -= 1;
        id
    }

    /// How many descriptors a frame of `len` bytes takes; `None` when it can never be sent here. In a queue that is used in
    /// order it has to fit one.
    #[inline(always)]
    pub fn pieces(&self, len: usize) -> Option<u16> {
        if len <= self.capacity {
            return Some(1);
        }
        // Behind the first, the place of the header is part of the frame.
        let count = 1 + (len - self.capacity).div_ceil(self.capacity + NetHeader::LEN);
        u16::try_from(count).ok().filter(|&count| !self.in_order && count <= self.queue.size())
    }

    /// Frames, and their bytes, that the device has been given and has not used, as far as [`TxQueue::room`] has seen.
    pub fn unused(&self) -> (u64, u64) {
        self.queue.posted().fold((0, 0), |(frames, bytes), head| (frames + 1, bytes + self.len_from(head)))
    }

    fn len_from(&self, head: u16) -> u64 {
        let (mut note, mut len) = (self.notes[usize::from(head)], 0);
        while !note.is_last {
            len += u64::from(note.len);
            note = self.notes[usize::from(note.next)];
        }
        len + u64::from(note.len)
    }

    /// Whether nothing is on its way.
    pub fn is_drained(&mut self) -> bool {
        self.room() == self.queue.size()
    }

    /// Puts a frame behind a header into the queue; the device sees it after [`TxQueue::publish`]. `false` when there is
    /// less [room](TxQueue::room) than [pieces](TxQueue::pieces).
    #[inline]
    pub fn push(&mut self, frame: Span<'_>, header: Option<&[u8; NetHeader::LEN]>) -> bool {
        if frame.len() > self.capacity {
            return self.push_long(frame, header);
        }
        if self.free_count == 0 {
            return false;
        }
        let free = self.take_free();
        let id = if self.in_order { self.queue.next_in_order() } else { free };
        self.fill_first(id, frame, header);
        self.notes[usize::from(id)].is_last = true;
        self.queue.describe(id, 0, (NetHeader::LEN + frame.len()) as u32, 0);
        self.queue.post(id);
        true
    }

    /// A frame in several buffers: only the first has a header.
    #[cold]
    fn push_long(&mut self, frame: Span<'_>, header: Option<&[u8; NetHeader::LEN]>) -> bool {
        if self.pieces(frame.len()).is_none_or(|pieces| pieces > self.free_count) {
            return false;
        }
        let head = self.take_free();
        let (first, mut rest) = frame.split_at(self.capacity);
        self.fill_first(head, first, header);
        let (mut id, mut len) = (head, NetHeader::LEN + first.len());
        while !rest.is_empty() {
            let next = self.take_free();
            self.queue.describe(id, descriptor_flag::NEXT, len as u32, next);
            let note = &mut self.notes[usize::from(id)];
            (note.next, note.is_last) = (next, false);
            let (piece, behind) = rest.split_at(rest.len().min(NetHeader::LEN + self.capacity));
            self.fill_rest(next, piece);
            (id, len, rest) = (next, piece.len(), behind);
        }
        self.notes[usize::from(id)].is_last = true;
        self.queue.describe(id, 0, len as u32, 0);
        self.queue.post(head);
        true
    }

    /// Writes the header and the beginning of a frame, or all of it.
    #[inline(always)]
    fn fill_first(&mut self, id: u16, frame: Span<'_>, header: Option<&[u8; NetHeader::LEN]>) {
        let (at, note) = (usize::from(id) * self.stride, &mut self.notes[usize::from(id)]);
        // Every buffer lies inside, as was found when the queue was made.
        if (header.is_some() || !note.is_plain)
            && let Some(place) = self.buffers.span_mut(at + BEFORE_HEADER, NetHeader::LEN)
        {
            place.write_from(header.unwrap_or(&[0; NetHeader::LEN]));
            note.is_plain = header.is_none();
        }
        note.len = frame.len() as u16;
        if let Some(place) = self.buffers.span_mut(at + BEFORE_FRAME, frame.len()) {
            frame.copy_to(place);
        }
    }

    /// Writes more of a frame, from where else a header is.
    fn fill_rest(&mut self, id: u16, piece: Span<'_>) {
        let note = &mut self.notes[usize::from(id)];
        (note.is_plain, note.len) = (false, piece.len() as u16);
        if let Some(place) = self.buffers.span_mut(usize::from(id) * self.stride + BEFORE_HEADER, piece.len()) {
            piece.copy_to(place);
        }
    }

    /// Puts `frame` into every buffer, for [`TxQueue::send_again`]. `false` when it does not fit one or something is on its
    /// way.
    pub fn fill(&mut self, frame: &[u8]) -> bool {
        if frame.len() > self.capacity || !self.is_drained() {
            return false;
        }
        for id in 0..self.queue.size() {
            self.fill_first(id, Span::from_slice(frame), None);
            self.notes[usize::from(id)].is_last = true;
            self.queue.describe(id, 0, (NetHeader::LEN + frame.len()) as u32, 0);
        }
        true
    }

    /// Puts up to `count` frames into the queue that are what their buffers hold already, and returns how many: what
    /// [`TxQueue::fill`] has put there. This is the cheapest source of frames that there can be.
    #[inline(always)]
    pub fn send_again(&mut self, count: u16) -> u16 {
        let count = count.min(self.free_count);
        if self.in_order {
            self.queue.lend_in_order(count);
            self.free_count -= count;
        } else {
            for _ in 0..count {
                let id = self.take_free();
                self.queue.post(id);
            }
        }
        count
    }

    /// Shows the device what was put into the queue, and says whether it has to be kicked.
    #[inline(always)]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.queue.publish()
    }

    /// What the device has done wrong; the queue is at an end then.
    pub fn broken(&self) -> Option<Broken> {
        self.queue.broken()
    }

    /// Whether the device shall signal what it is done with. Returns `true` when something is done already and no signal
    /// will come for it.
    pub fn want_signal(&mut self, wanted: bool) -> bool {
        self.queue.want_signal(wanted)
    }
}
