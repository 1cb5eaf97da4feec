//! Calypte (`docs/spec/calypte.md`): headers that are doorbells; TX rings are buffers of the device.

use super::queue_protocol::{Half, QueueProtocol};
use super::writer::Writer;
use crate::memory::{HEADERS_AT, MemoryError, QueueMemory};
use crate::registers::Registers;
use millrace_abi::message::{Buffers, Layout};
use millrace_abi::name::CardOptions;
use millrace_abi::queue::{Direction, QueueId};
use millrace_abi::register::{calypte as c, medusa as m};
use millrace_card::TxBuffers;
use millrace_dma::{Access, Domain, Ordering, OutOfRange, Pages, Region, Word64};
use millrace_ring::calypte;
use millrace_ring::cursor::Position;
use millrace_ring::shared::{self, ReadRing};

pub(super) struct Calypte;

impl QueueProtocol for Calypte {
    fn allocate(
        &self,
        id: QueueId,
        options: &CardOptions,
        _: Buffers,
        domain: &Domain,
    ) -> Result<QueueMemory, MemoryError> {
        let is_rx = id.direction == Direction::Rx;
        let (ring, headers) = if is_rx {
            (options.calypte_blocks * c::RX_BLOCK, options.calypte_blocks)
        } else {
            (c::TX_RING, c::TX_HEADERS)
        };
        let headers_len = u64::from(headers) * 8;
        let status_len = (HEADERS_AT + if is_rx { headers_len } else { 0 }).next_multiple_of(4096);
        let status = Region::allocate(status_len as usize, Pages::Ordinary)?;
        let status_at = domain.map(status.window().clone(), Access::ReadWrite, None)?;
        let data = Region::allocate_doubled(ring as usize)?;
        let data_at = match is_rx {
            true => Some(domain.map(data.part(0, ring as usize)?, Access::ReadWrite, None)?),
            false => None,
        };
        let descriptors = match is_rx {
            true => None,
            false => Some(Region::allocate(headers_len as usize, Pages::Ordinary)?),
        };
        let descriptors_len = if is_rx { 0 } else { headers_len };
        let layout = Layout::Calypte { status_len, headers_at: HEADERS_AT, headers, ring, descriptors_len };
        let memory =
            QueueMemory { layout, status, data: Some(data), descriptors, status_at, descriptors_at: None, data_at };
        memory.seal(id)?;
        Ok(memory)
    }

    /// The rings begin at 0, whoever had them before.
    fn base(&self, _position: u64) -> u64 {
        0
    }

    /// RX: with no valid header.
    fn prepare(&self, memory: &QueueMemory, _base: u64) -> Result<(), OutOfRange> {
        memory.update()?.store(0, Ordering::Relaxed);
        if let (Layout::Calypte { headers_at, headers, .. }, Some(_)) = (memory.layout, memory.data_at) {
            let ring = memory.status.window().slots64(headers_at as usize, headers)?;
            (0..headers).for_each(|slot| ring.store(slot, 0));
        }
        Ok(())
    }

    fn buffers(&self, memory: &QueueMemory) -> Result<Option<TxBuffers>, OutOfRange> {
        match (memory.data_at, &memory.data, &memory.descriptors) {
            (None, Some(data), Some(headers)) => TxBuffers::new(data.window(), headers.window()).map(Some),
            _ => Ok(None),
        }
    }

    /// §3.2.2 steps 5 to 8.
    fn program(&self, registers: &Registers<'_>, memory: &QueueMemory) {
        let Layout::Calypte { headers, ring, .. } = memory.layout else { return };
        registers.write64(c::UPDATE_BASE, memory.update_at().get());
        if registers.id.direction == Direction::Rx {
            registers.write64(c::DATA_BASE, memory.data_at().get());
            registers.write64(c::HDR_BASE, memory.headers_at().get());
            registers.write32(c::MDP, ring / c::RX_BLOCK - 1);
            registers.write32(c::MHP, headers - 1);
        }
        registers.write64(c::SDP, 0);
        registers.write32(c::EXPER, 0);
        registers.write32(c::TIMEOUT, m::TIMEOUT_DEFAULT);
    }

    fn mask(&self, memory: &QueueMemory) -> u32 {
        let Layout::Calypte { ring, .. } = memory.layout else { return 0 };
        ring - 1
    }

    /// Up to the last header.
    fn is_drained(&self, memory: &QueueMemory, _doorbell: &Word64) -> Result<bool, OutOfRange> {
        let (Layout::Calypte { headers, .. }, Some(region)) = (memory.layout, &memory.descriptors) else {
            return Ok(true);
        };
        let asked = calypte::announced(&region.window().slots64(0, headers)?);
        // Acquire pairs with the Release of the card's update word.
        Ok(asked == calypte::Pointers::decode(memory.update()?.load(Ordering::Acquire)).headers)
    }

    fn reclaimed(&self, half: &Half<'_>) -> Result<Option<shared::Pool>, OutOfRange> {
        let Layout::Calypte { headers, headers_at, ring, .. } = half.memory.layout else { return Ok(None) };
        let headers = half.memory.status.window().slots64(headers_at as usize, headers)?;
        let (doorbell, update) = (half.doorbell.clone(), half.update.clone());
        Ok(calypte::HostRx::new(ring / calypte::BLOCK, headers, doorbell, update).map(shared::Pool::Calypte))
    }

    fn read_ring(&self, half: &Half<'_>) -> Result<Option<ReadRing>, OutOfRange> {
        let Layout::Calypte { headers, headers_at, .. } = half.memory.layout else { return Ok(None) };
        let headers = half.memory.status.window().slots64(headers_at as usize, headers)?;
        Ok(Some(ReadRing::Calypte { headers, update: half.update.clone(), base: Position::new(half.base) }))
    }

    fn writer(&self, half: &Half<'_>) -> Result<Option<Box<dyn Writer>>, OutOfRange> {
        let Layout::Calypte { headers, ring, .. } = half.memory.layout else { return Ok(None) };
        let Some(headers) = half.descriptors(headers)? else { return Ok(None) };
        let writer = calypte::HostTx::new(ring, headers, half.update.clone());
        Ok(writer.map(|writer| Box::new(writer) as Box<dyn Writer>))
    }
}

impl Writer for calypte::HostTx {
    fn units(&self, len: u16) -> u32 {
        calypte::HostTx::stride(len) / calypte::FRAME_ALIGN
    }

    fn commit(&mut self, len: u16) -> bool {
        let fits = self.has_room(calypte::HostTx::stride(len));
        if fits {
            self.push(len);
        }
        fits
    }

    fn flush(&mut self) {
        calypte::HostTx::flush(self);
    }

    fn available(&mut self) -> u32 {
        calypte::HostTx::available(self) / calypte::FRAME_ALIGN
    }

    fn position(&self, base: u64) -> u64 {
        base + u64::from(calypte::HostTx::position(self) / calypte::FRAME_ALIGN)
    }
}
