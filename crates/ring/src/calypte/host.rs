//! The software's half of Calypte. The data rings are seen through windows that map them twice in a row, so that every
//! packet is one slice; who owns these windows is not its business.

use super::layout::{FRAME_ALIGN, Header, Pointers, header_entries, valid_in_lap_of};
use crate::index::{Mask, RingIndex};
use millrace_dma::{Ordering, Slots64, Word64};

/// Packets pushed after which the card is to see them without being told to.
pub const DEFERRED: u32 = 64;

/// The software's half of a TX queue.
///
/// Positions are counted in bytes from the start of the queue, modulo 2^32.
pub struct HostTx {
    headers: Slots64,
    data: Mask,
    // Taken by packets; announced to the card; passed by the card.
    sdp: u32,
    announced: u32,
    hdp: u32,
    // Headers announced, modulo 2^32, and the lengths of the packets behind them.
    shp: u32,
    staged: u32,
    lengths: Box<[u16]>,
    update: Word64,
}

impl HostTx {
    /// A queue at SDP = SHP = 0 over a data ring of `ring` bytes. `None` unless that is a power of two of at most 64 KiB
    /// and there are [enough headers](header_entries) for it.
    pub fn new(ring: u32, headers: Slots64, update: Word64) -> Option<Self> {
        let data = Mask::for_entries(ring).filter(|_| (FRAME_ALIGN * 2..=1 << 16).contains(&ring))?;
        let entries = Mask::for_entries(headers.mask() + 1)?.entries();
        if entries < header_entries(ring) {
            return None;
        }
        let lengths = vec![0; entries as usize].into_boxed_slice();
        Some(Self { headers, data, sdp: 0, announced: 0, hdp: 0, shp: 0, staged: 0, lengths, update })
    }

    /// Bytes of the ring that a frame takes.
    #[inline(always)]
    pub const fn stride(len: u16) -> u32 {
        let len = if len == 0 { 1 } else { len };
        (len as u32).next_multiple_of(FRAME_ALIGN)
    }

    #[inline(always)]
    fn room(&self) -> u32 {
        (self.data.entries() - FRAME_ALIGN) - self.sdp.wrapping_sub(self.hdp)
    }

    /// Most bytes that can be taken at once.
    pub fn most(&self) -> u32 {
        self.data.entries() - FRAME_ALIGN
    }

    /// Whether `bytes` (a sum of [`HostTx::stride`]) can be written; looks at the card when necessary.
    #[inline(always)]
    pub fn has_room(&mut self, bytes: u32) -> bool {
        if self.room() >= bytes {
            return true;
        }
        self.refresh();
        self.room() >= bytes
    }

    /// Bytes that can be written, after a look at the card.
    pub fn available(&mut self) -> u32 {
        self.refresh();
        self.room()
    }

    /// Looks at the update word.
    #[inline(always)]
    pub fn refresh(&mut self) {
        // Acquire pairs with the Release in `CardTx::serve`: data and headers up to the pointers are ours again.
        let hdp = Pointers::decode(self.update.load(Ordering::Acquire)).data;
        let passed = hdp.wrapping_sub(self.hdp) & self.data.get();
        // The card cannot pass what it was not given; a larger step would be a lie.
        if passed <= self.announced.wrapping_sub(self.hdp) {
            self.hdp = self.hdp.wrapping_add(passed);
        }
    }

    /// Position of the next packet.
    #[inline(always)]
    pub fn position(&self) -> u32 {
        self.sdp
    }

    /// Where in the doubled data ring the frame of the next packet begins.
    #[inline(always)]
    pub fn frame_at(&self) -> u32 {
        self.data.index(self.sdp).get()
    }

    /// The next packet has `len` bytes, for which there must be room. The card sees it after [`HostTx::flush`]; until
    /// then it may still be written.
    #[inline(always)]
    pub fn push(&mut self, len: u16) {
        let mask = self.headers.mask();
        self.lengths[(self.shp.wrapping_add(self.staged) & mask) as usize] = len;
        self.staged += 1;
        self.sdp = self.sdp.wrapping_add(Self::stride(len));
    }

    /// As [`HostTx::flush`], once there are [`DEFERRED`] packets or more than a quarter of the ring. Whether it did.
    #[inline(always)]
    pub fn flush_if_far(&mut self) -> bool {
        let far = self.staged >= DEFERRED || self.sdp.wrapping_sub(self.announced) > self.data.get() / 4;
        if far {
            self.flush();
        }
        far
    }

    /// Stores the headers of all packets pushed: the card may take them.
    #[inline(always)]
    pub fn flush(&mut self) {
        for _ in 0..core::mem::take(&mut self.staged) {
            let len = self.lengths[(self.shp & self.headers.mask()) as usize];
            let at = self.data.index(self.announced).get() as u16;
            let valid = valid_in_lap_of(self.shp, self.headers.mask() + 1);
            // Release pairs with the Acquire in `CardTx::header`: the frame is visible.
            self.headers.store_release(self.shp, Header { len, at, ..Header::default() }.encode(valid));
            self.announced = self.announced.wrapping_add(Self::stride(len));
            self.shp = self.shp.wrapping_add(1);
        }
    }

    /// Packets pushed and not flushed.
    #[inline(always)]
    pub fn staged(&self) -> u32 {
        self.staged
    }

    /// Whether the card has taken everything, as far as is known without looking.
    pub fn is_drained(&self) -> bool {
        self.hdp == self.sdp
    }

    /// Bytes that the card has not passed, as far as is known without looking.
    pub fn in_flight(&self) -> u32 {
        self.sdp.wrapping_sub(self.hdp)
    }
}

/// SHP of a TX header ring, from the headers alone: where the valid bits turn round. For whoever does not write them.
pub fn announced(headers: &Slots64) -> u32 {
    let lap = |slot| Header::valid_bit(headers.load_acquire(slot));
    let first = lap(0);
    // Fewer packets than headers are on their way, so all of one kind means that none of this lap is.
    (1..=headers.mask()).find(|&slot| lap(slot) != first).unwrap_or(0)
}

/// The software's half of an RX queue.
pub struct HostRx {
    headers: Slots64,
    entries: Mask,
    data: Mask,
    sdp: RingIndex,
    // Packets from the start, modulo 2^32: given back by us; found in the ring.
    shp: u32,
    seen: u32,
    // As the doorbell says.
    announced: u32,
    announced_data: RingIndex,
    doorbell: Word64,
    update: Word64,
}

impl HostRx {
    /// A queue at SDP = SHP = 0 over a data ring of `blocks`. `None` unless both rings are powers of two.
    pub fn new(blocks: u32, headers: Slots64, doorbell: Word64, update: Word64) -> Option<Self> {
        let (data, entries) = (Mask::for_entries(blocks)?, Mask::for_entries(headers.mask() + 1)?);
        let (shp, seen, announced, zero) = (0, 0, 0, RingIndex::default());
        Some(Self { headers, entries, data, sdp: zero, shp, seen, announced, announced_data: zero, doorbell, update })
    }

    /// How many packets are there that were not given back. Looks for no more than make `most`, in the headers
    /// themselves.
    #[inline(always)]
    pub fn ready(&mut self, most: u32) -> u32 {
        // One header always stays empty; a card that says otherwise is not believed.
        let most = most.min(self.entries.get());
        while self.seen.wrapping_sub(self.shp) < most {
            // Acquire pairs with the Release in `CardRx::show`: the packet is visible.
            let word = self.headers.load_acquire(self.seen);
            if Header::valid_bit(word) != valid_in_lap_of(self.seen, self.entries.entries()) {
                break;
            }
            self.seen = self.seen.wrapping_add(1);
        }
        self.seen.wrapping_sub(self.shp)
    }

    /// The same by the update word, all of them at once.
    pub fn published(&self) -> u32 {
        // Acquire pairs with the Release in `CardRx::publish`.
        let hhp = Pointers::decode(self.update.load(Ordering::Acquire)).headers;
        self.entries.distance(self.entries.index(self.shp), self.entries.index(hhp))
    }

    /// Packets given back since the start, modulo 2^32.
    #[inline(always)]
    pub fn first(&self) -> u32 {
        self.shp
    }

    /// The header `ahead` packets after the first that was not given back.
    #[inline(always)]
    pub fn header(&self, ahead: u32) -> Header {
        Header::decode(self.headers.load(self.shp.wrapping_add(ahead)))
    }

    /// Gives the first `count` packets back. `true` when that moved the doorbell, which it does once more than a quarter
    /// of either ring is free to be announced.
    #[inline(always)]
    pub fn put(&mut self, count: u32) -> bool {
        if count == 0 {
            return false;
        }
        let last = self.header(count - 1);
        self.sdp = self.data.index(u32::from(last.at) + last.blocks());
        self.shp = self.shp.wrapping_add(count);
        // For a reader who knows by other means what is there.
        self.seen = if self.seen.wrapping_sub(self.shp) > self.entries.get() { self.shp } else { self.seen };
        let far = self.data.distance(self.announced_data, self.sdp) > self.data.get() / 4
            || self.shp.wrapping_sub(self.announced) > self.entries.get() / 4;
        if far {
            self.flush();
        }
        far
    }

    /// Whether anything has been given back that the card does not know of.
    pub fn owes(&self) -> bool {
        self.shp != self.announced
    }

    /// Moves the doorbell.
    #[inline(always)]
    pub fn flush(&mut self) {
        let pointers = Pointers { data: self.sdp.get(), headers: self.entries.index(self.shp).get() };
        (self.announced, self.announced_data) = (self.shp, self.sdp);
        // Release pairs with the Acquire in `CardRx::refresh`.
        self.doorbell.store(pointers.encode(), Ordering::Release);
    }
}
