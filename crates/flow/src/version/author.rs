//! Who makes a transaction, and what of the tables he may change.

use super::{Op, Refusal};
use crate::action::Action;
use crate::rule::Rule;
use std::fmt;

/// What of the tables is no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// What becomes of frames that nothing matches.
    Miss,
    /// The RSS group with this number.
    Group(u32),
    /// The QUIC group with this number.
    Quic(u32),
    /// The meter with this number.
    Meter(u32),
}

impl Part {
    /// What an action uses.
    pub fn of(action: &Action) -> Option<Self> {
        match action {
            Action::Rss(group) | Action::Balance(group) => Some(Self::Group(*group)),
            Action::Quic(group) => Some(Self::Quic(*group)),
            Action::Meter(meter) => Some(Self::Meter(*meter)),
            _ => None,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Miss => f.write_str("miss"),
            Self::Group(id) | Self::Quic(id) => write!(f, "group {id}"),
            Self::Meter(id) => write!(f, "meter {id}"),
        }
    }
}

/// Who makes a transaction. Filters mean only rules that are his; what names a single thing that is not his is refused.
pub trait Author {
    /// The number that the rules bear which he adds.
    fn number(&self) -> u32;

    /// Whether he may change and remove a rule.
    fn owns(&self, rule: &Rule) -> bool;

    /// Whether he may set up, exchange and remove a part.
    fn owns_part(&self, part: Part) -> bool;

    /// A last look at all steps, which have been checked, before anybody else sees them.
    ///
    /// # Errors
    /// Why nothing is to be done.
    fn agree(&self, steps: &[Op]) -> Result<(), Refusal>;
}

/// Whoever has the tables to himself: everything is his.
#[derive(Clone, Copy, Debug)]
pub struct Everybody;

impl Author for Everybody {
    fn number(&self) -> u32 {
        0
    }

    fn owns(&self, _: &Rule) -> bool {
        true
    }

    fn owns_part(&self, _: Part) -> bool {
        true
    }

    fn agree(&self, _: &[Op]) -> Result<(), Refusal> {
        Ok(())
    }
}
