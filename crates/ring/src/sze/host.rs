//! The software's half of SZE. The ring is seen through a window that maps it twice in a row, so that every packet is
//! one slice.

use super::layout::{HEADER_LEN, PacketHeader, align8};
use millrace_dma::{Ordering, Window, Word64};

/// What stands in an RX ring makes no sense: the card, or somebody who can write its memory, is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet at byte {at} of the ring has impossible sizes (total {total}, metadata {meta})")]
pub struct BadRing {
    /// Position of the packet in bytes.
    pub at: u32,
    /// Size that its header names.
    pub total: u16,
    /// Metadata size that its header names.
    pub meta: u16,
}

/// One packet of an RX ring: offsets into the doubled window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxPacket {
    /// Where the metadata begins.
    pub meta_at: u32,
    /// Bytes of metadata.
    pub meta_len: u16,
    /// Where the frame begins.
    pub frame_at: u32,
    /// Bytes of the frame.
    pub frame_len: u16,
    /// From the beginning of this packet to the next.
    pub stride: u32,
}

/// The software's half of a TX queue.
///
/// Positions are counted in bytes from the start of the queue, modulo 2^32; `base` is where in the ring position 0 lies
/// (the initial offset of §3.1, and how the next opener goes on where the last one stopped).
pub struct HostTx {
    ring: Window,
    mask: u32,
    base: u32,
    // Written to the ring; announced to the card; passed by the card.
    sw: u32,
    announced: u32,
    hw: u32,
    doorbell: Word64,
    update: Word64,
}

impl HostTx {
    /// A queue at SW = 0. `None` unless `ring` is twice a power of two long.
    pub fn new(ring: Window, base: u32, doorbell: Word64, update: Word64) -> Option<Self> {
        let size = u32::try_from(ring.len() / 2).ok().filter(|size| size.is_power_of_two())?;
        Some(Self { ring, mask: size - 1, base, sw: 0, announced: 0, hw: 0, doorbell, update })
    }

    #[inline(always)]
    fn room(&self) -> u32 {
        (self.mask + 1 - 8) - self.sw.wrapping_sub(self.hw)
    }

    /// Bytes of the ring that a frame takes.
    #[inline(always)]
    pub const fn stride(len: u16) -> u32 {
        // Not by way of a header, whose 16 bits do not hold the size of every frame that can be asked for.
        align8(align8(HEADER_LEN) + len as u32)
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
        // Acquire pairs with the Release in `CardTx::serve`: the bytes up to HW are ours again.
        let hw = self.update.load(Ordering::Acquire) as u32;
        let passed = hw.wrapping_sub(self.hw) & self.mask;
        // The card cannot pass what it was not given; a larger step would be a lie.
        if passed <= self.announced.wrapping_sub(self.hw) {
            self.hw = self.hw.wrapping_add(passed);
        }
    }

    /// Where in the doubled window the frame of the packet at `position` lies.
    #[inline(always)]
    pub fn frame_at(&self, position: u32) -> usize {
        (position.wrapping_add(self.base) & self.mask) as usize + align8(HEADER_LEN) as usize
    }

    /// Position of the next packet.
    #[inline(always)]
    pub fn position(&self) -> u32 {
        self.sw
    }

    /// The ring, mapped twice.
    pub fn ring(&mut self) -> &mut Window {
        &mut self.ring
    }

    /// Finishes the packet at [`HostTx::position`]: writes its header. Its room must have been checked.
    #[inline(always)]
    pub fn push(&mut self, len: u16) {
        let header = PacketHeader::for_frame(len);
        let at = self.frame_at(self.sw) - align8(HEADER_LEN) as usize;
        if let Some(front) = self.ring.span_mut(at, align8(HEADER_LEN) as usize) {
            front.write_from(&u64::from(header.encode()).to_le_bytes());
        }
        self.sw = self.sw.wrapping_add(header.stride());
    }

    /// Moves the doorbell when more than a quarter of the ring waits for it (§3.1).
    #[inline(always)]
    pub fn flush_if_far(&mut self) -> bool {
        let far = self.sw.wrapping_sub(self.announced) > self.mask / 4;
        if far {
            self.flush();
        }
        far
    }

    /// Moves the doorbell.
    #[inline(always)]
    pub fn flush(&mut self) {
        self.announced = self.sw;
        // Release pairs with the Acquire in `CardTx::pending`.
        self.doorbell.store(u64::from(self.sw & self.mask), Ordering::Release);
    }

    /// Whether the card has taken everything, as far as is known without looking.
    pub fn is_drained(&self) -> bool {
        self.hw == self.sw
    }

    /// Bytes that the card has not passed, as far as is known without looking.
    pub fn in_flight(&self) -> u32 {
        self.sw.wrapping_sub(self.hw)
    }
}

/// The software's half of an RX queue. Positions as in [`HostTx`].
pub struct HostRx {
    ring: Window,
    mask: u32,
    base: u32,
    // Read; announced as read; written by the card.
    sw: u32,
    announced: u32,
    hw: u32,
    doorbell: Word64,
    update: Word64,
}

impl HostRx {
    /// A queue at SW = `start`. `None` unless `ring` is twice a power of two long.
    pub fn new(ring: Window, base: u32, start: u32, doorbell: Word64, update: Word64) -> Option<Self> {
        let size = u32::try_from(ring.len() / 2).ok().filter(|size| size.is_power_of_two())?;
        let mask = size - 1;
        Some(Self { ring, mask, base, sw: start, announced: start, hw: start, doorbell, update })
    }

    /// Looks at the update word: how many bytes wait.
    #[inline(always)]
    pub fn ready(&mut self) -> u32 {
        // Acquire pairs with the Release in `CardRx::publish`.
        let hw = self.update.load(Ordering::Acquire) as u32;
        let waiting = hw.wrapping_sub(self.sw) & self.mask;
        self.hw = self.sw.wrapping_add(waiting);
        waiting
    }

    /// Bytes that waited when [`HostRx::ready`] was last called, from `position` on.
    #[inline(always)]
    pub fn known_from(&self, position: u32) -> u32 {
        self.hw.wrapping_sub(position)
    }

    /// The packet at `position`, which must be before HW.
    ///
    /// # Errors
    /// [`BadRing`] when its header cannot be right.
    #[inline(always)]
    pub fn packet(&self, position: u32) -> Result<RxPacket, BadRing> {
        parse(&self.ring, position.wrapping_add(self.base) & self.mask, self.known_from(position))
    }

    /// Position of the first packet that was not given back.
    #[inline(always)]
    pub fn position(&self) -> u32 {
        self.sw
    }

    /// The ring, mapped twice.
    pub fn ring(&self) -> &Window {
        &self.ring
    }

    /// Gives the first `bytes` (a sum of strides) back. `true` when that moved the doorbell, which it does once more
    /// than a quarter of the ring is free to be announced.
    #[inline(always)]
    pub fn put(&mut self, bytes: u32) -> bool {
        self.sw = self.sw.wrapping_add(bytes);
        let far = self.sw.wrapping_sub(self.announced) > self.mask / 4;
        if far {
            self.flush();
        }
        far
    }

    /// Whether anything has been given back that the card does not know of.
    pub fn owes(&self) -> bool {
        self.sw != self.announced
    }

    /// Moves the doorbell.
    pub fn flush(&mut self) {
        self.announced = self.sw;
        // Release pairs with the Acquire in `CardRx::deliver`.
        self.doorbell.store(u64::from(self.sw & self.mask), Ordering::Release);
    }
}

/// The packet at byte `at` of a doubled ring, of which `left` bytes are there.
#[inline(always)]
fn parse(ring: &Window, at: u32, left: u32) -> Result<RxPacket, BadRing> {
    let word = ring.span(at as usize, HEADER_LEN as usize).and_then(|span| span.first_u32()).unwrap_or(0);
    let header = PacketHeader::decode(word);
    match header.frame_len() {
        Some(len) if header.stride() <= left => Ok(RxPacket {
            meta_at: at + HEADER_LEN,
            meta_len: header.meta,
            frame_at: at + header.frame_at(),
            frame_len: len as u16,
            stride: header.stride(),
        }),
        _ => Err(BadRing { at, total: header.total, meta: header.meta }),
    }
}

/// Goes through packets that somebody else has counted: those of a shared or mediated queue.
pub struct Scanner<'r> {
    ring: &'r Window,
    mask: u32,
    at: u32,
    left: u32,
    passed: u32,
}

impl<'r> Scanner<'r> {
    /// Packets in `bytes` of the doubled ring from byte `first` (modulo the ring) on.
    pub fn new(ring: &'r Window, first: u32, bytes: u32) -> Self {
        let mask = (ring.len() / 2).next_power_of_two() as u32 - 1;
        Self { ring, mask, at: first, left: bytes, passed: 0 }
    }

    /// The next packet, if there is one.
    ///
    /// # Errors
    /// [`BadRing`] when its header cannot be right.
    #[inline(always)]
    pub fn next_packet(&mut self) -> Result<Option<RxPacket>, BadRing> {
        if self.left == 0 {
            return Ok(None);
        }
        let packet = parse(self.ring, self.at & self.mask, self.left)?;
        self.at = self.at.wrapping_add(packet.stride);
        self.left -= packet.stride;
        self.passed += packet.stride;
        Ok(Some(packet))
    }

    /// Bytes that the packets so far take.
    pub fn passed(&self) -> u32 {
        self.passed
    }
}
