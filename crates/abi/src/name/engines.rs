//! Which engine serves which queues: `calypte`, `sze@3`, `sze@rx0-3`, lists of such as `sze@0-3,tx7`.

use super::OptionError;
use crate::queue::{Direction, Engine, QueueId};
use core::fmt;
use serde::{Deserialize, Serialize};

/// The queues that a rule speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// All queues.
    All,
    /// The queues from `first` to `last`, both included.
    Range {
        /// Only queues of this direction; both, if not given.
        direction: Option<Direction>,
        /// Index of the first.
        first: u32,
        /// Index of the last.
        last: u32,
    },
}

/// "These queues are served by this engine."
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EngineRule {
    /// The engine.
    pub engine: Engine,
    /// The queues.
    pub queues: Selection,
}

impl Selection {
    /// Whether it speaks of that queue.
    pub fn contains(self, queue: QueueId) -> bool {
        match self {
            Selection::All => true,
            Selection::Range { direction, first, last } => {
                direction.is_none_or(|direction| direction == queue.direction) && (first..=last).contains(&queue.index)
            }
        }
    }

    /// Whether a card with so many queues has all of them, in at least one of the directions spoken of.
    pub(super) fn fits(self, rx_queues: u32, tx_queues: u32) -> bool {
        match self {
            Selection::All => true,
            Selection::Range { direction, first, last } => {
                let queues = match direction {
                    Some(Direction::Rx) => rx_queues,
                    Some(Direction::Tx) => tx_queues,
                    None => rx_queues.max(tx_queues),
                };
                first <= last && last < queues
            }
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (direction, range) = match text.get(..2) {
            Some("rx") => (Some(Direction::Rx), &text[2..]),
            Some("tx") => (Some(Direction::Tx), &text[2..]),
            _ => (None, text),
        };
        let (first, last) = parse_range(range)?;
        Some(Selection::Range { direction, first, last })
    }
}

/// `3` or `0-3`, ascending.
pub(super) fn parse_range(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    (first <= last).then_some((first, last))
}

/// The rules that the value of one `engine` option stands for.
pub(super) fn parse_rules(value: &str) -> Result<Vec<EngineRule>, OptionError> {
    let bad = || OptionError::BadValue { word: "engine", value: value.to_owned(), expected: EXPECTED.to_owned() };
    let (engine, queues) = match value.split_once('@') {
        Some((engine, queues)) => (engine, Some(queues)),
        None => (value, None),
    };
    let engine = engine.parse().map_err(|_| bad())?;
    let Some(queues) = queues else {
        return Ok(vec![EngineRule { engine, queues: Selection::All }]);
    };
    let rule = |part| Selection::parse(part).map(|queues| EngineRule { engine, queues }).ok_or_else(bad);
    queues.split(',').map(rule).collect()
}

pub(super) const EXPECTED: &str =
    "sze, medusa, calypte or dd, for some queues only sze@3, sze@0-3, sze@rx0-3 or a list such as (sze@0-3,tx7)";

/// As it is parsed: `3`, `0-3`, `rx0-3`.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Selection::Range { direction, first, last } = self else { return f.write_str("all") };
        f.write_str(match direction {
            Some(Direction::Rx) => "rx",
            Some(Direction::Tx) => "tx",
            None => "",
        })?;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

impl fmt::Display for EngineRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.queues {
            Selection::All => self.engine.fmt(f),
            queues => write!(f, "{}@{queues}", self.engine),
        }
    }
}
