//! A queue that is open and not started.

use super::TxQueue;
use super::ring::{Mediated, Ring, Slot};
use crate::MAX_BURST;
use crate::error::Error;
use crate::handle::QueueHandle;
use crate::rx::{dd_ring, read_iovas};
use millrace_abi::message::Layout;
use millrace_abi::queue::{Mode, QueueId};
use millrace_dma::{Iova, Region};
use millrace_driver::{Client, Opened};
use millrace_ring::medusa::{FixedTx, HostTx};
use millrace_ring::{calypte, dd, sze};
use std::sync::Arc;

/// A TX queue that is open and not started.
pub struct IdleTx {
    pub(super) handle: QueueHandle,
    pub(super) layout: Layout,
    pub(super) status: Region,
    pub(super) data: Region,
    pub(super) descriptors: Option<Region>,
    pub(super) mode: Mode,
}

impl IdleTx {
    pub(crate) fn new(client: Arc<Client>, queue: QueueId, mode: Mode, opened: Opened) -> Result<Self, Error> {
        let Opened { handle, layout, control, kick, status, data, descriptors, .. } = opened;
        let handle = QueueHandle::new(client, queue, handle, control, kick)?;
        let data = data.ok_or_else(|| handle.bad("the driver sent no memory for packets"))?;
        Ok(Self { handle, layout, status, data, descriptors, mode })
    }

    /// Which queue this is.
    pub fn id(&self) -> QueueId {
        self.handle.queue
    }

    /// Starts the queue.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn start(self) -> Result<TxQueue, Error> {
        let (_, base) = self.handle.client.start(self.handle.handle)?;
        let handle = &self.handle;
        let ring = match self.mode {
            Mode::Direct => self.own(base)?,
            Mode::Mediated => Ring::Mediated(Mediated::default()),
        };
        let (frame_min, frame_max) = handle.client.frame_limits();
        let (mask, stride, size) = match self.layout {
            Layout::Medusa { entries, stride, buffer_size, .. } | Layout::Dd { entries, stride, buffer_size, .. } => {
                (entries - 1, stride, buffer_size)
            }
            Layout::Sze { ring, .. } => (ring - 1, 8, ring / 2),
            Layout::Calypte { ring, .. } => (ring - 1, calypte::FRAME_ALIGN, ring - calypte::FRAME_ALIGN),
        };
        let lead = if let Layout::Calypte { .. } = self.layout { 0 } else { 8 };
        let unit = if let Layout::Calypte { .. } = self.layout { calypte::FRAME_ALIGN } else { 8 };
        let longest = u32::from(frame_max).min(size) as u16;
        let slots = vec![Slot::default(); MAX_BURST].into_boxed_slice();
        let data = self.data.window().clone();
        Ok(TxQueue {
            ring,
            data,
            mask,
            stride,
            unit,
            lead,
            shortest: frame_min,
            longest,
            slots,
            kept: 0,
            deferred: 0,
            base,
            idle: self,
        })
    }

    fn own(&self, base: u64) -> Result<Ring, Error> {
        let handle = &self.handle;
        if let Layout::Dd { entries, data_at, stride, .. } = self.layout {
            let host = dd::HostTx::new(dd_ring(handle, &self.status, entries)?, handle.doorbell()?);
            return Ok(Ring::Dd(Box::new(dd::FixedTx::new(host, Iova::new(data_at), stride))));
        }
        let update = self.status.window().word64(0).map_err(|error| handle.bad(error))?;
        let none = || handle.bad("no ring of a power of two");
        match self.layout {
            Layout::Medusa { entries, iovas_at, .. } => {
                let region =
                    self.descriptors.as_ref().ok_or_else(|| handle.bad("the driver sent no descriptor ring"))?;
                let descriptors = region.window().slots64(0, entries).map_err(|error| handle.bad(error))?;
                let buffers = read_iovas(&self.status, iovas_at, entries).map_err(|error| handle.bad(error))?;
                let host = HostTx::new(descriptors, handle.doorbell()?, update);
                let queue = host.and_then(|host| FixedTx::new(host, buffers, base as u32)).ok_or_else(none)?;
                Ok(Ring::Medusa(Box::new(queue)))
            }
            Layout::Sze { .. } => {
                let ring = self.data.window().clone();
                let queue = sze::HostTx::new(ring, (base as u32).wrapping_mul(8), handle.doorbell()?, update);
                Ok(Ring::Sze(Box::new(queue.ok_or_else(none)?)))
            }
            Layout::Dd { .. } => Err(none()),
            Layout::Calypte { headers, ring, .. } => {
                let region = self.descriptors.as_ref().ok_or_else(|| handle.bad("the driver sent no header ring"))?;
                let headers = region.window().slots64(0, headers).map_err(|error| handle.bad(error))?;
                let queue = calypte::HostTx::new(ring, headers, update);
                Ok(Ring::Calypte(Box::new(queue.ok_or_else(none)?)))
            }
        }
    }

    /// Closes the queue. Dropping it does the same and ignores errors.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn close(mut self) -> Result<(), Error> {
        self.handle.close()
    }
}
