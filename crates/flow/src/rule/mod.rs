//! Rules: as they are asked for, and as tables hold them.

mod check;
mod counters;
mod plan;
#[cfg(test)]
mod tests;
mod weight;

pub use check::RuleError;
pub use counters::{Counters, Hits};
pub(crate) use plan::{Next, Plan};
pub use weight::units;

use crate::action::Action;
use crate::field::{Field, Wide};
use crate::matching::Match;
use std::sync::Arc;

/// Tables 0 to 63. OpenFlow allows 255; with 64, the tables that a verdict has passed fit one word.
pub const TABLES: u8 = 64;
/// Priority of a rule that does not say one.
pub const DEFAULT_PRIORITY: u16 = 32768;
/// Most actions of one rule.
pub const MAX_ACTIONS: usize = 64;

/// A rule as somebody asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// In which table, below [`TABLES`].
    pub table: u8,
    /// Which rule wins: the highest; among equals, the one that was added first.
    pub priority: u16,
    /// What it asks of a key.
    pub matching: Match,
    /// What it does.
    pub actions: Vec<Action>,
    /// For its author.
    pub cookie: u64,
    /// Seconds without a frame after which it goes; 0 is never.
    pub idle_timeout: u16,
    /// Seconds after which it goes; 0 is never.
    pub hard_timeout: u16,
}

impl Default for RuleSpec {
    fn default() -> Self {
        Self {
            table: 0,
            priority: DEFAULT_PRIORITY,
            matching: Match::ANY,
            actions: vec![Action::Drop],
            cookie: 0,
            idle_timeout: 0,
            hard_timeout: 0,
        }
    }
}

/// A rule in a table. It never changes; a modified rule is another one with the same rank and counters.
#[derive(Debug)]
pub struct Rule {
    /// What was asked for.
    pub spec: RuleSpec,
    /// What a key is compared with: a rule of table 0 that names no `in_port` is for frames that come in at ports, and not for
    /// those that programs of the host send.
    pub matching: Match,
    /// Unique, and higher for the rule that wins.
    pub(crate) rank: Rank,
    /// Unique for every rule and every modification of it.
    pub(crate) revision: u64,
    pub(crate) plan: Plan,
    /// What it has matched.
    pub counters: Arc<Counters>,
    /// When it was added, in nanoseconds.
    pub created_ns: u64,
    /// Who has added it: a number of whoever keeps the tables ([`Author`](crate::version::Author)).
    pub author: u32,
}

/// Which of two rules of a table wins: the higher one. Priority in the upper 16 bits; below, the older the higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Rank(u64);

impl Rank {
    const AGE_BITS: u32 = 48;

    /// The rank of the rule that was added as number `sequence`. At a million rules a second, 48 bits last nine years.
    pub fn new(priority: u16, sequence: u64) -> Self {
        Self(u64::from(priority) << Self::AGE_BITS | (!sequence & ((1 << Self::AGE_BITS) - 1)))
    }

    /// The number of the rule.
    pub fn sequence(self) -> u64 {
        !self.0 & ((1 << Self::AGE_BITS) - 1)
    }
}

impl Rule {
    pub(crate) fn new(spec: RuleSpec, sequence: u64, revision: u64, workers: usize, now_ns: u64) -> Self {
        Self {
            matching: effective(&spec),
            rank: Rank::new(spec.priority, sequence),
            revision,
            plan: Plan::new(&spec.actions),
            counters: Arc::new(Counters::new(workers)),
            created_ns: now_ns,
            author: 0,
            spec,
        }
    }

    /// The same, added by somebody.
    #[must_use]
    pub(crate) fn by(self, author: u32) -> Self {
        Self { author, ..self }
    }

    /// Its number: unique among all rules that there have been, and the same after its actions have changed.
    pub fn number(&self) -> u64 {
        self.rank.sequence()
    }

    /// The same rule with other actions.
    pub(crate) fn modified(&self, actions: Vec<Action>, cookie: Option<u64>, revision: u64) -> Self {
        Self {
            matching: self.matching,
            rank: self.rank,
            revision,
            plan: Plan::new(&actions),
            counters: Arc::clone(&self.counters),
            created_ns: self.created_ns,
            author: self.author,
            spec: RuleSpec { actions, cookie: cookie.unwrap_or(self.spec.cookie), ..self.spec.clone() },
        }
    }

    /// Another rule in its place, with its counters and rank; its time begins anew.
    pub(crate) fn renewed(&self, spec: RuleSpec, revision: u64, now_ns: u64) -> Self {
        Self {
            matching: self.matching,
            rank: self.rank,
            revision,
            plan: Plan::new(&spec.actions),
            counters: Arc::clone(&self.counters),
            created_ns: now_ns,
            author: self.author,
            spec,
        }
    }

    /// Whether a timeout has passed at `now_ns`.
    pub fn is_over(&self, now_ns: u64) -> bool {
        let passed = |timeout: u16, since: u64| {
            timeout > 0 && now_ns.saturating_sub(since) >= u64::from(timeout) * 1_000_000_000
        };
        let last = || self.counters.read().last_ns.max(self.created_ns);
        passed(self.spec.hard_timeout, self.created_ns)
            || (self.spec.idle_timeout > 0 && passed(self.spec.idle_timeout, last()))
    }
}

/// What a key is compared with.
fn effective(spec: &RuleSpec) -> Match {
    let mut matching = spec.matching;
    if is_for_ports(spec) {
        // No port of a card has a number as high as that of the host.
        matching.put(Field::InPort, Wide::ZERO, Wide::from(u64::from(HIGH_PORTS)));
    }
    matching
}

fn is_for_ports(spec: &RuleSpec) -> bool {
    spec.table == 0 && spec.matching.mask().get(Field::InPort) == Wide::ZERO
}

/// The bit that [`LOCAL`](crate::field::LOCAL) has and no port of a card.
pub(crate) const HIGH_PORTS: u32 = 1 << 31;

impl Rule {
    /// Whether it is for whatever comes in at ports.
    pub(crate) fn is_for_ports(&self) -> bool {
        is_for_ports(&self.spec)
    }

    /// Whether it is for what programs of the host send.
    pub(crate) fn is_local(&self) -> bool {
        self.spec.table == 0 && self.matching.key().get(Field::InPort) == Wide::from(u64::from(crate::field::LOCAL))
    }
}
