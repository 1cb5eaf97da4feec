//! What both kinds of queues have in common in the device: the indices, and who is told of what.

use super::chain::Fault;
use super::layout::{AVAIL_NO_INTERRUPT, USED_NO_NOTIFY, feature, needs_event};
use super::rings::{Rings, Used};
use millrace_dma::{Iotlb, Ordering, fence};

pub(super) struct Queue {
    pub rings: Rings,
    pub iotlb: Iotlb,
    /// Indirect tables are allowed.
    pub indirect: bool,
    size: u16,
    /// Chains taken out of the available ring.
    next: u16,
    /// The available index as last loaded.
    seen: u16,
    /// Chains put into the used ring.
    used: u16,
    /// The used index when the driver was last told, or did not want to be.
    told: u16,
    event_index: bool,
    fault: Option<Fault>,
}

impl Queue {
    pub fn new(rings: Rings, features: u64, iotlb: Iotlb) -> Self {
        // The used index is where whoever served the queue before has stopped, even if he was killed: buffers are used
        // in the order in which they were made available, so that all behind it are still to be done.
        let used = rings.used_index.load(Ordering::Relaxed);
        let (event_index, indirect) =
            (features & feature::RING_EVENT_IDX != 0, features & feature::RING_INDIRECT_DESC != 0);
        let size = rings.size();
        let mut queue =
            Self { rings, iotlb, indirect, size, next: used, seen: used, used, told: used, event_index, fault: None };
        queue.want_notifications(false);
        queue
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    pub fn next(&self) -> u16 {
        self.next
    }

    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Stops the queue for good.
    #[cold]
    pub fn stop(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    /// Chains that wait as far as is known.
    #[inline(always)]
    pub fn waiting(&self) -> u16 {
        self.seen.wrapping_sub(self.next)
    }

    /// Looks how many chains wait.
    #[inline(always)]
    pub fn look(&mut self) -> Result<u16, Fault> {
        // Acquire pairs with the driver's Release of the available index: heads, descriptors and, of frames that are sent,
        // the bytes are visible.
        let seen = self.rings.avail_index.load(Ordering::Acquire);
        let waiting = seen.wrapping_sub(self.next);
        if waiting > self.size {
            return Err(Fault::AvailableIndex);
        }
        self.seen = seen;
        Ok(waiting)
    }

    /// The first descriptor of the chain `ahead` places behind the next.
    #[inline(always)]
    pub fn head(&self, ahead: u16) -> Result<u16, Fault> {
        let head = self.rings.avail.load(u32::from(self.next.wrapping_add(ahead)));
        if head < self.size { Ok(head) } else { Err(Fault::Head) }
    }

    /// Puts the next chain into the used ring. Visible after [`Queue::publish`].
    #[inline(always)]
    pub fn put(&mut self, head: u16, len: u32) {
        self.rings.used.store(self.used, Used { head: u32::from(head), len });
        self.used = self.used.wrapping_add(1);
        self.next = self.next.wrapping_add(1);
    }

    /// Asks to own the cache line of the next entry of the used ring.
    #[inline(always)]
    pub fn expect_put(&self) {
        self.rings.used.prefetch_write(self.used);
    }

    /// Gives what was put into the used ring to the driver.
    #[inline(always)]
    pub fn publish(&self) {
        // Release pairs with the driver's Acquire of the used index: entries and frames are visible, and everything that was
        // to be read has been read.
        self.rings.used_index.store(self.used, Ordering::Release);
    }

    /// Whether the driver has to be told of what was published since it was asked last (2.7.7.2, 2.7.10).
    #[inline(always)]
    pub fn must_notify(&mut self) -> bool {
        if self.told == self.used {
            return false;
        }
        // The driver says what it waits for, then looks at the used index; here it is the other way round. Pairs with the
        // fence between the driver's two: one of the two sees what the other has written.
        fence(Ordering::SeqCst);
        let told = core::mem::replace(&mut self.told, self.used);
        if self.event_index {
            needs_event(self.rings.used_event.load(Ordering::Relaxed), self.used, told)
        } else {
            self.rings.avail_flags.load(Ordering::Relaxed) & AVAIL_NO_INTERRUPT == 0
        }
    }

    /// Says whether the driver shall tell of the next chain. After `true`, look once more before sleeping.
    pub fn want_notifications(&mut self, wanted: bool) {
        if self.event_index {
            // An event that has just been passed comes again after 65,535 chains: close enough to never.
            let event = if wanted { self.next } else { self.next.wrapping_sub(1) };
            self.rings.avail_event.store(event, Ordering::Relaxed);
        } else {
            let flags = if wanted { 0 } else { USED_NO_NOTIFY };
            self.rings.used_flags.store(flags, Ordering::Relaxed);
        }
        if wanted {
            // Pairs with the fence between the driver's store of the available index and its look at the event.
            fence(Ordering::SeqCst);
        }
    }
}
