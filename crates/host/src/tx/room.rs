//! Room for a burst.

use super::TxQueue;
use super::ring::Ring;
use crate::error::Error;
use millrace_abi::message::{Layout, MAX_COMMIT};

impl TxQueue {
    /// Finds room for `count` packets that take `bytes` of a stream: number of the first buffer, or first byte.
    #[inline(always)]
    pub(super) fn reserve(&mut self, count: u32, bytes: u32) -> Result<Option<u32>, Error> {
        Ok(match &mut self.ring {
            Ring::Medusa(queue) => {
                if count > queue.most() {
                    return Err(self.too_many(count as usize));
                }
                queue.take(count)
            }
            Ring::Dd(queue) => {
                if count > queue.most() {
                    return Err(self.too_many(count as usize));
                }
                queue.take(count)
            }
            Ring::Sze(queue) => {
                if bytes > self.mask - 7 {
                    return Err(self.too_many(count as usize));
                }
                queue.has_room(bytes).then(|| queue.frame_at(queue.position()) as u32 - 8)
            }
            Ring::Calypte(queue) => {
                if bytes > queue.most() {
                    return Err(self.too_many(count as usize));
                }
                queue.has_room(bytes).then(|| queue.frame_at())
            }
            Ring::Mediated(_) => self.reserve_mediated(count, bytes)?,
        })
    }

    pub(super) fn reserve_mediated(&mut self, count: u32, bytes: u32) -> Result<Option<u32>, Error> {
        let (units, most) = (self.units(count, bytes), self.most_mediated());
        if units > most {
            return Err(self.too_many(count as usize));
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
    pub(super) fn acquire(&mut self, units: u32, most: u32) -> Result<bool, Error> {
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

    /// The burst whose lengths are in the first slots never fits at once.
    #[cold]
    fn too_many(&self, count: usize) -> Error {
        let lengths: Vec<u16> = self.slots[..count].iter().map(|slot| slot.len).collect();
        Error::BurstTooLong { queue: self.id(), count, fits: self.fits(&lengths) }
    }

    pub(super) fn is_stream(&self) -> bool {
        !matches!(self.idle.layout, Layout::Medusa { .. } | Layout::Dd { .. })
    }

    /// Packets as the driver counts them: `bytes` of a stream in its units.
    pub(super) fn units(&self, count: u32, bytes: u32) -> u32 {
        if self.is_stream() { bytes / self.unit } else { count }
    }

    /// Mediated mode: most units at once, a little less than the whole ring, which always keeps something empty.
    pub(super) fn most_mediated(&self) -> u32 {
        if self.is_stream() { self.mask / self.unit - 1 } else { self.mask - 2 }
    }

    /// Mediated mode: commits what is pending and asks for `want` units.
    pub(super) fn sync(&mut self, want: u32) -> Result<(), Error> {
        let Ring::Mediated(mediated) = &mut self.ring else { return Ok(()) };
        if want == 0 && mediated.granted == 0 && mediated.pending.is_empty() {
            return Ok(());
        }
        let commit = core::mem::take(&mut mediated.pending);
        mediated.granted = 0;
        let handle = &self.idle.handle;
        (mediated.position, mediated.granted) = handle.client.tx_sync(handle.handle, commit, want)?;
        Ok(())
    }
}
