//! Receiving.

use crate::MAX_BURST;
use crate::error::Error;
use crate::link::Link;
use core::ops::Index;
use millrace_abi::header::{self, RxMetadata};
use millrace_abi::message::Layout;
use millrace_abi::queue::{Mode, QueueId, Sharing};
use millrace_dma::{Iova, Ordering, Region, Slots32, Slots64, Window};
use millrace_driver::{Client, Opened};
use millrace_ring::cursor::{Cursor, Position, Subscriber};
use millrace_ring::medusa::{FixedRx, HostRx, RxHeader};
use millrace_ring::shared::{ReadRing, Reader};
use millrace_ring::{calypte, dd, sze};
use std::sync::Arc;
use std::time::Duration;

/// An RX queue that is open and not started.
pub struct IdleRx {
    link: Link,
    opened: Parts,
    mode: Mode,
    sharing: Sharing,
}

/// The memory of a queue.
struct Parts {
    layout: Layout,
    status: Region,
    data: Region,
    descriptors: Option<Region>,
}

impl IdleRx {
    pub(crate) fn new(
        client: Arc<Client>,
        queue: QueueId,
        mode: Mode,
        sharing: Sharing,
        opened: Opened,
    ) -> Result<Self, Error> {
        let Opened { handle, layout, control, kick, status, data, descriptors, .. } = opened;
        let link = Link::new(client, queue, handle, control, kick)?;
        let data = data.ok_or_else(|| link.bad("the driver sent no memory for packets"))?;
        Ok(Self { link, opened: Parts { layout, status, data, descriptors }, mode, sharing })
    }

    /// Which queue this is.
    pub fn id(&self) -> QueueId {
        self.link.queue
    }

    /// Starts the queue: from now on packets arrive.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn start(self) -> Result<RxQueue, Error> {
        let Self { link, opened, mode, sharing } = self;
        let (position, base) = link.client.start(link.handle)?;
        let source = match (mode, sharing) {
            (Mode::Direct, Sharing::Exclusive) => Source::own(&link, &opened, base)?,
            (Mode::Direct, Sharing::Shared(_)) => Source::shared(&link, &opened, base)?,
            (Mode::Mediated, _) => Source::Mediated(Mediated::new(&link, &opened, position, base)?),
        };
        let geometry = Geometry::of(&opened.layout);
        let data = opened.data.window().clone();
        let packets = vec![Place::default(); MAX_BURST].into_boxed_slice();
        let stamps = if let Source::Dd(_) = source { geometry.mask as usize + 1 } else { 0 };
        let stamps = vec![[0; header::LEN]; stamps].into_boxed_slice();
        Ok(RxQueue { source, geometry, data, packets, stamps, kept: 0, lost: 0, base, link, opened, mode, sharing })
    }

    /// Closes the queue. Dropping it does the same and ignores errors.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn close(mut self) -> Result<(), Error> {
        self.link.close()
    }
}

/// Where the buffers of packets lie in the data window.
#[derive(Clone, Copy)]
struct Geometry {
    mask: u32,
    stride: u32,
    size: u32,
}

impl Geometry {
    fn of(layout: &Layout) -> Self {
        match *layout {
            Layout::Medusa { entries, stride, buffer_size, .. } | Layout::Dd { entries, stride, buffer_size, .. } => {
                Self { mask: entries - 1, stride, size: buffer_size }
            }
            Layout::Sze { ring, .. } => Self { mask: ring - 1, stride: 8, size: ring },
            Layout::Calypte { ring, .. } => Self { mask: ring - 1, stride: calypte::BLOCK, size: ring },
        }
    }

    #[inline(always)]
    fn buffer_at(&self, number: u32) -> u32 {
        (number & self.mask) * self.stride
    }
}

/// One packet of the burst in hand.
#[derive(Clone, Copy, Default)]
struct Place {
    // The frame.
    at: u32,
    len: u16,
    // The metadata.
    header_len: u8,
    flags: u8,
    header_at: u32,
}

/// How packets are found and given back.
enum Source {
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
enum Headers {
    Medusa(Slots32),
    Calypte(Slots64),
    /// In the ring, with their packets.
    Sze,
}

/// Mediated mode: what the driver has given us, and what we have done with it.
struct Mediated {
    headers: Headers,
    base: u64,
    position: u64,
    // Units in our hands from `position` on, of which `read` were handed out.
    held: u32,
    read: u32,
    whole_ring: u32,
}

impl Mediated {
    fn new(link: &Link, opened: &Parts, position: u64, base: u64) -> Result<Self, Error> {
        let bad = |error: millrace_dma::OutOfRange| link.bad(error);
        let status = opened.status.window();
        let (headers, whole_ring) = match opened.layout {
            Layout::Medusa { entries, headers_at, .. } => {
                (Headers::Medusa(status.slots32(headers_at as usize, entries).map_err(bad)?), entries)
            }
            Layout::Sze { ring, .. } => (Headers::Sze, ring / 8),
            Layout::Dd { .. } => return Err(own_only(link)),
            Layout::Calypte { headers, headers_at, .. } => {
                (Headers::Calypte(status.slots64(headers_at as usize, headers).map_err(bad)?), headers)
            }
        };
        Ok(Self { headers, base, position, held: 0, read: 0, whole_ring })
    }

    /// Asks the driver once: gives back what was read, takes what there is. Returns units lost.
    fn sync(&mut self, link: &Link, want: u32) -> Result<u64, Error> {
        let (position, units, lost) = link.client.rx_sync(link.handle, self.read, want)?;
        (self.position, self.held, self.read) = (position, units, 0);
        Ok(lost)
    }
}

impl Source {
    fn own(link: &Link, opened: &Parts, base: u64) -> Result<Self, Error> {
        let bad = |what: &str| link.bad(what);
        let update = opened.status.window().word64(0).map_err(|error| link.bad(error))?;
        match opened.layout {
            Layout::Medusa { entries, headers_at, iovas_at, buffer_size, .. } => {
                let region = opened.descriptors.as_ref().ok_or_else(|| bad("the driver sent no descriptor ring"))?;
                let descriptors = region.window().slots64(0, entries).map_err(|error| link.bad(error))?;
                let headers =
                    opened.status.window().slots32(headers_at as usize, entries).map_err(|error| link.bad(error))?;
                let buffers = read_iovas(&opened.status, iovas_at, entries).map_err(|error| link.bad(error))?;
                let host = HostRx::new(descriptors, headers, link.doorbell()?, update);
                let size = buffer_size.min(u16::MAX.into()) as u16;
                let queue = host.and_then(|host| FixedRx::new(host, buffers, size, base as u32));
                link.ring();
                queue.map(|queue| Self::Medusa(Box::new(queue))).ok_or_else(|| bad("no ring of a power of two"))
            }
            Layout::Dd { entries, data_at, stride, buffer_size, .. } => {
                let host = dd::HostRx::new(dd_ring(link, &opened.status, entries)?, link.doorbell()?);
                let size = buffer_size.min(u16::MAX.into()) as u16;
                let queue = dd::FixedRx::new(host, Iova::new(data_at), stride, size);
                link.ring();
                queue.map(|queue| Self::Dd(Box::new(queue))).ok_or_else(|| bad("buffers that lie in one place"))
            }
            Layout::Sze { .. } => {
                let ring = opened.data.window().clone();
                let queue = sze::HostRx::new(ring, (base as u32).wrapping_mul(8), 0, link.doorbell()?, update);
                queue.map(|queue| Self::Sze(Box::new(queue))).ok_or_else(|| bad("no ring of a power of two"))
            }
            Layout::Calypte { headers, headers_at, ring, .. } => {
                let headers =
                    opened.status.window().slots64(headers_at as usize, headers).map_err(|error| link.bad(error))?;
                let queue = calypte::HostRx::new(ring / calypte::BLOCK, headers, link.doorbell()?, update);
                queue.map(|queue| Self::Calypte(Box::new(queue))).ok_or_else(|| bad("no ring of a power of two"))
            }
        }
    }

    fn shared(link: &Link, opened: &Parts, base: u64) -> Result<Self, Error> {
        let update = opened.status.window().word64(0).map_err(|error| link.bad(error))?;
        let (base, subscriber) = (Position::new(base), Subscriber::new(link.doorbell()?));
        Ok(match opened.layout {
            Layout::Medusa { entries, headers_at, .. } => {
                let headers =
                    opened.status.window().slots32(headers_at as usize, entries).map_err(|error| link.bad(error))?;
                Self::SharedMedusa(Box::new(Reader::new(ReadRing::Medusa { headers, update, base }, subscriber)))
            }
            Layout::Dd { .. } => return Err(own_only(link)),
            Layout::Sze { ring, .. } => {
                Self::SharedSze(Box::new(Reader::new(ReadRing::Sze { update, size: ring, base }, subscriber)))
            }
            Layout::Calypte { headers, headers_at, .. } => {
                let headers =
                    opened.status.window().slots64(headers_at as usize, headers).map_err(|error| link.bad(error))?;
                Self::SharedCalypte(Box::new(Reader::new(ReadRing::Calypte { headers, update, base }, subscriber)))
            }
        })
    }
}

impl Source {
    /// Whether packets are there, behind `kept` units.
    fn look(&mut self, kept: u32, link: &Link, lost: &mut u64) -> Result<bool, Error> {
        Ok(match self {
            Source::Mediated(mediated) => {
                if kept == 0 && mediated.read == mediated.held {
                    *lost += mediated.sync(link, mediated.whole_ring)?;
                }
                mediated.held > mediated.read + kept
            }
            _ => self.ready(kept.saturating_add(1)) > kept,
        })
    }

    /// Units of the ring that wait for us or are kept; where finding out takes a look at each, no more than make `most`
    /// are looked for. Mediated: what the driver has already given us.
    fn ready(&mut self, most: u32) -> u32 {
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
pub(crate) fn dd_ring(link: &Link, status: &Region, entries: u32) -> Result<dd::Ring, Error> {
    let words = entries.saturating_mul(dd::DESCRIPTOR as u32 / 8);
    let words = status.window().slots64(0, words).map_err(|error| link.bad(error))?;
    dd::Ring::new(words).ok_or_else(|| link.bad("no ring of a power of two"))
}

#[cold]
fn own_only(link: &Link) -> Error {
    link.bad("the driver opened a DD queue in a mode that it has not")
}

/// The IOVAs that the driver has written down, read once.
pub(crate) fn read_iovas(status: &Region, at: u64, count: u32) -> Result<Box<[Iova]>, millrace_dma::OutOfRange> {
    let word = |i: u32| status.window().word64((at + u64::from(i) * 8) as usize);
    (0..count).map(|i| Ok(Iova::new(word(i)?.load(Ordering::Relaxed)))).collect()
}

/// An RX queue that runs.
pub struct RxQueue {
    source: Source,
    geometry: Geometry,
    data: Window,
    packets: Box<[Place]>,
    // DD: the metadata of frames, by the place of their descriptors; other engines write them before the frames.
    stamps: Box<[[u8; header::LEN]]>,
    // Units of bursts that were kept: the first that were not given back. SZE: bytes.
    kept: u32,
    lost: u64,
    base: u64,
    link: Link,
    opened: Parts,
    mode: Mode,
    sharing: Sharing,
}

impl RxQueue {
    /// Which queue this is.
    pub fn id(&self) -> QueueId {
        self.link.queue
    }

    /// Takes up to `max` packets (at most [`MAX_BURST`]). Never waits: an empty burst means that there are none. They
    /// are given back when the burst is dropped, or with [`RxQueue::release`] if it was [kept](RxBurst::keep).
    ///
    /// # Errors
    /// [`Error::Faulted`], [`Error::Evicted`], [`Error::Gone`] when the queue cannot go on; [`Error::BadRing`] when it
    /// holds what no card writes.
    #[inline]
    pub fn get(&mut self, max: usize) -> Result<RxBurst<'_>, Error> {
        let max = max.min(MAX_BURST);
        if max == 0 {
            return Ok(RxBurst { queue: self, count: 0, units: 0 });
        }
        let kept = self.kept;
        let (count, units) = match &mut self.source {
            Source::Medusa(queue) => {
                let count = queue.ready().saturating_sub(kept).min(max as u32);
                let (geometry, data, first) = (self.geometry, &self.data, queue.first().wrapping_add(kept));
                let headers = (kept..kept + count).map(|i| queue.header(i));
                place_medusa(&mut self.packets, headers, geometry, data, first, &self.link)?;
                (count, count)
            }
            Source::Sze(queue) => {
                queue.ready();
                let first = queue.position().wrapping_add(kept);
                let (mut at, mut count) = (first, 0);
                while count < max && queue.known_from(at) > 0 {
                    let packet = queue.packet(at).map_err(|error| self.link.bad(error))?;
                    self.packets[count] = place_sze(packet);
                    at = at.wrapping_add(packet.stride);
                    count += 1;
                }
                (count as u32, at.wrapping_sub(first))
            }
            Source::Calypte(queue) => {
                let count = queue.ready(kept.saturating_add(max as u32)).saturating_sub(kept).min(max as u32);
                let headers = (kept..kept + count).map(|i| queue.header(i));
                place_calypte(&mut self.packets, headers, self.geometry, &self.data, &self.link)?;
                (count, count)
            }
            Source::Dd(queue) => {
                let count = queue.ready(kept.saturating_add(max as u32)).saturating_sub(kept).min(max as u32);
                let Self { packets, stamps, geometry, data, link, .. } = self;
                place_dd(&mut packets[..count as usize], stamps, queue, kept, *geometry, data, link)?;
                (count, count)
            }
            Source::SharedCalypte(reader) => {
                let count = reader.hold(max as u32);
                self.lost += reader.take_lost();
                let headers = (kept..kept + count).map(|i| reader.calypte_header(i));
                place_calypte(&mut self.packets, headers, self.geometry, &self.data, &self.link)?;
                (count, count)
            }
            Source::SharedMedusa(reader) => {
                let count = reader.hold(max as u32);
                self.lost += reader.take_lost();
                let first = (reader.position().get() as u32).wrapping_add(kept);
                let (geometry, data) = (self.geometry, &self.data);
                let headers = (kept..kept + count).map(|i| reader.header(i));
                place_medusa(&mut self.packets, headers, geometry, data, first, &self.link)?;
                (count, count)
            }
            Source::SharedSze(reader) => {
                reader.hold(Cursor::MOST_HELD);
                self.lost += reader.take_lost();
                let first = (reader.position().get() as u32).wrapping_add(kept).wrapping_mul(8);
                let left = reader.held() - kept;
                place_stream(&mut self.packets[..max], &self.data, first, left, &self.link)?
            }
            Source::Mediated(mediated) => {
                // With a request, what is kept would be given back.
                if kept == 0 && mediated.read == mediated.held {
                    let want = if let Headers::Sze = mediated.headers { mediated.whole_ring } else { max as u32 };
                    self.lost += mediated.sync(&self.link, want)?;
                }
                let gone = mediated.read + kept;
                let (position, left) = (mediated.position + u64::from(gone), mediated.held - gone);
                let count = left.min(max as u32);
                let index = position.wrapping_sub(mediated.base) as u32;
                let (geometry, data) = (self.geometry, &self.data);
                match &mediated.headers {
                    Headers::Medusa(headers) => {
                        let headers = (0..count).map(|i| RxHeader::decode(headers.load(index.wrapping_add(i))));
                        place_medusa(&mut self.packets, headers, geometry, data, position as u32, &self.link)?;
                        (count, count)
                    }
                    Headers::Calypte(headers) => {
                        let headers = (0..count).map(|i| calypte::Header::decode(headers.load(index.wrapping_add(i))));
                        place_calypte(&mut self.packets, headers, geometry, data, &self.link)?;
                        (count, count)
                    }
                    Headers::Sze => {
                        let first = (position as u32).wrapping_mul(8);
                        place_stream(&mut self.packets[..max], data, first, left, &self.link)?
                    }
                }
            }
        };
        if count == 0
            && let Err(error) = self.link.check()
        {
            self.last_look(error)?;
        }
        Ok(RxBurst { queue: self, count: count as usize, units })
    }

    /// The card writes what it had before it says that it has stopped: what came between the look at the ring and the
    /// look at the state is there at the next call, and the error after it.
    #[cold]
    fn last_look(&mut self, error: Error) -> Result<(), Error> {
        let more = self.source.ready(self.kept.saturating_add(1)) > self.kept;
        // Of a ring that goes on without us nothing is ours any more.
        if more && matches!(error, Error::Faulted { .. } | Error::Gone) { Ok(()) } else { Err(error) }
    }

    /// Gives back every burst that was [kept](RxBurst::keep). Without one it does nothing.
    #[inline]
    pub fn release(&mut self) {
        if self.kept > 0 {
            self.put(0);
        }
    }

    /// Gives back what is kept and `units` behind it.
    #[inline(always)]
    fn put(&mut self, units: u32) {
        let units = core::mem::take(&mut self.kept) + units;
        let moved = match &mut self.source {
            Source::Medusa(queue) => queue.put(units),
            Source::Sze(queue) => queue.put(units),
            Source::Calypte(queue) => queue.put(units),
            Source::Dd(queue) => queue.put(units),
            Source::SharedMedusa(reader) | Source::SharedCalypte(reader) => {
                reader.release(units);
                true
            }
            Source::SharedSze(reader) => {
                // What was not handed out is given back unread, to be taken again.
                reader.release_partly(units);
                true
            }
            Source::Mediated(mediated) => {
                mediated.read += units;
                false
            }
        };
        if moved {
            // The worker may sleep because this ring was full.
            self.link.ring();
        }
    }

    /// Waits until packets are there, at most `timeout`; sleeps without missing one. `false`: none came.
    ///
    /// # Errors
    /// As [`RxQueue::get`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        if self.look()? {
            return Ok(true);
        }
        // What was given back and not announced yet may be all the room that the card waits for.
        let owed = match &mut self.source {
            Source::Medusa(queue) => queue.owes().then(|| queue.flush()),
            Source::Sze(queue) => queue.owes().then(|| queue.flush()),
            Source::Calypte(queue) => queue.owes().then(|| queue.flush()),
            Source::Dd(queue) => queue.owes().then(|| queue.flush()),
            Source::SharedMedusa(_) | Source::SharedSze(_) | Source::SharedCalypte(_) | Source::Mediated(_) => None,
        };
        if owed.is_some() {
            self.link.ring();
        }
        let Self { source, link, lost, kept, .. } = self;
        link.wait(timeout, || source.look(*kept, link, lost))
    }

    fn look(&mut self) -> Result<bool, Error> {
        self.source.look(self.kept, &self.link, &mut self.lost)
    }

    /// Packets (Medusa, Calypte, DD) or 8-byte units (SZE) that a shared queue has skipped because this program was too slow, since
    /// it was started.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Where we stand, in units of the queue.
    fn position(&self) -> u64 {
        match &self.source {
            Source::Medusa(queue) => self.base + u64::from(queue.first().wrapping_sub(self.base as u32)),
            Source::Sze(queue) => self.base + u64::from(queue.position()) / 8,
            Source::Calypte(queue) => self.base + u64::from(queue.first()),
            Source::Dd(queue) => self.base + u64::from(queue.first()),
            Source::SharedMedusa(reader) | Source::SharedSze(reader) | Source::SharedCalypte(reader) => {
                reader.position().get()
            }
            Source::Mediated(mediated) => mediated.position + u64::from(mediated.read),
        }
    }

    /// Stops the queue. Packets that were not taken are lost with it.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn stop(self) -> Result<IdleRx, Error> {
        let position = self.position();
        self.link.client.stop(self.link.handle, false, position)?;
        let Self { link, opened, mode, sharing, .. } = self;
        Ok(IdleRx { link, opened, mode, sharing })
    }

    /// Stops and closes the queue. Dropping it does the same and ignores errors.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn close(self) -> Result<(), Error> {
        self.stop()?.close()
    }
}

/// Finds the packets behind Medusa headers, and asks for their first cache lines.
#[inline(always)]
fn place_medusa(
    packets: &mut [Place],
    headers: impl Iterator<Item = RxHeader>,
    geometry: Geometry,
    data: &Window,
    first: u32,
    link: &Link,
) -> Result<(), Error> {
    for ((i, header), place) in (0u32..).zip(headers).zip(packets) {
        let at = geometry.buffer_at(first.wrapping_add(i));
        let frame_len = header.len.checked_sub(header.header_len.into());
        let Some(len) = frame_len.filter(|_| u32::from(header.len) <= geometry.size) else {
            return Err(link.bad(format!("a header with impossible sizes: {header:?}")));
        };
        if let Some(line) = data.span(at as usize, 1) {
            line.prefetch();
        }
        let header_len = header.header_len;
        *place = Place { at: at + u32::from(header_len), len, header_len, flags: header.meta, header_at: at };
    }
    Ok(())
}

/// Finds the packets that Calypte headers name, and asks for their first cache lines.
#[inline(always)]
fn place_calypte(
    packets: &mut [Place],
    headers: impl Iterator<Item = calypte::Header>,
    geometry: Geometry,
    data: &Window,
    link: &Link,
) -> Result<(), Error> {
    for (header, place) in headers.zip(packets) {
        let at = u32::from(header.at) * geometry.stride;
        let possible = at <= geometry.mask && u32::from(header.len) <= geometry.size;
        let frame_len = header.len.checked_sub(header.header_len.into());
        let Some(len) = frame_len.filter(|_| possible) else {
            return Err(link.bad(format!("a header with impossible sizes: {header:?}")));
        };
        if let Some(line) = data.span(at as usize, 1) {
            line.prefetch();
        }
        let header_len = header.header_len;
        *place = Place { at: at + u32::from(header_len), len, header_len, flags: header.flags, header_at: at };
    }
    Ok(())
}

/// Finds the frames that DD descriptors name, from the one `ahead` of the first on, and asks for their first cache lines.
#[inline(always)]
fn place_dd(
    packets: &mut [Place],
    stamps: &mut [[u8; header::LEN]],
    queue: &mut dd::FixedRx,
    ahead: u32,
    geometry: Geometry,
    data: &Window,
    link: &Link,
) -> Result<(), Error> {
    const SECOND: u64 = 1_000_000_000;
    for (ahead, place) in (ahead..).zip(packets) {
        let impossible = |received| link.bad(format!("a descriptor that no card writes: {received:?}"));
        let dd::Found { buffer, len, received } = queue.find(ahead).map_err(impossible)?;
        let at = geometry.buffer_at(buffer);
        if let Some(line) = data.span(at as usize, 1) {
            line.prefetch();
        }
        let mut stamp = (0, 0);
        if received.time != 0 {
            let (seconds, nanoseconds) = ((received.time / SECOND) as u32, (received.time % SECOND) as u32);
            let slot = queue.first().wrapping_add(ahead) & geometry.mask;
            stamps[slot as usize] = RxMetadata { port: received.port, seconds, nanoseconds }.encode();
            stamp = (header::LEN as u8, slot);
        }
        *place = Place { at, len, header_len: stamp.0, flags: 0, header_at: stamp.1 };
    }
    Ok(())
}

#[inline(always)]
fn place_sze(packet: sze::RxPacket) -> Place {
    // No protocol of the card has longer metadata than this; of what another card writes, the beginning.
    let header_len = packet.meta_len.min(u8::MAX.into()) as u8;
    Place { at: packet.frame_at, len: packet.frame_len, header_len, flags: 0, header_at: packet.meta_at }
}

/// Finds up to `packets.len()` packets in `units` of a stream. Returns how many, and how many units they take.
fn place_stream(
    packets: &mut [Place],
    data: &Window,
    first: u32,
    units: u32,
    link: &Link,
) -> Result<(u32, u32), Error> {
    let mut scanner = sze::Scanner::new(data, first, units * 8);
    let mut count = 0;
    for place in packets {
        match scanner.next_packet() {
            Ok(Some(packet)) => *place = place_sze(packet),
            Ok(None) => break,
            Err(error) => return Err(link.bad(error)),
        }
        count += 1;
    }
    Ok((count, scanner.passed() / 8))
}

/// Packets of an RX queue, which they borrow; given back when this is dropped, together with those kept before.
#[must_use = "dropping a burst gives its packets back unread"]
pub struct RxBurst<'q> {
    queue: &'q mut RxQueue,
    count: usize,
    units: u32,
}

/// One packet.
#[derive(Clone, Copy, Debug)]
pub struct RxPacket<'b> {
    /// The frame, without FCS.
    pub data: &'b [u8],
    /// Metadata before the frame, if the card gives any.
    pub header: &'b [u8],
    /// Bits 1:0: which kind of metadata.
    pub flags: u8,
}

impl RxBurst<'_> {
    /// Number of packets.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Leaves the packets where they are, to be given back by [`RxQueue::release`]: the next [`RxQueue::get`] goes on
    /// behind them. For C interfaces, whose pointers outlive a borrow. A mediated queue yields nothing more until then.
    #[inline(always)]
    pub fn keep(self) {
        self.queue.kept += self.units;
        core::mem::forget(self);
    }

    /// The packets in the order in which they arrived.
    #[inline(always)]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = RxPacket<'_>> {
        (0..self.count).map(|i| self.packet(i))
    }

    /// Packet `i`.
    ///
    /// # Panics
    /// When there are not so many.
    #[inline(always)]
    pub fn packet(&self, i: usize) -> RxPacket<'_> {
        let Place { at, len, header_len, flags, header_at } = self.queue.packets[..self.count][i];
        let slice = |at: u32, len: usize| self.queue.data.slice(at as usize, len).unwrap_or_default();
        let header = match self.queue.stamps.get(header_at as usize) {
            _ if header_len == 0 => &[],
            Some(stamp) => &stamp[..],
            None => slice(header_at, header_len.into()),
        };
        RxPacket { data: slice(at, len.into()), header, flags }
    }
}

impl Index<usize> for RxBurst<'_> {
    type Output = [u8];

    #[inline(always)]
    fn index(&self, i: usize) -> &[u8] {
        self.packet(i).data
    }
}

impl Drop for RxBurst<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.count > 0 {
            self.queue.put(self.units);
        }
    }
}
