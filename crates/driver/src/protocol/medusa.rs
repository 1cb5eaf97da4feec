//! Medusa (`docs/spec/medusa.md`): the program or the driver posts descriptors.

use super::queue_protocol::{Half, QueueProtocol};
use super::writer::Writer;
use crate::memory::{HEADERS_AT, MemoryError, QueueMemory, stride_of};
use crate::registers::Registers;
use millrace_abi::message::{Buffers, Layout};
use millrace_abi::name::CardOptions;
use millrace_abi::queue::{Direction, QueueId};
use millrace_abi::register::medusa as m;
use millrace_dma::{Access, Domain, Ordering, OutOfRange, Pages, Region};
use millrace_ring::cursor::Position;
use millrace_ring::medusa::{FixedRx, FixedTx, HostRx, HostTx};
use millrace_ring::shared::{self, ReadRing};

pub(super) struct Medusa;

impl QueueProtocol for Medusa {
    fn takes_buffers(&self) -> bool {
        true
    }

    fn allocate(
        &self,
        id: QueueId,
        options: &CardOptions,
        buffers: Buffers,
        domain: &Domain,
    ) -> Result<QueueMemory, MemoryError> {
        let (entries, count) = buffers.entries().map_or((options.buffers, options.buffers), |entries| (entries, 0));
        let (buffer_size, stride) = (options.buffer_size, stride_of(options.buffer_size));
        let headers_len = if id.direction == Direction::Rx { u64::from(entries) * 4 } else { 0 };
        let iovas_at = (HEADERS_AT + headers_len).next_multiple_of(8);
        let status_len = (iovas_at + u64::from(count) * 8).next_multiple_of(4096);
        let data_len = u64::from(count) * u64::from(stride);
        let descriptors_len = (u64::from(entries) * 8).next_multiple_of(4096);
        let status = Region::allocate(status_len as usize, Pages::Ordinary)?;
        let descriptors = Region::allocate(descriptors_len as usize, Pages::Ordinary)?;
        let data = match count {
            0 => None,
            _ => Some(Region::allocate_guarded(data_len as usize, Pages::HugeIfAny)?),
        };
        let status_at = domain.map(status.window().clone(), Access::ReadWrite, None)?;
        let mut memory = QueueMemory {
            layout: Layout::Medusa {
                entries,
                status_len,
                headers_at: HEADERS_AT,
                iovas_at,
                data_len: data.as_ref().map_or(0, |data| data.len() as u64),
                stride,
                buffer_size,
                descriptors_len,
            },
            status_at,
            descriptors_at: Some(domain.map(descriptors.window().clone(), Access::Read, None)?),
            data_at: None,
            status,
            data,
            descriptors: Some(descriptors),
        };
        memory.map_data(id, domain)?;
        if let Some(base) = memory.data_at {
            for buffer in 0..count {
                let iova = base.plus(u64::from(buffer) * u64::from(stride));
                let word = memory.status.window().word64((iovas_at + u64::from(buffer) * 8) as usize)?;
                word.store(iova.get(), Ordering::Relaxed);
            }
        }
        memory.seal(id)?;
        Ok(memory)
    }

    fn base(&self, position: u64) -> u64 {
        position
    }

    /// §3.2.2 steps 5 to 8.
    fn program(&self, registers: &Registers<'_>, memory: &QueueMemory) {
        let Layout::Medusa { entries, .. } = memory.layout else { return };
        registers.write64(m::DESC_BASE, memory.descriptors_at().get());
        registers.write64(m::UPDATE_BASE, memory.update_at().get());
        if registers.id.direction == Direction::Rx {
            registers.write64(m::HDR_BASE, memory.headers_at().get());
        }
        registers.write32(m::MDP, entries - 1);
        registers.write32(m::MHP, entries - 1);
        registers.write64(m::SDP, 0);
        registers.write32(m::TIMEOUT, m::TIMEOUT_DEFAULT);
    }

    fn mask(&self, memory: &QueueMemory) -> u32 {
        let Layout::Medusa { entries, .. } = memory.layout else { return 0 };
        entries - 1
    }

    fn reclaimed(&self, half: &Half<'_>) -> Result<Option<shared::Pool>, OutOfRange> {
        let Layout::Medusa { entries, headers_at, buffer_size, .. } = half.memory.layout else { return Ok(None) };
        let Some(descriptors) = half.descriptors(entries)? else { return Ok(None) };
        let headers = half.memory.status.window().slots32(headers_at as usize, entries)?;
        let host = HostRx::new(descriptors, headers, half.doorbell.clone(), half.update.clone());
        let (iovas, size) = (half.memory.iovas().into_boxed_slice(), buffer_size.min(u16::MAX.into()) as u16);
        Ok(host.and_then(|host| FixedRx::new(host, iovas, size, half.base as u32)).map(shared::Pool::Medusa))
    }

    fn read_ring(&self, half: &Half<'_>) -> Result<Option<ReadRing>, OutOfRange> {
        let Layout::Medusa { entries, headers_at, .. } = half.memory.layout else { return Ok(None) };
        let headers = half.memory.status.window().slots32(headers_at as usize, entries)?;
        Ok(Some(ReadRing::Medusa { headers, update: half.update.clone(), base: Position::new(half.base) }))
    }

    fn writer(&self, half: &Half<'_>) -> Result<Option<Box<dyn Writer>>, OutOfRange> {
        let Some(descriptors) = half.descriptors(self.mask(half.memory) + 1)? else { return Ok(None) };
        let host = HostTx::new(descriptors, half.doorbell.clone(), half.update.clone());
        let iovas = half.memory.iovas().into_boxed_slice();
        let writer = host.and_then(|host| FixedTx::new(host, iovas, half.base as u32));
        Ok(writer.map(|writer| Box::new(writer) as Box<dyn Writer>))
    }
}

impl Writer for FixedTx {
    fn units(&self, _len: u16) -> u32 {
        1
    }

    fn commit(&mut self, len: u16) -> bool {
        self.take(1).is_some() && self.post(len)
    }

    fn flush(&mut self) {
        FixedTx::flush(self);
    }

    fn available(&mut self) -> u32 {
        FixedTx::available(self)
    }

    fn position(&self, _base: u64) -> u64 {
        self.next().into()
    }
}
