//! The software's half of Medusa: descriptors in, completions out. Whose buffers they are is not its business; see
//! [`super::FixedRx`] and [`super::FixedTx`] for rings of fixed buffers.

use super::layout::{Buffer, Descriptor, Pointers, RxHeader, upper_of};
use crate::index::{Mask, RingIndex};
use millrace_dma::{Iova, Ordering, Slots32, Slots64, Word64};
use std::collections::VecDeque;

/// The descriptor ring as software fills it: writes a type 0 descriptor only when the upper address changes.
struct Poster {
    descriptors: Slots64,
    mask: Mask,
    // SDP as written to the ring; the doorbell may be behind.
    tail: RingIndex,
    // HDP as last seen.
    head: RingIndex,
    upper: Option<u64>,
    // Where type 0 descriptors stand that the card has not passed: they complete no buffer.
    uppers: VecDeque<RingIndex>,
}

impl Poster {
    fn new(descriptors: Slots64) -> Option<Self> {
        let mask = Mask::for_entries(descriptors.mask() + 1)?;
        let zero = RingIndex::default();
        // Reserved once: a type 0 descriptor is always followed by another one, so there are at most half as many.
        let uppers = VecDeque::with_capacity(mask.entries() as usize / 2 + 1);
        Some(Self { descriptors, mask, tail: zero, head: zero, upper: None, uppers })
    }

    #[inline(always)]
    fn free(&self) -> u32 {
        self.mask.free(self.tail, self.head)
    }

    #[inline(always)]
    fn push(&mut self, descriptor: Descriptor) {
        self.descriptors.store(self.tail.get(), descriptor.encode());
        self.tail = self.mask.add(self.tail, 1);
    }

    #[inline(always)]
    fn post(&mut self, iova: Iova, len: u16) -> bool {
        let upper = upper_of(iova);
        if self.upper != Some(upper) && !self.set_upper(upper) {
            return false;
        }
        if self.free() == 0 {
            return false;
        }
        self.push(Descriptor::Buffer(Buffer::whole(iova, len)));
        true
    }

    /// Posts packets as long as the upper address stays the same, and returns how many. The caller has made sure that
    /// the ring has room for all of them.
    #[inline(always)]
    fn post_run(&mut self, packets: impl Iterator<Item = (Iova, u16)>) -> u32 {
        let Some(upper) = self.upper else { return 0 };
        let (mut tail, mut count) = (self.tail.get(), 0);
        for (iova, len) in packets {
            if upper_of(iova) != upper {
                break;
            }
            self.descriptors.store(tail, Descriptor::Buffer(Buffer::whole(iova, len)).encode());
            tail = tail.wrapping_add(1);
            count += 1;
        }
        self.tail = self.mask.index(tail);
        count
    }

    #[cold]
    fn set_upper(&mut self, upper: u64) -> bool {
        if self.free() < 2 {
            return false;
        }
        self.uppers.push_back(self.tail);
        self.push(Descriptor::Upper(upper));
        self.upper = Some(upper);
        true
    }

    /// Takes over a new HDP and returns how many buffers the card has passed.
    #[inline(always)]
    fn passed(&mut self, hdp: u32) -> u32 {
        let head = self.mask.index(hdp);
        let mut count = self.mask.distance(self.head, head);
        if count > self.mask.distance(self.head, self.tail) {
            // The card claims descriptors that were never posted; believe nothing.
            return 0;
        }
        while let Some(&at) = self.uppers.front() {
            if self.mask.distance(self.head, at) >= self.mask.distance(self.head, head) {
                break;
            }
            self.uppers.pop_front();
            count -= 1;
        }
        self.head = head;
        count
    }
}

/// The software's half of a TX queue.
pub struct HostTx {
    poster: Poster,
    doorbell: Word64,
    update: Word64,
}

impl HostTx {
    /// A queue at SDP = 0. `None` unless the ring has a power of two of at least two entries.
    pub fn new(descriptors: Slots64, doorbell: Word64, update: Word64) -> Option<Self> {
        Some(Self { poster: Poster::new(descriptors)?, doorbell, update })
    }

    /// Queues `len` bytes at `iova` for sending; `false` when the ring is full. The card sees it after
    /// [`HostTx::flush`].
    #[inline(always)]
    pub fn post(&mut self, iova: Iova, len: u16) -> bool {
        self.poster.post(iova, len)
    }

    /// As [`HostTx::post`], for packets with room for all of them and mostly one upper address; returns how many were
    /// posted before that changed.
    #[inline(always)]
    pub fn post_run(&mut self, packets: impl Iterator<Item = (Iova, u16)>) -> u32 {
        self.poster.post_run(packets)
    }

    /// Moves the doorbell: the card may now take everything posted.
    #[inline(always)]
    pub fn flush(&mut self) {
        let word = Pointers { descriptors: self.poster.tail.get(), headers: 0 }.encode();
        // Release pairs with the Acquire in `CardTx::pending`.
        self.doorbell.store(word, Ordering::Release);
    }

    /// Looks at the update word: how many more packets the card is done with, in the order in which they were posted.
    #[inline(always)]
    pub fn completed(&mut self) -> u32 {
        // Acquire pairs with the Release in `CardTx::publish`: the buffers are ours again.
        let update = Pointers::decode(self.update.load(Ordering::Acquire));
        self.poster.passed(update.descriptors)
    }

    /// Descriptors that can be posted before the ring is full, as far as is known without looking.
    #[inline(always)]
    pub fn free(&self) -> u32 {
        self.poster.free()
    }

    /// Whether the card has taken everything that was posted, as far as is known without looking.
    pub fn is_drained(&self) -> bool {
        self.poster.head == self.poster.tail
    }

    /// SDP.
    pub fn sdp(&self) -> u32 {
        self.poster.tail.get()
    }

    /// Entries of the descriptor ring.
    pub fn entries(&self) -> u32 {
        self.poster.mask.entries()
    }
}

/// The software's half of an RX queue.
pub struct HostRx {
    poster: Poster,
    headers: Slots32,
    header_mask: Mask,
    shp: RingIndex,
    // HHP as last seen.
    hhp: RingIndex,
    doorbell: Word64,
    update: Word64,
}

impl HostRx {
    /// A queue at SDP = SHP = 0. `None` unless both rings have a power of two of at least two entries.
    pub fn new(descriptors: Slots64, headers: Slots32, doorbell: Word64, update: Word64) -> Option<Self> {
        let header_mask = Mask::for_entries(headers.mask() + 1)?;
        let zero = RingIndex::default();
        let poster = Poster::new(descriptors)?;
        Some(Self { poster, headers, header_mask, shp: zero, hhp: zero, doorbell, update })
    }

    /// Gives the card `len` bytes at `iova` to receive into; `false` when the ring is full. The card sees it after
    /// [`HostRx::flush`].
    #[inline(always)]
    pub fn post(&mut self, iova: Iova, len: u16) -> bool {
        self.poster.post(iova, len)
    }

    /// Moves the doorbell: descriptors posted and headers released.
    #[inline(always)]
    pub fn flush(&mut self) {
        let word = Pointers { descriptors: self.poster.tail.get(), headers: self.shp.get() }.encode();
        // Release pairs with the Acquire in `CardRx::refresh`.
        self.doorbell.store(word, Ordering::Release);
    }

    /// Looks at the update word: how many packets are there that were not released.
    #[inline(always)]
    pub fn ready(&mut self) -> u32 {
        // Acquire pairs with the Release in `CardRx::publish`.
        let update = Pointers::decode(self.update.load(Ordering::Acquire));
        self.hhp = self.header_mask.index(update.headers);
        self.poster.passed(update.descriptors);
        self.header_mask.distance(self.shp, self.hhp)
    }

    /// The header `ahead` packets after the first that was not released.
    #[inline(always)]
    pub fn header(&self, ahead: u32) -> RxHeader {
        RxHeader::decode(self.headers.load(self.shp.get().wrapping_add(ahead)))
    }

    /// Gives `count` headers back. Their buffers are not posted again by this.
    #[inline(always)]
    pub fn release(&mut self, count: u32) {
        self.shp = self.header_mask.add(self.shp, count);
    }

    /// Descriptors that can be posted before the ring is full, as far as is known without looking.
    #[inline(always)]
    pub fn free(&self) -> u32 {
        self.poster.free()
    }

    /// Entries of the descriptor ring.
    pub fn entries(&self) -> u32 {
        self.poster.mask.entries()
    }

    /// Entries of the header ring.
    pub fn header_entries(&self) -> u32 {
        self.header_mask.entries()
    }

    /// SHP.
    pub fn shp(&self) -> u32 {
        self.shp.get()
    }

    /// SDP.
    pub fn sdp(&self) -> u32 {
        self.poster.tail.get()
    }
}
