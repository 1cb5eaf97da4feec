//! A packet of several descriptors on its way out of a TX ring.

use super::layout::{Descriptor, address};
use crate::budget::MAX_CHAIN;
use crate::index::RingIndex;
use millrace_abi::control::FaultKind;
use millrace_dma::{Fault, Iotlb};

/// A packet of several descriptors, as far as it has been seen. Its bytes are put together as they come: whenever its end
/// comes, nothing is looked at twice.
pub(super) struct Chain {
    /// Where it goes on.
    pub at: RingIndex,
    /// The upper address in force there.
    pub upper: Option<u64>,
    /// Its end has been seen.
    pub is_whole: bool,
    /// It is longer than any frame that is sent.
    pub is_too_long: bool,
    /// Bytes so far, of those that fitted.
    pub len: usize,
    // Descriptors so far.
    seen: u32,
}

/// Why a packet can never be sent.
pub(super) enum Broken {
    /// One of its descriptors is wrong.
    Descriptor(FaultKind),
    /// A piece cannot be reached.
    Piece(Fault),
}

impl Chain {
    pub fn new(at: RingIndex, upper: Option<u64>) -> Self {
        Self { at, upper, is_whole: false, is_too_long: false, len: 0, seen: 0 }
    }

    /// Takes its next descriptor in, and the bytes of its piece to `scratch`. Moving `at` is left to the caller.
    pub fn add(&mut self, word: u64, iotlb: &Iotlb, scratch: &mut [u8]) -> Result<(), Broken> {
        if self.seen == MAX_CHAIN {
            return Err(Broken::Descriptor(FaultKind::EndlessDescriptors));
        }
        self.seen += 1;
        let buffer = match Descriptor::decode(word) {
            Descriptor::Upper(bits) => {
                self.upper = Some(bits);
                return Ok(());
            }
            Descriptor::Buffer(buffer) => buffer,
            Descriptor::Reserved => return Err(Broken::Descriptor(FaultKind::ReservedDescriptor)),
        };
        let bits = self.upper.ok_or(Broken::Descriptor(FaultKind::NoUpperAddress))?;
        let piece = iotlb.read(address(bits, buffer.low), usize::from(buffer.len)).map_err(Broken::Piece)?;
        match scratch.get_mut(self.len..self.len + piece.len()) {
            Some(room) => self.len += piece.read_into(room),
            None => self.is_too_long = true,
        }
        self.is_whole = !buffer.next;
        Ok(())
    }
}
