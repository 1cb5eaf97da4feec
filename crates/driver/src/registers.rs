//! The registers of a queue as the driver writes them.

use millrace_abi::queue::QueueId;
use millrace_abi::register::{Offset, map};
use millrace_card::Card;

/// The DMA controller of a queue.
pub(crate) struct Registers<'c> {
    pub card: &'c Card,
    pub id: QueueId,
}

impl Registers<'_> {
    fn address(&self, offset: Offset) -> u32 {
        offset.at(map::dma_base(self.id).unwrap_or(0))
    }

    pub fn write64(&self, offset: Offset, value: u64) {
        self.card.write(self.address(offset), &value.to_le_bytes());
    }

    pub fn write32(&self, offset: Offset, value: u32) {
        self.card.write(self.address(offset), &value.to_le_bytes());
    }

    pub fn read32(&self, offset: Offset) -> u32 {
        let mut bytes = [0; 4];
        self.card.read(self.address(offset), &mut bytes);
        u32::from_le_bytes(bytes)
    }
}
