//! What the backend says of guests in its log, and counts: guests decide how often there is something to be said, and nobody may read it.

use millrace_port::notice;
use std::time::{Duration, Instant};

/// Lines in each [`PERIOD`]; more are counted.
const LIMIT: u64 = 50;
const PERIOD: Duration = Duration::from_secs(10);

/// Why a program was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is another user's.
    User,
    /// There are as many programs as there may be, of its domain, of its user, or of all.
    Crowded,
    /// It said nothing in time, or something else than the protocol has.
    Greeting,
    /// Its control page or its bell cannot be had.
    Memory,
}

/// Programs that were not let in, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnedAway {
    /// See [`Why::User`].
    pub user: u64,
    /// See [`Why::Crowded`].
    pub crowded: u64,
    /// See [`Why::Greeting`].
    pub greeting: u64,
    /// See [`Why::Memory`].
    pub memory: u64,
}

impl TurnedAway {
    /// With their names.
    pub fn pairs(&self) -> [(&'static str, u64); 4] {
        let Self { user, crowded, greeting, memory } = *self;
        [("user", user), ("crowded", crowded), ("greeting", greeting), ("memory", memory)]
    }

    /// All of them.
    pub fn all(&self) -> u64 {
        self.pairs().iter().map(|(_, count)| count).sum()
    }
}

/// Lines on their way to the log, which a thread of its own writes, and counts.
pub(crate) struct Notices {
    since: Instant,
    said: u64,
    /// Since the last line.
    left_out: u64,
    /// All lines that were left out.
    pub unsaid: u64,
    pub turned_away: TurnedAway,
}

impl Default for Notices {
    fn default() -> Self {
        Self { since: Instant::now(), said: 0, left_out: 0, unsaid: 0, turned_away: TurnedAway::default() }
    }
}

impl Notices {
    /// A program was not let in.
    pub fn turn_away(&mut self, why: Why, line: impl FnOnce() -> String) {
        let TurnedAway { user, crowded, greeting, memory } = &mut self.turned_away;
        *match why {
            Why::User => user,
            Why::Crowded => crowded,
            Why::Greeting => greeting,
            Why::Memory => memory,
        } += 1;
        self.warn(line);
    }

    /// Something that a guest has caused.
    pub fn warn(&mut self, line: impl FnOnce() -> String) {
        match self.ask(Instant::now()) {
            None => {}
            Some(0) => notice::warn(line()),
            Some(left_out) => {
                notice::warn(format!("{} ({left_out} lines before this one were left out)", line()));
            }
        }
    }

    /// Whether one more line may be said, and then how many were left out before it.
    fn ask(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= PERIOD {
            (self.since, self.said) = (now, 0);
        }
        if self.said == LIMIT {
            self.left_out += 1;
            self.unsaid += 1;
            return None;
        }
        self.said += 1;
        Some(core::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_not_said() {
        let (mut notices, begin) = (Notices::default(), Instant::now());
        let said = (0..LIMIT + 9).filter(|_| notices.ask(begin).is_some()).count() as u64;
        assert_eq!((said, notices.unsaid), (LIMIT, 9));
        assert_eq!(notices.ask(begin + PERIOD * 2), Some(9));
        notices.turn_away(Why::Crowded, || "one".to_owned());
        notices.turn_away(Why::User, || "two".to_owned());
        assert_eq!((notices.turned_away.crowded, notices.turned_away.all()), (1, 2));
    }
}
