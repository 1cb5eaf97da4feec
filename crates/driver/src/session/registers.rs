//! The registers of a queue as the driver writes them.

use super::Session;
use millrace_abi::message::Layout;
use millrace_abi::queue::Direction;
use millrace_abi::register::Offset;
use millrace_abi::register::{calypte as c, dd as d, map, medusa as m, sze as s};
use millrace_card::Card;

impl Session {
    pub(super) fn register(&self, offset: Offset) -> u32 {
        offset.at(map::dma_base(self.id).unwrap_or(0))
    }

    pub(super) fn write64(&self, card: &Card, offset: Offset, value: u64) {
        card.write(self.register(offset), &value.to_le_bytes());
    }

    pub(super) fn write32(&self, card: &Card, offset: Offset, value: u32) {
        card.write(self.register(offset), &value.to_le_bytes());
    }

    pub(super) fn read32(&self, card: &Card, offset: Offset) -> u32 {
        let mut bytes = [0; 4];
        card.read(self.register(offset), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub(super) fn control(&self, card: &Card, value: u32) {
        // CONTROL lies at 0 in both blocks.
        self.write32(card, m::CONTROL, value);
    }

    /// The register writes before CONTROL: §3.2.2 steps 5 to 8 for Medusa and Calypte, `docs/spec/dd.md` for DD, "Start"
    /// of §3.1 for SZE.
    pub(super) fn program(&self, card: &Card) {
        match self.memory.layout {
            Layout::Medusa { entries, .. } => {
                self.write64(card, m::DESC_BASE, self.memory.descriptors_at().get());
                self.write64(card, m::UPDATE_BASE, self.memory.update_at().get());
                if self.id.direction == Direction::Rx {
                    self.write64(card, m::HDR_BASE, self.memory.headers_at().get());
                }
                self.write32(card, m::MDP, entries - 1);
                self.write32(card, m::MHP, entries - 1);
                self.write64(card, m::SDP, 0);
                self.write32(card, m::TIMEOUT, m::TIMEOUT_DEFAULT);
            }
            Layout::Calypte { headers, ring, .. } => {
                self.write64(card, c::UPDATE_BASE, self.memory.update_at().get());
                if self.id.direction == Direction::Rx {
                    self.write64(card, c::DATA_BASE, self.memory.data_at().get());
                    self.write64(card, c::HDR_BASE, self.memory.headers_at().get());
                    self.write32(card, c::MDP, ring / c::RX_BLOCK - 1);
                    self.write32(card, c::MHP, headers - 1);
                }
                self.write64(card, c::SDP, 0);
                self.write32(card, c::EXPER, 0);
                self.write32(card, c::TIMEOUT, m::TIMEOUT_DEFAULT);
            }
            Layout::Dd { entries, .. } => {
                self.write64(card, d::BASE, self.memory.descriptors_at().get());
                self.write32(card, d::SIZE, entries - 1);
                self.write32(card, d::TAIL, 0);
                self.write32(card, d::TIMEOUT, m::TIMEOUT_DEFAULT);
            }
            Layout::Sze { ring, .. } => {
                self.write64(card, s::DESC_BASE, self.memory.descriptors_at().get());
                self.write64(card, s::UPDATE_BASE, self.memory.update_at().get());
                self.write32(card, s::RING_MASK, ring - 1);
                self.write32(card, s::SW_POINTER, 0);
                self.write32(card, s::TIMEOUT, s::TIMEOUT_DEFAULT);
                let request = if self.id.direction == Direction::Rx { s::MAX_REQUEST_RX } else { s::MAX_REQUEST_TX };
                self.write32(card, s::MAX_REQUEST, request);
            }
        }
    }
}
