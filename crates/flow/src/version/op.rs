//! What a transaction does in the end, each step with its inverse.

use crate::meter::Meter;
use crate::rss::Group;
use crate::rule::Rule;
use crate::table::Miss;
use std::sync::Arc;

/// One step.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// A rule that was not there.
    Insert(Arc<Rule>),
    /// A rule that was there.
    Remove(Arc<Rule>),
    /// Other actions for a rule.
    Swap { old: Arc<Rule>, new: Arc<Rule> },
    /// What becomes of frames that nothing matches.
    Miss { old: Miss, new: Miss },
    /// An RSS group.
    Group { id: u32, old: Option<Arc<Group>>, new: Option<Arc<Group>> },
    /// A meter.
    Meter { id: u32, old: Option<Arc<Meter>>, new: Option<Arc<Meter>> },
}

impl Op {
    /// What takes it back.
    pub fn inverse(&self) -> Self {
        match self.clone() {
            Self::Insert(rule) => Self::Remove(rule),
            Self::Remove(rule) => Self::Insert(rule),
            Self::Swap { old, new } => Self::Swap { old: new, new: old },
            Self::Miss { old, new } => Self::Miss { old: new, new: old },
            Self::Group { id, old, new } => Self::Group { id, old: new, new: old },
            Self::Meter { id, old, new } => Self::Meter { id, old: new, new: old },
        }
    }
}
