//! What the card counted, in the shape in which `millrace stats --json` prints it.

use crate::launch::{BUCKETS, bucket_end};
use crate::schedule::Schedule;
use crate::{control::QueueState, queue::Engine, queue::QueueId};
use serde::{Deserialize, Serialize};

/// Everything countable of one card at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CardStats {
    /// One entry per queue that exists, RX first, by index.
    pub queues: Vec<QueueStats>,
    /// One entry per port.
    pub ports: Vec<PortStats>,
    /// One entry per worker thread.
    pub workers: Vec<WorkerStats>,
    /// What became of the frames that rules decided on, over all workers; empty without rules.
    pub flows: Vec<Count>,
    /// One entry per PCI function.
    pub functions: Vec<FunctionStats>,
    /// Wakes of programs that took too long (`slow`), and those that a thread of the user's own made since (`apart`, decision 124). Empty without such.
    pub bells: Vec<Count>,
}

/// What happened to a PCI function since the card started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionStats {
    /// The socket by which machines reach it.
    pub path: String,
    /// What, and how often; all that there is, also what never happened.
    pub events: Vec<Count>,
}

/// Counters of one queue since the card started; its registers count since their last reset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueStats {
    /// Which queue.
    pub queue: QueueId,
    /// Protocol that serves it.
    pub engine: Engine,
    /// Running, stopped or faulted.
    pub state: QueueState,
    /// Index of the worker that serves it.
    pub worker: u32,
    /// Process ids of those who have it open.
    pub holders: Vec<u32>,
    /// RX: frames offered to the queue. TX: frames taken out of the ring.
    pub offered: u64,
    /// RX: frames written to the ring. TX: frames handed to the port.
    pub passed: u64,
    /// Bytes of the frames in `passed`, without FCS.
    pub passed_bytes: u64,
    /// Copies that the card has made of frames: RX, between the wire and the memory of the queue; TX, between the memory of
    /// the queue and the wire. Those that the kernel makes behind an interface are not among them.
    pub copies: u64,
    /// Why the others were not passed: `offered = passed + sum of these`. Only reasons with a count above 0.
    pub drops: Vec<Count>,
    /// What became of frames with a launch time; `None` before the first.
    pub launch: Option<LaunchStats>,
    /// Translations answered by the last mapping used.
    pub iotlb_hits: u64,
    /// Translations that had to search the domain.
    pub iotlb_misses: u64,
    /// Translations that failed.
    pub iotlb_faults: u64,
    /// Address of the last failed translation, if any.
    pub fault_iova: Option<u64>,
    /// Starts that were refused.
    pub refused: u64,
    /// Why the last of them was, if none has worked since.
    pub refusal: Option<String>,
}

/// Verdicts on the frames of a queue that had a launch time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchStats {
    /// Frames with a verdict: the sum of `verdicts`.
    pub frames: u64,
    /// How many by verdict ([`Reason`](crate::launch::Reason)). Only those with a count above 0.
    pub verdicts: Vec<Count>,
    /// How late those were that left, in ns: half of them no later than this, as the upper end of a bucket.
    pub late_p50_ns: u64,
    /// The same for 99 of 100.
    pub late_p99_ns: u64,
    /// The latest of them, in ns, exactly.
    pub late_max_ns: u64,
    /// How many were how late. Only buckets with a count above 0.
    pub late: Vec<LateBucket>,
}

/// A bucket of a histogram of lateness. Each begins where the one before ends, and they end at 64 ns, 128 ns and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateBucket {
    /// Frames in it were late by less than so many ns; `None`: it has no end.
    pub below_ns: Option<u64>,
    /// How many.
    pub count: u64,
}

impl LateBucket {
    /// Those of counts by [bucket](crate::launch::bucket_of), without the empty ones.
    pub fn of(counts: &[u64; BUCKETS]) -> Vec<Self> {
        let buckets = counts.iter().enumerate().filter(|&(_, &count)| count > 0);
        buckets.map(|(at, &count)| Self { below_ns: bucket_end(at), count }).collect()
    }

    /// The end of the bucket below which this share of all counts lies; `None`: it has none, or there are no counts.
    pub fn share(counts: &[u64; BUCKETS], share: f64) -> Option<u64> {
        let wanted = (counts.iter().sum::<u64>() as f64 * share).ceil();
        let mut sum = 0;
        let at = counts.iter().position(|&count| {
            sum += count;
            count > 0 && sum as f64 >= wanted
        });
        at.and_then(bucket_end)
    }
}

/// Counters of one port and its MACs, since the card started; the MACs' own registers count since their last reset.
///
/// Frames of the wire = `rx_frames` + `rx_drops` (less `fault-duplicate` of a wire with faults). At rest `rx_frames` is what the RX queues of the port were offered, and
/// `tx_frames` + `tx_drops` is what its TX queues have passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortStats {
    /// Index of the port, from 0.
    pub port: u32,
    /// What is plugged in, such as `pcap:in.pcap`; `none`: nothing.
    pub spec: String,
    /// Whether there is somebody at the other end, as far as the port can know.
    pub link: bool,
    /// How the port drives its wire, in words; empty if there is nothing to say.
    pub mode: String,
    /// The port that it is connected with inside the card.
    pub connected: Option<u32>,
    /// When its queues may send; `None`: always.
    pub schedule: Option<Schedule>,
    /// Frames that came in from the wire and that the MAC let through.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Copies that the port has made of frames from the wire before the card had them.
    pub rx_copies: u64,
    /// Frames that went out to the wire.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Copies that the port has made of frames towards the wire.
    pub tx_copies: u64,
    /// Frames that arrived but were not passed on, by reason: those of the port, `disabled` and `filtered` by the MAC.
    pub rx_drops: Vec<Count>,
    /// Frames that were handed over but did not leave, by reason.
    pub tx_drops: Vec<Count>,
    /// What else happened to frames from the wire, such as `fault-duplicate`: frames that were added count here, the others
    /// are among those passed.
    pub rx_events: Vec<Count>,
    /// What else happened to frames towards the wire.
    pub tx_events: Vec<Count>,
}

/// What one worker thread did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Index of the worker, from 0.
    pub worker: u32,
    /// Core it is pinned to.
    pub cpu: Option<u32>,
    /// Queues it serves at the moment.
    pub active_queues: u32,
    /// Times round its loop.
    pub passes: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
}

/// A named number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The reason, in kebab-case.
    pub reason: String,
    /// How many.
    pub count: u64,
}
