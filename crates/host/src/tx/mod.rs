//! Sending.
//!
//! * `idle`: before START. `ring`: what differs between engines and modes; `room`: had for a burst; `burst`: in hand;
//!   `post`: on its way; `departures`: gone, and when.

mod burst;
mod departures;
mod idle;
mod post;
mod ring;
mod room;

pub use burst::TxBurst;
pub use departures::{Departure, Departures};
pub use idle::IdleTx;

use crate::MAX_BURST;
use crate::error::{Error, FrameLimit};
use millrace_abi::message::Layout;
use millrace_abi::queue::QueueId;
use millrace_dma::Window;
use ring::{Ring, Slot, stride};
use std::time::Duration;

/// Packets put back and not flushed after which the doorbell moves by itself.
const DEFERRED: u32 = 64;
/// The same in mediated mode, where it costs a request to the driver.
const DEFERRED_MEDIATED: usize = 512;

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
        self.idle.handle.queue
    }

    /// Longest frame that can be sent here, in bytes without FCS.
    pub fn longest(&self) -> usize {
        usize::from(self.longest)
    }

    /// Shortest frame that is sent, in bytes without FCS; shorter ones are padded with zeros.
    pub fn shortest(&self) -> usize {
        usize::from(self.shortest)
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
            let lengths: Vec<u16> = (0..MAX_BURST).map(length).collect();
            return Err(Error::BurstTooLong { queue: self.id(), count, fits: self.fits(&lengths) });
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
            self.idle.handle.check()?;
            return Ok(None);
        };
        self.place(count, first, shortest < self.shortest);
        Ok(Some(TxBurst { queue: self, count }))
    }

    #[cold]
    fn too_long(&self, len: u16) -> Error {
        self.frame_too_long(usize::from(len))
    }

    /// What there is to say of a frame that is longer than [`TxQueue::longest`].
    pub fn frame_too_long(&self, len: usize) -> Error {
        let limit = match self.longest == self.idle.handle.client.frame_limits().1 {
            true => FrameLimit::Card,
            false if self.is_stream() => FrameLimit::Ring,
            false => FrameLimit::Buffers,
        };
        Error::FrameTooLong { queue: self.id(), len, max: usize::from(self.longest), limit }
    }

    /// Has the card count frames that this program drops because they are longer than [`TxQueue::longest`], where whoever
    /// looks for them will look: under `too-long` in the statistics of this queue. At most [`MAX_BURST`] at once.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn count_too_long(&self, frames: u32) -> Result<(), Error> {
        let handle = &self.idle.handle;
        Ok(handle.client.count_too_long(handle.handle, frames)?)
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
            self.idle.handle.ring();
        }
        Ok(())
    }

    /// Sends everything that was put back or [kept](TxBurst::keep).
    ///
    /// # Errors
    /// [`Error::Faulted`], [`Error::Gone`] when the queue cannot go on; [`Error::Client`] in mediated mode.
    #[inline]
    pub fn flush(&mut self) -> Result<(), Error> {
        self.flush_ring()?;
        // In the cache line that was just looked at: costs nothing next to the doorbell.
        self.idle.handle.check()
    }

    /// Waits until the card has taken at least a quarter of the ring, or everything, at most `timeout`; sleeps without
    /// missing it.
    ///
    /// # Errors
    /// As [`TxQueue::get`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        self.flush()?;
        let Self { ring, idle, mask, unit, .. } = self;
        let handle = &idle.handle;
        let quarter = *mask / 4;
        match ring {
            Ring::Medusa(queue) => handle.wait(timeout, || Ok(queue.available() > quarter)),
            Ring::Sze(queue) => handle.wait(timeout, || Ok(queue.available() > quarter)),
            Ring::Calypte(queue) => handle.wait(timeout, || Ok(queue.available() > quarter)),
            Ring::Dd(queue) => handle.wait(timeout, || Ok(queue.available() > quarter)),
            Ring::Mediated(_) => {
                let want = if let Layout::Medusa { .. } = idle.layout { quarter } else { quarter / *unit };
                handle.wait(timeout, || {
                    let (_, units) = handle.client.tx_sync(handle.handle, Vec::new(), want)?;
                    if units > 0 {
                        handle.client.tx_sync(handle.handle, Vec::new(), 0)?;
                    }
                    Ok(units >= want)
                })
            }
        }
    }

    /// Has the card say when frames leave this queue, until what this returns is dropped. Of queues in direct mode that this program
    /// has for itself, whose frames go straight to what is plugged into their port; of others nothing is said.
    ///
    /// # Errors
    /// [`Error::BadRing`].
    pub fn departures(&self) -> Result<Departures, Error> {
        Departures::new(self.idle.handle.page()).map_err(|error| self.idle.handle.bad(error))
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
        let flushed = if self.idle.handle.check().is_ok() { self.flush_ring() } else { Ok(()) };
        self.idle.handle.drain(self.position())?;
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
