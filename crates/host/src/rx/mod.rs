//! Receiving.
//!
//! * `idle`: before START. `source`: how packets are found and given back; `take`: a burst of them, by each kind of
//!   source; `place`: where they lie; `burst`: those in hand.

mod burst;
mod idle;
mod parts;
mod place;
mod source;
mod take;

pub use burst::{RxBurst, RxPacket};
pub use idle::IdleRx;
pub(crate) use source::{dd_ring, read_iovas};

use crate::MAX_BURST;
use crate::error::Error;
use crate::handle::QueueHandle;
use millrace_abi::header::{self};
use millrace_abi::queue::{Mode, QueueId, Sharing};
use millrace_dma::Window;
use parts::Parts;
use place::{Geometry, Place};
use rustix::fd::BorrowedFd;
use source::Source;
use std::time::Duration;
use take::Taking;

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
    // Whether the last burst with anything in it was one packet, and whether the last look found nothing.
    is_lone: bool,
    was_empty: bool,
    lost: u64,
    base: u64,
    handle: QueueHandle,
    opened: Parts,
    mode: Mode,
    sharing: Sharing,
}

impl RxQueue {
    /// Which queue this is.
    pub fn id(&self) -> QueueId {
        self.handle.queue
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
        let Self { source, packets, stamps, geometry, data, handle, lost, kept, .. } = self;
        let (geometry, kept, max) = (*geometry, *kept, max as u32);
        let (count, units) = source.take(Taking { packets, stamps, geometry, data, handle, lost, kept, max })?;
        if count == 0 {
            self.anticipate();
            self.was_empty = true;
            if let Err(error) = self.handle.check() {
                self.last_look(error)?;
            }
        } else {
            (self.is_lone, self.was_empty) = (count == 1, false);
        }
        Ok(RxBurst { queue: self, count: count as usize, units })
    }

    /// Nothing is there, and was not at the look before: asks for the line where the next packet will begin, so that it
    /// travels together with the word that says so. Only where packets come one at a time: a card that writes many would
    /// lose the line that it is writing.
    #[inline(always)]
    fn anticipate(&self) {
        if self.is_lone
            && self.was_empty
            && let Some(buffer) = self.source.expected(self.kept)
            && let Some(line) = self.data.span(self.geometry.buffer_at(buffer) as usize, 1)
        {
            line.prefetch();
        }
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
            self.handle.ring();
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
            self.handle.ring();
        }
        let Self { source, handle, lost, kept, .. } = self;
        handle.wait(timeout, || source.look(*kept, handle, lost))
    }

    /// Says that this program sleeps until the descriptor is readable, once, for programs that wait for other things too.
    /// `None`: packets are there. That the card has gone is not signalled.
    ///
    /// # Errors
    /// As [`RxQueue::get`].
    pub fn announce(&mut self) -> Result<Option<BorrowedFd<'_>>, Error> {
        // What was given back and not announced yet may be all the room that the card waits for.
        self.wait(Duration::ZERO)?;
        let Self { source, handle, lost, kept, .. } = self;
        handle.announce(|| source.look(*kept, handle, lost))
    }

    fn look(&mut self) -> Result<bool, Error> {
        self.source.look(self.kept, &self.handle, &mut self.lost)
    }

    /// Packets (Medusa, Calypte, DD) or 8-byte units (SZE) that a shared queue has skipped because this program was too
    /// slow, since it was started.
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
        self.handle.client.stop(self.handle.handle, false, position)?;
        let Self { handle, opened, mode, sharing, .. } = self;
        Ok(IdleRx { handle, opened, mode, sharing })
    }

    /// Stops and closes the queue. Dropping it does the same and ignores errors.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn close(self) -> Result<(), Error> {
        self.stop()?.close()
    }
}
