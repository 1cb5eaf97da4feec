//! SZE (`docs/spec/sze.md`): a stream of packets in one ring of bytes, in units of 8.

use super::queue_protocol::{Half, QueueProtocol};
use super::writer::Writer;
use crate::memory::{MemoryError, QueueMemory};
use crate::registers::Registers;
use millrace_abi::message::{Buffers, Layout};
use millrace_abi::name::CardOptions;
use millrace_abi::queue::{Direction, QueueId};
use millrace_abi::register::sze as s;
use millrace_dma::{Access, Domain, Iova, Ordering, OutOfRange, Pages, Region};
use millrace_ring::cursor::Position;
use millrace_ring::shared::{self, ReadRing};
use millrace_ring::sze;

pub(super) struct Sze;

impl QueueProtocol for Sze {
    fn allocate(
        &self,
        id: QueueId,
        options: &CardOptions,
        _: Buffers,
        domain: &Domain,
    ) -> Result<QueueMemory, MemoryError> {
        let ring = options.sze_ring;
        let status = Region::allocate(4096, Pages::Ordinary)?;
        let data = Region::allocate_doubled(ring as usize)?;
        let status_at = domain.map(status.window().clone(), Access::ReadWrite, None)?;
        let access = if id.direction == Direction::Rx { Access::ReadWrite } else { Access::Read };
        let data_at = domain.map(data.part(0, ring as usize)?, access, None)?;
        let longest = sze::descriptor_list(data_at, u64::from(ring), 4096 % u64::from(ring), Iova::new(0)).len() * 8;
        let descriptors = Region::allocate(longest.next_multiple_of(4096), Pages::Ordinary)?;
        let descriptors_at = Some(domain.map(descriptors.window().clone(), Access::Read, None)?);
        let layout = Layout::Sze { status_len: 4096, ring };
        let (data, data_at, descriptors) = (Some(data), Some(data_at), Some(descriptors));
        let memory = QueueMemory { layout, status, data, descriptors, status_at, descriptors_at, data_at };
        memory.seal(id)?;
        Ok(memory)
    }

    /// A ring begins at a page.
    fn base(&self, position: u64) -> u64 {
        Position::new(position.next_multiple_of(4096 / 8)).get()
    }

    /// With a descriptor list that begins where the ring does. A list is at most as long as the one of a ring that begins at
    /// page 1.
    fn prepare(&self, memory: &QueueMemory, base: u64) -> Result<(), OutOfRange> {
        memory.update()?.store(0, Ordering::Relaxed);
        let Layout::Sze { ring, .. } = memory.layout else { return Ok(()) };
        let Some(descriptors) = &memory.descriptors else { return Ok(()) };
        let offset = base * 8 % u64::from(ring);
        let list = sze::descriptor_list(memory.data_at(), u64::from(ring), offset, memory.descriptors_at());
        for (index, word) in list.into_iter().enumerate() {
            descriptors.window().word64(index * 8)?.store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// "Start" of §3.1.
    fn program(&self, registers: &Registers<'_>, memory: &QueueMemory) {
        let Layout::Sze { ring, .. } = memory.layout else { return };
        registers.write64(s::DESC_BASE, memory.descriptors_at().get());
        registers.write64(s::UPDATE_BASE, memory.update_at().get());
        registers.write32(s::RING_MASK, ring - 1);
        registers.write32(s::SW_POINTER, 0);
        registers.write32(s::TIMEOUT, s::TIMEOUT_DEFAULT);
        let request = if registers.id.direction == Direction::Rx { s::MAX_REQUEST_RX } else { s::MAX_REQUEST_TX };
        registers.write32(s::MAX_REQUEST, request);
    }

    fn mask(&self, memory: &QueueMemory) -> u32 {
        let Layout::Sze { ring, .. } = memory.layout else { return 0 };
        ring - 1
    }

    /// "Stop" of §3.1: a TX queue drains before CONTROL is touched.
    fn may_stop(&self, registers: &Registers<'_>) -> bool {
        registers.id.direction == Direction::Rx || registers.read32(s::HW_POINTER) == registers.read32(s::SW_POINTER)
    }

    fn stopped_at(&self, base: u64, said: Option<u64>, update: u64, _direction: Direction) -> u64 {
        Position::new(said.unwrap_or(base + u64::from(update as u32 / 8))).get()
    }

    fn reclaimed(&self, half: &Half<'_>) -> Result<Option<shared::Pool>, OutOfRange> {
        let Some(data) = &half.memory.data else { return Ok(None) };
        let (ring, first) = (data.window().clone(), (half.base as u32).wrapping_mul(8));
        Ok(sze::HostRx::new(ring, first, 0, half.doorbell.clone(), half.update.clone()).map(shared::Pool::Sze))
    }

    fn read_ring(&self, half: &Half<'_>) -> Result<Option<ReadRing>, OutOfRange> {
        let size = self.mask(half.memory) + 1;
        Ok(Some(ReadRing::Sze { update: half.update.clone(), size, base: Position::new(half.base) }))
    }

    fn writer(&self, half: &Half<'_>) -> Result<Option<Box<dyn Writer>>, OutOfRange> {
        let Some(data) = &half.memory.data else { return Ok(None) };
        let (ring, first) = (data.window().clone(), (half.base as u32).wrapping_mul(8));
        let writer = sze::HostTx::new(ring, first, half.doorbell.clone(), half.update.clone());
        Ok(writer.map(|writer| Box::new(writer) as Box<dyn Writer>))
    }
}

impl Writer for sze::HostTx {
    fn units(&self, len: u16) -> u32 {
        sze::HostTx::stride(len) / 8
    }

    fn commit(&mut self, len: u16) -> bool {
        let fits = self.has_room(sze::HostTx::stride(len));
        if fits {
            self.push(len);
        }
        fits
    }

    fn flush(&mut self) {
        sze::HostTx::flush(self);
    }

    fn available(&mut self) -> u32 {
        sze::HostTx::available(self) / 8
    }

    fn position(&self, base: u64) -> u64 {
        base + u64::from(sze::HostTx::position(self)) / 8
    }
}
