//! Sending.

use crate::MAX_BURST;
use crate::error::Error;
use crate::link::Link;
use crate::rx::{dd_ring, read_iovas};
use core::ops::{Index, IndexMut};
use millrace_abi::message::{Layout, MAX_COMMIT};
use millrace_abi::queue::{Mode, QueueId};
use millrace_dma::{Iova, Region, Window};
use millrace_driver::{Client, Opened};
use millrace_ring::medusa::{FixedTx, HostTx};
use millrace_ring::{calypte, dd, sze};
use std::sync::Arc;
use std::time::Duration;

/// Packets put back and not flushed after which the doorbell moves by itself.
const DEFERRED: u32 = 64;
/// The same in mediated mode, where it costs a request to the driver.
const DEFERRED_MEDIATED: usize = 512;

/// A TX queue that is open and not started.
pub struct IdleTx {
    link: Link,
    layout: Layout,
    status: Region,
    data: Region,
    descriptors: Option<Region>,
    mode: Mode,
}

impl IdleTx {
    pub(crate) fn new(client: Arc<Client>, queue: QueueId, mode: Mode, opened: Opened) -> Result<Self, Error> {
        let Opened { handle, layout, control, kick, status, data, descriptors, .. } = opened;
        let link = Link::new(client, queue, handle, control, kick)?;
        let data = data.ok_or_else(|| link.bad("the driver sent no memory for packets"))?;
        Ok(Self { link, layout, status, data, descriptors, mode })
    }

    /// Which queue this is.
    pub fn id(&self) -> QueueId {
        self.link.queue
    }

    /// Starts the queue.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn start(self) -> Result<TxQueue, Error> {
        let (_, base) = self.link.client.start(self.link.handle)?;
        let link = &self.link;
        let ring = match self.mode {
            Mode::Direct => self.own(base)?,
            Mode::Mediated => Ring::Mediated(Mediated::default()),
        };
        let (frame_min, frame_max) = link.client.frame_limits();
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
        let link = &self.link;
        if let Layout::Dd { entries, data_at, stride, .. } = self.layout {
            let host = dd::HostTx::new(dd_ring(link, &self.status, entries)?, link.doorbell()?);
            return Ok(Ring::Dd(Box::new(dd::FixedTx::new(host, Iova::new(data_at), stride))));
        }
        let update = self.status.window().word64(0).map_err(|error| link.bad(error))?;
        let none = || link.bad("no ring of a power of two");
        match self.layout {
            Layout::Medusa { entries, iovas_at, .. } => {
                let region = self.descriptors.as_ref().ok_or_else(|| link.bad("the driver sent no descriptor ring"))?;
                let descriptors = region.window().slots64(0, entries).map_err(|error| link.bad(error))?;
                let buffers = read_iovas(&self.status, iovas_at, entries).map_err(|error| link.bad(error))?;
                let host = HostTx::new(descriptors, link.doorbell()?, update);
                let queue = host.and_then(|host| FixedTx::new(host, buffers, base as u32)).ok_or_else(none)?;
                Ok(Ring::Medusa(Box::new(queue)))
            }
            Layout::Sze { .. } => {
                let ring = self.data.window().clone();
                let queue = sze::HostTx::new(ring, (base as u32).wrapping_mul(8), link.doorbell()?, update);
                Ok(Ring::Sze(Box::new(queue.ok_or_else(none)?)))
            }
            Layout::Dd { .. } => Err(none()),
            Layout::Calypte { headers, ring, .. } => {
                let region = self.descriptors.as_ref().ok_or_else(|| link.bad("the driver sent no header ring"))?;
                let headers = region.window().slots64(0, headers).map_err(|error| link.bad(error))?;
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
        self.link.close()
    }
}

/// Who writes the ring.
enum Ring {
    Medusa(Box<FixedTx>),
    Sze(Box<sze::HostTx>),
    Calypte(Box<calypte::HostTx>),
    Dd(Box<dd::FixedTx>),
    Mediated(Mediated),
}

/// Mediated mode: what we may write while we have the lock.
#[derive(Default)]
struct Mediated {
    // Lengths of the packets taken under the lock and not committed.
    pending: Vec<u16>,
    // Units that we may still take, and where they begin.
    granted: u32,
    position: u64,
}

/// One packet of the burst in hand.
#[derive(Clone, Copy, Default)]
struct Slot {
    at: u32,
    // As the program asked for, and as it is sent.
    len: u16,
    padded: u16,
}

/// A TX queue that runs.
pub struct TxQueue {
    ring: Ring,
    data: Window,
    mask: u32,
    stride: u32,
    // Of a stream: a packet takes whole units of so many bytes, and has so many before its frame.
    unit: u32,
    lead: u32,
    shortest: u16,
    longest: u16,
    slots: Box<[Slot]>,
    // Packets in the ring that their writer has not put back.
    kept: u32,
    // Packets put back since the doorbell moved; Medusa and DD only, Calypte counts them itself.
    deferred: u32,
    base: u64,
    idle: IdleTx,
}

impl TxQueue {
    /// Which queue this is.
    pub fn id(&self) -> QueueId {
        self.idle.link.queue
    }

    /// Longest frame that can be sent here, in bytes without FCS.
    pub fn longest(&self) -> usize {
        usize::from(self.longest)
    }

    /// How many packets of these lengths, from the first on, a queue with nothing in it has room for: a burst of more
    /// can never be had at once.
    #[inline]
    pub fn fits(&self, lengths: &[u16]) -> usize {
        let most = lengths.len().min(MAX_BURST);
        let room = match &self.ring {
            Ring::Medusa(queue) => return most.min(queue.most() as usize),
            Ring::Dd(queue) => return most.min(queue.most() as usize),
            Ring::Mediated(_) if !self.is_stream() => return most.min(self.most_mediated() as usize),
            Ring::Sze(_) => self.mask - 7,
            Ring::Calypte(queue) => queue.most(),
            Ring::Mediated(_) => self.most_mediated() * self.unit,
        };
        if most as u64 * u64::from(self.bytes_of(self.longest)) <= u64::from(room) {
            return most;
        }
        let mut bytes = 0u32;
        let too_much = |&len: &u16| {
            bytes = bytes.saturating_add(self.bytes_of(len));
            bytes > room
        };
        lengths[..most].iter().position(too_much).unwrap_or(most)
    }

    /// Bytes of a stream that a frame takes.
    #[inline(always)]
    fn bytes_of(&self, len: u16) -> u32 {
        stride(len.max(self.shortest), self.unit, self.lead)
    }

    /// Takes one slot per length, all or none: `None` means that there is no room now. What is in a slot is what lay
    /// there before; a frame shorter than the card sends is padded with zeros behind what is written.
    ///
    /// Frames leave in order after [`TxBurst::put`] and [`TxQueue::flush`].
    ///
    /// # Errors
    /// [`Error::FrameTooLong`], [`Error::BurstTooLong`]; [`Error::Faulted`], [`Error::Gone`] when the queue cannot go
    /// on.
    #[inline]
    pub fn get(&mut self, lengths: &[u16]) -> Result<Option<TxBurst<'_>>, Error> {
        self.get_each(lengths.len(), |i| lengths[i])
    }

    /// As [`TxQueue::get`] for `count` slots, whose lengths `length` tells, asked once for each in order.
    ///
    /// # Errors
    /// As [`TxQueue::get`].
    #[inline]
    pub fn get_each(
        &mut self,
        count: usize,
        mut length: impl FnMut(usize) -> u16,
    ) -> Result<Option<TxBurst<'_>>, Error> {
        if count > MAX_BURST {
            return Err(Error::BurstTooLong(count));
        }
        let (mut bytes, mut longest, mut shortest) = (0u32, 0, u16::MAX);
        let (unit, lead) = (self.unit, self.lead);
        for (i, slot) in self.slots[..count].iter_mut().enumerate() {
            let len = length(i);
            let padded = len.max(self.shortest);
            *slot = Slot { at: bytes, len, padded };
            bytes += stride(padded, unit, lead);
            (longest, shortest) = (longest.max(len), shortest.min(len));
        }
        if longest > self.longest {
            return Err(self.too_long(longest));
        }
        let Some(first) = self.reserve(count as u32, bytes)? else {
            self.idle.link.check()?;
            return Ok(None);
        };
        self.place(count, first, shortest < self.shortest);
        Ok(Some(TxBurst { queue: self, count }))
    }

    #[cold]
    fn too_long(&self, len: u16) -> Error {
        Error::FrameTooLong { queue: self.id(), len: usize::from(len), max: usize::from(self.longest) }
    }

    /// Finds room for `count` packets that take `bytes` of a stream: number of the first buffer, or first byte.
    #[inline(always)]
    fn reserve(&mut self, count: u32, bytes: u32) -> Result<Option<u32>, Error> {
        Ok(match &mut self.ring {
            Ring::Medusa(queue) => {
                if count > queue.most() {
                    return Err(Error::BurstTooLong(count as usize));
                }
                queue.take(count)
            }
            Ring::Dd(queue) => {
                if count > queue.most() {
                    return Err(Error::BurstTooLong(count as usize));
                }
                queue.take(count)
            }
            Ring::Sze(queue) => {
                if bytes > self.mask - 7 {
                    return Err(Error::BurstTooLong(count as usize));
                }
                queue.has_room(bytes).then(|| queue.frame_at(queue.position()) as u32 - 8)
            }
            Ring::Calypte(queue) => {
                if bytes > queue.most() {
                    return Err(Error::BurstTooLong(count as usize));
                }
                queue.has_room(bytes).then(|| queue.frame_at())
            }
            Ring::Mediated(_) => self.reserve_mediated(count, bytes)?,
        })
    }

    fn reserve_mediated(&mut self, count: u32, bytes: u32) -> Result<Option<u32>, Error> {
        let (units, most) = (self.units(count, bytes), self.most_mediated());
        if units > most {
            return Err(Error::BurstTooLong(count as usize));
        }
        let Ring::Mediated(mediated) = &mut self.ring else { return Ok(None) };
        if mediated.granted < units || mediated.pending.len() + count as usize > MAX_COMMIT {
            // A request commits everything, and what is kept has not been written yet.
            if self.kept > 0 || !self.acquire(units, most)? {
                return Ok(None);
            }
        }
        let stream = self.is_stream();
        let Ring::Mediated(mediated) = &mut self.ring else { return Ok(None) };
        let position = mediated.position;
        mediated.position += u64::from(units);
        mediated.granted -= units;
        Ok(Some(if stream { (position as u32).wrapping_mul(self.unit) & self.mask } else { position as u32 }))
    }

    /// Mediated mode: takes the lock and room for some more bursts of this size; all or none.
    fn acquire(&mut self, units: u32, most: u32) -> Result<bool, Error> {
        self.sync(units.max(most / 4))?;
        let Ring::Mediated(mediated) = &mut self.ring else { return Ok(false) };
        if mediated.granted >= units {
            return Ok(true);
        }
        if mediated.granted > 0 {
            self.sync(0)?;
        }
        Ok(false)
    }

    fn is_stream(&self) -> bool {
        !matches!(self.idle.layout, Layout::Medusa { .. } | Layout::Dd { .. })
    }

    /// Packets as the driver counts them: `bytes` of a stream in its units.
    fn units(&self, count: u32, bytes: u32) -> u32 {
        if self.is_stream() { bytes / self.unit } else { count }
    }

    /// Mediated mode: most units at once, a little less than the whole ring, which always keeps something empty.
    fn most_mediated(&self) -> u32 {
        if self.is_stream() { self.mask / self.unit - 1 } else { self.mask - 2 }
    }

    /// Mediated mode: commits what is pending and asks for `want` units.
    fn sync(&mut self, want: u32) -> Result<(), Error> {
        let Ring::Mediated(mediated) = &mut self.ring else { return Ok(()) };
        if want == 0 && mediated.granted == 0 && mediated.pending.is_empty() {
            return Ok(());
        }
        let commit = core::mem::take(&mut mediated.pending);
        mediated.granted = 0;
        let link = &self.idle.link;
        (mediated.position, mediated.granted) = link.client.tx_sync(link.handle, commit, want)?;
        Ok(())
    }

    /// Turns running offsets into places.
    #[inline(always)]
    fn place(&mut self, count: usize, first: u32, short: bool) {
        let (mask, stride) = (self.mask, self.stride);
        let slots = &mut self.slots[..count];
        match self.idle.layout {
            Layout::Sze { .. } => {
                for slot in slots {
                    // Eight bytes of header and alignment come before the frame.
                    slot.at = (first.wrapping_add(slot.at) & mask) + 8;
                }
            }
            Layout::Medusa { .. } | Layout::Dd { .. } => {
                for (i, slot) in slots.iter_mut().enumerate() {
                    slot.at = (first.wrapping_add(i as u32) & mask) * stride;
                    // The card read this line last; all lines of the burst are asked for before the first is written.
                    if let Some(line) = self.data.span_mut(slot.at as usize, 1) {
                        line.prefetch();
                    }
                }
            }
            Layout::Calypte { .. } => {
                for slot in slots {
                    slot.at = first.wrapping_add(slot.at) & mask;
                    // As above.
                    if let Some(line) = self.data.span_mut(slot.at as usize, 1) {
                        line.prefetch();
                    }
                }
            }
        }
        if short {
            self.pad(count);
        }
    }

    /// Clears what lies behind frames that are shorter than the card sends.
    #[cold]
    fn pad(&mut self, count: usize) {
        for slot in self.slots[..count].iter().filter(|slot| slot.len < slot.padded) {
            let (at, len) = (slot.at + u32::from(slot.len), slot.padded - slot.len);
            if let Some(pad) = self.data.slice_mut(at as usize, usize::from(len)) {
                pad.fill(0);
            }
        }
    }

    /// Writes the packets in hand into the ring, where the card does not see them before the doorbell moves.
    #[inline(always)]
    fn post(&mut self, count: usize) {
        self.kept += count as u32;
        let slots = &self.slots[..count];
        match &mut self.ring {
            Ring::Medusa(queue) => queue.post_all(slots.iter().map(|slot| slot.padded)),
            Ring::Sze(queue) => slots.iter().for_each(|slot| queue.push(slot.padded)),
            Ring::Calypte(queue) => slots.iter().for_each(|slot| queue.push(slot.padded)),
            Ring::Dd(queue) => slots.iter().for_each(|slot| {
                // As many as were taken, so the ring has room for them.
                queue.post(slot.padded);
            }),
            Ring::Mediated(mediated) => mediated.pending.extend(slots.iter().map(|slot| slot.padded)),
        }
    }

    /// Puts back every burst that was [kept](TxBurst::keep): their slots have been written. They will be sent, at the
    /// latest at the next [`TxQueue::flush`].
    ///
    /// # Errors
    /// [`Error::Client`] in mediated mode.
    #[inline]
    pub fn commit(&mut self) -> Result<(), Error> {
        let kept = core::mem::take(&mut self.kept);
        let moved = match &mut self.ring {
            Ring::Medusa(queue) => {
                self.deferred += kept;
                let far = self.deferred >= DEFERRED;
                if far {
                    queue.flush();
                    self.deferred = 0;
                }
                far
            }
            Ring::Dd(queue) => {
                self.deferred += kept;
                let far = self.deferred >= DEFERRED;
                if far {
                    queue.flush();
                    self.deferred = 0;
                }
                far
            }
            Ring::Sze(queue) => queue.flush_if_far(),
            Ring::Calypte(queue) => queue.flush_if_far(),
            Ring::Mediated(mediated) if mediated.pending.len() >= DEFERRED_MEDIATED => return self.sync(0),
            Ring::Mediated(_) => false,
        };
        if moved {
            self.idle.link.ring();
        }
        Ok(())
    }

    /// Gives the `count` slots in hand back unsent.
    #[cold]
    fn untake(&mut self, count: usize) {
        let bytes = self.slots[..count].iter().map(|slot| stride(slot.padded, self.unit, self.lead)).sum();
        let units = self.units(count as u32, bytes);
        match &mut self.ring {
            Ring::Medusa(queue) => queue.untake(),
            Ring::Dd(queue) => queue.untake(),
            Ring::Sze(_) | Ring::Calypte(_) => {}
            Ring::Mediated(mediated) => {
                mediated.position -= u64::from(units);
                mediated.granted += units;
                if mediated.pending.is_empty() {
                    // The lock goes back; what can go wrong shows at the next call.
                    drop(self.sync(0));
                }
            }
        }
    }

    /// Sends everything that was put back or [kept](TxBurst::keep).
    ///
    /// # Errors
    /// [`Error::Faulted`], [`Error::Gone`] when the queue cannot go on; [`Error::Client`] in mediated mode.
    #[inline]
    pub fn flush(&mut self) -> Result<(), Error> {
        self.flush_ring()?;
        // In the cache line that was just looked at: costs nothing next to the doorbell.
        self.idle.link.check()
    }

    #[inline(always)]
    fn flush_ring(&mut self) -> Result<(), Error> {
        match &mut self.ring {
            Ring::Medusa(queue) => queue.flush(),
            Ring::Sze(queue) => queue.flush(),
            Ring::Calypte(queue) => queue.flush(),
            Ring::Dd(queue) => queue.flush(),
            Ring::Mediated(_) => {
                self.kept = 0;
                return self.sync(0);
            }
        }
        (self.kept, self.deferred) = (0, 0);
        self.idle.link.ring();
        self.prefetch_next();
        Ok(())
    }

    /// Asks to own the line where the next packet will begin, while nobody waits for it.
    #[inline(always)]
    fn prefetch_next(&self) {
        let next = match &self.ring {
            Ring::Medusa(queue) => (queue.next() & self.mask) * self.stride,
            Ring::Dd(queue) => (queue.next() & self.mask) * self.stride,
            Ring::Calypte(queue) => queue.frame_at(),
            Ring::Sze(_) | Ring::Mediated(_) => return,
        };
        if let Some(line) = self.data.span_mut(next as usize, 1) {
            line.prefetch();
        }
    }

    /// Waits until the card has taken at least a quarter of the ring, or everything, at most `timeout`; sleeps without
    /// missing it.
    ///
    /// # Errors
    /// As [`TxQueue::get`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        self.flush()?;
        let Self { ring, idle, mask, unit, .. } = self;
        let link = &idle.link;
        let quarter = *mask / 4;
        match ring {
            Ring::Medusa(queue) => link.wait(timeout, || Ok(queue.available() > quarter)),
            Ring::Sze(queue) => link.wait(timeout, || Ok(queue.available() > quarter)),
            Ring::Calypte(queue) => link.wait(timeout, || Ok(queue.available() > quarter)),
            Ring::Dd(queue) => link.wait(timeout, || Ok(queue.available() > quarter)),
            Ring::Mediated(_) => {
                let want = if let Layout::Medusa { .. } = idle.layout { quarter } else { quarter / *unit };
                link.wait(timeout, || {
                    let (_, units) = link.client.tx_sync(link.handle, Vec::new(), want)?;
                    if units > 0 {
                        link.client.tx_sync(link.handle, Vec::new(), 0)?;
                    }
                    Ok(units >= want)
                })
            }
        }
    }

    /// Where we stand, in units of the queue.
    fn position(&self) -> u64 {
        match &self.ring {
            Ring::Medusa(queue) => self.base + u64::from(queue.next().wrapping_sub(self.base as u32)),
            Ring::Sze(queue) => self.base + u64::from(queue.position()) / 8,
            Ring::Calypte(queue) => self.base + u64::from(queue.position() / self.unit),
            Ring::Dd(queue) => self.base + u64::from(queue.next()),
            Ring::Mediated(_) => self.base,
        }
    }

    /// Sends what is left and stops the queue once the card has taken it.
    ///
    /// # Errors
    /// [`Error::NotDrained`] when the card did not take everything within a second; the queue is closed then.
    pub fn stop(mut self) -> Result<IdleTx, Error> {
        // What a queue that has stopped already holds is lost; its owner stops it to start it again.
        let flushed = if self.idle.link.check().is_ok() { self.flush_ring() } else { Ok(()) };
        self.idle.link.drain(self.position())?;
        flushed?;
        Ok(self.idle)
    }

    /// Sends what is left, stops and closes the queue. Dropping it closes it at once and ignores errors.
    ///
    /// # Errors
    /// As [`TxQueue::stop`].
    pub fn close(self) -> Result<(), Error> {
        self.stop()?.close()
    }
}

/// Bytes of a stream that a frame takes.
#[inline(always)]
const fn stride(len: u16, unit: u32, lead: u32) -> u32 {
    (lead + len as u32 + unit - 1) & !(unit - 1)
}

/// Slots of a TX queue, which they borrow. Nothing is sent unless they are put back with [`TxBurst::put`].
#[must_use = "nothing is sent before `put`"]
pub struct TxBurst<'q> {
    queue: &'q mut TxQueue,
    count: usize,
}

impl TxBurst<'_> {
    /// Number of slots.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All slots have been written: they will be sent, at the latest at the next [`TxQueue::flush`]. What can go wrong
    /// in mediated mode shows there.
    #[inline(always)]
    pub fn put(self) {
        self.queue.post(self.count);
        let _ = self.queue.commit();
        core::mem::forget(self);
    }

    /// Leaves the slots to be written later: [`TxQueue::commit`] and [`TxQueue::flush`] send them, the next
    /// [`TxQueue::get`] goes on behind them. For C interfaces, whose pointers outlive a borrow.
    #[inline(always)]
    pub fn keep(self) {
        self.queue.post(self.count);
        core::mem::forget(self);
    }

    /// As [`TxBurst::put`] and [`TxQueue::flush`] after it.
    ///
    /// # Errors
    /// [`Error::Client`] in mediated mode.
    #[inline(always)]
    pub fn send(self) -> Result<(), Error> {
        self.queue.post(self.count);
        let flushed = self.queue.flush();
        core::mem::forget(self);
        flushed
    }
}

impl Drop for TxBurst<'_> {
    fn drop(&mut self) {
        self.queue.untake(self.count);
    }
}

impl Index<usize> for TxBurst<'_> {
    type Output = [u8];

    #[inline(always)]
    fn index(&self, i: usize) -> &[u8] {
        let Slot { at, len, .. } = self.queue.slots[..self.count][i];
        self.queue.data.slice(at as usize, usize::from(len)).unwrap_or_default()
    }
}

impl IndexMut<usize> for TxBurst<'_> {
    #[inline(always)]
    fn index_mut(&mut self, i: usize) -> &mut [u8] {
        let Slot { at, len, .. } = self.queue.slots[..self.count][i];
        self.queue.data.slice_mut(at as usize, usize::from(len)).unwrap_or_default()
    }
}
