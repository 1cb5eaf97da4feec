//! Bits of Medusa descriptors, headers and pointer words (`docs/spec/nfb-card.md` §3.2).

use millrace_dma::Iova;

/// A descriptor: a little-endian 64-bit word, type in bits 63:62.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// Type 0: bits 63:30 of the addresses that follow, in bits 33:0.
    Upper(u64),
    /// Type 2: one buffer.
    Buffer(Buffer),
    /// Type 1, type 3 (which no known software writes), or a type 0 with bits that must be 0.
    Reserved,
}

/// A descriptor of type 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Bits 29:0 of the address.
    pub low: u32,
    /// RX: capacity of the buffer. TX: bytes to send.
    pub len: u16,
    /// Bits 59:48, given by software; the card does not trust them.
    pub meta: u16,
    /// The packet goes on in the next descriptor.
    pub next: bool,
}

const LOW_BITS: u32 = 30;
const LOW_MASK: u64 = (1 << LOW_BITS) - 1;
const UPPER_MASK: u64 = (1 << 34) - 1;

/// The upper part of an address: what a type 0 descriptor sets.
#[inline(always)]
pub(super) const fn upper_of(iova: Iova) -> u64 {
    iova.get() >> LOW_BITS
}

/// The address of a buffer under the upper part in force.
#[inline(always)]
pub(super) const fn address(upper: u64, low: u32) -> Iova {
    Iova::new(upper << LOW_BITS | low as u64)
}

impl Buffer {
    /// The descriptor of one whole packet in `len` bytes at `iova`.
    #[inline(always)]
    pub const fn whole(iova: Iova, len: u16) -> Self {
        Self { low: (iova.get() & LOW_MASK) as u32, len, meta: 0, next: false }
    }
}

impl Descriptor {
    /// What a word of the ring means.
    #[inline(always)]
    pub const fn decode(word: u64) -> Self {
        match word >> 62 {
            2 => Self::Buffer(Buffer {
                low: (word & LOW_MASK) as u32,
                len: (word >> 32) as u16,
                meta: (word >> 48) as u16 & 0xfff,
                next: word >> 61 & 1 != 0,
            }),
            0 if word & !UPPER_MASK == 0 => Self::Upper(word),
            _ => Self::Reserved,
        }
    }

    /// The buffer of a descriptor of type 2 that is a packet by itself: what nearly every descriptor is.
    #[inline(always)]
    pub const fn whole_packet(word: u64) -> Option<Buffer> {
        // Type 2 in bits 63:62, and bit 61, "next", not set.
        if word >> 61 != 0b100 {
            return None;
        }
        let (low, len, meta) = ((word & LOW_MASK) as u32, (word >> 32) as u16, (word >> 48) as u16 & 0xfff);
        Some(Buffer { low, len, meta, next: false })
    }

    /// The word that means this.
    ///
    /// [`Descriptor::Reserved`] gives a type 1 descriptor, which is what tests want of it.
    #[inline(always)]
    pub const fn encode(self) -> u64 {
        match self {
            Self::Upper(upper) => upper & UPPER_MASK,
            Self::Buffer(Buffer { low, len, meta, next }) => {
                2 << 62
                    | (next as u64) << 61
                    | (meta as u64 & 0xfff) << 48
                    | (len as u64) << 32
                    | (low as u64 & LOW_MASK)
            }
            Self::Reserved => 1 << 62,
        }
    }
}

/// An entry of the RX header ring: le16 length, u8 header length, four bits meta, two bits descriptors freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxHeader {
    /// Bytes in the buffer: header (metadata) and frame.
    pub len: u16,
    /// Bytes of metadata before the frame.
    pub header_len: u8,
    /// Bits 3:0, of which 1:0 are the header id.
    pub meta: u8,
    /// Descriptors that the packet used up, those of type 0 included; 3 stands for three or more.
    pub freed: u8,
}

impl RxHeader {
    /// What an entry means.
    #[inline(always)]
    pub const fn decode(word: u32) -> Self {
        let byte3 = (word >> 24) as u8;
        Self { len: word as u16, header_len: (word >> 16) as u8, meta: byte3 & 0xf, freed: byte3 >> 6 }
    }

    /// The entry that means this.
    #[inline(always)]
    pub const fn encode(self) -> u32 {
        let freed = if self.freed > 3 { 3 } else { self.freed };
        self.len as u32 | (self.header_len as u32) << 16 | ((self.meta & 0xf) as u32) << 24 | (freed as u32) << 30
    }
}

/// Two pointers in one 64-bit word: the doorbell (SDP, SHP) and the update word (HDP, HHP). One store moves both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pointers {
    /// Of the descriptor ring, bits 31:0.
    pub descriptors: u32,
    /// Of the header ring, bits 63:32.
    pub headers: u32,
}

impl Pointers {
    /// The two halves of a word.
    #[inline(always)]
    pub const fn decode(word: u64) -> Self {
        Self { descriptors: word as u32, headers: (word >> 32) as u32 }
    }

    /// The word of the two halves.
    #[inline(always)]
    pub const fn encode(self) -> u64 {
        self.descriptors as u64 | (self.headers as u64) << 32
    }
}
