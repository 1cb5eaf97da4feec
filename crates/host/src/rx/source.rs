//! How packets are found and given back: by engine, mode and sharing.

use super::parts::Parts;
use crate::error::Error;
use crate::handle::QueueHandle;
use millrace_abi::message::Layout;
use millrace_dma::{Iova, Ordering, Region, Slots32, Slots64};
use millrace_ring::cursor::{Position, Subscriber};
use millrace_ring::medusa::{FixedRx, HostRx};
use millrace_ring::shared::{ReadRing, Reader};
use millrace_ring::{calypte, dd, sze};

/// How packets are found and given back.
pub(super) enum Source {
    /// Medusa, exclusive, direct: pointers and descriptors are ours.
    Medusa(Box<FixedRx>),
    /// SZE, exclusive, direct: the pointer is ours.
    Sze(Box<sze::HostRx>),
    /// Direct, one of several subscribers.
    SharedMedusa(Box<Reader>),
    /// Direct, one of several subscribers.
    SharedSze(Box<Reader>),
    /// Calypte, exclusive, direct: headers say what is there, the pointers are ours.
    Calypte(Box<calypte::HostRx>),
    /// Direct, one of several subscribers.
    SharedCalypte(Box<Reader>),
    /// DD, exclusive, direct.
    Dd(Box<dd::FixedRx>),
    /// Every synchronisation is a request to the driver.
    Mediated(Mediated),
}

/// Where the headers of packets are.
pub(super) enum Headers {
    Medusa(Slots32),
    Calypte(Slots64),
    /// In the ring, with their packets.
    Sze,
}

/// Mediated mode: what the driver has given us, and what we have done with it.
pub(super) struct Mediated {
    pub(super) headers: Headers,
    pub(super) base: u64,
    pub(super) position: u64,
    // Units in our hands from `position` on, of which `read` were handed out.
    pub(super) held: u32,
    pub(super) read: u32,
    pub(super) whole_ring: u32,
}

impl Mediated {
    pub(super) fn new(handle: &QueueHandle, opened: &Parts, position: u64, base: u64) -> Result<Self, Error> {
        let bad = |error: millrace_dma::OutOfRange| handle.bad(error);
        let status = opened.status.window();
        let (headers, whole_ring) = match opened.layout {
            Layout::Medusa { entries, headers_at, .. } => {
                (Headers::Medusa(status.slots32(headers_at as usize, entries).map_err(bad)?), entries)
            }
            Layout::Sze { ring, .. } => (Headers::Sze, ring / 8),
            Layout::Dd { .. } => return Err(own_only(handle)),
            Layout::Calypte { headers, headers_at, .. } => {
                (Headers::Calypte(status.slots64(headers_at as usize, headers).map_err(bad)?), headers)
            }
        };
        Ok(Self { headers, base, position, held: 0, read: 0, whole_ring })
    }

    /// Asks the driver once: gives back what was read, takes what there is. Returns units lost.
    pub(super) fn sync(&mut self, handle: &QueueHandle, want: u32) -> Result<u64, Error> {
        let (position, units, lost) = handle.client.rx_sync(handle.handle, self.read, want)?;
        (self.position, self.held, self.read) = (position, units, 0);
        Ok(lost)
    }
}

impl Source {
    /// Number of the buffer that the packet behind `kept` others will come in, where that can be told.
    #[inline(always)]
    pub(super) fn expected(&self, kept: u32) -> Option<u32> {
        match self {
            Source::Medusa(queue) => Some(queue.first().wrapping_add(kept)),
            Source::Dd(queue) => Some(queue.expected()),
            _ => None,
        }
    }

    pub(super) fn own(handle: &QueueHandle, opened: &Parts, base: u64) -> Result<Self, Error> {
        let bad = |what: &str| handle.bad(what);
        let update = opened.status.window().word64(0).map_err(|error| handle.bad(error))?;
        match opened.layout {
            Layout::Medusa { entries, headers_at, iovas_at, buffer_size, .. } => {
                let region = opened.descriptors.as_ref().ok_or_else(|| bad("the driver sent no descriptor ring"))?;
                let descriptors = region.window().slots64(0, entries).map_err(|error| handle.bad(error))?;
                let headers =
                    opened.status.window().slots32(headers_at as usize, entries).map_err(|error| handle.bad(error))?;
                let buffers = read_iovas(&opened.status, iovas_at, entries).map_err(|error| handle.bad(error))?;
                let host = HostRx::new(descriptors, headers, handle.doorbell()?, update);
                let size = buffer_size.min(u16::MAX.into()) as u16;
                let queue = host.and_then(|host| FixedRx::new(host, buffers, size, base as u32));
                handle.ring();
                queue.map(|queue| Self::Medusa(Box::new(queue))).ok_or_else(|| bad("no ring of a power of two"))
            }
            Layout::Dd { entries, data_at, stride, buffer_size, .. } => {
                let host = dd::HostRx::new(dd_ring(handle, &opened.status, entries)?, handle.doorbell()?);
                let size = buffer_size.min(u16::MAX.into()) as u16;
                let queue = dd::FixedRx::new(host, Iova::new(data_at), stride, size);
                handle.ring();
                queue.map(|queue| Self::Dd(Box::new(queue))).ok_or_else(|| bad("buffers that lie in one place"))
            }
            Layout::Sze { .. } => {
                let ring = opened.data.window().clone();
                let queue = sze::HostRx::new(ring, (base as u32).wrapping_mul(8), 0, handle.doorbell()?, update);
                queue.map(|queue| Self::Sze(Box::new(queue))).ok_or_else(|| bad("no ring of a power of two"))
            }
            Layout::Calypte { headers, headers_at, ring, .. } => {
                let headers =
                    opened.status.window().slots64(headers_at as usize, headers).map_err(|error| handle.bad(error))?;
                let queue = calypte::HostRx::new(ring / calypte::BLOCK, headers, handle.doorbell()?, update);
                queue.map(|queue| Self::Calypte(Box::new(queue))).ok_or_else(|| bad("no ring of a power of two"))
            }
        }
    }

    pub(super) fn shared(handle: &QueueHandle, opened: &Parts, base: u64) -> Result<Self, Error> {
        let update = opened.status.window().word64(0).map_err(|error| handle.bad(error))?;
        let (base, subscriber) = (Position::new(base), Subscriber::new(handle.doorbell()?));
        Ok(match opened.layout {
            Layout::Medusa { entries, headers_at, .. } => {
                let headers =
                    opened.status.window().slots32(headers_at as usize, entries).map_err(|error| handle.bad(error))?;
                Self::SharedMedusa(Box::new(Reader::new(ReadRing::Medusa { headers, update, base }, subscriber)))
            }
            Layout::Dd { .. } => return Err(own_only(handle)),
            Layout::Sze { ring, .. } => {
                Self::SharedSze(Box::new(Reader::new(ReadRing::Sze { update, size: ring, base }, subscriber)))
            }
            Layout::Calypte { headers, headers_at, .. } => {
                let headers =
                    opened.status.window().slots64(headers_at as usize, headers).map_err(|error| handle.bad(error))?;
                Self::SharedCalypte(Box::new(Reader::new(ReadRing::Calypte { headers, update, base }, subscriber)))
            }
        })
    }
}

impl Source {
    /// Whether packets are there, behind `kept` units.
    pub(super) fn look(&mut self, kept: u32, handle: &QueueHandle, lost: &mut u64) -> Result<bool, Error> {
        Ok(match self {
            Source::Mediated(mediated) => {
                if kept == 0 && mediated.read == mediated.held {
                    *lost += mediated.sync(handle, mediated.whole_ring)?;
                }
                mediated.held > mediated.read + kept
            }
            _ => self.ready(kept.saturating_add(1)) > kept,
        })
    }

    /// Units of the ring that wait for us or are kept; where finding out takes a look at each, no more than make `most`
    /// are looked for. Mediated: what the driver has already given us.
    pub(super) fn ready(&mut self, most: u32) -> u32 {
        match self {
            Source::Medusa(queue) => queue.ready(),
            Source::Sze(queue) => queue.ready(),
            Source::Calypte(queue) => queue.ready(most),
            Source::Dd(queue) => queue.ready(most),
            Source::SharedMedusa(reader) | Source::SharedSze(reader) | Source::SharedCalypte(reader) => {
                reader.published()
            }
            Source::Mediated(mediated) => mediated.held - mediated.read,
        }
    }
}

/// The descriptor ring of a DD queue.
pub(crate) fn dd_ring(handle: &QueueHandle, status: &Region, entries: u32) -> Result<dd::Ring, Error> {
    let words = entries.saturating_mul(dd::DESCRIPTOR as u32 / 8);
    let words = status.window().slots64(0, words).map_err(|error| handle.bad(error))?;
    dd::Ring::new(words).ok_or_else(|| handle.bad("no ring of a power of two"))
}

#[cold]
fn own_only(handle: &QueueHandle) -> Error {
    handle.bad("the driver opened a DD queue in a mode that it has not")
}

/// The IOVAs that the driver has written down, read once.
pub(crate) fn read_iovas(status: &Region, at: u64, count: u32) -> Result<Box<[Iova]>, millrace_dma::OutOfRange> {
    let word = |i: u32| status.window().word64((at + u64::from(i) * 8) as usize);
    (0..count).map(|i| Ok(Iova::new(word(i)?.load(Ordering::Relaxed)))).collect()
}
