//! Whether workers classify: only while there are rules.

use super::Flows;
use crate::card::Card;
use crate::command::Command;
use crate::shard::{Classifying, FlowCounts, cross};
use millrace_flow::table::Miss;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Flows that a worker's cache has room for.
const CACHE_ENTRIES: usize = 1 << 17;

impl Flows {
    /// A port was unplugged while so many of its frames waited for room.
    pub(crate) fn count_source_gone(&self, frames: u64) {
        self.source_gone.fetch_add(frames, Ordering::Relaxed);
    }

    /// Whether there is anything that classifying would do.
    fn is_wanted(&self) -> bool {
        let writer = &self.state().writer;
        !writer.is_empty() || writer.miss() != Miss::Normal
    }
}

impl Card {
    /// Has the workers classify from the first rule on; they look themselves whether there still is one. To be called after every
    /// change.
    pub(crate) fn settle_classifying(&self) {
        self.settle_workers(false);
        self.settle_neighbours();
    }

    /// Workers have what classifying takes, whether or not there are rules.
    pub(super) fn ready_classifying(&self) {
        self.settle_workers(true);
    }

    fn settle_workers(&self, is_heard: bool) {
        let mut active = self.flows.active.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = self.flows.is_wanted();
        if *active == Some(wanted) || (active.is_none() && !wanted && !is_heard) {
            return;
        }
        if active.replace(wanted).is_none() {
            let crossings = cross(self.affinity().mailboxes());
            for (worker, (crossings, counts)) in crossings.into_iter().zip(&self.flows.counts).enumerate() {
                let classifier = self.flows.state().writer.classifier(worker, CACHE_ENTRIES);
                let classifying = Box::new(Classifying::new(classifier, crossings, counts.clone()));
                drop(self.affinity().mailboxes()[worker].ask(Command::Classify(classifying)));
            }
        }
        self.suspend_loans(wanted);
    }

    /// What became of the frames that were classified: names and counts, those that are not 0.
    pub fn flow_counts(&self) -> Vec<(&'static str, u64)> {
        let gone = self.flows.source_gone.load(Ordering::Relaxed);
        let mut counts = FlowCounts::sum(self.flows.counts.iter(), gone, self.flows.neighbours.dropped());
        let bugs = self.flows.bugs.load(Ordering::Relaxed);
        counts.extend((bugs > 0).then_some(("control-bugs", bugs)));
        counts
    }
}

/// As [`now_ns`], a few milliseconds late at most, and cheaper.
pub(crate) fn coarse_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
