//! One direction of a wire with faults.

use super::hold::Hold;
use crate::{
    Event, MAX_FRAME_LEN,
    spec::{Chance, FaultSpec},
};
use fastrand::Rng;
use millrace_dma::Span;
use std::time::{Duration, Instant};

/// How long a frame waits for the one that shall overtake it.
const REORDER_LAG: Duration = Duration::from_millis(10);

/// Later than anything that is held back is due.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What became of a frame at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Out {
    Passed,
    /// No room; the same frame has to be given again.
    Full,
    /// It is gone, and counted by whoever dropped it.
    Dropped,
    /// It fell victim to a fault.
    Lost,
}

/// What the faults did since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub lost: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    delayed: u64,
}

impl Tally {
    pub fn events(&self) -> impl Iterator<Item = (Event, u64)> {
        [
            (Event::FaultDuplicate, self.duplicated),
            (Event::FaultReorder, self.reordered),
            (Event::FaultCorrupt, self.corrupted),
            (Event::FaultDelay, self.delayed),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
    }
}

/// What is to happen to a frame.
#[derive(Clone, Copy)]
struct Fate {
    lose: bool,
    duplicate: bool,
    reorder: bool,
    /// Which bit is turned, as a part of 2^32 of the frame.
    corrupt: Option<u32>,
}

/// The frame that waits to be overtaken.
struct Late {
    frame: Box<[u8; MAX_FRAME_LEN]>,
    len: usize,
    /// When it goes at the latest; `None` when nobody waits.
    until: Option<Instant>,
}

/// One direction.
pub(super) struct Lane {
    dice: Dice,
    /// The fate of the next frame, if that was given and there was no room.
    fate: Option<Fate>,
    /// A copy with a wrong bit.
    scratch: Box<[u8; MAX_FRAME_LEN]>,
    line: Line,
    started: Instant,
}

/// What draws the fate of frames.
struct Dice {
    random: Rng,
    loss: Chance,
    duplicate: Chance,
    reorder: Chance,
    corrupt: Chance,
}

/// Where frames wait.
struct Line {
    late: Option<Late>,
    hold: Option<Hold>,
    delay: Duration,
    tally: Tally,
}

impl Dice {
    /// Every frame draws all its lots, so that one fault does not change when another strikes.
    fn draw(&mut self) -> Fate {
        let mut strikes = |chance: Chance| self.random.u32(0..1_000_000) < chance.millionths();
        let (lose, duplicate, reorder) = (strikes(self.loss), strikes(self.duplicate), strikes(self.reorder));
        let corrupt = strikes(self.corrupt);
        let bit = self.random.u32(..);
        Fate { lose, duplicate, reorder, corrupt: corrupt.then_some(bit) }
    }
}

impl Lane {
    /// The lane of this number; each has its own chance.
    pub fn new(spec: &FaultSpec, number: u64) -> Self {
        let late = || Late { frame: Box::new([0; MAX_FRAME_LEN]), len: 0, until: None };
        let dice = Dice {
            // Far apart, so that lanes of neighbouring seeds have nothing in common.
            random: Rng::with_seed(spec.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            loss: spec.loss,
            duplicate: spec.duplicate,
            reorder: spec.reorder,
            corrupt: spec.corrupt,
        };
        let line = Line {
            late: (spec.reorder.millionths() > 0).then(late),
            hold: (!spec.delay.is_zero()).then(Hold::new),
            delay: spec.delay,
            tally: Tally::default(),
        };
        Self { dice, fate: None, scratch: Box::new([0; MAX_FRAME_LEN]), line, started: Instant::now() }
    }

    /// The time, if it matters here.
    pub fn now(&self) -> Instant {
        if self.line.hold.is_some() || self.line.late.is_some() { Instant::now() } else { self.started }
    }

    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.line.tally)
    }

    /// Lets a frame pass to `out`, or not. After `Out::Full` the same happens to it when it is given again.
    pub fn pass(&mut self, frame: Span<'_>, now: Instant, out: &mut dyn FnMut(Span<'_>) -> Out) -> Out {
        let fate = self.fate.take().unwrap_or_else(|| self.dice.draw());
        if fate.lose {
            self.line.tally.lost += 1;
            return Out::Lost;
        }
        let passed = match fate.corrupt {
            None => self.line.arrange(frame, &fate, now, out),
            Some(bit) => self.line.arrange(corrupted(frame, &mut self.scratch, bit), &fate, now, out),
        };
        self.line.tally.corrupted += u64::from(fate.corrupt.is_some() && passed == Out::Passed);
        if passed == Out::Full {
            self.fate = Some(fate);
        }
        passed
    }

    /// Lets up to `limit` frames that were held back and are due pass to `out`, until there is no room.
    pub fn release(&mut self, now: Instant, limit: usize, out: &mut dyn FnMut(Span<'_>) -> Out) {
        self.line.release(now, limit, out);
    }

    /// The same for all frames, due or not. Returns how many found no room.
    pub fn release_all(&mut self, out: &mut dyn FnMut(Span<'_>) -> Out) -> u64 {
        self.line.let_late_go(self.started, out);
        self.line.release(self.started + FaultSpec::MAX_DELAY + FOR_EVER, usize::MAX, out);
        self.line.waiting()
    }

    /// Whether a frame is held back.
    pub fn holds(&self) -> bool {
        self.line.waiting() > 0
    }

    /// When a frame that is held back is due.
    pub fn next_due(&self) -> Option<Instant> {
        let late = self.line.late.as_ref().and_then(|late| late.until);
        let held = self.line.hold.as_ref().and_then(Hold::first).map(|(due, _)| due);
        late.into_iter().chain(held).min()
    }
}

impl Line {
    /// Puts a frame where it belongs: behind its successor, twice, or straight on.
    fn arrange(&mut self, frame: Span<'_>, fate: &Fate, now: Instant, out: &mut dyn FnMut(Span<'_>) -> Out) -> Out {
        if let Some(late) = self.late.as_mut().filter(|late| fate.reorder && late.until.is_none()) {
            late.len = frame.read_into(&mut late.frame[..]);
            late.until = Some(now + REORDER_LAG);
            return Out::Passed;
        }
        let passed = Self::advance(&mut self.hold, self.delay, &mut self.tally, frame, now, out);
        if passed == Out::Full {
            return Out::Full;
        }
        if fate.duplicate && Self::advance(&mut self.hold, self.delay, &mut self.tally, frame, now, out) == Out::Passed
        {
            self.tally.duplicated += 1;
        }
        if self.let_late_go(now, out) {
            self.tally.reordered += 1;
        }
        passed
    }

    /// Lets a frame go on now, or after the delay.
    fn advance(
        hold: &mut Option<Hold>,
        delay: Duration,
        tally: &mut Tally,
        frame: Span<'_>,
        now: Instant,
        out: &mut dyn FnMut(Span<'_>) -> Out,
    ) -> Out {
        let Some(hold) = hold else { return out(frame) };
        if !hold.put(frame, now + delay) {
            return Out::Full;
        }
        tally.delayed += 1;
        Out::Passed
    }

    /// Lets the frame go that waits to be overtaken; `false` when there is none or no room.
    fn let_late_go(&mut self, now: Instant, out: &mut dyn FnMut(Span<'_>) -> Out) -> bool {
        let Some(late) = self.late.as_mut().filter(|late| late.until.is_some()) else { return false };
        let frame = Span::from_slice(&late.frame[..late.len]);
        if Self::advance(&mut self.hold, self.delay, &mut self.tally, frame, now, out) == Out::Full {
            return false;
        }
        late.until = None;
        true
    }

    fn release(&mut self, now: Instant, limit: usize, out: &mut dyn FnMut(Span<'_>) -> Out) {
        if self.late.as_ref().and_then(|late| late.until).is_some_and(|until| until <= now) {
            self.let_late_go(now, out);
        }
        let Some(hold) = &mut self.hold else { return };
        for _ in 0..limit {
            let Some((_, frame)) = hold.first().filter(|(due, _)| *due <= now) else { break };
            if out(frame) == Out::Full {
                break;
            }
            hold.remove_first();
        }
    }

    /// Frames that are held back.
    fn waiting(&self) -> u64 {
        let late = self.late.as_ref().is_some_and(|late| late.until.is_some());
        u64::from(late) + self.hold.as_ref().map_or(0, |hold| hold.len() as u64)
    }
}

/// A copy of the frame with one bit turned, which `bit` of 2^32 parts of the frame tells.
fn corrupted<'a>(frame: Span<'_>, scratch: &'a mut [u8; MAX_FRAME_LEN], bit: u32) -> Span<'a> {
    let len = frame.read_into(&mut scratch[..]);
    let bit = (u64::from(bit) * len as u64 * 8) >> 32;
    if let Some(byte) = scratch[..len].get_mut((bit / 8) as usize) {
        *byte ^= 1 << (bit % 8);
    }
    Span::from_slice(&scratch[..len])
}
