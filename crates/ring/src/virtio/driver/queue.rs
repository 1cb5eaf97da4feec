//! What both directions share: making descriptors available, seeing them used, and asking for signals or not.

use super::{Agreed, BEFORE_HEADER, capacity};
use crate::virtio::{AVAIL_NO_INTERRUPT, Descriptor, MAX_SIZE, Rings, RingsError, USED_NO_NOTIFY, Used, needs_event};
use millrace_dma::{Iova, Ordering, OutOfRange, Window, fence};

/// How many descriptors a queue has: a power of two from 2 to [`MAX_SIZE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(u16);

impl Size {
    /// `None` unless `descriptors` is a power of two from 2 to [`MAX_SIZE`].
    pub const fn new(descriptors: u16) -> Option<Self> {
        let legal = descriptors.is_power_of_two() && descriptors >= 2 && descriptors <= MAX_SIZE;
        if legal { Some(Self(descriptors)) } else { None }
    }

    /// The number of descriptors.
    pub fn get(self) -> u16 {
        self.0
    }

    /// Where the available ring starts in the memory of the ring; the descriptor table starts at 0.
    pub fn avail_at(self) -> usize {
        Rings::table_len(self.0)
    }

    /// Where the used ring starts: on a pair of cache lines that the driver does not write.
    pub fn used_at(self) -> usize {
        (self.avail_at() + Rings::avail_len(self.0)).next_multiple_of(128)
    }

    /// Bytes of the ring.
    pub fn ring_len(self) -> usize {
        (self.used_at() + Rings::used_len(self.0)).next_multiple_of(128)
    }

    /// Bytes of the buffers, `stride` bytes each.
    pub fn buffers_len(self, stride: usize) -> usize {
        usize::from(self.0).saturating_mul(stride)
    }
}

/// Where a queue lives.
#[derive(Clone)]
pub struct Place {
    /// [`Size::ring_len`] bytes, all zero: the descriptor table, the available and the used ring.
    pub ring: Window,
    /// [`Size::buffers_len`] bytes.
    pub buffers: Window,
    /// Bytes from one buffer to the next, such as [`STRIDE`](super::STRIDE).
    pub stride: usize,
    /// The address by which the device knows the first byte of `buffers`.
    pub buffers_at: u64,
}

impl Place {
    /// The rings in it; how far the device may write them is up to the device.
    ///
    /// # Errors
    /// [`RingsError`] when there is not enough room.
    pub fn rings(&self, size: Size) -> Result<Rings, RingsError> {
        if capacity(self.stride) == 0 || self.stride > usize::from(u16::MAX) + 1 {
            return Err(RingsError::Stride(self.stride));
        }
        self.buffers.part(0, size.buffers_len(self.stride)).map_err(outside("space for buffers"))?;
        rings_in(&self.ring, size)
    }
}

fn outside(part: &'static str) -> impl FnOnce(OutOfRange) -> RingsError {
    move |source| RingsError::Part { part, source }
}

/// The rings in the memory of a queue.
fn rings_in(ring: &Window, size: Size) -> Result<Rings, RingsError> {
    let avail = ring.part(size.avail_at(), Rings::avail_len(size.get())).map_err(outside("available ring"))?;
    let used = ring.part(size.used_at(), Rings::used_len(size.get())).map_err(outside("used ring"))?;
    Rings::over(ring, &avail, &used, size.get())
}

/// What the device has done that no device may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It has used more descriptors than it had.
    #[error("the device has used {used} descriptors and had {had}")]
    Index {
        /// How many it says it has used since last time.
        used: u16,
        /// How many it had.
        had: u16,
    },
    /// It has used a descriptor that it did not have.
    #[error("the device has used descriptor {0}, which it did not have")]
    Descriptor(u32),
    /// It has written more than there is room for, or less than a header.
    #[error("the device has written {0} bytes into a buffer")]
    Length(u32),
    /// It has spread a frame over buffers that it has not used.
    #[error("the device has spread a frame over {0} buffers")]
    Spread(u16),
}

/// A split virtqueue, seen by the driver.
pub(super) struct Queue {
    rings: Rings,
    buffers_at: u64,
    stride: usize,
    agreed: Agreed,
    mask: u16,
    /// What the available ring holds; never read back.
    shadow: Box<[u16]>,
    /// Which descriptors the device has.
    posted: Box<[bool]>,
    /// Index of the next entry of the available ring.
    next: u16,
    /// `next` as the device knows it.
    published: u16,
    /// How far the used ring has been read.
    seen: u16,
    broken: Option<Broken>,
}

impl Queue {
    /// A queue whose descriptor *n* is buffer *n*, with these flags and `len` bytes.
    pub(super) fn new(place: &Place, size: Size, agreed: Agreed, flags: u16, len: u32) -> Result<Self, RingsError> {
        let queue =
            Self { buffers_at: place.buffers_at, stride: place.stride, ..Self::over(place.rings(size)?, size, agreed) };
        for id in 0..size.get() {
            queue.describe(id, flags, len, 0);
        }
        Ok(queue)
    }

    /// A queue whose descriptors are described [one by one](Queue::describe_at).
    pub(super) fn without_buffers(ring: &Window, size: Size, agreed: Agreed) -> Result<Self, RingsError> {
        Ok(Self::over(rings_in(ring, size)?, size, agreed))
    }

    fn over(rings: Rings, size: Size, agreed: Agreed) -> Self {
        for id in 0..size.get() {
            rings.avail.store(u32::from(id), id);
        }
        Self {
            rings,
            buffers_at: 0,
            stride: 0,
            agreed,
            mask: size.get() - 1,
            shadow: (0..size.get()).collect(),
            posted: vec![false; usize::from(size.get())].into(),
            next: 0,
            published: 0,
            seen: 0,
            broken: None,
        }
    }

    /// The number of descriptors.
    pub(super) fn size(&self) -> u16 {
        self.mask.wrapping_add(1)
    }

    /// What the device has done wrong.
    pub(super) fn broken(&self) -> Option<Broken> {
        self.broken
    }

    /// Ends the queue.
    #[cold]
    pub(super) fn break_off<T>(&mut self, why: Broken) -> Option<T> {
        self.broken.get_or_insert(why);
        None
    }

    /// Describes the buffer of descriptor `id`, which the device does not have: `len` bytes from its header on.
    #[inline(always)]
    pub(super) fn describe(&self, id: u16, flags: u16, len: u32, next: u16) {
        let at = self.buffers_at + (usize::from(id) * self.stride + BEFORE_HEADER) as u64;
        self.describe_at(id, Descriptor { address: Iova::new(at), len, flags, next });
    }

    /// Describes the buffer of descriptor `id`, which the device does not have, wherever that is.
    #[inline(always)]
    pub(super) fn describe_at(&self, id: u16, descriptor: Descriptor) {
        self.rings.table.store(id, descriptor);
    }

    /// Hands a descriptor to the device, which sees it after [`Queue::publish`].
    #[inline(always)]
    pub(super) fn post(&mut self, id: u16) {
        let slot = self.next & self.mask;
        // A device that works in order gives descriptors back in the order of the ring: then there is nothing to write.
        if self.shadow[usize::from(slot)] != id {
            self.shadow[usize::from(slot)] = id;
            self.rings.avail.store(u32::from(slot), id);
        }
        self.posted[usize::from(id & self.mask)] = true;
        self.next = self.next.wrapping_add(1);
    }

    /// Hands `count` descriptors to the device that are in their places in the ring already.
    #[inline(always)]
    pub(super) fn lend_in_order(&mut self, count: u16) {
        self.next = self.next.wrapping_add(count);
    }

    /// Shows the device what was posted, and says whether it has to be kicked.
    #[inline(always)]
    pub(super) fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        let old = self.published;
        self.published = self.next;
        // Release: descriptors, ring entries and frames come before; the device loads the index with Acquire.
        self.rings.avail_index.store(self.next, Ordering::Release);
        // The index must be visible before we look whether the device is asleep; the device writes that it is and then
        // looks at the index, with the same fence between.
        fence(Ordering::SeqCst);
        if self.agreed.event_index {
            needs_event(self.rings.avail_event.load(Ordering::Relaxed), self.next, old)
        } else {
            self.rings.used_flags.load(Ordering::Relaxed) & USED_NO_NOTIFY == 0
        }
    }

    /// How many descriptors the device has used that were not looked at yet.
    #[inline(always)]
    pub(super) fn used(&mut self) -> u16 {
        if self.broken.is_some() {
            return 0;
        }
        // Acquire: partner of the device's Release of the index after entries and frames.
        let used = self.rings.used_index.load(Ordering::Acquire).wrapping_sub(self.seen);
        let had = self.published.wrapping_sub(self.seen);
        if used > had {
            return self.break_off(Broken::Index { used, had }).unwrap_or(0);
        }
        used
    }

    /// Takes the next used descriptor back: its identifier and the bytes written. For [`Queue::used`] times.
    #[inline(always)]
    pub(super) fn take_back(&mut self) -> Option<(u16, u32)> {
        let Used { head, len } = self.rings.used.load(self.seen);
        match self.posted.get_mut(head as usize) {
            Some(posted) if *posted => *posted = false,
            _ => return self.break_off(Broken::Descriptor(head)),
        }
        self.seen = self.seen.wrapping_add(1);
        Some((head as u16, len))
    }

    /// Takes `count` descriptors back that are used in order, without a look at the ring.
    #[inline(always)]
    pub(super) fn take_back_in_order(&mut self, count: u16) {
        self.seen = self.seen.wrapping_add(count);
    }

    /// The first descriptors of what the device has and has not used yet, as far as it is known.
    pub(super) fn posted(&self) -> impl Iterator<Item = u16> {
        let in_order = self.agreed.in_order;
        let count = if in_order { self.next.wrapping_sub(self.seen) } else { self.size() };
        let ids = (0..count).map(move |at| if in_order { self.seen.wrapping_add(at) & self.mask } else { at });
        ids.filter(move |&id| in_order || self.posted[usize::from(id)])
    }

    /// The identifier that stands at the place of index `self.next` in a ring that is used in order.
    pub(super) fn next_in_order(&self) -> u16 {
        self.next & self.mask
    }

    /// Asks the device to signal the next descriptor that it uses, or not to. If something was used already, which
    /// nobody will signal any more, the answer is yes.
    pub(super) fn want_signal(&mut self, wanted: bool) -> bool {
        if self.agreed.event_index {
            // No signal is wanted by naming an index that is a whole turn away.
            let event = if wanted { self.seen } else { self.seen.wrapping_sub(1) };
            self.rings.used_event.store(event, Ordering::Relaxed);
        } else {
            self.rings.avail_flags.store(if wanted { 0 } else { AVAIL_NO_INTERRUPT }, Ordering::Relaxed);
        }
        // The wish must be visible before we look at the index; the device writes the index and then looks at the wish,
        // with the same fence between.
        fence(Ordering::SeqCst);
        wanted && self.used() > 0
    }
}
