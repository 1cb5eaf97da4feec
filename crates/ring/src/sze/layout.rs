//! Bits of SZE descriptors and packet headers (`docs/spec/nfb-card.md` §3.1).

use millrace_dma::Iova;

/// A descriptor: a little-endian 64-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// Bit 0 = 0: consecutive pages of the ring. Bits 63:12 page address, bits 11:1 pages minus one.
    Pages {
        /// Address of the first page, a multiple of 4096.
        at: Iova,
        /// How many pages, 1 to 1024.
        count: u32,
    },
    /// Bit 0 = 1: the descriptors go on at this address (a multiple of 8). A ring is closed this way.
    Next(Iova),
    /// An address that is not aligned, or more pages than a descriptor may name.
    Reserved,
}

/// Size of a page of the ring.
pub(super) const PAGE: u64 = 4096;
/// Bytes that a page of the ring holds: fewer where loom walks through every state of each of them.
pub(super) const PAGE_LEN: u32 = if cfg!(loom) { 64 } else { PAGE as u32 };
/// Most pages that one descriptor names: 4 MiB.
const MOST_PAGES: u32 = 1024;

impl Descriptor {
    /// What a word of the list means.
    pub const fn decode(word: u64) -> Self {
        if word & 1 == 1 {
            let at = word & !1;
            return if at & 7 == 0 { Self::Next(Iova::new(at)) } else { Self::Reserved };
        }
        let count = (word as u32 >> 1 & 0x7ff) + 1;
        if count > MOST_PAGES { Self::Reserved } else { Self::Pages { at: Iova::new(word & !(PAGE - 1)), count } }
    }

    /// The word that means this. [`Descriptor::Reserved`] gives a word that means just that.
    pub const fn encode(self) -> u64 {
        match self {
            Self::Pages { at, count } => (at.get() & !(PAGE - 1)) | ((count.wrapping_sub(1) & 0x7ff) as u64) << 1,
            Self::Next(at) => at.get() | 1,
            Self::Reserved => 0b11,
        }
    }
}

/// The list of descriptors for a ring of `len` bytes (whole pages, contiguous in the domain at `ring`), the list itself
/// lying at `list`: from byte `offset` (a multiple of the page size) to the end of the ring, then all of it for ever.
pub fn descriptor_list(ring: Iova, len: u64, offset: u64, list: Iova) -> Vec<u64> {
    let mut words = Vec::new();
    let mut stage = |from: u64| {
        let mut at = from;
        while at < len {
            let count = ((len - at) / PAGE).min(u64::from(MOST_PAGES)) as u32;
            words.push(Descriptor::Pages { at: ring.plus(at), count }.encode());
            at += u64::from(count) * PAGE;
        }
        words.len() as u64
    };
    let second = if offset == 0 { 0 } else { stage(offset) };
    stage(0);
    words.push(Descriptor::Next(list.plus(second * 8)).encode());
    words
}

/// The first four bytes of a packet in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHeader {
    /// Bytes of the packet, header included.
    pub total: u16,
    /// Bytes of metadata behind the header.
    pub meta: u16,
}

/// Size of [`PacketHeader`] in bytes.
pub const HEADER_LEN: u32 = 4;

/// The next multiple of 8.
#[inline(always)]
pub const fn align8(bytes: u32) -> u32 {
    (bytes + 7) & !7
}

impl PacketHeader {
    /// The header of a frame without metadata.
    #[inline(always)]
    pub const fn for_frame(len: u16) -> Self {
        Self { total: align8(HEADER_LEN) as u16 + len, meta: 0 }
    }

    /// The header of a frame of `len` bytes behind `meta` bytes of metadata; `None` when they are more than its 16 bits
    /// can say.
    #[inline(always)]
    pub fn with_meta(meta: usize, len: usize) -> Option<Self> {
        let meta = u16::try_from(meta).ok()?;
        let total = align8(HEADER_LEN + u32::from(meta)) as usize + len;
        Some(Self { total: u16::try_from(total).ok()?, meta })
    }

    /// What the first word of a packet means.
    #[inline(always)]
    pub const fn decode(word: u32) -> Self {
        Self { total: word as u16, meta: (word >> 16) as u16 }
    }

    /// The word that means this.
    #[inline(always)]
    pub const fn encode(self) -> u32 {
        self.total as u32 | (self.meta as u32) << 16
    }

    /// Where the frame begins, counted from the header.
    #[inline(always)]
    pub const fn frame_at(self) -> u32 {
        align8(HEADER_LEN + self.meta as u32)
    }

    /// Bytes of the frame; `None` when the sizes contradict each other.
    #[inline(always)]
    pub const fn frame_len(self) -> Option<u32> {
        (self.total as u32).checked_sub(self.frame_at())
    }

    /// From this packet to the next.
    #[inline(always)]
    pub const fn stride(self) -> u32 {
        align8(self.total as u32)
    }
}
