//! Frames of a burst on their way: placed, posted, taken back, shown to the card.

use super::TxQueue;
use super::ring::{Ring, stride};
use crate::error::Error;
use millrace_abi::message::Layout;

impl TxQueue {
    /// Turns running offsets into places.
    #[inline(always)]
    pub(super) fn place(&mut self, count: usize, first: u32, short: bool) {
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
    pub(super) fn pad(&mut self, count: usize) {
        for slot in self.slots[..count].iter().filter(|slot| slot.len < slot.padded) {
            let (at, len) = (slot.at + u32::from(slot.len), slot.padded - slot.len);
            if let Some(pad) = self.data.slice_mut(at as usize, usize::from(len)) {
                pad.fill(0);
            }
        }
    }

    /// Writes the packets in hand into the ring, where the card does not see them before the doorbell moves.
    #[inline(always)]
    pub(super) fn post(&mut self, count: usize) {
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

    /// Gives the `count` slots in hand back unsent.
    #[cold]
    pub(super) fn untake(&mut self, count: usize) {
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

    #[inline(always)]
    pub(super) fn flush_ring(&mut self) -> Result<(), Error> {
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
        self.idle.handle.ring();
        self.prefetch_next();
        Ok(())
    }

    /// Asks to own the line where the next packet will begin, while nobody waits for it.
    #[inline(always)]
    pub(super) fn prefetch_next(&self) {
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
}
