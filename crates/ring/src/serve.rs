//! How the card's half of a TX ring is served, the same for all protocols: find a run of frames and ask for their first
//! cache lines, hand the run to the sink, pass what was taken, and see to whatever ended the run. Here is the limit to what
//! one call may look at ([`crate::budget`]); a [`Source`] is what a protocol adds.

use crate::budget::LOOKS;
use crate::{EngineFault, FrameSink, Served};
use millrace_dma::{Access, Fault, Iotlb, Iova, Reach, Span};

/// Frames that are looked at together, so that their cache lines are on the way while earlier ones are copied.
pub(crate) const BATCH: usize = 32;

/// Why a run of frames ended.
pub(crate) enum Stop<O> {
    /// As many as were wanted.
    Enough,
    /// Nothing more is in the ring.
    Empty,
    /// What comes next is no frame that can be handed over from where it lies.
    Other(O),
    /// What comes next is impossible, or cannot be reached.
    Fault(EngineFault),
}

/// What became of something that was not a frame to be handed over from where it lies.
pub(crate) enum After {
    /// A frame left the ring, sent or not.
    Frame,
    /// The ring has moved on, but no frame left it.
    Setting,
    /// Nothing can be done with it now.
    Nothing,
}

/// What a sink has taken of a run of frames.
pub(crate) struct Taken {
    /// From the front.
    pub frames: usize,
    /// The last of them has gone nowhere ([`FrameSink::has_dropped`]).
    pub dropped: bool,
    /// When the last of them was let go ([`FrameSink::let_go_at`]).
    pub at: Option<u64>,
}

impl Taken {
    /// Offers a run to a sink.
    #[inline(always)]
    pub fn by(sink: &mut impl FrameSink, frames: &[Span<'_>]) -> Self {
        Self { frames: sink.take_burst(frames), dropped: sink.has_dropped(), at: sink.let_go_at() }
    }
}

/// The card's half of a TX ring, as the server sees it.
pub(crate) trait Source {
    /// What has to be known of a frame besides its bytes.
    type Note: Copy + Default;
    /// See [`Stop::Other`].
    type Other;
    /// Whether [`Source::pass`] looks at the lengths.
    const NEEDS_LENGTHS: bool = false;

    /// How far the ring has been passed; any number that changes with it.
    fn place(&self) -> u32;

    /// Whether nothing waits behind the next entry, as far as a glance tells. A lone frame is not made to wait until an
    /// array for many is cleared, which takes longer than all that has to be done for it.
    fn is_lone(&self) -> bool;

    /// Finds frames for all places of `frames` and `notes`, which are as many, or fewer; asks for their first cache lines.
    /// Changes nothing that others see.
    fn look_ahead<'a>(&'a self, frames: &mut [Span<'a>], notes: &mut [Self::Note]) -> (usize, Stop<Self::Other>);

    /// Of the `found` frames of the run (at least one), those with these lengths and notes have left the ring. The lengths
    /// are 0 unless [`Source::NEEDS_LENGTHS`].
    fn pass(&mut self, found: usize, lengths: &[u16], notes: &[Self::Note]);

    /// Sees to what ended a run. Adds to `served` what it did and how many entries it looked at.
    ///
    /// # Errors
    /// [`EngineFault`], which stops the queue.
    fn serve_other(
        &mut self,
        other: Self::Other,
        take: &mut impl FnMut(&[Span<'_>], &[Self::Note]) -> Taken,
        served: &mut Served,
    ) -> Result<After, EngineFault>;

    /// The end of a run: nothing in it is used any more.
    #[inline(always)]
    fn end_run(&mut self) {}
}

/// Reads the memory of the owner for a run of frames, which mostly lie in the mapping of the one before.
pub(crate) struct Reader<'a> {
    iotlb: &'a Iotlb,
    reach: Option<Reach<'a>>,
    hits: u64,
}

impl<'a> Reader<'a> {
    #[inline(always)]
    pub fn new(iotlb: &'a Iotlb) -> Self {
        Self { iotlb, reach: None, hits: 0 }
    }

    #[inline(always)]
    pub fn read(&mut self, iova: Iova, len: usize) -> Result<Span<'a>, Fault> {
        if let Some(span) = self.reach.and_then(|reach| reach.span(iova, len)) {
            self.hits += 1;
            return Ok(span);
        }
        let reach = self.iotlb.reach(iova, len, Access::Read)?;
        self.reach = Some(reach);
        Ok(reach.span(iova, len).unwrap_or(Span::EMPTY))
    }

    /// Asks for a line that will be read later, if it is in the mapping read last.
    #[inline(always)]
    pub fn hint(&self, iova: Iova) {
        if let Some(line) = self.reach.and_then(|reach| reach.span(iova, 1)) {
            line.prefetch();
        }
    }

    /// Counts what was read without asking the cache again.
    #[inline(always)]
    pub fn end(self) {
        self.iotlb.count_hits(self.hits);
    }
}

/// Serves a ring until `take`, which gets frames with their notes and returns what it took of them, has no room, the
/// ring is empty, `budget` frames are gone, or enough has been looked at. Up to `RUN` frames are looked at together:
/// [`BATCH`], or fewer where they lie in a stream.
#[inline(always)]
pub(crate) fn serve<const RUN: usize, S: Source>(
    source: &mut S,
    budget: usize,
    mut take: impl FnMut(&[Span<'_>], &[S::Note]) -> Taken,
) -> Served {
    let mut served = Served::default();
    let before = source.place();
    let mut left = budget;
    while left > 0 && served.looked < LOOKS {
        let most = left.min((LOOKS - served.looked) as usize);
        let is_lone = source.is_lone();
        let (gone, goes_on) = if is_lone {
            serve_run::<1, S>(source, most, &mut take, &mut served)
        } else {
            serve_run::<RUN, S>(source, most, &mut take, &mut served)
        };
        left -= gone.min(left);
        source.end_run();
        if !goes_on || is_lone {
            break;
        }
    }
    served.has_advanced = source.place() != before;
    served
}

/// Serves a run of up to `most` frames and what ended it. Returns how many frames left the ring, and whether it is worth
/// looking for more.
#[inline(always)]
fn serve_run<const RUN: usize, S: Source>(
    source: &mut S,
    most: usize,
    take: &mut impl FnMut(&[Span<'_>], &[S::Note]) -> Taken,
    served: &mut Served,
) -> (usize, bool) {
    let (mut frames, mut notes) = ([Span::EMPTY; RUN], [S::Note::default(); RUN]);
    let want = if RUN == 1 { 1 } else { most.min(RUN) };
    let (found, stop) = source.look_ahead(&mut frames[..want], &mut notes[..want]);
    let taken = if found > 0 { take(&frames[..found], &notes[..found]).frames } else { 0 };
    served.looked += found as u32;
    served.frames += taken as u64;
    served.bytes += frames[..taken].iter().map(|frame| frame.len() as u64).sum::<u64>();
    let mut lengths = [0u16; RUN];
    if S::NEEDS_LENGTHS {
        lengths.iter_mut().zip(&frames[..taken]).for_each(|(len, frame)| *len = frame.len() as u16);
    }
    if found > 0 {
        source.pass(found, &lengths[..taken], &notes[..taken]);
    }
    if taken < found {
        return (taken, false);
    }
    match stop {
        Stop::Enough => (taken, true),
        Stop::Empty => (taken, false),
        Stop::Other(other) => match source.serve_other(other, take, served) {
            Ok(After::Frame) => (taken + 1, true),
            Ok(After::Setting) => (taken, true),
            Ok(After::Nothing) => (taken, false),
            Err(fault) => stop_by(fault, taken, served),
        },
        Stop::Fault(fault) => {
            served.looked += 1;
            stop_by(fault, taken, served)
        }
    }
}

#[cold]
fn stop_by(fault: EngineFault, taken: usize, served: &mut Served) -> (usize, bool) {
    served.fault = Some(fault);
    (taken, false)
}
