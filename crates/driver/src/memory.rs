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
//! Both rings of a Calypte TX queue are buffers of the device: the card reaches them without any IOVA. Which regions there
//! are, and how they are laid out, is said by the protocol of the queue (`protocol`).

use millrace_abi::message::Layout;
use millrace_abi::queue::{Direction, QueueId};
use millrace_dma::{Access, Domain, Iova, MapError, OutOfRange, Region, RegionError, Word64};

/// Where the update word lies in the status region.
pub(crate) const UPDATE_AT: u64 = 0;
/// Where the header ring lies in the status region: not on the update word's page of cache lines.
pub(crate) const HEADERS_AT: u64 = 256;
const CACHE_LINE: u32 = 64;

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
    pub status_at: Iova,
    pub descriptors_at: Option<Iova>,
    pub data_at: Option<Iova>,
}

impl QueueMemory {
    /// Bytes of all of it.
    pub fn bytes(&self) -> u64 {
        let regions = [Some(&self.status), self.data.as_ref(), self.descriptors.as_ref()];
        regions.into_iter().flatten().map(|region| region.len() as u64).sum()
    }

    /// Maps the data region for the card, as far as the direction needs.
    pub fn map_data(&mut self, id: QueueId, domain: &Domain) -> Result<(), MemoryError> {
        if let Some(data) = &self.data {
            let access = if id.direction == Direction::Rx { Access::ReadWrite } else { Access::Read };
            self.data_at = Some(domain.map(data.window().clone(), access, None)?);
        }
        Ok(())
    }

    /// What the card writes, programs shall only read: the mappings made here go on, writable ones to come are refused.
    pub fn seal(&self, id: QueueId) -> Result<(), MemoryError> {
        self.status.seal_future_writes()?;
        if id.direction == Direction::Rx
            && let Some(data) = &self.data
        {
            data.seal_future_writes()?;
        }
        Ok(())
    }

    /// IOVA of the descriptor ring or list; 0 where there is none.
    pub fn descriptors_at(&self) -> Iova {
        self.descriptors_at.unwrap_or_default()
    }

    /// IOVA of the data ring; 0 where there is none.
    pub fn data_at(&self) -> Iova {
        self.data_at.unwrap_or_default()
    }

    /// The update word.
    pub fn update(&self) -> Result<Word64, OutOfRange> {
        self.status.window().word64(UPDATE_AT as usize)
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
pub(crate) fn stride_of(size: u32) -> u32 {
    (size.div_ceil(CACHE_LINE) | 1) * CACHE_LINE
}
