//! The control page: 4 KiB of shared memory between one opener of one queue and the card.
//!
//! ```text
//! offset  written by  meaning
//! 0x000   driver      magic and version, once, before the page is handed over
//! 0x040   software    doorbell: the software pointers, one 64-bit word
//! 0x080   card        card_sleeps: 1 = the worker is going to sleep, ring the kick eventfd after the doorbell; of an RX
//!                     queue only while somebody waits for room in it
//! 0x084   card        state of the queue, see [`QueueState`]
//! 0x088   card        detail of a fault: the IOVA that could not be reached
//! 0x0c0   software    software_sleeps: 1 = somebody waits, signal the call eventfd after the update word
//! 0x0c4   software    wants_stamps: not 0 = the card says when frames leave, of a TX queue with one opener
//! 0x100   card        departure, 5 words of 64 bits: a sequence, odd while the others are written; frames that have left since
//!                     START; the card's clock in ns before and after the last of them was handed to the port; frames that have
//!                     come off the ring since START, with those that were dropped there
//! 0x140   card        how far it is, 5 words of 64 bits: HDP in bits 30:0, bit 31 says which of the next two words counts, HHP in bits
//!                     63:32; the upper address in force, twice; what a register puts into the doorbell, before and after it does,
//!                     or all ones when software puts it there itself. Only of a Medusa queue of a machine whose card has a keeper:
//!                     a card that follows one that was killed begins there
//! ```
//!
//! Whoever is to signal a sleeper takes the sleeper's flag down first; otherwise each writer has cache lines of its own. A page belongs to one opener, so a hostile opener reaches only its own
//! queue. What the doorbell holds depends on the protocol: Medusa and Calypte `sdp | shp << 32` (§3.2, one 64-bit write
//! sets both; a Calypte TX queue looks at its headers instead), SZE the byte pointer (§3.1), DD the tail, which the card
//! does not look at, a shared RX queue the [cursor](crate::control#cursor) of that subscriber.
//!
//! # Cursor
//! Bits 39:0 position, modulo 2^40, in packets or 8-byte units (SZE); bits 63:40 how much the subscriber holds.
//! While it holds nothing the card may move the position (policy `drop`), otherwise only the subscriber does.

use serde::{Deserialize, Serialize};

/// Size of a control page in bytes.
pub const PAGE_SIZE: usize = 4096;
/// What the first word of a control page holds: `MILLRCE` and the version, 1.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MILLRCE\x01");

/// Offset of [`MAGIC`], 64 bits.
pub const MAGIC_AT: usize = 0x000;
/// Offset of the doorbell, 64 bits.
pub const DOORBELL_AT: usize = 0x040;
/// Offset of `card_sleeps`, 32 bits.
pub const CARD_SLEEPS_AT: usize = 0x080;
/// Offset of the queue state, 32 bits.
pub const STATE_AT: usize = 0x084;
/// Offset of the IOVA of a fault, 64 bits.
pub const FAULT_IOVA_AT: usize = 0x088;
/// Offset of `software_sleeps`, 32 bits.
pub const SOFTWARE_SLEEPS_AT: usize = 0x0c0;
/// Offset of `wants_stamps`, 32 bits.
pub const WANTS_STAMPS_AT: usize = 0x0c4;
/// Offset of the departure, five words of 64 bits: sequence, frames, before, after, taken.
pub const DEPARTURE_AT: usize = 0x100;
/// Offset of how far the card is: words of 64 bits, pointers and two upper addresses; and behind them what registers ring.
pub const PLACE_AT: usize = 0x140;
/// What stands in the place of an upper address as long as there is none.
pub const NO_UPPER: u64 = u64::MAX;
/// Offset of what a register puts into the doorbell, two words of 64 bits: before it does, and after.
pub const RUNG_AT: usize = PLACE_AT + 24;
/// What stands there when software rings by stores.
pub const NOT_RUNG: u64 = u64::MAX;

const _: () = {
    assert!(DOORBELL_AT / 64 != CARD_SLEEPS_AT / 64 && CARD_SLEEPS_AT / 64 != SOFTWARE_SLEEPS_AT / 64);
    assert!(WANTS_STAMPS_AT / 64 == SOFTWARE_SLEEPS_AT / 64 && DEPARTURE_AT.is_multiple_of(64));
    assert!(PLACE_AT.is_multiple_of(64) && PLACE_AT >= DEPARTURE_AT + 40);
    assert!(CARD_SLEEPS_AT / 64 == STATE_AT / 64 && STATE_AT / 64 == FAULT_IOVA_AT / 64);
};

/// State of a queue as its control page and its STATUS show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueState {
    /// Not started, or stopped and drained.
    Stopped,
    /// Started.
    Running,
    /// Stopped by the card, for the reason given.
    Faulted(FaultKind),
    /// The opener was thrown out of a shared queue because it fell behind.
    Evicted,
}

/// Why the card stopped a queue. The queue stays stopped until it is started again; everything else runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum FaultKind {
    /// An address outside the owner's domain, or inside it but not writable where the card had to write.
    #[error("the card was given an address outside the memory mapped for it")]
    Unmapped = 1,
    /// A Medusa descriptor of type 1 or 3, or a descriptor of Medusa or DD with reserved bits set.
    #[error("a descriptor of a reserved type, or with reserved bits set")]
    ReservedDescriptor = 2,
    /// A Medusa descriptor of type 2 before any of type 0.
    #[error("a buffer descriptor before any descriptor with the upper address")]
    NoUpperAddress = 3,
    /// A descriptor list that goes round without ever reaching data, or a chain that never ends.
    #[error("a descriptor list that never reaches data")]
    EndlessDescriptors = 4,
    /// A software pointer that is not on a packet boundary (SZE: a multiple of 8).
    #[error("a software pointer that lies between packets")]
    BadPointer = 5,
    /// A packet header (SZE, Calypte TX) whose fields contradict each other, the pointer or the ring.
    #[error("a packet header whose sizes contradict each other")]
    BadHeader = 6,
    /// The thread of the card that served the queue has ended by a bug of the card; the queue cannot be started again.
    #[error("the worker of the card that served the queue has ended unexpectedly; restart the card")]
    WorkerLost = 7,
}

impl QueueState {
    /// The 32-bit word that stands for this state in a control page.
    pub const fn to_word(self) -> u32 {
        match self {
            QueueState::Stopped => 0,
            QueueState::Running => 1,
            QueueState::Evicted => 2,
            QueueState::Faulted(kind) => 0x100 | kind as u32,
        }
    }

    /// The state that a word stands for; `None` for a word that no card writes.
    pub const fn from_word(word: u32) -> Option<Self> {
        Some(match word {
            0 => QueueState::Stopped,
            1 => QueueState::Running,
            2 => QueueState::Evicted,
            0x101 => QueueState::Faulted(FaultKind::Unmapped),
            0x102 => QueueState::Faulted(FaultKind::ReservedDescriptor),
            0x103 => QueueState::Faulted(FaultKind::NoUpperAddress),
            0x104 => QueueState::Faulted(FaultKind::EndlessDescriptors),
            0x105 => QueueState::Faulted(FaultKind::BadPointer),
            0x106 => QueueState::Faulted(FaultKind::BadHeader),
            0x107 => QueueState::Faulted(FaultKind::WorkerLost),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_survives_its_word() {
        let mut known = 0;
        for word in 0..0x1000 {
            if let Some(state) = QueueState::from_word(word) {
                assert_eq!(state.to_word(), word);
                known += 1;
            }
        }
        assert_eq!(known, 10);
    }
}
