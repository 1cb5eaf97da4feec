//! The software's half of DD, over buffers that whoever uses it accounts for.

use super::layout::{Outcome, Ring, Status};
use millrace_dma::{Iova, Ordering, Word64};

/// Completed descriptors that are looked for at once, by the done bit of the last of them: they come back in order.
const STEP: u32 = 32;

/// One frame to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Where it lies.
    pub iova: Iova,
    /// Its bytes.
    pub len: u16,
    /// When the card is to send it, in nanoseconds of the card's clock; 0 or a time that has passed: at once.
    pub launch: u64,
    /// A word of the software's own, which the card returns as it was.
    pub cookie: u64,
}

/// The software's half of a TX queue. Places are counted from the start, modulo 2^32.
pub struct HostTx {
    ring: Ring,
    tail: Word64,
    // Written to the ring or held back; given to the card; handed back by it.
    posted: u32,
    flushed: u32,
    completed: u32,
    // The first frame that was not given to the card: as long as its descriptor is ours, so are all behind it.
    held: Frame,
}

impl HostTx {
    /// A queue at place 0, over a ring that is [clear](Ring::clear).
    pub fn new(ring: Ring, tail: Word64) -> Self {
        Self { ring, tail, posted: 0, flushed: 0, completed: 0, held: Frame::default() }
    }

    /// Number of descriptors.
    #[inline(always)]
    pub fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// How many more frames can be posted, as far as is known without looking.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.entries() - self.in_flight()
    }

    /// Frames posted that have not come back, as far as is known without looking.
    #[inline(always)]
    pub fn in_flight(&self) -> u32 {
        self.posted.wrapping_sub(self.completed)
    }

    /// Posts a frame; `false` when the ring is full. The card sees it after [`HostTx::flush`].
    #[inline(always)]
    pub fn post(&mut self, frame: Frame) -> bool {
        if self.room() == 0 {
            return false;
        }
        if self.posted == self.flushed {
            self.held = frame;
        } else {
            self.write(self.posted, frame);
        }
        self.posted = self.posted.wrapping_add(1);
        true
    }

    #[inline(always)]
    fn write(&self, at: u32, frame: Frame) {
        self.ring.set_address(at, frame.iova);
        self.ring.set_time(at, frame.launch);
        self.ring.set_cookie(at, frame.cookie);
        // Pairs with `CardTx::look_ahead`: descriptor and frame are visible.
        self.ring.publish(at, Status::given(frame.len).encode());
    }

    /// Asks to own the line of the descriptor that is posted next, while its frame is being written.
    #[inline(always)]
    pub fn prepare(&self) {
        self.ring.prefetch_write(self.posted);
    }

    /// Gives everything that was posted to the card, by the store of one word. `true` if there was anything.
    #[inline(always)]
    pub fn flush(&mut self) -> bool {
        let any = self.posted != self.flushed;
        if any {
            self.write(self.flushed, self.held);
            self.flushed = self.posted;
            // For those who read registers; the card does not look at it.
            self.tail.store(self.ring.index(self.posted).into(), Ordering::Relaxed);
        }
        any
    }

    /// Looks how many more frames the card is done with. They are the oldest ones, in the order of posting.
    #[inline]
    pub fn reclaim(&mut self) -> u32 {
        let before = self.completed;
        // What is held back still has the done bit of the frame that was there before it.
        let mut step = STEP;
        while step > 0 {
            step = step.min(self.flushed.wrapping_sub(self.completed));
            // Pairs with `CardTx::hand_back`: the card is done with the frames of this descriptor and those before it.
            if step > 0 && self.ring.is_done(self.completed.wrapping_add(step - 1)) {
                self.completed = self.completed.wrapping_add(step);
            } else {
                step /= 2;
            }
        }
        self.completed.wrapping_sub(before)
    }

    /// What became of a frame that is back: `ago` 0 is the one that came back last. The card may write anything there.
    pub fn outcome(&self, ago: u32) -> Option<Outcome> {
        self.outcome_at(self.completed.wrapping_sub(ago).wrapping_sub(1)).map(|(outcome, _)| outcome)
    }

    /// What became of the frame that was posted at this place, counted from the start, and is back; and, if it had a launch time, what
    /// the card's clock showed then, in nanoseconds. The card may write anything there.
    pub fn outcome_at(&self, at: u32) -> Option<(Outcome, u64)> {
        let status = Status::decode(self.ring.status(at));
        let outcome = Outcome::ALL.get(usize::from(status.outcome)).copied()?;
        Some((outcome, self.ring.time(at)))
    }

    /// Place of the next frame to be posted.
    pub fn posted(&self) -> u32 {
        self.posted
    }
}

/// What a descriptor of an RX queue says that the card has handed back. A copy; nothing of it has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Which buffer it is, which need not be the one that was posted here.
    pub iova: Iova,
    /// Bytes of the frame.
    pub len: u16,
    /// The port that it came in at, if `time` says anything.
    pub port: u8,
    /// When it came, in nanoseconds of the card's clock; 0 while the time-stamp unit is not enabled.
    pub time: u64,
    /// What was posted with this descriptor.
    pub cookie: u64,
}

/// The software's half of an RX queue. Places are counted from the start, modulo 2^32.
pub struct HostRx {
    ring: Ring,
    tail: Word64,
    // Given to the card; handed back by it; released by us.
    posted: u32,
    seen: u32,
    released: u32,
}

impl HostRx {
    /// A queue at place 0, over a ring that is [clear](Ring::clear).
    pub fn new(ring: Ring, tail: Word64) -> Self {
        Self { ring, tail, posted: 0, seen: 0, released: 0 }
    }

    /// Number of descriptors.
    #[inline(always)]
    pub fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// How many more buffers can be posted.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.entries() - self.posted.wrapping_sub(self.released)
    }

    /// Gives the card an empty buffer; `false` when the ring is full. It may write to it from now on.
    #[inline(always)]
    pub fn post(&mut self, iova: Iova, capacity: u16, cookie: u64) -> bool {
        if self.room() == 0 {
            return false;
        }
        self.ring.set_address(self.posted, iova);
        self.ring.set_cookie(self.posted, cookie);
        // Pairs with `CardRx::next_posted`: the descriptor is visible, and we are done with the buffer.
        self.ring.publish(self.posted, Status::given(capacity).encode());
        self.posted = self.posted.wrapping_add(1);
        true
    }

    /// Shows in the tail register how far buffers are posted.
    #[inline(always)]
    pub fn show_tail(&self) {
        // For those who read registers; the card does not look at it.
        self.tail.store(self.ring.index(self.posted).into(), Ordering::Relaxed);
    }

    /// How many frames are there that were not released. Looks for no more than make `most`.
    #[inline(always)]
    pub fn ready(&mut self, most: u32) -> u32 {
        while self.waiting() < most && self.seen != self.posted && self.ring.is_done(self.seen) {
            self.seen = self.seen.wrapping_add(1);
        }
        self.waiting()
    }

    #[inline(always)]
    fn waiting(&self) -> u32 {
        self.seen.wrapping_sub(self.released)
    }

    /// Place of the first frame that was not released.
    #[inline(always)]
    pub fn first(&self) -> u32 {
        self.released
    }

    /// Place of the first descriptor that was not seen to be handed back.
    #[inline(always)]
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// What the descriptor `ahead` of the first that was not released says. Once a frame.
    #[inline(always)]
    pub fn received(&self, ahead: u32) -> Received {
        let at = self.released.wrapping_add(ahead);
        let Status { len, port, .. } = Status::decode(self.ring.status(at));
        Received { iova: self.ring.address(at), len, port, time: self.ring.time(at), cookie: self.ring.cookie(at) }
    }

    /// Releases the first `count` descriptors, of those that are [ready](HostRx::ready): others can be posted there.
    #[inline(always)]
    pub fn release(&mut self, count: u32) {
        self.released = self.released.wrapping_add(count.min(self.waiting()));
    }
}
