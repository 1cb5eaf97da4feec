//! What can be asked of a transaction.

use crate::action::Action;
use crate::matching::Match;
use crate::meter::Meter;
use crate::quic;
use crate::rss::Group;
use crate::rule::{Rule, RuleSpec};
use crate::table::Miss;
use std::sync::Arc;

/// Which rules are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only those of a table.
    pub table: Option<u8>,
    /// Only those with this priority.
    pub priority: Option<u16>,
    /// Only those that match nothing else than this does; with [`strict`](Self::strict), exactly this.
    pub matching: Match,
    /// Exactly the match; and the priority, [`DEFAULT_PRIORITY`](crate::rule::DEFAULT_PRIORITY) if none is given.
    pub strict: bool,
    /// Only those whose cookie is this under this mask.
    pub cookie: Option<(u64, u64)>,
    /// Only those that send to this port.
    pub out_port: Option<u32>,
}

impl Filter {
    /// Whether a rule is meant.
    pub fn covers(&self, rule: &Rule) -> bool {
        let spec = &rule.spec;
        let priority = if self.strict { Some(self.strict_priority()) } else { self.priority };
        let sends = |port| {
            spec.actions.iter().any(|action| match action {
                Action::Output(to) => *to == port,
                Action::VniMap(map) => map.runs().iter().any(|run| run.has_port(port)),
                _ => false,
            })
        };
        self.table.is_none_or(|table| table == spec.table)
            && priority.is_none_or(|priority| priority == spec.priority)
            && self.cookie.is_none_or(|(cookie, mask)| (spec.cookie ^ cookie) & mask == 0)
            && self.out_port.is_none_or(sends)
            && if self.strict { spec.matching == self.matching } else { spec.matching.within(&self.matching) }
    }

    pub(super) fn strict_priority(&self) -> u16 {
        self.priority.unwrap_or(crate::rule::DEFAULT_PRIORITY)
    }
}

/// One change of a transaction. Semantics are those of OpenFlow 1.3 where it has the change.
#[derive(Clone, Debug)]
pub enum Change {
    /// Adds a rule. One with the same table, priority and match goes, with its counters.
    Add(RuleSpec),
    /// Adds a rule. One with the same table, priority and match gives it its counters, its number and its place among those of the same
    /// priority; timeouts count from now.
    Renew(RuleSpec),
    /// Gives the rules that are meant other actions; counters and timeouts stay. None may be meant.
    Modify {
        /// Which rules.
        filter: Filter,
        /// Their new actions.
        actions: Vec<Action>,
        /// Their new cookie, if it changes.
        cookie: Option<u64>,
    },
    /// Removes the rules that are meant. None may be meant.
    Delete(Filter),
    /// Makes these the only rules. Those that are there already in the same words stay, with their counters.
    Replace(Vec<RuleSpec>),
    /// What becomes of frames that nothing matches.
    Miss(Miss),
    /// Sets up an RSS group, exchanges it, or removes it.
    Group(u32, Option<Arc<Group>>),
    /// Sets up a QUIC group, exchanges it, or removes it. One that is exchanged keeps its connections where it can
    /// ([`quic::Group::succeeding`]).
    Quic(u32, Option<Arc<quic::Group>>),
    /// Sets up a meter, exchanges it, or removes it.
    Meter(u32, Option<Arc<Meter>>),
}
