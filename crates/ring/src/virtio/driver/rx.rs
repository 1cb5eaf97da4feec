//! Frames from the device.

use super::queue::Queue;
use super::{Agreed, BEFORE_FRAME, BEFORE_HEADER, Broken, Place, Size, capacity};
use crate::virtio::{NetHeader, RingsError, descriptor_flag};
use millrace_dma::{Span, Window};

/// The longest frame that is put together from several buffers, in bytes: the longest IP packet behind an Ethernet header
/// with tags.
const MERGED_MAX: usize = (64 << 10) + 64;

/// The queue with which a driver receives.
pub struct RxQueue {
    queue: Queue,
    buffers: Window,
    stride: usize,
    capacity: usize,
    mergeable: bool,
    /// The frames of the last [`RxQueue::poll`].
    burst: Vec<Frame>,
    /// The buffers of those frames, which [`RxQueue::recycle`] returns.
    held: Vec<u16>,
    /// A frame of several buffers, put together.
    merged: Vec<u8>,
    /// A frame of one buffer, for [`RxQueue::frame_mut`].
    copied: Vec<u8>,
}

/// A frame that has arrived.
#[derive(Clone, Copy)]
struct Frame {
    /// Where its buffer starts; of no meaning for a merged one.
    at: usize,
    len: usize,
    merged: bool,
}

impl RxQueue {
    /// A queue in zeroed memory, all of whose buffers the device has after the first [`RxQueue::publish`].
    ///
    /// # Errors
    /// [`RingsError`] when the place is too small for the size.
    pub fn new(place: &Place, size: Size, agreed: Agreed) -> Result<Self, RingsError> {
        let capacity = capacity(place.stride);
        let mut queue = Queue::new(place, size, agreed, descriptor_flag::WRITE, (NetHeader::LEN + capacity) as u32)?;
        (0..size.get()).for_each(|id| queue.post(id));
        let count = usize::from(size.get());
        Ok(Self {
            queue,
            buffers: place.buffers.clone(),
            stride: place.stride,
            capacity,
            mergeable: agreed.mergeable,
            burst: Vec::with_capacity(count),
            held: Vec::with_capacity(count),
            merged: Vec::with_capacity(if agreed.mergeable { MERGED_MAX } else { 0 }),
            copied: vec![0; capacity],
        })
    }

    /// Looks for up to `max` frames and returns how many there are for [`RxQueue::frame`]. Those of the last time are
    /// recycled. A frame over several buffers is the last of its burst.
    #[inline]
    pub fn poll(&mut self, max: usize) -> usize {
        self.recycle();
        let mut left = self.queue.used();
        while left > 0 && self.burst.len() < max {
            let Some((id, len)) = self.take_one() else { break };
            left -= 1;
            let at = usize::from(id) * self.stride;
            let pieces = if self.mergeable { self.pieces(at) } else { 1 };
            if pieces == 1 {
                self.burst.push(Frame { at, len, merged: false });
            } else {
                let _ = self.merge(at, len, pieces, left);
                break;
            }
        }
        self.burst.len()
    }

    /// The next used buffer and the length of what is in it, without the header.
    #[inline(always)]
    fn take_one(&mut self) -> Option<(u16, usize)> {
        let (id, len) = self.queue.take_back()?;
        self.held.push(id);
        match (len as usize).checked_sub(NetHeader::LEN) {
            Some(frame) if frame <= self.capacity => Some((id, frame)),
            _ => self.queue.break_off(Broken::Length(len)),
        }
    }

    /// `num_buffers` of the header at the start of a frame.
    #[inline(always)]
    fn pieces(&self, at: usize) -> u16 {
        let word = self.buffers.span(at + BEFORE_HEADER + 8, 4).and_then(|header| header.first_u32());
        (word.unwrap_or(0) >> 16) as u16
    }

    /// Puts a frame together that has `pieces` buffers, of which the first is taken and `left` more are used. Only the
    /// first has a header; the others are filled from where their header would be.
    #[cold]
    fn merge(&mut self, first: usize, first_len: usize, pieces: u16, left: u16) -> Option<()> {
        let Some(more) = pieces.checked_sub(1).filter(|more| *more <= left) else {
            return self.queue.break_off(Broken::Spread(pieces));
        };
        self.merged.clear();
        self.append(first + BEFORE_FRAME, first_len, pieces)?;
        for _ in 0..more {
            let (id, len) = self.queue.take_back()?;
            self.held.push(id);
            if len as usize > NetHeader::LEN + self.capacity {
                return self.queue.break_off(Broken::Length(len));
            }
            self.append(usize::from(id) * self.stride + BEFORE_HEADER, len as usize, pieces)?;
        }
        self.burst.push(Frame { at: first, len: self.merged.len(), merged: true });
        Some(())
    }

    fn append(&mut self, at: usize, len: usize, pieces: u16) -> Option<()> {
        let had = self.merged.len();
        if had + len > MERGED_MAX {
            return self.queue.break_off(Broken::Spread(pieces));
        }
        self.merged.resize(had + len, 0);
        self.buffers.span(at, len)?.read_into(&mut self.merged[had..]);
        Some(())
    }

    /// Frame `index` of the last burst.
    ///
    /// # Panics
    /// When the burst has no such frame.
    #[inline(always)]
    pub fn frame(&self, index: usize) -> Span<'_> {
        let frame = self.burst[index];
        if frame.merged {
            return Span::from_slice(&self.merged);
        }
        self.buffers.span(frame.at + BEFORE_FRAME, frame.len).unwrap_or(Span::EMPTY)
    }

    /// The bytes of frame `index` of the last burst as something to work on: nobody else can change them. A copy, unless
    /// the frame has been put together.
    ///
    /// # Panics
    /// When the burst has no such frame.
    pub fn frame_mut(&mut self, index: usize) -> &mut [u8] {
        let frame = self.burst[index];
        if frame.merged {
            return &mut self.merged;
        }
        let copied = &mut self.copied[..frame.len];
        if let Some(span) = self.buffers.span(frame.at + BEFORE_FRAME, frame.len) {
            span.read_into(copied);
        }
        copied
    }

    /// Whether frame `index` of the last burst has been put together from several buffers, which is a copy.
    ///
    /// # Panics
    /// When the burst has no such frame.
    #[inline(always)]
    pub fn is_merged(&self, index: usize) -> bool {
        self.burst[index].merged
    }

    /// The virtio header of frame `index` of the last burst, copied.
    ///
    /// # Panics
    /// When the burst has no such frame.
    pub fn header(&self, index: usize) -> [u8; NetHeader::LEN] {
        let mut header = [0; NetHeader::LEN];
        if let Some(span) = self.buffers.span(self.burst[index].at + BEFORE_HEADER, NetHeader::LEN) {
            span.read_into(&mut header);
        }
        header
    }

    /// Returns the buffers of the last burst to the device, which sees them after [`RxQueue::publish`].
    #[inline(always)]
    pub fn recycle(&mut self) {
        for index in 0..self.held.len() {
            self.queue.post(self.held[index]);
        }
        self.held.clear();
        self.burst.clear();
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
