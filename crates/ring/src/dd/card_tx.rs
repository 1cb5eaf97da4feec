//! The card's half of a DD TX queue.

use super::launch::{Judge, LaunchCounts};
use super::layout::{Outcome, Ring, Status, given_length};
use crate::serve::{self, After, BATCH, Reader, Source, Stop, Taken};
use crate::{Accept, EngineFault, FrameLimits, FrameSink, Served};
use core::time::Duration;
use millrace_abi::handover::RingPlace;
use millrace_abi::launch::LaunchPolicy;
use millrace_dma::{Access, Iotlb, Iova, Span};
use std::sync::Arc;

/// The card's clock. Asked for frames with a launch time only.
pub trait Clock: Send {
    /// Nanoseconds, read anew: a frame is never early, and what its descriptor says is when it left.
    fn now(&self) -> u64;
}

impl<F: Fn() -> u64 + Send> Clock for F {
    fn now(&self) -> u64 {
        self()
    }
}

/// The card's half of a TX queue.
///
/// Descriptors are taken at `head` and handed back at `done`, in order. [`CardTx::serve`] does both at once; a port
/// that sends from the buffers themselves takes them with [`CardTx::serve_deferred`] and says later how many it is done
/// with.
pub struct CardTx {
    pub(super) ring: Ring,
    ring_at: Iova,
    // Places from the start, modulo 2^32: the next to be taken, and the next to be handed back.
    pub(super) head: u32,
    done: u32,
    // Status words of descriptors taken; those with the done bit can be handed back as soon as all before them are.
    finished: Box<[u64]>,
    // Whether what the sink takes now is done with at once.
    pub(super) at_once: bool,
    // Where the last frame lay, and how far behind the one before it.
    last: Iova,
    step: u64,
    // Launch time of the frame at the head, as last read; 0: none waits.
    pub(super) held: u64,
    // Frames of later launch times wait, whatever the clock shows.
    pub(super) until: u64,
    // The next frame with a launch time is waited for if that is not more ns ahead.
    pub(super) patience: u64,
    limits: FrameLimits,
    pub(super) iotlb: Iotlb,
    pub(super) clock: Box<dyn Clock>,
    pub(super) judge: Judge,
}

/// Why a frame is not sent now.
pub(crate) enum Unfit {
    /// Never, for this reason; its length.
    Dropped(Outcome, u16),
    /// It has this launch time; its length.
    Timed(u64, u16),
}

impl CardTx {
    /// A queue at place 0 of a ring that lies at `ring_at`.
    pub fn new(ring: Ring, ring_at: Iova, limits: FrameLimits, iotlb: Iotlb, clock: Box<dyn Clock>) -> Self {
        let finished = vec![0; ring.entries() as usize].into_boxed_slice();
        Self {
            ring,
            ring_at,
            head: 0,
            done: 0,
            finished,
            at_once: true,
            last: Iova::default(),
            step: 0,
            held: 0,
            until: u64::MAX,
            patience: 0,
            limits,
            iotlb,
            clock,
            judge: Judge::default(),
        }
    }

    /// With this policy for frames with launch times, whose verdicts are counted there.
    #[must_use]
    pub fn launching(mut self, policy: LaunchPolicy, counts: Arc<LaunchCounts>) -> Self {
        self.judge = Judge { policy, counts };
        self
    }

    /// From now on launch times are those of this clock.
    pub fn set_clock(&mut self, clock: Box<dyn Clock>) {
        self.clock = clock;
    }

    /// Place of the next descriptor to be taken.
    pub fn head(&self) -> u32 {
        self.ring.index(self.head)
    }

    /// Place of the next descriptor to be handed back.
    pub fn done(&self) -> u32 {
        self.ring.index(self.done)
    }

    /// Where it stands. `None`: some that were taken are not handed back.
    pub fn resting_place(&self) -> Option<RingPlace> {
        (self.in_flight() == 0).then(|| RingPlace { head: self.head(), ..RingPlace::default() })
    }

    /// Goes on from there, before anything was served.
    pub fn resume(&mut self, place: &RingPlace) {
        self.head = self.ring.index(place.head);
        self.done = self.head;
    }

    /// The translation cache of this queue.
    pub fn iotlb(&self) -> &Iotlb {
        &self.iotlb
    }

    /// Takes over changes of the owner's domain; `serve` does so by itself.
    pub fn sync(&mut self) {
        self.iotlb.sync();
    }

    /// Descriptors taken and not handed back.
    #[inline(always)]
    pub fn in_flight(&self) -> u32 {
        self.head.wrapping_sub(self.done)
    }

    /// Looks at the next descriptor: whether it can be served now. If so, the first line of its frame is asked for.
    #[inline(always)]
    pub fn pending(&mut self) -> bool {
        if self.in_flight() == self.ring.entries() || self.ring.is_done(self.head) {
            return false;
        }
        if self.held != 0 && self.wait() != 0 {
            return false;
        }
        self.prefetch(self.ring.address(self.head));
        true
    }

    /// Asks for the line where the next frame begins if it lies one step behind the last, while nothing is there: then it
    /// travels together with the descriptor that says so, and a lone frame is through one transfer of a cache line earlier.
    #[inline(always)]
    pub fn anticipate(&self) {
        self.prefetch(self.last.plus(self.step));
    }

    /// A hint only, for an address that nobody has judged.
    #[inline(always)]
    fn prefetch(&self, at: Iova) {
        if let Some(line) = self.iotlb.peek(at, 1, Access::Read).and_then(|reach| reach.span(at, 1)) {
            line.prefetch();
        }
    }

    /// What the next descriptor says of where its frame lies. Nobody has judged it; of a descriptor that is not the
    /// card's it means nothing.
    #[inline(always)]
    pub fn next_address(&self) -> Iova {
        self.ring.address(self.head)
    }

    /// Whether the card has taken and handed back everything that it was given, also what waits for its time.
    pub fn is_drained(&self) -> bool {
        self.in_flight() == 0 && self.ring.is_done(self.head)
    }

    /// Whether the frame at the head had to wait for its launch time when it was looked at last.
    #[inline(always)]
    pub fn is_held(&self) -> bool {
        self.held != 0 && !self.ring.is_done(self.head)
    }

    /// The launch time of the frame at the head, as it was read last; `None` if none waits. That it has come does not say that the
    /// frame may leave: software may have changed it since, and [`CardTx::serve`] reads it again.
    #[inline(always)]
    pub fn held_until(&self) -> Option<u64> {
        self.is_held().then_some(self.held)
    }

    /// Asks for what handing over the frame at the head will need, so that it need not be waited for when its time has come.
    pub fn prepare(&self) {
        self.ring.prefetch_write(self.head);
        self.ring.prefetch_write(self.head.wrapping_add(1));
        self.prefetch(self.ring.address(self.head));
        // What lies elsewhere is touched: the clock and the policy, the limits, the place of the status, the counts.
        core::hint::black_box((self.launch_in(), self.limits.max, self.finished.first(), self.judge.counts.latest()));
    }

    /// The launch time that was waited for has come, or does so within `patience` ns: the frame at the head is judged anew by the next
    /// [`CardTx::serve`], which waits for it so long, with everything else done, and leaves frames with launch times after `until` in
    /// the ring.
    #[inline(always)]
    pub fn come_due(&mut self, until: u64, patience: u64) {
        (self.held, self.until, self.patience) = (0, until, patience);
    }

    /// How long the frame at the head has to wait for its launch time; `None` if none waits.
    pub fn launch_in(&self) -> Option<Duration> {
        self.is_held().then(|| Duration::from_nanos(self.wait()))
    }

    /// Nanoseconds until the launch time that was read last; 0 once it has to be judged again, which is also so when
    /// the clock was set back meanwhile.
    #[cold]
    fn wait(&self) -> u64 {
        Some(self.held.saturating_sub(self.clock.now())).filter(|&left| self.judge.waits(left)).unwrap_or(0)
    }

    /// Takes frames out of the ring until the sink is full, the ring is empty, a frame has to wait for its launch time,
    /// `budget` frames are gone, or enough has been looked at; and hands their descriptors back.
    #[inline]
    pub fn serve(&mut self, budget: usize, sink: &mut impl FrameSink) -> Served {
        self.serve_with(budget, true, |frames, _| Taken::by(sink, frames))
    }

    /// As [`CardTx::serve`] for a sink that sends from the buffer itself and is done with it later: it has a frame
    /// until
    /// [`CardTx::complete`] counts it. The IOVA is the frame's.
    pub fn serve_deferred(&mut self, budget: usize, mut sink: impl FnMut(Iova, Span<'_>) -> Accept) -> Served {
        self.serve_with(budget, false, |frames, places| {
            let mut all = places.iter().zip(frames);
            let full = all.position(|(&iova, &frame)| sink(iova, frame) == Accept::Full);
            Taken { frames: full.unwrap_or(frames.len()), dropped: false, at: None }
        })
    }

    /// The sink is done with `frames` more of those that it took, in the order in which it took them.
    pub fn complete(&mut self, frames: u32) {
        let mut left = frames;
        let mut at = self.done;
        while left > 0 && at != self.head {
            let status = &mut self.finished[self.ring.index(at) as usize];
            let mut word = Status::decode(*status);
            left -= u32::from(!core::mem::replace(&mut word.done, true));
            *status = word.encode();
            at = at.wrapping_add(1);
        }
        self.publish_finished();
    }

    #[inline(always)]
    fn serve_with(&mut self, budget: usize, at_once: bool, take: impl FnMut(&[Span<'_>], &[Iova]) -> Taken) -> Served {
        self.iotlb.sync();
        (self.held, self.at_once) = (0, at_once);
        let served = serve::serve::<BATCH, _>(self, budget, take);
        (self.until, self.patience) = (u64::MAX, 0);
        served
    }

    #[cold]
    pub(super) fn drop_frame(&mut self, outcome: Outcome, len: u16, served: &mut Served) {
        match outcome {
            Outcome::TooShort => served.too_short += 1,
            Outcome::TooLong => served.too_long += 1,
            Outcome::TooLate => served.too_late += 1,
            Outcome::TooFar | Outcome::Passed | Outcome::Late | Outcome::Dropped => served.too_far += 1,
        }
        self.take(Status { len, outcome: outcome as u8, port: 0, done: true });
    }

    /// Takes the descriptor at the head, to be handed back with `status`.
    #[inline(always)]
    pub(super) fn take(&mut self, status: Status) {
        self.finished[self.ring.index(self.head) as usize] = status.encode();
        self.head = self.head.wrapping_add(1);
    }

    /// Hands back every descriptor at `done` that is finished.
    #[inline(always)]
    fn publish_finished(&mut self) {
        while self.done != self.head {
            let status = self.finished[self.ring.index(self.done) as usize];
            if !Status::decode(status).done {
                break;
            }
            // Pairs with `HostTx::reclaim`: every load from the frame is done.
            self.ring.publish(self.done, status);
            self.done = self.done.wrapping_add(1);
        }
    }
}

/// One descriptor is one frame, so that a turn looks at no more descriptors than frames leave the ring.
impl Source for CardTx {
    /// Where the frame lies.
    type Note = Iova;
    type Other = Unfit;
    const NEEDS_LENGTHS: bool = true;

    #[inline(always)]
    fn place(&self) -> u32 {
        self.head
    }

    #[inline(always)]
    fn is_lone(&self) -> bool {
        self.ring.is_done(self.head.wrapping_add(1))
    }

    #[inline(always)]
    fn look_ahead<'a>(&'a self, frames: &mut [Span<'a>], places: &mut [Iova]) -> (usize, Stop<Unfit>) {
        // A descriptor that was not handed back yet still reads as the card's.
        let most = (self.ring.entries() - self.in_flight()) as usize;
        let (mut reader, mut found) = (Reader::new(&self.iotlb), 0);
        let stop = loop {
            if found == frames.len() {
                break Stop::Enough;
            }
            if found == most {
                break Stop::Empty;
            }
            let at = self.head.wrapping_add(found as u32);
            // Pairs with `HostTx::flush`: descriptor and frame are visible.
            let len = match given_length(self.ring.status(at)) {
                None => break Stop::Empty,
                Some(Err(kind)) => break Stop::Fault(self.ring.fault(kind, self.ring_at, at)),
                Some(Ok(len)) if len < self.limits.min => break Stop::Other(Unfit::Dropped(Outcome::TooShort, len)),
                Some(Ok(len)) if len > self.limits.max => break Stop::Other(Unfit::Dropped(Outcome::TooLong, len)),
                Some(Ok(len)) => len,
            };
            let time = self.ring.time(at);
            if time != 0 {
                break Stop::Other(Unfit::Timed(time, len));
            }
            let (iova, len) = (self.ring.address(at), usize::from(len));
            let frame = match reader.read(iova, len) {
                Ok(frame) => frame,
                Err(fault) => break Stop::Fault(fault.into()),
            };
            frame.prefetch();
            (frames[found], places[found]) = (frame, iova);
            found += 1;
        };
        reader.end();
        (found, stop)
    }

    #[inline(always)]
    fn pass(&mut self, _: usize, lengths: &[u16], places: &[Iova]) {
        if let Some((&last, before)) = places.split_last() {
            let before = before.last().copied().unwrap_or(self.last);
            self.step = last.get().wrapping_sub(before.get());
            self.last = last;
        }
        for &len in lengths {
            self.take(Status { len, done: self.at_once, ..Status::default() });
        }
    }

    fn serve_other(
        &mut self,
        other: Unfit,
        take: &mut impl FnMut(&[Span<'_>], &[Iova]) -> Taken,
        served: &mut Served,
    ) -> Result<After, EngineFault> {
        served.looked += 1;
        match other {
            Unfit::Dropped(outcome, len) => {
                self.drop_frame(outcome, len, served);
                Ok(After::Frame)
            }
            Unfit::Timed(time, len) => self.launch(time, len, take, served),
        }
    }

    #[inline(always)]
    fn end_run(&mut self) {
        self.publish_finished();
    }
}
