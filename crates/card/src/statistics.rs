//! What has been counted, in the shape in which it is told.

use crate::counters::{Counts, QueueDrop};
use crate::ports::{PortEntry, Wiring};
use crate::queue::Queue;
use millrace_abi::launch::Reason;
use millrace_abi::stats::{Count, LateBucket, LaunchStats, PortStats, QueueStats};
use millrace_ring::dd::LaunchCounts;
use std::sync::atomic::Ordering;

/// What a queue has counted. Its holders are the driver's to say.
pub(crate) fn queue_stats(queue: &Queue, worker: Option<u32>) -> QueueStats {
    let status = &queue.status;
    let mut counts: Counts = status.counts.read();
    let too_long = &mut counts.drops[QueueDrop::TooLong as usize];
    *too_long = too_long.saturating_add(queue.never_posted.load(Ordering::Relaxed));
    let (refused, refusal) = queue.refusals();
    let reasons = QueueDrop::ALL.iter().map(|reason| reason.name()).zip(counts.drops);
    QueueStats {
        queue: status.id,
        engine: status.engine,
        state: status.state(),
        holders: Vec::new(),
        worker: worker.unwrap_or(0),
        offered: counts.passed.saturating_add(counts.dropped()),
        passed: counts.passed,
        passed_bytes: counts.passed_bytes,
        copies: counts.copies,
        drops: named(reasons),
        launch: status.launches.as_ref().and_then(|counts| launch_stats(counts)),
        iotlb_hits: counts.iotlb_hits,
        iotlb_misses: counts.iotlb_misses,
        iotlb_faults: counts.iotlb_faults,
        fault_iova: status.fault_iova(),
        refused,
        refusal: refusal.map(|why| why.to_string()),
    }
}

/// Verdicts on frames with launch times; `None` before the first.
fn launch_stats(counts: &LaunchCounts) -> Option<LaunchStats> {
    let (reasons, late) = (counts.reasons(), counts.late());
    let frames = reasons.iter().sum();
    let latest = counts.latest();
    // A bucket says that nothing in it reaches its end; the latest is known.
    let below = |share| LateBucket::share(&late, share).map_or(latest, |end| latest.min(end));
    (frames > 0).then(|| LaunchStats {
        frames,
        verdicts: named(Reason::ALL.iter().map(|reason| reason.name()).zip(reasons)),
        late_p50_ns: below(0.5),
        late_p99_ns: below(0.99),
        late_max_ns: latest,
        late: LateBucket::of(&late),
    })
}

/// What a port has counted.
pub(crate) fn port_stats(index: usize, port: &PortEntry, wiring: &Wiring) -> PortStats {
    let (rx, tx) = (port.mac.received(), port.mac.sent());
    let (rx_copies, tx_copies) = port.mac.copies();
    let [rx_events, tx_events] = port.mac.events();
    PortStats {
        port: index as u32,
        spec: wiring.spec.clone(),
        link: port.mac.link(),
        mode: port.mac.mode(),
        connected: wiring.patch.map(|other| other as u32),
        schedule: wiring.schedule.as_ref().map(|schedule| schedule.said.clone()),
        rx_frames: rx.passed(),
        rx_bytes: rx.passed_bytes(),
        rx_copies,
        tx_frames: tx.sent(),
        tx_bytes: tx.sent_bytes(),
        tx_copies,
        rx_drops: named(rx.drops()),
        tx_drops: named(tx.drops()),
        rx_events: named(rx_events.into_iter()),
        tx_events: named(tx_events.into_iter()),
    }
}

/// The reasons that have struck.
pub(crate) fn named(drops: impl Iterator<Item = (&'static str, u64)>) -> Vec<Count> {
    let struck = drops.filter(|(_, count)| *count > 0);
    struck.map(|(reason, count)| Count { reason: reason.to_owned(), count }).collect()
}
