//! The two ends of a ring that a socket shares with the kernel.

use super::sys::{Entry, RingMemory};
use rustix::net::xdp::XdpRingFlags;
use std::sync::atomic::Ordering;

/// Places in each ring, and frames of each queue for each direction.
pub(super) const RING: u32 = 2048;

/// The end where entries are put in: the fill ring and the transmit ring.
pub(super) struct Producer<T> {
    ring: RingMemory<T>,
    next: u32,
    published: u32,
    /// The consumer's index when it was last looked at.
    taken: u32,
}

impl<T: Entry> Producer<T> {
    pub fn new(ring: RingMemory<T>) -> Self {
        let taken = ring.consumer().load(Ordering::Acquire);
        let next = ring.producer().load(Ordering::Relaxed);
        Self { ring, next, published: next, taken }
    }

    /// For how many entries there is room. The kernel's index is only read when fewer than `wanted` are known of.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> u32 {
        let len = self.ring.len();
        if len.saturating_sub(self.next.wrapping_sub(self.taken)) < wanted {
            // Acquire: pairs with the kernel's release of the entries that it has read.
            self.taken = self.ring.consumer().load(Ordering::Acquire);
        }
        len.saturating_sub(self.next.wrapping_sub(self.taken))
    }

    /// Puts one entry in, for which there must be [`Self::room`].
    #[inline(always)]
    pub fn push(&mut self, entry: T) {
        self.ring.store(self.next, entry);
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the kernel what was put in.
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.published != self.next {
            self.published = self.next;
            // Release: pairs with the kernel's acquire of the producer's index; entries and frames come before it.
            self.ring.producer().store(self.next, Ordering::Release);
        }
    }

    /// Published entries that the kernel has not taken yet.
    #[inline]
    pub fn waiting(&self) -> u32 {
        // Relaxed: a mere question; nothing is done with the entries.
        self.published.wrapping_sub(self.ring.consumer().load(Ordering::Relaxed))
    }

    /// Whether the kernel wants a system call before it looks at the ring again.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        // Relaxed: the flag guards nothing but itself; after `publish` it is read again on every pass.
        self.ring.flags().load(Ordering::Relaxed) & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
    }
}

/// The end where entries are taken out: the receive ring and the completion ring.
pub(super) struct Consumer<T> {
    ring: RingMemory<T>,
    next: u32,
    /// The producer's index when it was last looked at.
    filled: u32,
}

impl<T: Entry> Consumer<T> {
    pub fn new(ring: RingMemory<T>) -> Self {
        let next = ring.consumer().load(Ordering::Relaxed);
        Self { ring, next, filled: next }
    }

    /// How many entries there are, at most `most`. The kernel's index is only read when none is known of.
    #[inline]
    pub fn available(&mut self, most: u32) -> u32 {
        if self.filled == self.next {
            // Acquire: pairs with the kernel's release of the producer's index; entries and frames come before it.
            self.filled = self.ring.producer().load(Ordering::Acquire);
        }
        self.filled.wrapping_sub(self.next).min(self.ring.len()).min(most)
    }

    /// Entry `ahead` of the first, one of those that are [available](Self::available).
    #[inline(always)]
    pub fn peek(&self, ahead: u32) -> T {
        self.ring.load(self.next.wrapping_add(ahead))
    }

    /// Gives `count` entries back to the kernel.
    #[inline(always)]
    pub fn release(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        // Release: pairs with the kernel's acquire of the consumer's index; our reads of the entries come before it.
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}
