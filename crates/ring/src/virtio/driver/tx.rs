//! Frames to the device.

use super::queue::Queue;
use super::{Agreed, BEFORE_FRAME, BEFORE_HEADER, Broken, CAPACITY, Place, STRIDE, Size};
use crate::virtio::{NetHeader, RingsError};
use millrace_dma::{Span, Window};

/// The queue with which a driver sends. Frames are copied into its buffers.
pub struct TxQueue {
    queue: Queue,
    buffers: Window,
    in_order: bool,
    /// Descriptors that the device does not have, a ring from `free_first` with `free_count` entries.
    free: Box<[u16]>,
    free_first: u16,
    free_count: u16,
    /// What the headers in the buffers are, as long as they are all the same: zero.
    plain: Box<[bool]>,
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
                .span_mut(id * STRIDE + BEFORE_HEADER, NetHeader::LEN)
                .map(|header| header.write_from(&[0; NetHeader::LEN]));
        }
        Ok(Self {
            queue,
            buffers: place.buffers.clone(),
            in_order: agreed.in_order,
            free: (0..size.get()).collect(),
            free_first: 0,
            free_count: size.get(),
            plain: vec![true; usize::from(size.get())].into(),
        })
    }

    /// Takes back what the device is done with and returns for how many frames there is room.
    #[inline(always)]
    pub fn room(&mut self) -> u16 {
        let used = self.queue.used();
        if self.in_order {
            self.queue.take_back_in_order(used);
            self.free_count += used;
            return self.free_count;
        }
        let mask = self.queue.size() - 1;
        for _ in 0..used {
            let Some((id, _)) = self.queue.take_back() else { break };
            self.free[usize::from(self.free_first.wrapping_add(self.free_count) & mask)] = id;
            self.free_count += 1;
        }
        self.free_count
    }

    /// Whether nothing is on its way.
    pub fn is_drained(&mut self) -> bool {
        self.room() == self.queue.size()
    }

    /// Puts a frame behind a header into the queue; the device sees it after [`TxQueue::publish`]. `false` when
    /// [`TxQueue::room`] has said that there is none, or when the frame is longer than [`CAPACITY`].
    #[inline]
    pub fn push(&mut self, frame: Span<'_>, header: Option<&[u8; NetHeader::LEN]>) -> bool {
        if self.free_count == 0 || frame.len() > CAPACITY {
            return false;
        }
        let id = if self.in_order { self.queue.next_in_order() } else { self.free[usize::from(self.free_first)] };
        let at = usize::from(id) * STRIDE;
        if header.is_some() || !self.plain[usize::from(id)] {
            let Some(place) = self.buffers.span_mut(at + BEFORE_HEADER, NetHeader::LEN) else { return false };
            place.write_from(header.unwrap_or(&[0; NetHeader::LEN]));
            self.plain[usize::from(id)] = header.is_none();
        }
        let Some(place) = self.buffers.span_mut(at + BEFORE_FRAME, frame.len()) else { return false };
        frame.copy_to(place);
        self.queue.describe(id, 0, (NetHeader::LEN + frame.len()) as u32);
        self.free_first = (self.free_first + 1) & (self.queue.size() - 1);
        self.free_count -= 1;
        self.queue.lend(id);
        true
    }

    /// Puts `frame` into every buffer, for [`TxQueue::send_again`]. `false` when it is longer than [`CAPACITY`] or
    /// something is on its way.
    pub fn fill(&mut self, frame: &[u8]) -> bool {
        if frame.len() > CAPACITY || !self.is_drained() {
            return false;
        }
        for id in 0..self.queue.size() {
            let at = usize::from(id) * STRIDE + BEFORE_FRAME;
            self.buffers.span_mut(at, frame.len()).map(|place| place.write_from(frame));
            self.queue.describe(id, 0, (NetHeader::LEN + frame.len()) as u32);
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
        } else {
            let mask = self.queue.size() - 1;
            for _ in 0..count {
                self.queue.lend(self.free[usize::from(self.free_first)]);
                self.free_first = (self.free_first + 1) & mask;
            }
        }
        self.free_count -= count;
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
