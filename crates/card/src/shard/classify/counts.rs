//! What became of the frames that were classified.

use crate::published::{Published, Tally};
use millrace_flow::action::Reason;
use millrace_flow::execute::Stop;
use millrace_flow::table::CacheStats;
use std::sync::Arc;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum What {
    /// Frames that were looked up.
    Classified,
    /// Frames that rules gave to nobody.
    Dropped,
    /// Given to an RX queue that is not there.
    NoQueue,
    /// Given to a port that is not there.
    NoPort,
    /// No room on the way to another worker.
    CrossingFull,
    /// Its queue or port queue was on its way between workers, or gone to yet another one.
    Moved,
    /// It waited for room when its source was stopped, or for a queue that does not run when the rules changed.
    SourceGone,
    /// Rules wanted more done to it than may be.
    TooManyActions,
    /// Its queue does not run.
    NotRunning,
    /// A meter did not admit it.
    Meter,
    /// No headroom for another header.
    Headroom,
    /// `decap_vxlan` met no valid VXLAN packet.
    NotVxlan,
    /// `decap_vxlan` met a mark of congestion that the inner packet cannot have.
    Congested,
    /// `pop_pppoe` met no IP packet.
    NotIp,
    /// Somebody more should have got a frame, but there was no room for copies, or no such group.
    Lost,
    /// `output` to the port where it came in.
    Reflected,
    /// The neighbour was not found, or more waited for it than may.
    Neighbour,
    /// Frames copied to another worker.
    Crossed,
    /// Given to the host's slow path, by reason.
    PuntAction,
    PuntNoMatch,
    PuntTtl,
    PuntNeighbour,
    PuntMtu,
    PuntOther,
    /// Lookups, as [`CacheStats`] has them.
    CacheHits,
    CacheConfirmed,
    CacheMisses,
    CacheFlushes,
    /// Frames that met no rule.
    Unmatched,
}

const WORDS: usize = What::Unmatched as usize + 1;
/// In statistics, and whether it means that a frame was dropped.
const NAMES: [&str; WORDS] = [
    "classified",
    "dropped-by-rule",
    "no-such-queue",
    "no-such-port",
    "crossing-full",
    "moved-away",
    "source-gone",
    "too-many-actions",
    "queue-not-running",
    "meter",
    "no-headroom",
    "not-vxlan",
    "vxlan-congested",
    "not-ip",
    "copies-lost",
    "reflected",
    "neighbour",
    "crossed",
    "punted-action",
    "punted-no-match",
    "punted-ttl",
    "punted-neighbour",
    "punted-mtu",
    "punted-other",
    "cache-hits",
    "cache-confirmed",
    "cache-misses",
    "cache-flushes",
    "unmatched",
];

/// The counts of one worker, readable from anywhere.
#[derive(Default)]
pub(crate) struct FlowCounts(Published<WORDS>);

impl FlowCounts {
    /// Sums over workers, by name, those that are not 0.
    /// `gone` are frames whose port was unplugged while they waited, `neighbour` those that the slow path has dropped.
    pub fn sum<'c>(all: impl Iterator<Item = &'c Arc<Self>>, gone: u64, neighbour: u64) -> Vec<(&'static str, u64)> {
        let mut sums = [0u64; WORDS];
        sums[What::SourceGone as usize] = gone;
        sums[What::Neighbour as usize] = neighbour;
        for counts in all {
            sums.iter_mut().zip(counts.0.read()).for_each(|(sum, count)| *sum = sum.wrapping_add(count));
        }
        NAMES.into_iter().zip(sums).filter(|(_, count)| *count > 0).collect()
    }
}

/// The worker's side.
pub(super) struct Counted {
    tally: Tally<WORDS>,
    counts: Arc<FlowCounts>,
    shown: CacheStats,
}

impl Counted {
    pub fn new(counts: Arc<FlowCounts>) -> Self {
        Self { tally: Tally::new(), counts, shown: CacheStats::default() }
    }

    #[inline(always)]
    pub fn add(&mut self, what: What, count: u64) {
        self.tally.add(what as usize, count);
    }

    #[inline(always)]
    pub fn publish(&mut self) {
        self.tally.publish(&self.counts.0);
    }

    /// How many frames the host has had since their time to live was at its end.
    pub fn expired(&self) -> u64 {
        self.tally.get(What::PuntTtl as usize)
    }

    pub fn stop(&mut self, stop: Stop) {
        let what = match stop {
            Stop::Meter(_) => What::Meter,
            Stop::Headroom => What::Headroom,
            Stop::NotVxlan => What::NotVxlan,
            Stop::Congested => What::Congested,
            Stop::NotIp => What::NotIp,
            // The host gets it, and that is counted.
            Stop::Ttl | Stop::Neighbour | Stop::Mtu => return,
            // Who gets it counts it.
            Stop::Mapped => return,
        };
        self.add(what, 1);
    }

    pub fn punt(&mut self, reason: Reason) {
        let what = match reason {
            Reason::Action => What::PuntAction,
            Reason::NoMatch => What::PuntNoMatch,
            Reason::Ttl => What::PuntTtl,
            Reason::Neighbour => What::PuntNeighbour,
            Reason::Mtu => What::PuntMtu,
            Reason::Other(_) => What::PuntOther,
        };
        self.add(what, 1);
    }

    pub fn show_cache(&mut self, stats: CacheStats) {
        let before = std::mem::replace(&mut self.shown, stats);
        for (what, now, before) in [
            (What::CacheHits, stats.hits, before.hits),
            (What::CacheConfirmed, stats.confirmed, before.confirmed),
            (What::CacheMisses, stats.misses, before.misses),
            (What::CacheFlushes, stats.flushes, before.flushes),
            (What::Unmatched, stats.unmatched, before.unmatched),
        ] {
            if now > before {
                self.add(what, now - before);
            }
        }
        self.publish();
    }
}
