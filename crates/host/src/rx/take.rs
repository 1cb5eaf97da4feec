//! Taking a burst: each kind of source finds its own packets.

use super::place::{Geometry, Place, place_calypte, place_dd, place_medusa, place_stream, place_sze};
use super::source::{Headers, Mediated, Source};
use crate::error::Error;
use crate::handle::QueueHandle;
use millrace_abi::header;
use millrace_dma::Window;
use millrace_ring::cursor::Cursor;
use millrace_ring::medusa::{FixedRx, RxHeader};
use millrace_ring::shared::Reader;
use millrace_ring::{calypte, dd, sze};

/// What a burst is taken into, and what is needed to say where its packets lie.
pub(super) struct Taking<'q> {
    pub(super) packets: &'q mut [Place],
    pub(super) stamps: &'q mut [[u8; header::LEN]],
    pub(super) geometry: Geometry,
    pub(super) data: &'q Window,
    pub(super) handle: &'q QueueHandle,
    pub(super) lost: &'q mut u64,
    /// Units that are in hand already.
    pub(super) kept: u32,
    /// At most so many packets; `packets` has room for them.
    pub(super) max: u32,
}

/// Packets, and the units of the ring that they take.
pub(super) type Taken = (u32, u32);

impl Source {
    #[inline(always)]
    pub(super) fn take(&mut self, taking: Taking<'_>) -> Result<Taken, Error> {
        match self {
            Self::Medusa(queue) => taking.medusa(queue),
            Self::Sze(queue) => taking.sze(queue),
            Self::Calypte(queue) => taking.calypte(queue),
            Self::Dd(queue) => taking.dd(queue),
            Self::SharedMedusa(reader) => taking.shared_medusa(reader),
            Self::SharedSze(reader) => taking.shared_sze(reader),
            Self::SharedCalypte(reader) => taking.shared_calypte(reader),
            Self::Mediated(mediated) => taking.mediated(mediated),
        }
    }
}

impl Taking<'_> {
    #[inline(always)]
    fn medusa(self, queue: &mut FixedRx) -> Result<Taken, Error> {
        let count = queue.ready().saturating_sub(self.kept).min(self.max);
        let first = queue.first().wrapping_add(self.kept);
        let headers = (self.kept..self.kept + count).map(|i| queue.header(i));
        place_medusa(self.packets, headers, self.geometry, self.data, first, self.handle)?;
        Ok((count, count))
    }

    #[inline(always)]
    fn sze(self, queue: &mut sze::HostRx) -> Result<Taken, Error> {
        queue.ready();
        let first = queue.position().wrapping_add(self.kept);
        let (mut at, mut count) = (first, 0);
        while count < self.max && queue.known_from(at) > 0 {
            let packet = queue.packet(at).map_err(|error| self.handle.bad(error))?;
            self.packets[count as usize] = place_sze(packet);
            at = at.wrapping_add(packet.stride);
            count += 1;
        }
        Ok((count, at.wrapping_sub(first)))
    }

    #[inline(always)]
    fn calypte(self, queue: &mut calypte::HostRx) -> Result<Taken, Error> {
        let count = queue.ready(self.kept.saturating_add(self.max)).saturating_sub(self.kept).min(self.max);
        let headers = (self.kept..self.kept + count).map(|i| queue.header(i));
        place_calypte(self.packets, headers, self.geometry, self.data, self.handle)?;
        Ok((count, count))
    }

    #[inline(always)]
    fn dd(self, queue: &mut dd::FixedRx) -> Result<Taken, Error> {
        let count = queue.ready(self.kept.saturating_add(self.max)).saturating_sub(self.kept).min(self.max);
        let packets = &mut self.packets[..count as usize];
        place_dd(packets, self.stamps, queue, self.kept, self.geometry, self.data, self.handle)?;
        Ok((count, count))
    }

    #[inline(always)]
    fn shared_medusa(self, reader: &mut Reader) -> Result<Taken, Error> {
        let count = reader.hold(self.max);
        *self.lost += reader.take_lost();
        let first = (reader.position().get() as u32).wrapping_add(self.kept);
        let headers = (self.kept..self.kept + count).map(|i| reader.header(i));
        place_medusa(self.packets, headers, self.geometry, self.data, first, self.handle)?;
        Ok((count, count))
    }

    #[inline(always)]
    fn shared_sze(self, reader: &mut Reader) -> Result<Taken, Error> {
        reader.hold(Cursor::MOST_HELD);
        *self.lost += reader.take_lost();
        let first = (reader.position().get() as u32).wrapping_add(self.kept).wrapping_mul(8);
        let left = reader.held() - self.kept;
        self.stream(first, left)
    }

    #[inline(always)]
    fn shared_calypte(self, reader: &mut Reader) -> Result<Taken, Error> {
        let count = reader.hold(self.max);
        *self.lost += reader.take_lost();
        let headers = (self.kept..self.kept + count).map(|i| reader.calypte_header(i));
        place_calypte(self.packets, headers, self.geometry, self.data, self.handle)?;
        Ok((count, count))
    }

    #[inline(always)]
    fn mediated(self, mediated: &mut Mediated) -> Result<Taken, Error> {
        // With a request, what is kept would be given back.
        if self.kept == 0 && mediated.read == mediated.held {
            let want = if let Headers::Sze = mediated.headers { mediated.whole_ring } else { self.max };
            *self.lost += mediated.sync(self.handle, want)?;
        }
        let gone = mediated.read + self.kept;
        let (position, left) = (mediated.position + u64::from(gone), mediated.held - gone);
        let count = left.min(self.max);
        let index = position.wrapping_sub(mediated.base) as u32;
        let slots = (0..count).map(|i| index.wrapping_add(i));
        match &mediated.headers {
            Headers::Medusa(headers) => {
                let headers = slots.map(|i| RxHeader::decode(headers.load(i)));
                place_medusa(self.packets, headers, self.geometry, self.data, position as u32, self.handle)?;
            }
            Headers::Calypte(headers) => {
                let headers = slots.map(|i| calypte::Header::decode(headers.load(i)));
                place_calypte(self.packets, headers, self.geometry, self.data, self.handle)?;
            }
            Headers::Sze => return self.stream((position as u32).wrapping_mul(8), left),
        }
        Ok((count, count))
    }

    /// What lies in `units` of a stream from `first` on.
    #[inline(always)]
    fn stream(self, first: u32, units: u32) -> Result<Taken, Error> {
        place_stream(&mut self.packets[..self.max as usize], self.data, first, units, self.handle)
    }
}
