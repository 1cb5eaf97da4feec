//! Packets in hand.

use super::RxQueue;
use super::place::Place;
use core::ops::Index;

/// Packets of an RX queue, which they borrow; given back when this is dropped, together with those kept before.
#[must_use = "dropping a burst gives its packets back unread"]
pub struct RxBurst<'q> {
    pub(super) queue: &'q mut RxQueue,
    pub(super) count: usize,
    pub(super) units: u32,
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
