//! The memory of one open queue: allocated fresh for everyone who opens it, so that no program that had it before can
//! still write to it.
//!
//! ```text
//! status region       update word, header ring (RX), IOVAs of the buffers     sealed: programs can only read it
//!                     DD: the descriptor ring, which both sides write         not sealed
//! data region         buffers (Medusa, DD) or the ring (SZE, Calypte)         sealed for RX; writers share it for TX
//! descriptor region   descriptor ring (Medusa) or list (SZE),                 only for exclusive direct Medusa
//!                     header ring of a TX queue (Calypte)                     and Calypte
//! ```
//!
//! Both rings of a Calypte TX queue are buffers of the device: the card reaches them without any IOVA.

use millrace_abi::message::{Buffers, Layout};
use millrace_abi::name::CardOptions;
use millrace_abi::queue::{Direction, Engine, QueueId};
use millrace_abi::register::calypte as c;
use millrace_card::TxBuffers;
use millrace_dma::{Access, Domain, Iova, MapError, Ordering, OutOfRange, Pages, Region, RegionError};
use millrace_ring::{dd, sze};

/// Where the update word lies in the status region.
const UPDATE_AT: u64 = 0;
/// Where the header ring lies in the status region: not on the update word's page of cache lines.
const HEADERS_AT: u64 = 256;
const CACHE_LINE: u32 = 64;
/// Size of a huge page. Less than one of buffers lies in ordinary pages: with a thousand small queues the rest of each
/// last huge page would be most of their memory.
const HUGE_PAGE: u64 = 2 << 20;

/// Why a queue has no memory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Range(#[from] OutOfRange),
}

/// The memory of one open queue, and where the card finds it.
pub(crate) struct QueueMemory {
    pub layout: Layout,
    pub status: Region,
    pub data: Option<Region>,
    pub descriptors: Option<Region>,
    status_at: Iova,
    descriptors_at: Option<Iova>,
    data_at: Option<Iova>,
}

impl QueueMemory {
    /// Allocates and maps.
    pub fn new(
        id: QueueId,
        engine: Engine,
        options: &CardOptions,
        buffers: Buffers,
        domain: &Domain,
    ) -> Result<Self, MemoryError> {
        match engine {
            Engine::Medusa => Self::medusa(id, options, buffers, domain),
            Engine::Sze => Self::sze(id, options, domain),
            Engine::Calypte => Self::calypte(id, options, domain),
            Engine::Dd => Self::dd(id, options, buffers, domain),
        }
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> u64 {
        let regions = [Some(&self.status), self.data.as_ref(), self.descriptors.as_ref()];
        regions.into_iter().flatten().map(|region| region.len() as u64).sum()
    }

    /// Makes the memory as it must be at START: update word 0; for Calypte RX no valid header; for DD all descriptors the
    /// software's; for SZE a descriptor list that begins at `start` (in 8-byte units, a multiple of a page). A list is at most as long as the one of a ring
    /// that begins at page 1.
    pub fn prepare(&self, start: u64) -> Result<(), MemoryError> {
        if let Some(ring) = self.dd_ring()? {
            ring.clear();
            return Ok(());
        }
        self.status.window().word64(UPDATE_AT as usize)?.store(0, Ordering::Relaxed);
        match (self.layout, self.data_at, self.descriptors_at, &self.descriptors) {
            (Layout::Sze { ring, .. }, Some(data_at), Some(descriptors_at), Some(descriptors)) => {
                let offset = start * 8 % u64::from(ring);
                let list = sze::descriptor_list(data_at, u64::from(ring), offset, descriptors_at);
                for (index, word) in list.into_iter().enumerate() {
                    descriptors.window().word64(index * 8)?.store(word, Ordering::Relaxed);
                }
            }
            (Layout::Calypte { headers_at, headers, .. }, Some(_), ..) => {
                let ring = self.status.window().slots64(headers_at as usize, headers)?;
                (0..headers).for_each(|slot| ring.store(slot, 0));
            }
            _ => {}
        }
        Ok(())
    }

    fn medusa(id: QueueId, options: &CardOptions, buffers: Buffers, domain: &Domain) -> Result<Self, MemoryError> {
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
        let mut memory = Self {
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

    fn sze(id: QueueId, options: &CardOptions, domain: &Domain) -> Result<Self, MemoryError> {
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
        let memory = Self { layout, status, data, descriptors, status_at, descriptors_at, data_at };
        memory.seal(id)?;
        Ok(memory)
    }

    fn calypte(id: QueueId, options: &CardOptions, domain: &Domain) -> Result<Self, MemoryError> {
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
        let memory = Self { layout, status, data: Some(data), descriptors, status_at, descriptors_at: None, data_at };
        memory.seal(id)?;
        Ok(memory)
    }

    fn dd(id: QueueId, options: &CardOptions, buffers: Buffers, domain: &Domain) -> Result<Self, MemoryError> {
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
            Self { layout, status, data, descriptors: None, status_at, descriptors_at: None, data_at: None };
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

    /// The descriptor ring of a DD queue.
    fn dd_ring(&self) -> Result<Option<dd::Ring>, OutOfRange> {
        let Layout::Dd { entries, .. } = self.layout else { return Ok(None) };
        let words = entries * dd::DESCRIPTOR as u32 / 8;
        Ok(dd::Ring::new(self.status.window().slots64(0, words)?))
    }

    fn map_data(&mut self, id: QueueId, domain: &Domain) -> Result<(), MemoryError> {
        if let Some(data) = &self.data {
            let access = if id.direction == Direction::Rx { Access::ReadWrite } else { Access::Read };
            self.data_at = Some(domain.map(data.window().clone(), access, None)?);
        }
        Ok(())
    }

    /// What the card writes, programs shall only read: the mappings made here go on, writable ones to come are refused.
    fn seal(&self, id: QueueId) -> Result<(), MemoryError> {
        self.status.seal_future_writes()?;
        if id.direction == Direction::Rx
            && let Some(data) = &self.data
        {
            data.seal_future_writes()?;
        }
        Ok(())
    }

    /// The buffers of the device, for a Calypte TX queue.
    pub fn buffers(&self) -> Result<Option<TxBuffers>, OutOfRange> {
        match (self.layout, self.data_at, &self.data, &self.descriptors) {
            (Layout::Calypte { .. }, None, Some(data), Some(headers)) => {
                TxBuffers::new(data.window(), headers.window()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// IOVA of the descriptor ring or list; 0 where there is none.
    pub fn descriptors_at(&self) -> Iova {
        match self.layout {
            Layout::Dd { .. } => self.status_at,
            _ => self.descriptors_at.unwrap_or_default(),
        }
    }

    /// IOVA of the data ring; 0 where there is none.
    pub fn data_at(&self) -> Iova {
        self.data_at.unwrap_or_default()
    }

    /// IOVA of the update word.
    pub fn update_at(&self) -> Iova {
        self.status_at.plus(UPDATE_AT)
    }

    /// IOVA of the header ring.
    pub fn headers_at(&self) -> Iova {
        self.status_at.plus(HEADERS_AT)
    }

    /// The descriptors are the driver's alone, so that it needs no file for them.
    pub fn keep_descriptors(&mut self) {
        self.descriptors.iter_mut().for_each(Region::close_fd);
    }

    /// Closes the files behind the memory, which stays.
    pub fn close_fds(&mut self) {
        self.status.close_fd();
        self.data.iter_mut().chain(&mut self.descriptors).for_each(Region::close_fd);
    }

    /// All mappings, to be taken away again.
    pub fn mappings(&self) -> impl Iterator<Item = Iova> {
        [Some(self.status_at), self.descriptors_at, self.data_at].into_iter().flatten()
    }

    /// IOVAs of the buffers, in order.
    pub fn iovas(&self) -> Vec<Iova> {
        let Layout::Medusa { entries, stride, .. } = self.layout else { return Vec::new() };
        let Some(base) = self.data_at else { return Vec::new() };
        (0..u64::from(entries)).map(|buffer| base.plus(buffer * u64::from(stride))).collect()
    }
}

/// Distance between buffers of `size` bytes: an odd number of cache lines, so that the first lines of all buffers, which are
/// all that small packets touch, spread over all sets of the cache.
fn stride_of(size: u32) -> u32 {
    (size.div_ceil(CACHE_LINE) | 1) * CACHE_LINE
}
