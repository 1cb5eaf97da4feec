//! DD (`docs/spec/dd.md`): descriptors with a done bit. A queue belongs to one program, which drives it itself.

use super::queue_protocol::{Half, QueueProtocol};
use super::writer::Writer;
use crate::memory::{MemoryError, QueueMemory, stride_of};
use crate::registers::Registers;
use millrace_abi::message::{Buffers, Layout};
use millrace_abi::name::CardOptions;
use millrace_abi::queue::{Direction, QueueId};
use millrace_abi::register::{dd as d, medusa as m};
use millrace_dma::{Access, Domain, OutOfRange, Pages, Region};
use millrace_ring::dd;
use millrace_ring::shared::{self, ReadRing};

/// Size of a huge page. Less than one of buffers lies in ordinary pages: with a thousand small queues the rest of each
/// last huge page would be most of their memory.
const HUGE_PAGE: u64 = 2 << 20;

pub(super) struct Dd;

impl QueueProtocol for Dd {
    fn is_own_only(&self) -> bool {
        true
    }

    fn takes_buffers(&self) -> bool {
        true
    }

    fn takes_pools(&self) -> bool {
        true
    }

    fn allocate(
        &self,
        id: QueueId,
        options: &CardOptions,
        buffers: Buffers,
        domain: &Domain,
    ) -> Result<QueueMemory, MemoryError> {
        let (entries, count) =
            buffers.entries().map_or((options.dd_descriptors, options.dd_descriptors), |entries| (entries, 0));
        let (buffer_size, stride) = (options.buffer_size, stride_of(options.buffer_size));
        let status_len = (u64::from(entries) * dd::DESCRIPTOR as u64).next_multiple_of(4096);
        let status = Region::allocate(status_len as usize, Pages::Ordinary)?;
        let status_at = domain.map(status.window().clone(), Access::ReadWrite, None)?;
        let bytes = u64::from(count) * u64::from(stride);
        let pages = if bytes < HUGE_PAGE { Pages::Ordinary } else { Pages::HugeIfAny };
        let data = (count > 0).then(|| Region::allocate_guarded(bytes as usize, pages)).transpose()?;
        let data_len = data.as_ref().map_or(0, |data| data.len() as u64);
        let layout = Layout::Dd { entries, status_len, data_at: 0, data_len, stride, buffer_size };
        let mut memory =
            QueueMemory { layout, status, data, descriptors: None, status_at, descriptors_at: None, data_at: None };
        memory.map_data(id, domain)?;
        let at = memory.data_at().get();
        if let Layout::Dd { data_at, .. } = &mut memory.layout {
            *data_at = at;
        }
        if id.direction == Direction::Rx
            && let Some(data) = &memory.data
        {
            data.seal_future_writes()?;
        }
        Ok(memory)
    }

    /// The ring begins at 0, whoever had it before.
    fn base(&self, _position: u64) -> u64 {
        0
    }

    /// With all descriptors the software's.
    fn prepare(&self, memory: &QueueMemory, _base: u64) -> Result<(), OutOfRange> {
        let words = (self.mask(memory) + 1) * dd::DESCRIPTOR as u32 / 8;
        if let Some(ring) = dd::Ring::new(memory.status.window().slots64(0, words)?) {
            ring.clear();
        }
        Ok(())
    }

    /// `docs/spec/dd.md`, the registers.
    fn program(&self, registers: &Registers<'_>, memory: &QueueMemory) {
        let Layout::Dd { entries, .. } = memory.layout else { return };
        registers.write64(d::BASE, memory.status_at.get());
        registers.write32(d::SIZE, entries - 1);
        registers.write32(d::TAIL, 0);
        registers.write32(d::TIMEOUT, m::TIMEOUT_DEFAULT);
    }

    fn mask(&self, memory: &QueueMemory) -> u32 {
        let Layout::Dd { entries, .. } = memory.layout else { return 0 };
        entries - 1
    }

    fn stopped_at(&self, _base: u64, _said: Option<u64>, _update: u64, _direction: Direction) -> u64 {
        0
    }

    fn reclaimed(&self, _half: &Half<'_>) -> Result<Option<shared::Pool>, OutOfRange> {
        Ok(None)
    }

    fn read_ring(&self, _half: &Half<'_>) -> Result<Option<ReadRing>, OutOfRange> {
        Ok(None)
    }

    fn writer(&self, _half: &Half<'_>) -> Result<Option<Box<dyn Writer>>, OutOfRange> {
        Ok(None)
    }
}
