//! How much of a ring an engine looks at in one turn.
//!
//! What software writes decides how many entries of a ring lead to one frame: a frame may lie in many pieces, and an entry
//! need not hold a byte. So turns are limited in entries looked at and not only in frames; otherwise one program could keep
//! the worker that serves others, too.
//!
//! * One frame lies in at most [`MAX_CHAIN`] entries.
//! * One call of a TX engine begins no further frame once it has looked at [`LOOKS`] entries, so that it looks at fewer
//!   than [`MOST_LOOKS`]. What is left is there in the next turn.
//! * A burst to an RX ring has an [`Allowance`].

/// Entries of a TX ring after which a turn ends. Four times the frames of a turn: honest rings never come so far.
pub const LOOKS: u32 = 256;

/// Most entries that one frame may lie in, those that only lead to others included.
pub const MAX_CHAIN: u32 = 256;

/// No call of a TX engine looks at so many entries.
pub const MOST_LOOKS: u32 = LOOKS + MAX_CHAIN;

/// What a burst of frames may cost in entries of an RX ring that are looked at.
///
/// Only what is out of proportion is charged: a stored frame is entitled to two entries, and one more for each 512 of its
/// bytes, which is more than any buffers of ordinary size take. When all is used up, the ring counts as one without room
/// until the next burst.
#[derive(Clone, Copy, Debug)]
pub struct Allowance(u32);

impl Default for Allowance {
    fn default() -> Self {
        Self(LOOKS)
    }
}

impl Allowance {
    /// Whether nothing of it is left.
    #[inline(always)]
    pub fn is_used_up(self) -> bool {
        self.0 == 0
    }

    /// So many entries were looked at for a frame that was not stored.
    #[inline(always)]
    pub fn charge(&mut self, looked: u32) {
        self.0 = self.0.saturating_sub(looked);
    }

    /// So many entries were looked at for a frame of `len` bytes that was stored.
    #[inline(always)]
    pub fn charge_stored(&mut self, looked: u32, len: usize) {
        if looked > 2 {
            self.charge(looked.saturating_sub(2 + (len >> 9) as u32));
        }
    }
}
