//! The card's half of a DD TX queue.

use super::layout::{Outcome, Ring, Status, given_length};
use crate::{EngineFault, FrameLimits, FrameSink, Served, Verdict};
use core::time::Duration;
use millrace_dma::{Access, Iotlb, Iova, Reach, Span};

/// The card's clock, in nanoseconds. Asked for frames with a launch time only.
pub type Clock = Box<dyn Fn() -> u64 + Send>;

/// How far ahead a launch time may lie, in nanoseconds: a frame with one beyond it is dropped and counted, so that a wild
/// value cannot hold its queue for ever.
pub const HORIZON: u64 = 1_000_000_000;

/// Frames looked at together, so that their cache lines are on the way while earlier ones are copied.
const BATCH: usize = 32;

/// The card's half of a TX queue.
///
/// Descriptors are taken at `head` and handed back at `done`, in order. [`CardTx::serve`] does both at once; a port that
/// sends from the buffers themselves takes them with [`CardTx::serve_deferred`] and says later how many it is done with.
pub struct CardTx {
    ring: Ring,
    ring_at: Iova,
    // Places from the start, modulo 2^32: the next to be taken, and the next to be handed back.
    head: u32,
    done: u32,
    // Status words of descriptors taken; those with the done bit can be handed back as soon as all before them are.
    finished: Box<[u64]>,
    // Launch time of the frame at the head, as last read; 0: none waits.
    held: u64,
    limits: FrameLimits,
    iotlb: Iotlb,
    clock: Clock,
}

/// Why a run of frames ended.
enum Stop {
    /// As many as were wanted.
    Enough,
    /// The next descriptor is not the card's.
    Empty,
    /// The next frame is not sent, for this reason; its length.
    Unfit(Outcome, u16),
    /// The next frame has to wait until this time.
    Wait(u64),
    /// The next descriptor is impossible, or its frame cannot be reached.
    Fault(EngineFault),
}

/// The frames of one run and where they lie.
struct Run<'a> {
    frames: [Span<'a>; BATCH],
    places: [Iova; BATCH],
}

impl CardTx {
    /// A queue at place 0 of a ring that lies at `ring_at`.
    pub fn new(ring: Ring, ring_at: Iova, limits: FrameLimits, iotlb: Iotlb, clock: Clock) -> Self {
        let finished = vec![0; ring.entries() as usize].into_boxed_slice();
        Self { ring, ring_at, head: 0, done: 0, finished, held: 0, limits, iotlb, clock }
    }

    /// Place of the next descriptor to be taken.
    pub fn head(&self) -> u32 {
        self.ring.index(self.head)
    }

    /// Place of the next descriptor to be handed back.
    pub fn done(&self) -> u32 {
        self.ring.index(self.done)
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
        // A hint only, for an address that nobody has judged.
        let at = self.ring.address(self.head);
        if let Some(line) = self.iotlb.peek(at, 1, Access::Read).and_then(|reach| reach.span(at, 1)) {
            line.prefetch();
        }
        true
    }

    /// What the next descriptor says of where its frame lies. Nobody has judged it; of a descriptor that is not the card's it
    /// means nothing.
    #[inline(always)]
    pub fn next_address(&self) -> Iova {
        self.ring.address(self.head)
    }

    /// Whether the card has taken and handed back everything that it was given, also what waits for its time.
    pub fn is_drained(&self) -> bool {
        self.in_flight() == 0 && self.ring.is_done(self.head)
    }

    /// How long the frame at the head has to wait for its launch time; `None` if none waits.
    pub fn launch_in(&self) -> Option<Duration> {
        let waits = self.held != 0 && !self.ring.is_done(self.head);
        waits.then(|| Duration::from_nanos(self.wait()))
    }

    /// Nanoseconds until the launch time that was read last; 0 once it has to be judged again, which is also so when the
    /// clock was set back meanwhile.
    #[cold]
    fn wait(&self) -> u64 {
        Some(self.held.saturating_sub((self.clock)())).filter(|&left| left <= HORIZON).unwrap_or(0)
    }

    /// Takes frames out of the ring until the sink is full, the ring is empty, a frame has to wait for its launch time,
    /// or `budget` frames are gone; and hands their descriptors back.
    #[inline]
    pub fn serve(&mut self, budget: usize, sink: &mut impl FrameSink) -> Served {
        self.serve_with(budget, true, |run, found| sink.take_burst(&run.frames[..found]))
    }

    /// As [`CardTx::serve`] for a sink that sends from the buffer itself and is done with it later: it has a frame until
    /// [`CardTx::complete`] counts it. The IOVA is the frame's.
    pub fn serve_deferred(&mut self, budget: usize, mut sink: impl FnMut(Iova, Span<'_>) -> Verdict) -> Served {
        self.serve_with(budget, false, |run, found| {
            let mut frames = run.places.iter().zip(&run.frames[..found]);
            frames.position(|(&iova, &frame)| sink(iova, frame) == Verdict::Full).unwrap_or(found)
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
        self.hand_back();
    }

    #[inline(always)]
    fn serve_with(&mut self, budget: usize, at_once: bool, mut sink: impl FnMut(&Run<'_>, usize) -> usize) -> Served {
        let mut served = Served::default();
        self.iotlb.sync();
        self.held = 0;
        let mut left = budget;
        while left > 0 {
            let (gone, goes_on) = self.serve_run(left.min(BATCH), at_once, &mut sink, &mut served);
            left -= gone.min(left);
            self.hand_back();
            if !goes_on {
                break;
            }
        }
        served
    }

    /// Serves a run of frames that may be sent now and one that may not. Returns how many left the ring, and whether it
    /// is worth looking for more.
    #[inline(always)]
    fn serve_run(
        &mut self,
        want: usize,
        at_once: bool,
        sink: &mut impl FnMut(&Run<'_>, usize) -> usize,
        served: &mut Served,
    ) -> (usize, bool) {
        let mut run = Run { frames: [Span::EMPTY; BATCH], places: [Iova::default(); BATCH] };
        let (found, stop) = self.look_ahead(&mut run, want);
        let taken = if found > 0 { sink(&run, found) } else { 0 };
        let mut lengths = [0u16; BATCH];
        lengths.iter_mut().zip(&run.frames[..taken]).for_each(|(len, frame)| *len = frame.len() as u16);
        for &len in &lengths[..taken] {
            served.bytes += u64::from(len);
            self.take(Status { len, done: at_once, ..Status::default() });
        }
        served.frames += taken as u64;
        if taken < found {
            return (taken, false);
        }
        match stop {
            Stop::Enough => (taken, true),
            Stop::Empty => (taken, false),
            Stop::Unfit(outcome, len) => {
                self.drop_frame(outcome, len, served);
                (taken + 1, true)
            }
            Stop::Wait(time) => {
                self.held = time;
                (taken, false)
            }
            Stop::Fault(fault) => {
                served.fault = Some(fault);
                (taken, false)
            }
        }
    }

    #[cold]
    fn drop_frame(&mut self, outcome: Outcome, len: u16, served: &mut Served) {
        match outcome {
            Outcome::TooShort => served.too_short += 1,
            Outcome::TooLong => served.too_long += 1,
            Outcome::TooFar | Outcome::Passed => served.too_far += 1,
        }
        self.take(Status { len, outcome: outcome as u8, port: 0, done: true });
    }

    /// Takes the descriptor at the head, to be handed back with `status`.
    #[inline(always)]
    fn take(&mut self, status: Status) {
        self.finished[self.ring.index(self.head) as usize] = status.encode();
        self.head = self.head.wrapping_add(1);
    }

    /// Hands back every descriptor at `done` that is finished.
    #[inline(always)]
    fn hand_back(&mut self) {
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

    /// Finds frames and asks for their first cache lines. Changes nothing.
    #[inline(always)]
    fn look_ahead<'a>(&'a self, run: &mut Run<'a>, want: usize) -> (usize, Stop) {
        // A descriptor that was not handed back yet still reads as the card's.
        let most = (self.ring.entries() - self.in_flight()) as usize;
        let (mut reach, mut now): (Option<Reach<'a>>, Option<u64>) = (None, None);
        let (mut hits, mut found) = (0, 0);
        let stop = loop {
            if found == want {
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
                Some(Ok(len)) if len < self.limits.min => break Stop::Unfit(Outcome::TooShort, len),
                Some(Ok(len)) if len > self.limits.max => break Stop::Unfit(Outcome::TooLong, len),
                Some(Ok(len)) => len,
            };
            let time = self.ring.time(at);
            if time != 0 {
                let now = *now.get_or_insert_with(|| (self.clock)());
                match time.saturating_sub(now) {
                    0 => {}
                    1..=HORIZON => break Stop::Wait(time),
                    _ => break Stop::Unfit(Outcome::TooFar, len),
                }
            }
            let (iova, len) = (self.ring.address(at), usize::from(len));
            // Mostly the mapping of the frame before.
            let frame = match reach.and_then(|reach| reach.span(iova, len)) {
                Some(frame) => {
                    hits += 1;
                    frame
                }
                None => match self.iotlb.reach(iova, len, Access::Read) {
                    Ok(other) => {
                        reach = Some(other);
                        other.span(iova, len).unwrap_or(Span::EMPTY)
                    }
                    Err(fault) => break Stop::Fault(fault.into()),
                },
            };
            frame.prefetch();
            (run.frames[found], run.places[found]) = (frame, iova);
            found += 1;
        };
        self.iotlb.count_hits(hits);
        (found, stop)
    }
}
