//! From changes to steps: checked one after the other against what the ones before have made, taken back if one fails.

use super::store::{Shared, Store};
use super::{Author, Change, Everybody, Filter, Limits, Op, Part};
use crate::action::Action;
use crate::quic;
use crate::rule::{Rule, RuleError, RuleSpec, units};
use std::collections::HashMap;
use std::sync::Arc;

/// Most QUIC groups at once. Each has memory for its connections, 16 MiB unless told otherwise.
const QUIC_GROUPS: usize = 16;
/// Most connections that they have room for together: some 260 bytes each.
const QUIC_CONNECTIONS: usize = 1 << 20;

/// Why a change cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The rule is wrong.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// Too many rules.
    #[error("more than {0} rules")]
    TooManyRules(usize),
    /// Too many masks.
    #[error(
        "more than {0} masks: a frame is compared under each combination of fields and masks that rules of a table have, so let rules share them"
    )]
    TooManyMasks(usize),
    /// Too many QUIC groups: each has memory for its connections.
    #[error("more than {0} QUIC groups")]
    TooManyQuics(usize),
    /// Too much room for connections.
    #[error("QUIC groups with room for more than {0} connections together: let connections= be smaller")]
    TooManyConnections(usize),
    /// Too many groups or meters.
    #[error("{what} {id} is out of range: at most {limit}")]
    OutOfRange {
        /// Group or meter.
        what: &'static str,
        /// Which one.
        id: u32,
        /// The highest number that there may be.
        limit: u32,
    },
    /// Loose changes have to look at every rule, and there are too many of both.
    #[error(
        "the changes of the transaction look at more than {0} rules: name table, priority and match with strict, or split it"
    )]
    TooMuchWork(usize),
    /// The rules that it makes, by addition or modification, are too much together.
    #[error("the transaction makes rules of more than {0} units (1 each, and 1 for each eight actions): split it")]
    TooMuchMade(usize),
    /// A rule uses a group that is not there.
    #[error("there is no RSS group {0}: set it up first, or in the same transaction")]
    NoGroup(u32),
    /// A rule uses a QUIC group that is not there.
    #[error("there is no QUIC group {0}: set it up first, or in the same transaction")]
    NoQuic(u32),
    /// A rule uses a QUIC group as if it spread by hash.
    #[error("group {0} is a QUIC group: write quic:{0}, or set up an RSS group with another number")]
    NotRss(u32),
    /// A rule uses an RSS group as if it knew connections.
    #[error(
        "group {0} is an RSS group: write rss:{0}, or set up a QUIC group with another number (group=N,quic,queues=LIST)"
    )]
    NotQuic(u32),
    /// A group has the number of one of another kind.
    #[error(
        "RSS and QUIC groups have their numbers from one range, and there is a group {0} of the other kind: \
        use another number, or delete that one in the same transaction (`millrace flow delete --group {0}`)"
    )]
    OtherKind(u32),
    /// A rule uses a meter that is not there.
    #[error("there is no meter {0}: set it up first, or in the same transaction")]
    NoMeter(u32),
    /// A group that is to go is used.
    #[error(
        "RSS group {0} is used by rules: delete those, or give them other actions, first or in the same transaction"
    )]
    GroupInUse(u32),
    /// A QUIC group that is to go is used.
    #[error(
        "QUIC group {0} is used by rules: delete those, or give them other actions, first or in the same transaction"
    )]
    QuicInUse(u32),
    /// A meter that is to go is used.
    #[error("meter {0} is used by rules")]
    MeterInUse(u32),
    /// A rule that would have to go, or is named, is not the author's.
    #[error("the rule {rule} is somebody else's")]
    ForeignRule {
        /// The rule.
        rule: String,
        /// Its author.
        author: u32,
    },
    /// A group, meter or miss is not the author's.
    #[error("{0} is somebody else's")]
    ForeignPart(Part),
    /// The author may not have as much.
    #[error("{0}")]
    Quota(String),
}

/// Why a transaction cannot be; nothing of it was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("change {}: {refusal}", .change + 1)]
pub struct CommitError {
    /// Which of its changes, from 0 on.
    pub change: usize,
    /// Why.
    #[source]
    pub refusal: Refusal,
}

/// A transaction that is being made.
pub(super) struct Transaction<'s> {
    pub store: &'s mut Store,
    pub limits: &'s Limits,
    /// Numbers for rules: of this one and of the next.
    pub sequence: &'s mut u64,
    pub workers: usize,
    pub now_ns: u64,
    author: &'s dyn Author,
    ops: Vec<Op>,
    /// Rules that loose changes have looked at.
    looked: usize,
    /// Units of the rules that were made.
    made: usize,
    /// Which change has made an op.
    made_by: Vec<usize>,
}

impl<'s> Transaction<'s> {
    pub fn new(store: &'s mut Store, limits: &'s Limits, sequence: &'s mut u64, workers: usize, now_ns: u64) -> Self {
        let (ops, made_by) = (Vec::new(), Vec::new());
        Self { store, limits, sequence, workers, now_ns, author: &Everybody, ops, looked: 0, made: 0, made_by }
    }

    /// The same, made by somebody.
    pub fn by(self, author: &'s dyn Author) -> Self {
        Self { author, ..self }
    }

    /// Does all changes to the store, or none.
    pub fn run(mut self, changes: Vec<Change>) -> Result<Vec<Op>, CommitError> {
        for (at, change) in changes.into_iter().enumerate() {
            let done = self.change(change);
            self.made_by.resize(self.ops.len(), at);
            if let Err(refusal) = done {
                return Err(self.take_back(at, refusal));
            }
        }
        let wrong = self.ops.iter().zip(&self.made_by).find_map(|(op, at)| Some((*at, self.dangling(op)?)));
        if let Some((at, refusal)) = wrong {
            return Err(self.take_back(at, refusal));
        }
        match self.author.agree(&self.ops) {
            Ok(()) => Ok(self.ops),
            Err(refusal) => {
                let at = self.made_by.last().copied().unwrap_or(0);
                Err(self.take_back(at, refusal))
            }
        }
    }

    fn take_back(self, change: usize, refusal: Refusal) -> CommitError {
        for op in self.ops.iter().rev() {
            self.store.apply(&op.inverse());
        }
        CommitError { change, refusal }
    }

    /// What an op leaves behind that does not fit together, once all are done.
    fn dangling(&self, op: &Op) -> Option<Refusal> {
        let missing = |rule: &Rule| match self.store.missing(rule.spec.actions.iter())? {
            Shared::Group(id) if self.store.has(Shared::Quic(id)) => Some(Refusal::NotRss(id)),
            Shared::Group(id) => Some(Refusal::NoGroup(id)),
            Shared::Quic(id) if self.store.has(Shared::Group(id)) => Some(Refusal::NotQuic(id)),
            Shared::Quic(id) => Some(Refusal::NoQuic(id)),
            Shared::Meter(id) => Some(Refusal::NoMeter(id)),
        };
        // A rule that a later change has removed needs nothing.
        let is_there = |rule: &Rule| {
            let found = self.store.find(rule.spec.table, rule.spec.priority, &rule.spec.matching);
            found.is_some_and(|found| found.revision == rule.revision)
        };
        let gone = |shared| !self.store.has(shared) && self.store.is_used(shared);
        match op {
            Op::Insert(rule) | Op::Swap { new: rule, .. } => missing(rule).filter(|_| is_there(rule)),
            Op::Group { id, new: None, .. } => gone(Shared::Group(*id)).then_some(Refusal::GroupInUse(*id)),
            Op::Quic { id, new: None, .. } => gone(Shared::Quic(*id)).then_some(Refusal::QuicInUse(*id)),
            // A transaction may put one kind in the place of another, in any order.
            Op::Group { id, .. } | Op::Quic { id, .. } => {
                let both = self.store.has(Shared::Group(*id)) && self.store.has(Shared::Quic(*id));
                both.then_some(Refusal::OtherKind(*id))
            }
            Op::Meter { id, new: None, .. } => gone(Shared::Meter(*id)).then_some(Refusal::MeterInUse(*id)),
            _ => None,
        }
    }

    fn push(&mut self, op: Op) {
        self.store.apply(&op);
        self.ops.push(op);
    }

    fn change(&mut self, change: Change) -> Result<(), Refusal> {
        match change {
            Change::Add(spec) => self.add(spec),
            Change::Renew(spec) => self.renew(spec),
            Change::Modify { filter, actions, cookie } => self.modify(&filter, &actions, cookie),
            Change::Delete(filter) => {
                for rule in self.meant(&filter)? {
                    self.push(Op::Remove(rule));
                }
                Ok(())
            }
            Change::Replace(specs) => self.replace(specs),
            Change::Miss(new) => {
                self.own_part(Part::Miss)?;
                self.push(Op::Miss { old: self.store.miss, new });
                Ok(())
            }
            Change::Group(id, new) => {
                in_range("RSS group", id, self.limits.groups)?;
                self.own_part(Part::Group(id))?;
                let old = self.store.group(id).cloned();
                self.push(Op::Group { id, old, new });
                Ok(())
            }
            Change::Quic(id, new) => {
                in_range("QUIC group", id, self.limits.groups)?;
                self.own_part(Part::Quic(id))?;
                let old = self.store.quic(id).cloned();
                if old.is_none() && new.is_some() && self.store.quics() >= QUIC_GROUPS {
                    return Err(Refusal::TooManyQuics(QUIC_GROUPS));
                }
                let room = |group: &Arc<quic::Group>| group.spec().connections;
                let others = self.store.quic_connections() - old.as_ref().map_or(0, room);
                if new.as_ref().is_some_and(|new| others + room(new) > QUIC_CONNECTIONS) {
                    return Err(Refusal::TooManyConnections(QUIC_CONNECTIONS));
                }
                let new = match (&old, new) {
                    (Some(old), Some(new)) if !Arc::ptr_eq(old, &new) => Some(Arc::new(new.succeeding(old))),
                    (_, new) => new,
                };
                self.push(Op::Quic { id, old, new });
                Ok(())
            }
            Change::Meter(id, new) => {
                in_range("meter", id, self.limits.meters)?;
                self.own_part(Part::Meter(id))?;
                let old = self.store.meter(id).cloned();
                self.push(Op::Meter { id, old, new });
                Ok(())
            }
        }
    }

    fn own_part(&self, part: Part) -> Result<(), Refusal> {
        if self.author.owns_part(part) { Ok(()) } else { Err(Refusal::ForeignPart(part)) }
    }

    fn own(&self, rule: &Rule) -> Result<(), Refusal> {
        if self.author.owns(rule) {
            return Ok(());
        }
        Err(Refusal::ForeignRule { rule: rule.spec.to_string(), author: rule.author })
    }

    /// The rules that a filter means, of those that are the author's.
    fn meant(&mut self, filter: &Filter) -> Result<Vec<Arc<Rule>>, Refusal> {
        // One with table, priority and match is found without looking at the others.
        if let (Some(table), true) = (filter.table, filter.strict) {
            let found = self.store.find(table, filter.strict_priority(), &filter.matching);
            let found = found.filter(|rule| filter.covers(rule)).cloned();
            found.as_ref().map_or(Ok(()), |rule| self.own(rule))?;
            return Ok(found.into_iter().collect());
        }
        self.look_at_all()?;
        let meant = self.store.rules().filter(|rule| filter.covers(rule) && self.author.owns(rule));
        Ok(meant.cloned().collect())
    }

    /// Accounts for a rule that is made.
    fn make(&mut self, actions: &[Action]) -> Result<(), Refusal> {
        self.made += units(actions);
        if self.made <= self.limits.made { Ok(()) } else { Err(Refusal::TooMuchMade(self.limits.made)) }
    }

    /// Accounts for a look at every rule.
    fn look_at_all(&mut self) -> Result<(), Refusal> {
        self.looked += self.store.len();
        if self.looked <= self.limits.looks { Ok(()) } else { Err(Refusal::TooMuchWork(self.limits.looks)) }
    }

    fn next(&mut self) -> u64 {
        *self.sequence += 1;
        *self.sequence
    }

    fn add(&mut self, spec: RuleSpec) -> Result<(), Refusal> {
        spec.check()?;
        self.make(&spec.actions)?;
        if let Some(old) = self.store.find(spec.table, spec.priority, &spec.matching) {
            let old = Arc::clone(old);
            self.own(&old)?;
            self.push(Op::Remove(old));
        }
        if self.store.len() >= self.limits.rules {
            return Err(Refusal::TooManyRules(self.limits.rules));
        }
        let number = self.next();
        let rule = Rule::new(spec, number, number, self.workers, self.now_ns).by(self.author.number());
        self.push(Op::Insert(Arc::new(rule)));
        self.few_masks()
    }

    /// As [`add`](Self::add), with the counters of the rule whose place it takes.
    fn renew(&mut self, spec: RuleSpec) -> Result<(), Refusal> {
        let Some(old) = self.store.find(spec.table, spec.priority, &spec.matching).cloned() else {
            return self.add(spec);
        };
        spec.check()?;
        self.make(&spec.actions)?;
        self.own(&old)?;
        let new = Arc::new(old.renewed(spec, self.next(), self.now_ns));
        self.push(Op::Swap { old, new });
        Ok(())
    }

    fn few_masks(&self) -> Result<(), Refusal> {
        let most = self.limits.masks;
        if self.store.masks() <= most { Ok(()) } else { Err(Refusal::TooManyMasks(most)) }
    }

    fn modify(&mut self, filter: &Filter, actions: &[Action], cookie: Option<u64>) -> Result<(), Refusal> {
        for old in self.meant(filter)? {
            old.spec.check_actions(actions)?;
            self.make(actions)?;
            let new = Arc::new(old.modified(actions.to_vec(), cookie, self.next()));
            self.push(Op::Swap { old, new });
        }
        Ok(())
    }

    fn replace(&mut self, specs: Vec<RuleSpec>) -> Result<(), Refusal> {
        self.look_at_all()?;
        // Of two rules with one table, priority and match the later one counts, as if they were added.
        let place = |spec: &RuleSpec| (spec.table, spec.priority, spec.matching);
        let last: HashMap<_, usize> = specs.iter().enumerate().map(|(at, spec)| (place(spec), at)).collect();
        let stays = |rule: &Arc<Rule>| last.get(&place(&rule.spec)).is_some_and(|&at| specs[at] == rule.spec);
        let gone: Vec<_> = self.store.rules().filter(|rule| self.author.owns(rule) && !stays(rule)).cloned().collect();
        for rule in gone {
            self.push(Op::Remove(rule));
        }
        let wanted: Vec<usize> = (0..specs.len()).filter(|&at| last[&place(&specs[at])] == at).collect();
        for at in wanted {
            let spec = &specs[at];
            // What is there is the same rule, or somebody else's.
            let there = self.store.find(spec.table, spec.priority, &spec.matching);
            if there.is_none_or(|rule| !self.author.owns(rule)) {
                self.add(spec.clone())?;
            }
        }
        Ok(())
    }
}

fn in_range(what: &'static str, id: u32, limit: u32) -> Result<(), Refusal> {
    if id <= limit { Ok(()) } else { Err(Refusal::OutOfRange { what, id, limit }) }
}
