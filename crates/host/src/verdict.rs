//! Verdicts on frames with launch times.

use millrace_abi::launch::Reason;
use millrace_ring::dd::Outcome;
use std::collections::VecDeque;

/// What became of a frame with a launch time. Times are nanoseconds of the card's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// When it was to be sent.
    pub scheduled: u64,
    /// When it was handed to the port, or dropped: what the clock showed right before.
    pub actual: u64,
    /// What became of it.
    pub outcome: Outcome,
}

impl Verdict {
    /// How late it left, or was dropped, in ns; 0 for one that was dropped because its time was too far ahead.
    pub fn lateness(&self) -> u64 {
        self.actual.saturating_sub(self.scheduled)
    }

    /// Whether it was sent.
    pub fn is_sent(&self) -> bool {
        matches!(self.outcome, Outcome::Passed | Outcome::Late)
    }

    /// The same in the words of the statistics, for a queue with this slack in ns; `None`: the frame was too short or too long for
    /// the card.
    pub fn reason(&self, slack: u32) -> Option<Reason> {
        Some(match self.outcome {
            Outcome::Passed | Outcome::Late if self.lateness() <= slack.into() => Reason::OnTime,
            Outcome::Passed | Outcome::Late => Reason::Late,
            Outcome::TooLate => Reason::TooLate,
            Outcome::TooFar => Reason::TooFar,
            Outcome::Dropped => Reason::Dropped,
            Outcome::TooShort | Outcome::TooLong => return None,
        })
    }
}

/// Verdicts that nobody has read yet, in the order in which the frames were sent.
#[derive(Default)]
pub(crate) struct Verdicts {
    kept: VecDeque<Verdict>,
    most: usize,
    lost: u64,
}

impl Verdicts {
    pub fn set_room(&mut self, most: usize) {
        self.most = most;
        self.kept.reserve(most.saturating_sub(self.kept.len()));
    }

    /// Without room the oldest goes, and is counted.
    pub fn note(&mut self, scheduled: u64, actual: u64, outcome: Outcome) {
        if self.kept.len() >= self.most {
            self.lost += 1;
            self.kept.pop_front();
        }
        if self.most > 0 {
            self.kept.push_back(Verdict { scheduled, actual, outcome });
        }
    }

    pub fn take(&mut self, to: &mut Vec<Verdict>) -> usize {
        let count = self.kept.len();
        to.extend(self.kept.drain(..));
        count
    }

    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_counted_and_the_newest_are_kept() {
        let mut verdicts = Verdicts::default();
        verdicts.set_room(2);
        (1..=5).for_each(|time| verdicts.note(time, time + 1, Outcome::Passed));
        let mut read = Vec::new();
        assert_eq!((verdicts.take(&mut read), verdicts.lost()), (2, 3));
        assert_eq!(read.iter().map(|verdict| verdict.scheduled).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(
            (read[0].lateness(), read[0].reason(1), read[0].reason(0)),
            (1, Some(Reason::OnTime), Some(Reason::Late))
        );
    }
}
