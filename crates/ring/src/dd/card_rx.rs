//! The card's half of a DD RX queue.

use super::layout::{Ring, Status, given_length};
use crate::rooms::{Rooms, run_of};
use crate::{EngineFault, FrameLimits, RxOutcome};
use millrace_abi::handover::RingPlace;
use millrace_abi::header::RxMetadata;
use millrace_dma::{Access, Iotlb, Iova, Span};

/// Descriptors in a cache line.
const LINE: usize = 2;
const NANOSECONDS: u64 = 1_000_000_000;

/// An empty buffer that software has given to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedBuffer {
    /// Where it lies.
    pub iova: Iova,
    /// Bytes that it holds.
    pub capacity: u16,
}

/// So many frames ahead a buffer's first line is asked for: of many queues together none is in any cache.
const AHEAD: u32 = 4;

/// The card's half of an RX queue.
///
/// Buffers are taken from descriptors at `taken`, and descriptors handed back, with a frame, at `next`. What
/// [`CardRx::deliver`] does to both at once, a port may do apart: it takes buffers ahead with
/// [`CardRx::take_posted`], and hands back with [`CardRx::deliver_swapped`] whichever of them a frame has come into.
pub struct CardRx {
    ring: Ring,
    ring_at: Iova,
    // Places from the start, modulo 2^32: the next buffer to be taken, the next descriptor to be handed back, and the
    // next one whose done bit is to be stored.
    taken: u32,
    next: u32,
    shown: u32,
    // Status words from `shown` to `next`.
    waiting: [u64; LINE],
    limits: FrameLimits,
    iotlb: Iotlb,
    unpublished: bool,
}

impl CardRx {
    /// A queue at place 0 of a ring that lies at `ring_at`.
    pub fn new(ring: Ring, ring_at: Iova, limits: FrameLimits, iotlb: Iotlb) -> Self {
        let (taken, next, shown, waiting) = (0, 0, 0, [0; LINE]);
        Self { ring, ring_at, taken, next, shown, waiting, limits, iotlb, unpublished: false }
    }

    /// Place of the next buffer to be taken.
    pub fn head(&self) -> u32 {
        self.ring.index(self.taken)
    }

    /// Place of the next descriptor to be handed back.
    pub fn done(&self) -> u32 {
        self.ring.index(self.next)
    }

    /// The translation cache of this queue.
    pub fn iotlb(&self) -> &Iotlb {
        &self.iotlb
    }

    /// The longest frame that is delivered.
    pub fn longest(&self) -> u16 {
        self.limits.max
    }

    /// Takes over changes of the owner's domain; once per burst, before [`CardRx::deliver`].
    #[inline(always)]
    pub fn sync(&mut self) {
        self.iotlb.sync();
    }

    /// Where it stands, when everything is published. `None`: buffers were taken ahead.
    pub fn resting_place(&self) -> Option<RingPlace> {
        let rests = self.in_flight() == 0 && self.shown == self.next;
        rests.then(|| RingPlace { head: self.ring.index(self.next), ..RingPlace::default() })
    }

    /// Goes on from there, before anything was delivered.
    pub fn resume(&mut self, place: &RingPlace) {
        let at = self.ring.index(place.head);
        (self.taken, self.next, self.shown) = (at, at, at);
    }

    /// Buffers taken whose descriptors were not handed back.
    #[inline(always)]
    pub fn in_flight(&self) -> u32 {
        self.taken.wrapping_sub(self.next)
    }

    /// The next buffer, which stays where it is; `None` if software has given no more.
    ///
    /// # Errors
    /// [`EngineFault`] when its descriptor is wrong.
    #[inline(always)]
    fn next_posted(&mut self) -> Result<Option<PostedBuffer>, EngineFault> {
        if self.taken.wrapping_sub(self.shown) == self.ring.entries() {
            // The ring is once round: descriptors whose done bit was not stored still read as the card's.
            self.show();
            if self.in_flight() == self.ring.entries() {
                return Ok(None);
            }
        }
        // Pairs with `HostRx::post`: the descriptor is visible, and software is done with the buffer.
        match given_length(self.ring.status(self.taken)) {
            None => Ok(None),
            Some(Ok(capacity)) => Ok(Some(PostedBuffer { iova: self.ring.address(self.taken), capacity })),
            Some(Err(kind)) => Err(self.ring.fault(kind, self.ring_at, self.taken)),
        }
    }

    /// Takes the next buffer, to be handed back in some later descriptor; `None` if software has given no more. That
    /// the owner's domain holds it is for the caller to find out.
    ///
    /// # Errors
    /// [`EngineFault`] when its descriptor is wrong.
    pub fn take_posted(&mut self) -> Result<Option<PostedBuffer>, EngineFault> {
        let posted = self.next_posted()?;
        self.taken = self.taken.wrapping_add(u32::from(posted.is_some()));
        Ok(posted)
    }

    /// Hands a buffer that [`CardRx::take_posted`] gave, with `len` bytes of a frame in it, back in the next
    /// descriptor; `metadata` is what [`CardRx::deliver`] gets. `false` when no descriptor is in the card's hands.
    /// Software sees it after [`CardRx::publish`], if not before.
    pub fn deliver_swapped(&mut self, iova: Iova, len: u16, metadata: &[u8]) -> bool {
        let has = self.in_flight() > 0;
        if has {
            self.ring.set_address(self.next, iova);
            self.write_status(len, metadata);
        }
        has
    }

    /// Gives up what was taken ahead and not handed back: no frames will come into it. `empty` are those buffers, in
    /// any order; they are the next to be taken.
    pub fn untake(&mut self, mut empty: impl Iterator<Item = Iova>) {
        for ahead in 0..self.in_flight() {
            // What the descriptors say may have been handed back elsewhere. Nothing is mapped at 0.
            self.ring.set_address(self.next.wrapping_add(ahead), empty.next().unwrap_or_default());
        }
        self.taken = self.next;
    }

    /// Writes a frame into the next buffer. `metadata` is what other engines write before it: here the descriptor holds
    /// its time stamp and port.
    ///
    /// # Errors
    /// [`EngineFault`] when the descriptor is wrong; the frame is not delivered.
    #[inline]
    pub fn deliver(&mut self, metadata: &[u8], frame: Span<'_>) -> Result<RxOutcome, EngineFault> {
        let Ok(len) = u16::try_from(frame.len()) else { return Ok(RxOutcome::TooLong) };
        if len > self.limits.max {
            return Ok(RxOutcome::TooLong);
        }
        let Some(PostedBuffer { iova, capacity }) = self.next_posted()? else { return Ok(RxOutcome::NoRoom) };
        if len > capacity {
            return Ok(RxOutcome::TooLong);
        }
        let room = self.iotlb.write(iova, frame.len())?;
        // Who waits for the frame reads both lines: one store after the other would have to fetch its own.
        self.ring.prefetch_write(self.next);
        room.prefetch();
        frame.copy_to(room);
        self.taken = self.taken.wrapping_add(1);
        if self.in_flight() > 1 {
            // Buffers were taken ahead: the descriptor that is handed back was another's.
            self.ring.set_address(self.next, iova);
        }
        self.write_status(len, metadata);
        self.prefetch(AHEAD);
        Ok(RxOutcome::Stored)
    }

    /// Writes a run of short frames from the front, and returns how many: only those that need nothing but the next
    /// buffer, long enough. What stops it is for [`CardRx::deliver`] to say, and all of it while buffers are taken ahead.
    #[inline(always)]
    pub fn deliver_run(&mut self, metadata: &[u8], frames: &[Span<'_>]) -> usize {
        let frames = run_of(frames);
        if frames.is_empty() || self.in_flight() > 0 {
            return 0;
        }
        self.show();
        // No line is asked for where the first frame has to be seen to by itself.
        let first = given_length(self.ring.status(self.taken));
        if !matches!(first, Some(Ok(capacity)) if frames[0].len() <= usize::from(capacity)) {
            return 0;
        }
        let most = frames.len().min(self.ring.entries() as usize);
        let mut rooms = Rooms::new(&self.iotlb);
        for ahead in (0..most as u32).step_by(LINE) {
            self.ring.prefetch_write(self.taken.wrapping_add(ahead));
        }
        for &frame in &frames[..most] {
            let place = self.taken.wrapping_add(rooms.len());
            // Pairs with `HostRx::post`: the descriptor is visible, and software is done with the buffer.
            let Some(Ok(capacity)) = given_length(self.ring.status(place)) else { break };
            let longest = capacity.min(self.limits.max);
            if frame.len() > usize::from(longest) || !rooms.add(self.ring.address(place), frame) {
                break;
            }
        }
        let count = rooms.fill(frames);
        self.taken = self.taken.wrapping_add(count);
        for frame in &frames[..count as usize] {
            self.write_status(frame.len() as u16, metadata);
        }
        count as usize
    }

    #[inline(always)]
    fn write_status(&mut self, len: u16, metadata: &[u8]) {
        let stamp = RxMetadata::decode(metadata).unwrap_or_default();
        self.ring.set_time(self.next, u64::from(stamp.seconds) * NANOSECONDS + u64::from(stamp.nanoseconds));
        let status = Status { len, outcome: 0, port: stamp.port, done: true };
        self.waiting[self.next as usize % LINE] = status.encode();
        self.next = self.next.wrapping_add(1);
        self.unpublished = true;
        if (self.next as usize).is_multiple_of(LINE) {
            self.show();
        }
    }

    /// Stores the done bits that wait, a cache line at most: a reader who looks on while a burst is written takes the
    /// line once and not for every descriptor.
    #[inline(always)]
    fn show(&mut self) {
        while self.shown != self.next {
            // Pairs with `HostRx::ready`: frame and descriptor are visible.
            self.ring.publish(self.shown, self.waiting[self.shown as usize % LINE]);
            self.shown = self.shown.wrapping_add(1);
        }
    }

    /// Makes what was delivered visible. `true` if there was anything.
    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        if self.unpublished {
            self.show();
            self.prefetch(0);
        }
        core::mem::take(&mut self.unpublished)
    }

    /// Asks to own the line where a frame will begin that is so many behind the next.
    #[inline(always)]
    fn prefetch(&self, ahead: u32) {
        let place = self.taken.wrapping_add(ahead);
        if self.in_flight() + ahead < self.ring.entries()
            && !self.ring.is_done(place)
            && let at = self.ring.address(place)
            && let Some(room) = self.iotlb.peek(at, 1, Access::ReadWrite).and_then(|reach| reach.span_mut(at, 1))
        {
            room.prefetch();
        }
    }
}
