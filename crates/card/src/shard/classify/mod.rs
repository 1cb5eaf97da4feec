//! Where frames go when there are rules: a burst is copied to the stage, classified, and given to its targets, each target's frames
//! together.
//!
//! ```text
//! source -> MAC -> stage (a copy) -> keys -> classifier -> verdicts -> decide -> outs: target, bytes -> deliver
//!                    ^                                        |  slow: `execute` edits the frame where it lies
//!                    +------- goto_table behind new headers --+
//! deliver    rx ring, port queue, or the crossing to another worker; each as one burst
//! ```
//!
//! The copy is what makes rules hold: a frame in memory of another party could change between the look at it and its delivery.
//!
//! * `stage`: the frames of a burst. `decide`: from a verdict to targets. `environment`: what actions ask for. `deliver`: from targets to
//!   rings. `crossing`: between workers. `counts`: what became of all frames. `tap`: for those who listen.
//!   `slow`: to and from the thread that finds neighbours.

mod counts;
mod crossing;
mod decide;
mod deliver;
mod environment;
mod run;
mod slow;
mod stage;
mod tap;

pub(crate) use counts::FlowCounts;
use crossing::Crossings;
pub(crate) use crossing::cross;
pub(super) use deliver::Patience;
pub(super) use run::{Normal, Source};
pub(crate) use slow::{Brought, SlowEnds, SlowSide, cross_slowly};
pub(crate) use tap::Tapper;

use super::slots::{Parked, Target};
use counts::Counted;
use decide::Pending;
use environment::Random;
use millrace_flow::execute::Emissions;
use millrace_flow::key::Key;
use millrace_flow::neighbour::Reader;
use millrace_flow::table::{Classifier, VerdictId};
use millrace_packet::parse::Layers;
use stage::Stage;
use std::sync::Arc;
use tap::Taps;

/// Most frames that are classified together.
pub(super) const BURST: usize = millrace_flow::table::BURST;
/// Most that one frame may be given to.
const MOST_EMISSIONS: usize = 64;
/// Room for copies of one frame between changes.
const COPIES: usize = 4 * 65536;

/// Some bytes for somebody.
#[derive(Clone, Copy)]
struct Out {
    target: Target,
    at: u32,
    len: u32,
}

/// What a worker has for classifying, while there are rules.
pub(crate) struct Classifying {
    classifier: Classifier,
    crossings: Crossings,
    stage: Stage,
    // By place on the stage.
    keys: Box<[Key; BURST]>,
    layers: Box<[Layers; BURST]>,
    verdicts: Box<[VerdictId; BURST]>,
    /// The same by place, while frames go on to later tables.
    later: Box<[VerdictId; BURST]>,
    is_later: bool,
    /// Whether the frames of this burst have verdicts: those that no rule can be for are not looked up.
    has_looked_up: bool,
    /// Where frames lie for which there was no room in their targets.
    lost: Vec<u32>,
    outs: Vec<Out>,
    copies: Vec<Out>,
    pending: Vec<Pending>,
    emissions: Emissions,
    random: Random,
    /// Where somebody finds neighbours of tunnels.
    neighbours: Option<Reader>,
    counted: Counted,
    spare: Option<Box<Parked>>,
    /// See `take_work`.
    work: u32,
    /// Frames taken at once: fewer where rules want much done to each, so that others have their turn.
    burst: usize,
    /// The only target of the last burst, if it had only one.
    only: Option<Target>,
    /// When this burst is, coarsely.
    now_ns: u64,
    /// When the rules were last shown what was counted.
    shown_ns: u64,
    /// For those who listen; mostly nobody does.
    taps: Option<Box<Taps>>,
}

impl Classifying {
    /// For one worker: its side of the tables, its ends of the ways to the other workers, and where it counts.
    pub fn new(classifier: Classifier, crossings: Crossings, counts: Arc<FlowCounts>) -> Self {
        Self {
            classifier,
            crossings,
            stage: Stage::new(),
            keys: Box::new([Key::default(); BURST]),
            layers: Box::new([Layers::NONE; BURST]),
            verdicts: Box::new([VerdictId::default(); BURST]),
            later: Box::new([VerdictId::default(); BURST]),
            is_later: false,
            has_looked_up: false,
            lost: Vec::with_capacity(BURST),
            outs: Vec::with_capacity(BURST * 2),
            copies: Vec::with_capacity(MOST_EMISSIONS),
            pending: Vec::with_capacity(BURST),
            emissions: Emissions::new(MOST_EMISSIONS, COPIES),
            random: Random::new(),
            neighbours: None,
            counted: Counted::new(counts),
            spare: None,
            work: 0,
            burst: BURST,
            only: None,
            now_ns: 0,
            shown_ns: 0,
            taps: None,
        }
    }

    /// Whether there is anything that classifying would do.
    #[inline(always)]
    pub fn has_rules(&self) -> bool {
        self.classifier.has_rules()
    }

    /// Nothing is on the stage.
    pub fn clear(&mut self) {
        self.stage.clear();
    }

    /// Frames on the stage.
    pub fn staged_frames(&self) -> u32 {
        self.stage.frames.len() as u32
    }

    /// Bytes of the frames on the stage.
    pub fn staged_bytes(&self) -> u64 {
        self.stage.frames.iter().map(|frame| frame.len() as u64).sum()
    }

    /// Whether frames of TX queues may meet a rule before they go out, or a QUIC group that learns from them.
    #[inline(always)]
    pub fn looks_at_local(&self) -> bool {
        self.classifier.looks_at_local() | self.classifier.wants_sent()
    }

    /// Other workers that have something for this one, now or later.
    pub fn others(&self) -> impl Iterator<Item = u32> {
        self.crossings.others()
    }

    /// Whether something waits here that other workers have sent.
    pub fn has_arrivals(&self) -> bool {
        self.crossings.has_arrivals()
    }

    /// Whether another worker may have to be woken.
    #[inline(always)]
    pub fn has_crossed(&self) -> bool {
        self.crossings.has_crossed()
    }

    /// Wakes the workers that sleep and for which something has come, behind a [`wake_fence`](super::wake_fence).
    #[inline(always)]
    pub fn wake_others(&mut self) {
        self.crossings.wake();
    }

    /// The worker is about to sleep: others are to wake it, and what it has counted is shown.
    pub fn mark_asleep(&mut self) {
        self.classifier.release();
        self.counted.show_cache(self.classifier.stats());
        self.crossings.mark_asleep();
    }

    /// The worker is up again.
    pub fn awake(&mut self) {
        self.crossings.awake();
    }

    /// Shows what was counted for rules, every now and then, or at once when there is nothing else to do.
    pub fn show(&mut self) {
        self.classifier.flush();
        self.counted.show_cache(self.classifier.stats());
        self.shown_ns = self.now_ns;
    }
}
