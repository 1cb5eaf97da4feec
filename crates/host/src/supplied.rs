//! Queues over buffers that the program brings along: memory made known with [`crate::Device::map`], posted by IOVA.
//! What a poll-mode driver such as DPDK's needs. Medusa, direct, exclusive.

use crate::error::Error;
use crate::handle::QueueHandle;
use millrace_abi::message::Layout;
use millrace_abi::queue::{Engine, QueueId};
use millrace_dma::{Iova, Region};
use millrace_driver::{Client, Opened};
use millrace_ring::medusa::{HostRx, HostTx, RxHeader};
use std::sync::Arc;
use std::time::Duration;

struct Parts {
    handle: QueueHandle,
    descriptors: Region,
    status: Region,
    entries: u32,
    headers_at: u64,
}

fn start(client: Arc<Client>, queue: QueueId, opened: Opened) -> Result<Parts, Error> {
    let Opened { handle, layout, control, kick, status, descriptors, engine, .. } = opened;
    let handle = QueueHandle::new(client, queue, handle, control, kick)?;
    if engine != Engine::Medusa {
        return Err(Error::Unfit(format!(
            "{queue} is a queue of {engine}; buffers that the program posts itself are for Medusa: give the card \
             engine=medusa@{queue}"
        )));
    }
    let (Layout::Medusa { entries, headers_at, .. }, Some(descriptors)) = (layout, descriptors) else {
        return Err(handle.bad("the driver sent no descriptor ring"));
    };
    handle.client.start(handle.handle)?;
    Ok(Parts { handle, descriptors, status, entries, headers_at })
}

/// An RX queue that runs on buffers of the program. Exactly one packet arrives per buffer, in the order of posting.
pub struct SuppliedRx {
    host: HostRx,
    handle: QueueHandle,
    // The rings stay mapped through the views of `host`.
}

impl SuppliedRx {
    pub(crate) fn start(client: Arc<Client>, queue: QueueId, opened: Opened) -> Result<Self, Error> {
        let Parts { handle, descriptors, status, entries, headers_at } = start(client, queue, opened)?;
        let bad = |error: millrace_dma::OutOfRange| handle.bad(error);
        let descriptors = descriptors.window().slots64(0, entries).map_err(bad)?;
        let headers = status.window().slots32(headers_at as usize, entries).map_err(bad)?;
        let update = status.window().word64(0).map_err(bad)?;
        let host = HostRx::new(descriptors, headers, handle.doorbell()?, update);
        let host = host.ok_or_else(|| handle.bad("no ring of a power of two"))?;
        Ok(Self { host, handle })
    }

    /// Gives the card a buffer; `false` when the ring is full. The card sees it after [`SuppliedRx::flush`].
    #[inline]
    pub fn post(&mut self, iova: Iova, len: u16) -> bool {
        self.host.post(iova, len)
    }

    /// Tells the card of posted buffers and released packets.
    #[inline]
    pub fn flush(&mut self) {
        self.host.flush();
        self.handle.ring();
    }

    /// Packets that were not released.
    ///
    /// # Errors
    /// As [`crate::RxQueue::get`].
    #[inline]
    pub fn ready(&mut self) -> Result<u32, Error> {
        let ready = self.host.ready();
        if ready == 0
            && let Err(error) = self.handle.check()
        {
            // Once more: the card writes what it had before it says that it has stopped.
            return Some(self.host.ready()).filter(|&ready| ready > 0).ok_or(error);
        }
        Ok(ready)
    }

    /// Header of the packet `ahead` of the first that was not released.
    #[inline]
    pub fn header(&self, ahead: u32) -> RxHeader {
        self.host.header(ahead)
    }

    /// Releases the first `count` packets.
    #[inline]
    pub fn release(&mut self, count: u32) {
        self.host.release(count);
    }

    /// Waits for a packet, at most `timeout`.
    ///
    /// # Errors
    /// As [`crate::RxQueue::get`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        let Self { host, handle } = self;
        handle.wait(timeout, || Ok(host.ready() > 0))
    }

    /// Stops and closes the queue: the card is done with all buffers when this returns.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn close(mut self) -> Result<(), Error> {
        self.handle.close()
    }
}

/// A TX queue that runs on buffers of the program.
pub struct SuppliedTx {
    host: HostTx,
    handle: QueueHandle,
}

impl SuppliedTx {
    pub(crate) fn start(client: Arc<Client>, queue: QueueId, opened: Opened) -> Result<Self, Error> {
        let Parts { handle, descriptors, status, entries, .. } = start(client, queue, opened)?;
        let bad = |error: millrace_dma::OutOfRange| handle.bad(error);
        let descriptors = descriptors.window().slots64(0, entries).map_err(bad)?;
        let update = status.window().word64(0).map_err(bad)?;
        let host = HostTx::new(descriptors, handle.doorbell()?, update);
        let host = host.ok_or_else(|| handle.bad("no ring of a power of two"))?;
        Ok(Self { host, handle })
    }

    /// Queues `len` bytes for sending; `false` when the ring is full. The card sees it after [`SuppliedTx::flush`].
    #[inline]
    pub fn post(&mut self, iova: Iova, len: u16) -> bool {
        self.host.post(iova, len)
    }

    /// Sends everything posted.
    #[inline]
    pub fn flush(&mut self) {
        self.host.flush();
        self.handle.ring();
    }

    /// How many more buffers the card is done with, in the order of posting.
    ///
    /// # Errors
    /// As [`crate::TxQueue::get`].
    #[inline]
    pub fn completed(&mut self) -> Result<u32, Error> {
        let completed = self.host.completed();
        if completed == 0
            && let Err(error) = self.handle.check()
        {
            // Once more, as in `SuppliedRx::ready`.
            return Some(self.host.completed()).filter(|&completed| completed > 0).ok_or(error);
        }
        Ok(completed)
    }

    /// Whether the card has taken everything posted, as far as [`SuppliedTx::completed`] has seen.
    pub fn is_drained(&self) -> bool {
        self.host.is_drained()
    }

    /// Stops and closes the queue, drained or not: the card is done with all buffers when this returns.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn close(mut self) -> Result<(), Error> {
        self.handle.close()
    }
}
