//! What a transaction does in the end, each step with its inverse.

use crate::meter::Meter;
use crate::quic;
use crate::rss::Group;
use crate::rule::Rule;
use crate::table::Miss;
use std::sync::Arc;

/// One step.
#[derive(Clone, Debug)]
pub enum Op {
    /// A rule that was not there.
    Insert(Arc<Rule>),
    /// A rule that was there.
    Remove(Arc<Rule>),
    /// Other actions for a rule.
    Swap {
        /// As it was.
        old: Arc<Rule>,
        /// As it is now.
        new: Arc<Rule>,
    },
    /// What becomes of frames that nothing matches.
    Miss {
        /// As it was.
        old: Miss,
        /// As it is now.
        new: Miss,
    },
    /// An RSS group.
    Group {
        /// Its number.
        id: u32,
        /// As it was, if there was one.
        old: Option<Arc<Group>>,
        /// As it is now, if there is one.
        new: Option<Arc<Group>>,
    },
    /// A QUIC group.
    Quic {
        /// Its number.
        id: u32,
        /// As it was, if there was one.
        old: Option<Arc<quic::Group>>,
        /// As it is now, if there is one.
        new: Option<Arc<quic::Group>>,
    },
    /// A meter.
    Meter {
        /// Its number.
        id: u32,
        /// As it was, if there was one.
        old: Option<Arc<Meter>>,
        /// As it is now, if there is one.
        new: Option<Arc<Meter>>,
    },
}

impl Op {
    /// What takes it back.
    pub(crate) fn inverse(&self) -> Self {
        match self.clone() {
            Self::Insert(rule) => Self::Remove(rule),
            Self::Remove(rule) => Self::Insert(rule),
            Self::Swap { old, new } => Self::Swap { old: new, new: old },
            Self::Miss { old, new } => Self::Miss { old: new, new: old },
            Self::Group { id, old, new } => Self::Group { id, old: new, new: old },
            Self::Quic { id, old, new } => Self::Quic { id, old: new, new: old },
            Self::Meter { id, old, new } => Self::Meter { id, old: new, new: old },
        }
    }
}
