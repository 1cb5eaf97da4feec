//! Frames from the device, in buffers that come one by one and mostly do not come back: those of an application.

use super::queue::Queue;
use super::{Agreed, BEFORE_FRAME, BEFORE_HEADER, Broken, Size};
use crate::virtio::{Descriptor, NetHeader, RingsError, descriptor_flag};
use millrace_dma::{Iova, Span, Window};

/// Where a [`LentRxQueue`] lives.
#[derive(Clone)]
pub struct LentPlace {
    /// [`Size::ring_len`] bytes, all zero.
    pub ring: Window,
    /// The memory in which buffers are lent.
    pub memory: Window,
    /// The address by which the device knows its first byte.
    pub memory_at: u64,
    /// Bytes of a buffer that the device may write, with what lies before a frame.
    pub buffer: usize,
}

/// The queue with which a driver receives into buffers that are lent to it one by one. A frame lies in one buffer.
///
/// Unlike in an [`RxQueue`](super::RxQueue), a descriptor has whatever buffer was lent last; where that is is written down in
/// private memory.
pub struct LentRxQueue {
    queue: Queue,
    memory: Window,
    memory_at: u64,
    capacity: usize,
    /// Where the buffer of each descriptor begins that has one.
    buffers: Box<[usize]>,
    /// Descriptors that have none.
    free: Vec<u16>,
    /// The frames of the last [`LentRxQueue::poll`].
    burst: Vec<Frame>,
}

/// A frame that has arrived.
#[derive(Clone, Copy)]
struct Frame {
    id: u16,
    len: usize,
    /// Its buffer is not ours any more.
    is_kept: bool,
}

impl LentRxQueue {
    /// A queue in zeroed memory, without any buffer.
    ///
    /// # Errors
    /// [`RingsError`] when there is no room for the rings, or none for a frame in a buffer.
    pub fn new(place: &LentPlace, size: Size, agreed: Agreed) -> Result<Self, RingsError> {
        let capacity = place.buffer.checked_sub(BEFORE_FRAME).filter(|&capacity| capacity > 0);
        let capacity = capacity.filter(|&capacity| u32::try_from(NetHeader::LEN + capacity).is_ok());
        let count = usize::from(size.get());
        Ok(Self {
            capacity: capacity.ok_or(RingsError::Stride(place.buffer))?,
            queue: Queue::without_buffers(&place.ring, size, agreed)?,
            memory: place.memory.clone(),
            memory_at: place.memory_at,
            buffers: vec![0; count].into(),
            free: (0..size.get()).rev().collect(),
            burst: Vec::with_capacity(count),
        })
    }

    /// How many buffers can be lent.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Lends the buffer that begins `at` this offset of the memory; the device sees it after [`LentRxQueue::publish`]. `false`
    /// when there is no [room](LentRxQueue::room), or no whole buffer at this place.
    #[inline(always)]
    pub fn post(&mut self, at: usize) -> bool {
        let is_inside = self.memory.span(at, BEFORE_FRAME + self.capacity).is_some();
        let Some(id) = self.free.pop_if(|_| is_inside) else { return false };
        self.buffers[usize::from(id)] = at;
        let address = Iova::new(self.memory_at + (at + BEFORE_HEADER) as u64);
        let len = (NetHeader::LEN + self.capacity) as u32;
        self.queue.describe_at(id, Descriptor { address, len, flags: descriptor_flag::WRITE, next: 0 });
        self.queue.post(id);
        true
    }

    /// Looks for up to `max` frames and returns how many there are for [`LentRxQueue::frame`]. Buffers of the last time that
    /// were not [kept](LentRxQueue::keep) are lent again.
    #[inline]
    pub fn poll(&mut self, max: usize) -> usize {
        self.recycle();
        for _ in 0..usize::from(self.queue.used()).min(max) {
            let Some((id, written)) = self.queue.take_back() else { break };
            match (written as usize).checked_sub(NetHeader::LEN) {
                Some(len) if len <= self.capacity => self.burst.push(Frame { id, len, is_kept: false }),
                _ => {
                    self.queue.break_off::<()>(Broken::Length(written));
                    break;
                }
            }
        }
        self.burst.len()
    }

    /// Frame `index` of the last burst, and where in the memory it lies.
    ///
    /// # Panics
    /// When the burst has no such frame.
    #[inline(always)]
    pub fn frame(&self, index: usize) -> (usize, Span<'_>) {
        let Frame { id, len, .. } = self.burst[index];
        let at = self.buffers[usize::from(id)] + BEFORE_FRAME;
        // Inside, as was found when the buffer was lent.
        (at, self.memory.span(at, len).unwrap_or(Span::EMPTY))
    }

    /// The buffer of frame `index` of the last burst is somebody else's from now on.
    ///
    /// # Panics
    /// When the burst has no such frame.
    #[inline(always)]
    pub fn keep(&mut self, index: usize) {
        self.burst[index].is_kept = true;
    }

    /// Lends the buffers of the last burst again that were not kept.
    #[inline(always)]
    pub fn recycle(&mut self) {
        for &Frame { id, is_kept, .. } in &self.burst {
            if is_kept {
                self.free.push(id);
            } else {
                // What stands in its descriptor is the same buffer.
                self.queue.post(id);
            }
        }
        self.burst.clear();
    }

    /// Where all buffers begin that were lent and not kept, at the end of the queue.
    pub fn into_buffers(mut self) -> Vec<usize> {
        self.recycle();
        let mut has = vec![true; self.buffers.len()];
        self.free.iter().for_each(|&id| has[usize::from(id)] = false);
        self.buffers.iter().zip(has).filter(|(_, has)| *has).map(|(&at, _)| at).collect()
    }

    /// Shows the device the buffers that it may fill, and says whether it has to be kicked.
    #[inline(always)]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.queue.publish()
    }

    /// What the device has done wrong; the queue is at an end then.
    pub fn broken(&self) -> Option<Broken> {
        self.queue.broken()
    }

    /// Whether the device shall signal frames. Returns `true` when some are there already and no signal will come for
    /// them.
    pub fn want_signal(&mut self, wanted: bool) -> bool {
        self.queue.want_signal(wanted)
    }
}
