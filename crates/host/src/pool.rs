//! Pools of buffers, for queues whose software moves descriptors and not bytes.
//!
//! ```text
//!                 take                      send                done bit
//!    free  ------------------>  Buffer  ------------->  TX ring  -------->  free
//!      \                          ^
//!       \  refill                 |  receive
//!        `------>  owed by RX  ---'                      a Buffer that is dropped is free again
//! ```
//!
//! Every buffer is in exactly one of these places, and moves from one to the next by value: none can be free twice, or in
//! two descriptors. What the card hands back is looked up among those that it owes; nothing that it writes is an index.

use crate::mapping::Mapping;
use crate::verdict::Verdicts;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::ops::{Deref, DerefMut};
use millrace_abi::message::Buffers;
use millrace_dma::{Iova, OutOfRange, Window};
use millrace_driver::Client;
use millrace_ring::dd::HostTx;
use std::rc::{Rc, Weak};
use std::sync::Arc;

const CACHE_LINE: usize = 64;

/// One buffer, wherever it is.
struct Slot {
    window: Window,
    number: u32,
}

/// All buffers that are neither in the program's hands nor in a TX ring.
struct Shelf {
    // The last one that came back is the next to go: it is the one in the cache.
    free: Vec<Slot>,
    // By number: what the card owes, and which RX queue was given it.
    owed: Box<[Option<(Slot, u32)>]>,
    first: Iova,
    stride: u64,
    size: u16,
}

impl Shelf {
    /// Shelves `count` buffers of `size` bytes that lie in `window`, where the card finds it at `first`.
    fn new(window: &Window, first: Iova, count: u32, size: u16) -> Result<Self, OutOfRange> {
        let stride = stride_of(size);
        let slot = |number: u32| {
            let window = window.part(number as usize * stride, size.into())?;
            Ok(Slot { window, number })
        };
        let free = (0..count).rev().map(slot).collect::<Result<Vec<_>, _>>()?;
        let owed = (0..count).map(|_| None).collect();
        Ok(Self { free, owed, first, stride: stride as u64, size })
    }

    fn iova(&self, number: u32) -> Iova {
        self.first.plus(u64::from(number) * self.stride)
    }

    /// Gives a free buffer to an RX queue.
    #[inline(always)]
    fn lend(&mut self, queue: u32) -> Option<(Iova, u32)> {
        let slot = self.free.pop()?;
        let (number, iova) = (slot.number, self.iova(slot.number));
        self.owed[number as usize] = Some((slot, queue));
        Some((iova, number))
    }

    /// The buffer in which an RX queue says that it hands back `len` bytes at `iova`, and where they begin in it: `None`
    /// unless it was given that buffer and has not handed it back since.
    #[inline(always)]
    fn claim(&mut self, queue: u32, iova: Iova, len: u16) -> Option<(Slot, u16)> {
        let offset = iova.get().checked_sub(self.first.get())?;
        let (number, start) = (usize::try_from(offset / self.stride).ok()?, offset % self.stride);
        let owed = self.owed.get_mut(number)?;
        if start + u64::from(len) > u64::from(self.size) || owed.as_ref()?.1 != queue {
            return None;
        }
        owed.take().map(|(slot, _)| (slot, start as u16))
    }

    /// Takes back everything that an RX queue was given. The card must be done with that queue.
    fn take_back(&mut self, queue: u32) {
        let of_queue = |owed: &&mut Option<(Slot, u32)>| owed.as_ref().is_some_and(|(_, owner)| *owner == queue);
        let back = self.owed.iter_mut().filter(of_queue).filter_map(Option::take).map(|(slot, _)| slot);
        self.free.extend(back);
    }
}

/// Distance between buffers of `size` bytes: an odd number of cache lines, so that their first lines, which are all that
/// small frames touch, spread over all sets of the cache.
pub(crate) fn stride_of(size: u16) -> usize {
    (usize::from(size).div_ceil(CACHE_LINE) | 1) * CACHE_LINE
}

/// A TX ring of the hardware and the software's ring beside it.
pub(crate) struct Sender {
    pub host: HostTx,
    // Which buffer stands in which descriptor, and its launch time.
    places: Box<[Option<(Slot, u64)>]>,
    oldest: u32,
    // Only if somebody wants them.
    verdicts: Option<Verdicts>,
}

impl Sender {
    pub fn new(host: HostTx) -> Self {
        let places = (0..host.entries()).map(|_| None).collect();
        Self { host, places, oldest: 0, verdicts: None }
    }

    /// The frame with this launch time that was posted at `at` is back.
    #[cold]
    fn note_verdict(&mut self, at: u32, scheduled: u64) {
        let Self { host, verdicts, .. } = self;
        if let (Some(verdicts), Some((outcome, actual))) = (verdicts, host.outcome_at(at)) {
            verdicts.note(scheduled, actual, outcome);
        }
    }

    fn place(&mut self, at: u32) -> &mut Option<(Slot, u64)> {
        let mask = self.places.len() - 1;
        &mut self.places[at as usize & mask]
    }

    /// From now on verdicts are kept, so many of them; those that there are stay.
    pub fn keep_verdicts(&mut self, most: usize) {
        self.verdicts.get_or_insert_default().set_room(most);
    }

    /// The verdicts that are kept.
    pub fn verdicts(&mut self) -> Option<&mut Verdicts> {
        self.verdicts.as_mut()
    }
}

/// What a pool, its buffers and its queues share.
pub(crate) struct Inner {
    shelf: RefCell<Shelf>,
    // TX rings in which buffers may be that the card is done with.
    senders: RefCell<Vec<Weak<RefCell<Sender>>>>,
    receivers: Cell<u32>,
    count: u32,
    client: Arc<Client>,
    // Ends when the last buffer and the last queue have.
    _mapping: Mapping,
}

impl Inner {
    /// Whether buffers of this pool lie in the address space of queues that `client` opens.
    pub fn belongs_to(&self, client: &Arc<Client>) -> bool {
        Arc::ptr_eq(&self.client, client)
    }

    pub fn size(&self) -> u16 {
        self.shelf.borrow().size
    }

    /// What the driver is told of the buffers of a queue over this pool.
    pub fn buffers(&self, entries: u32) -> Buffers {
        let Shelf { size, stride, first, .. } = *self.shelf.borrow();
        Buffers::Pool { entries, at: first.get(), size: size.into(), stride: stride as u32, count: self.count }
    }

    /// A number that no other RX queue of this pool has.
    pub fn next_receiver(&self) -> u32 {
        self.receivers.replace(self.receivers.get() + 1)
    }

    pub fn add_sender(&self, sender: &Rc<RefCell<Sender>>) {
        let mut senders = self.senders.borrow_mut();
        senders.retain(|sender| sender.strong_count() > 0);
        senders.push(Rc::downgrade(sender));
    }

    /// Puts back what the card has sent from one ring.
    #[inline]
    pub fn reclaim(&self, sender: &mut Sender) -> u32 {
        let count = sender.host.reclaim();
        if count > 0 {
            let mut shelf = self.shelf.borrow_mut();
            for _ in 0..count {
                let at = sender.oldest;
                if let Some((slot, launch)) = sender.place(at).take() {
                    shelf.free.push(slot);
                    if launch != 0 {
                        sender.note_verdict(at, launch);
                    }
                }
                sender.oldest = at.wrapping_add(1);
            }
        }
        count
    }

    /// Takes everything out of a ring that the card is done with for good.
    pub fn empty(&self, sender: &mut Sender) {
        let slots = sender.places.iter_mut().filter_map(Option::take).map(|(slot, _)| slot);
        self.shelf.borrow_mut().free.extend(slots);
    }

    /// Looks into all TX rings for buffers that have come back.
    #[cold]
    fn reclaim_all(&self) {
        for sender in self.senders.borrow().iter().filter_map(Weak::upgrade) {
            // A ring that is being worked on looks by itself.
            if let Ok(mut sender) = sender.try_borrow_mut() {
                self.reclaim(&mut sender);
            }
        }
    }

    fn free(&self) -> usize {
        self.shelf.borrow().free.len()
    }

    /// Gives up to `count` free buffers to RX queue `queue`; `post` gets their addresses, their size and their numbers.
    #[inline]
    pub fn lend(&self, queue: u32, count: u32, mut post: impl FnMut(Iova, u16, u32)) -> u32 {
        if self.free() < count as usize {
            self.reclaim_all();
        }
        let mut shelf = self.shelf.borrow_mut();
        let size = shelf.size;
        for given in 0..count {
            let Some((iova, number)) = shelf.lend(queue) else { return given };
            post(iova, size, number);
        }
        count
    }

    /// The buffer that an RX queue hands back, with a frame in it; `None` if it does not owe it.
    #[inline(always)]
    pub fn claim(self: &Rc<Self>, queue: u32, iova: Iova, len: u16) -> Option<Buffer> {
        let (slot, start) = self.shelf.borrow_mut().claim(queue, iova, len)?;
        Some(Buffer { slot: Some(slot), start, len, port: 0, time: 0, launch: 0, pool: self.clone() })
    }

    pub fn take_back(&self, queue: u32) {
        self.shelf.borrow_mut().take_back(queue);
    }

    /// Puts a buffer into the next descriptor of a ring, which has room.
    #[inline(always)]
    pub fn post(&self, sender: &mut Sender, mut buffer: Buffer) {
        let Some(slot) = buffer.slot.take() else { return };
        let (first, number) = (self.shelf.borrow().iova(slot.number), slot.number);
        let iova = first.plus(buffer.start.into());
        let at = sender.host.posted();
        let frame = millrace_ring::dd::Frame { iova, len: buffer.len, launch: buffer.launch, cookie: number.into() };
        if sender.host.post(frame) {
            *sender.place(at) = Some((slot, buffer.launch));
        } else {
            // Cannot be: the caller has looked.
            buffer.slot = Some(slot);
        }
    }
}

/// Buffers of one size in one piece of memory, for any number of DD queues of one [`crate::Device`].
///
/// A pool, its buffers and its queues belong to one thread: nothing is locked, and nothing is counted atomically. A
/// program with several threads gives each a pool of its own.
///
/// A pool should have more buffers than the RX rings on it have descriptors, and as many more as the program holds and
/// as TX rings keep on their way; with fewer, RX rings run dry and the card waits or drops.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Rc<Inner>,
}

impl Pool {
    pub(crate) fn new(
        client: Arc<Client>,
        window: &Window,
        mapping: Mapping,
        count: u32,
        size: u16,
    ) -> Result<Self, OutOfRange> {
        let shelf = RefCell::new(Shelf::new(window, mapping.iova(), count, size)?);
        let (senders, receivers) = (RefCell::default(), Cell::new(0));
        Ok(Self { inner: Rc::new(Inner { shelf, senders, receivers, count, client, _mapping: mapping }) })
    }

    /// Number of buffers.
    pub fn buffers(&self) -> u32 {
        self.inner.count
    }

    /// Bytes that each of them holds.
    pub fn size(&self) -> usize {
        self.inner.size().into()
    }

    /// Buffers that nobody has: neither the program nor a queue. Those that the card has sent and nobody has looked at
    /// since are not among them.
    pub fn free(&self) -> usize {
        self.inner.free()
    }

    /// Takes a free buffer, the one that came back last. It is empty ([`Buffer::set_len`]); in memory is what was left
    /// there. `None`: all are with queues or in use.
    #[inline]
    pub fn take(&self) -> Option<Buffer> {
        if self.free() == 0 {
            self.inner.reclaim_all();
        }
        let slot = self.inner.shelf.borrow_mut().free.pop()?;
        Some(Buffer { slot: Some(slot), start: 0, len: 0, port: 0, time: 0, launch: 0, pool: self.inner.clone() })
    }
}

/// A buffer of a [`Pool`] in the hands of the program, with a frame in it. Dropped, it goes back to the pool.
pub struct Buffer {
    // None only while it is moved somewhere else.
    slot: Option<Slot>,
    // Where the frame begins: what a port has received itself may have room before it.
    start: u16,
    len: u16,
    port: u8,
    time: u64,
    launch: u64,
    pool: Rc<Inner>,
}

impl Buffer {
    /// Bytes that it can hold. A frame that a port has put here itself may begin some bytes behind the buffer's beginning,
    /// and leave so much less.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.slot.as_ref().map_or(0, |slot| slot.window.len().saturating_sub(self.start.into()))
    }

    /// Makes the frame `len` bytes long; what it has more than before is whatever lies in memory.
    ///
    /// # Panics
    /// When the buffer does not hold so many.
    #[inline(always)]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes in a buffer of {}", self.capacity());
        self.len = len as u16;
    }

    /// Which buffer of the pool it is, from 0: the same memory has the same number.
    pub fn number(&self) -> u32 {
        self.slot.as_ref().map_or(0, |slot| slot.number)
    }

    /// When the frame was received, in nanoseconds of the card's clock, and at which port; `None` while the card's
    /// time-stamp unit is not enabled, and for a frame that was not received.
    pub fn received_at(&self) -> Option<(u64, u8)> {
        (self.time != 0).then_some((self.time, self.port))
    }

    pub(crate) fn stamp(&mut self, time: u64, port: u8) {
        (self.time, self.port) = (time, port);
    }

    /// When the frame is to be sent, in nanoseconds of the card's clock; 0 or a time that has passed: at once. It holds
    /// back what is sent behind it through the same queue. What becomes of it when the card comes too late, and of a time
    /// more than a second ahead, [`TxOptions::launch`](crate::TxOptions::launch) says; what has become of it,
    /// [`PoolTx::verdicts`](crate::PoolTx::verdicts).
    #[inline(always)]
    pub fn set_launch(&mut self, nanoseconds: u64) {
        self.launch = nanoseconds;
    }

    pub(crate) fn pool(&self) -> &Rc<Inner> {
        &self.pool
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.slot.as_ref().and_then(|slot| slot.window.slice(self.start.into(), self.len.into())).unwrap_or_default()
    }
}

impl DerefMut for Buffer {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, len) = (self.start.into(), self.len.into());
        self.slot.as_mut().and_then(|slot| slot.window.slice_mut(start, len)).unwrap_or_default()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("number", &self.number()).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for Buffer {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.pool.shelf.borrow_mut().free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_dma::Region;

    fn shelf(count: u32) -> Shelf {
        let region = Region::heap(count as usize * stride_of(2048));
        Shelf::new(region.window(), Iova::new(0x10_0000), count, 2048).unwrap()
    }

    #[test]
    fn the_last_buffer_that_came_back_is_the_next_to_go() {
        let mut shelf = shelf(3);
        let numbers: Vec<_> = (0..3).map(|_| shelf.lend(0).unwrap()).collect();
        assert_eq!(numbers.iter().map(|&(_, number)| number).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(numbers[1].0, Iova::new(0x10_0000 + 2112));
        assert!(shelf.lend(0).is_none());
        let (slot, start) = shelf.claim(0, numbers[1].0.plus(256), 60).unwrap();
        assert_eq!(start, 256);
        shelf.free.push(slot);
        assert_eq!(shelf.lend(7), Some(numbers[1]));
    }

    #[test]
    fn what_a_queue_does_not_owe_is_refused() {
        let mut shelf = shelf(4);
        let (one, _) = shelf.lend(1).unwrap();
        let (two, _) = shelf.lend(2).unwrap();
        let free = shelf.iova(2);
        let behind = shelf.iova(4);
        for iova in [free, behind, one.plus(2048), two.plus(1), two, Iova::new(0), Iova::new(u64::MAX)] {
            assert!(shelf.claim(1, iova, 60).is_none(), "{iova}");
        }
        assert!(shelf.claim(1, one, 2049).is_none(), "longer than a buffer");
        assert!(shelf.claim(1, one.plus(1), 2048).is_none(), "beyond the end of a buffer");
        assert!(shelf.claim(1, one, 2048).is_some());
        assert!(shelf.claim(1, one, 2048).is_none(), "handed back twice");
        assert_eq!(shelf.free.len(), 2);
        shelf.take_back(1);
        assert_eq!(shelf.free.len(), 2, "what was handed back is the program's");
        shelf.take_back(2);
        assert_eq!(shelf.free.len(), 3);
    }
}
