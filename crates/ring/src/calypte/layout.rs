//! Bits of Calypte headers and pointer words (`docs/spec/nfb-card.md` §3.2, §3.2.5).

/// Bytes of a block of an RX data ring: fewer where loom walks through every state of each of them.
pub const BLOCK: u32 = if cfg!(loom) { 8 } else { 128 };
/// A TX frame begins at a multiple of this many bytes.
pub const FRAME_ALIGN: u32 = if cfg!(loom) { 8 } else { 32 };

/// Entries of the header ring of a TX data ring of `ring` bytes: one for each place where a frame can begin, so that
/// software which puts one frame behind the other never runs out of headers first.
pub const fn header_entries(ring: u32) -> u32 {
    ring / FRAME_ALIGN
}

/// An entry of a header ring: le16 length, le16 place, and a 32-bit word with the valid bit and the metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Bits 15:0. Bytes of metadata and frame.
    pub len: u16,
    /// Bits 31:16. Where they begin in the data ring. RX: in blocks. TX: in bytes.
    pub at: u16,
    /// Bits 47:40. Bytes of metadata before the frame.
    pub header_len: u8,
    /// Bits 51:48.
    pub flags: u8,
}

const VALID: u64 = 1 << 32;

impl Header {
    /// What an entry means.
    #[inline(always)]
    pub const fn decode(word: u64) -> Self {
        Self {
            len: word as u16,
            at: (word >> 16) as u16,
            header_len: (word >> 40) as u8,
            flags: (word >> 48) as u8 & 0xf,
        }
    }

    /// The entry that means this, with bit 32 as given.
    #[inline(always)]
    pub const fn encode(self, valid: bool) -> u64 {
        self.len as u64
            | (self.at as u64) << 16
            | (valid as u64) << 32
            | (self.header_len as u64) << 40
            | ((self.flags & 0xf) as u64) << 48
    }

    /// The valid bit of an entry.
    #[inline(always)]
    pub const fn valid_bit(word: u64) -> bool {
        word & VALID != 0
    }

    /// The entry with the other valid bit: what follows `old` in its slot when software that knows of no laps writes
    /// `word` there.
    #[inline(always)]
    pub const fn following(word: u64, old: u64) -> u64 {
        word & !VALID | !old & VALID
    }

    /// RX: blocks that the packet takes.
    #[inline(always)]
    pub const fn blocks(self) -> u32 {
        blocks(self.len as u32)
    }
}

/// Blocks that `len` bytes take.
#[inline(always)]
pub(super) const fn blocks(len: u32) -> u32 {
    len.div_ceil(BLOCK)
}

/// Whether the valid bit of new headers is set in the lap of position `at`, counted from the start of the queue, in a
/// ring of `entries`: set in the first lap, and turned round in each that follows.
#[inline(always)]
pub(super) const fn valid_in_lap_of(at: u32, entries: u32) -> bool {
    at & entries == 0
}

/// Two pointers in one 64-bit word: the doorbell (SDP, SHP) and the update word (HDP, HHP). One store moves both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pointers {
    /// Of the data ring, bits 31:0. RX: in blocks. TX: in bytes.
    pub data: u32,
    /// Of the header ring, bits 63:32.
    pub headers: u32,
}

impl Pointers {
    /// The two halves of a word.
    #[inline(always)]
    pub const fn decode(word: u64) -> Self {
        Self { data: word as u32, headers: (word >> 32) as u32 }
    }

    /// The word of the two halves.
    #[inline(always)]
    pub const fn encode(self) -> u64 {
        self.data as u64 | (self.headers as u64) << 32
    }
}
