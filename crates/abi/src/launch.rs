//! What becomes of frames with a launch time that cannot leave at it, and the numbers that tell how late frames left.
//! The registers are those of DD (`docs/spec/dd.md`).

use core::fmt;
use serde::{Deserialize, Serialize};

/// Slack of a queue whose program has said nothing, in ns.
pub const SLACK_DEFAULT: u32 = 10_000;
/// How far ahead a launch time may lie, in ns, unless the queue holds whatever lies further ([`FarPolicy::Hold`]).
pub const HORIZON: u64 = 1_000_000_000;

/// What becomes of a frame that is late: one that the card comes to more than the slack after its launch time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatePolicy {
    /// It is sent, and counted as late.
    #[default]
    Send,
    /// It is dropped.
    Drop,
    /// As [`LatePolicy::Send`], and its descriptor says so, too.
    Mark,
}

/// What becomes of a frame whose launch time lies further ahead than [`HORIZON`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FarPolicy {
    /// It is dropped at once, so that a wild value holds no queue.
    #[default]
    Refuse,
    /// It waits, and what is behind it does.
    Hold,
}

/// The policy of one queue, as its program has chosen it. Latched when the queue starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchPolicy {
    /// Of frames that are late.
    pub late: LatePolicy,
    /// From how many ns on a frame is late.
    pub slack: u32,
    /// Of frames too far ahead.
    pub far: FarPolicy,
}

impl Default for LaunchPolicy {
    fn default() -> Self {
        Self { late: LatePolicy::default(), slack: SLACK_DEFAULT, far: FarPolicy::default() }
    }
}

/// Bits of the register LAUNCH that mean something.
pub const LAUNCH_BITS: u32 = 0x13;

impl LaunchPolicy {
    /// What the registers LAUNCH and SLACK hold for it.
    pub const fn to_registers(self) -> [u32; 2] {
        let late = match self.late {
            LatePolicy::Send => 0,
            LatePolicy::Drop => 1,
            LatePolicy::Mark => 2,
        };
        let far = match self.far {
            FarPolicy::Refuse => 0,
            FarPolicy::Hold => 1,
        };
        [late | far << 4, self.slack]
    }

    /// What the registers LAUNCH and SLACK mean. Bits 1:0 = 3 mean what 2 does.
    pub const fn of_registers([launch, slack]: [u32; 2]) -> Self {
        let late = match launch & 3 {
            0 => LatePolicy::Send,
            1 => LatePolicy::Drop,
            _ => LatePolicy::Mark,
        };
        let far = if launch >> 4 & 1 == 0 { FarPolicy::Refuse } else { FarPolicy::Hold };
        Self { late, slack, far }
    }
}

/// The verdict on a frame with a launch time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(usize)]
pub enum Reason {
    /// It left within the slack of its time.
    OnTime = 0,
    /// It left later.
    Late = 1,
    /// It was dropped because it was late.
    TooLate = 2,
    /// It was dropped because its time was too far ahead.
    TooFar = 3,
    /// It was dropped when its time had come, because the card could not send it: no window of the schedule of its port is long enough, the
    /// MAC is disabled or without a link, or nothing is plugged in.
    Dropped = 4,
}

impl Reason {
    /// All there are, in the order in which they are printed.
    pub const ALL: [Self; 5] = [Self::OnTime, Self::Late, Self::TooLate, Self::TooFar, Self::Dropped];

    /// The name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnTime => "on-time",
            Self::Late => "late",
            Self::TooLate => "too-late",
            Self::TooFar => "too-far",
            Self::Dropped => "dropped",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Buckets of a histogram of lateness.
pub const BUCKETS: usize = 26;
/// The first bucket holds what is below so many ns, as a power of two; each further one reaches twice as far, and the last
/// one has no end.
const FIRST_SHIFT: u32 = 6;

/// The bucket in which a lateness of so many ns is counted.
pub const fn bucket_of(late_ns: u64) -> usize {
    let shift = (u64::BITS - late_ns.leading_zeros()).saturating_sub(FIRST_SHIFT) as usize;
    if shift < BUCKETS { shift } else { BUCKETS - 1 }
}

/// A lateness in this bucket is below so many ns; `None`: the last bucket has no end.
pub const fn bucket_end(bucket: usize) -> Option<u64> {
    if bucket + 1 < BUCKETS { Some(1 << (FIRST_SHIFT + bucket as u32)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_survives_its_registers() {
        for late in [LatePolicy::Send, LatePolicy::Drop, LatePolicy::Mark] {
            for far in [FarPolicy::Refuse, FarPolicy::Hold] {
                let policy = LaunchPolicy { late, slack: 77, far };
                let [launch, slack] = policy.to_registers();
                assert_eq!(launch & !LAUNCH_BITS, 0);
                assert_eq!(LaunchPolicy::of_registers([launch, slack]), policy);
            }
        }
    }

    #[test]
    fn every_lateness_lies_below_the_end_of_its_bucket_and_not_below_that_before() {
        for late in [0, 1, 63, 64, 65, 127, 128, 1000, 1 << 20, (1 << 30) - 1, 1 << 30, 1 << 31, u64::MAX] {
            let bucket = bucket_of(late);
            assert!(bucket_end(bucket).is_none_or(|end| late < end), "{late} in {bucket}");
            assert!(bucket == 0 || bucket_end(bucket - 1).is_some_and(|end| late >= end), "{late} in {bucket}");
        }
    }
}
