//! From changes to steps: checked one after the other against what the ones before have made, taken back if one fails.

use super::store::{Shared, Store};
use super::{Change, Filter, Limits, Op};
use crate::action::Action;
use crate::rule::{Rule, RuleError, RuleSpec};
use std::collections::HashMap;
use std::sync::Arc;

/// Why a change cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The rule is wrong.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// Too many rules.
    #[error("more than {0} rules")]
    TooManyRules(usize),
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
    /// A rule uses a group that is not there.
    #[error("there is no RSS group {0}: set it up first, or in the same transaction")]
    NoGroup(u32),
    /// A rule uses a meter that is not there.
    #[error("there is no meter {0}: set it up first, or in the same transaction")]
    NoMeter(u32),
    /// A group that is to go is used.
    #[error("RSS group {0} is used by rules")]
    GroupInUse(u32),
    /// A meter that is to go is used.
    #[error("meter {0} is used by rules")]
    MeterInUse(u32),
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
    ops: Vec<Op>,
    /// Rules that loose changes have looked at.
    looked: usize,
    /// Which change has made an op.
    made_by: Vec<usize>,
}

impl<'s> Transaction<'s> {
    pub fn new(store: &'s mut Store, limits: &'s Limits, sequence: &'s mut u64, workers: usize, now_ns: u64) -> Self {
        Self { store, limits, sequence, workers, now_ns, ops: Vec::new(), looked: 0, made_by: Vec::new() }
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
        match wrong {
            Some((at, refusal)) => Err(self.take_back(at, refusal)),
            None => Ok(self.ops),
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
            Shared::Group(id) => Some(Refusal::NoGroup(id)),
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
            Change::Modify { filter, actions, cookie } => self.modify(&filter, &actions, cookie),
            Change::Delete(filter) => {
                for rule in self.meant(&filter)? {
                    self.push(Op::Remove(rule));
                }
                Ok(())
            }
            Change::Replace(specs) => self.replace(specs),
            Change::Miss(new) => {
                self.push(Op::Miss { old: self.store.miss, new });
                Ok(())
            }
            Change::Group(id, new) => {
                in_range("RSS group", id, self.limits.groups)?;
                let old = self.store.group(id).cloned();
                self.push(Op::Group { id, old, new });
                Ok(())
            }
            Change::Meter(id, new) => {
                in_range("meter", id, self.limits.meters)?;
                let old = self.store.meter(id).cloned();
                self.push(Op::Meter { id, old, new });
                Ok(())
            }
        }
    }

    /// The rules that a filter means.
    fn meant(&mut self, filter: &Filter) -> Result<Vec<Arc<Rule>>, Refusal> {
        // One with table, priority and match is found without looking at the others.
        if let (Some(table), true) = (filter.table, filter.strict) {
            let found = self.store.find(table, filter.strict_priority(), &filter.matching);
            return Ok(found.filter(|rule| filter.covers(rule)).cloned().into_iter().collect());
        }
        self.look_at_all()?;
        Ok(self.store.rules().filter(|rule| filter.covers(rule)).cloned().collect())
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
        if let Some(old) = self.store.find(spec.table, spec.priority, &spec.matching) {
            let old = Arc::clone(old);
            self.push(Op::Remove(old));
        }
        if self.store.len() >= self.limits.rules {
            return Err(Refusal::TooManyRules(self.limits.rules));
        }
        let number = self.next();
        self.push(Op::Insert(Arc::new(Rule::new(spec, number, number, self.workers, self.now_ns))));
        Ok(())
    }

    fn modify(&mut self, filter: &Filter, actions: &[Action], cookie: Option<u64>) -> Result<(), Refusal> {
        for old in self.meant(filter)? {
            old.spec.check_actions(actions)?;
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
        let gone: Vec<_> = self.store.rules().filter(|rule| !stays(rule)).cloned().collect();
        for rule in gone {
            self.push(Op::Remove(rule));
        }
        let wanted: Vec<usize> = (0..specs.len()).filter(|&at| last[&place(&specs[at])] == at).collect();
        for at in wanted {
            let spec = &specs[at];
            if self.store.find(spec.table, spec.priority, &spec.matching).is_none() {
                self.add(spec.clone())?;
            }
        }
        Ok(())
    }
}

fn in_range(what: &'static str, id: u32, limit: u32) -> Result<(), Refusal> {
    if id <= limit { Ok(()) } else { Err(Refusal::OutOfRange { what, id, limit }) }
}
