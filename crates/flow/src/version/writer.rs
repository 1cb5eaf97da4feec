//! The control side of the tables.

use super::commit::Transaction;
use super::history::History;
use super::store::{Shared, Store};
use super::{Author, Change, CommitError, Everybody, Filter, Op, Part, Published, VersionError};
use crate::meter::Meter;
use crate::quic;
use crate::rss::Group;
use crate::rule::Rule;
use crate::table::{Classifier, Miss, Tables, seed};
use std::sync::Arc;

/// How much there may be.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Rules, in all tables together.
    pub rules: usize,
    /// How many rules the loose changes of one transaction may look at together, found or not.
    pub looks: usize,
    /// Units of the rules that one transaction makes: what it may take of memory before it is done.
    pub made: usize,
    /// Masks, in all tables together: what a frame that no worker knows costs most.
    pub masks: usize,
    /// The highest number of an RSS group.
    pub groups: u32,
    /// The highest number of a meter.
    pub meters: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rules: 1 << 20, masks: 512, looks: 1 << 23, made: 1 << 21, groups: 4095, meters: 65535 }
    }
}

/// What a transaction has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Committed {
    /// The version that it has made.
    pub version: u64,
    /// Rules that were added.
    pub added: usize,
    /// Rules that have other actions.
    pub modified: usize,
    /// Rules that went; those that gave way to one that was added count as well.
    pub removed: usize,
}

/// The control side of the tables: one for all workers.
#[derive(Debug)]
pub struct Writer {
    store: Store,
    published: Arc<Published>,
    /// The newest version and older copies, which wait to be brought up to date.
    current: Arc<Tables>,
    spares: Vec<Arc<Tables>>,
    history: History,
    limits: Limits,
    workers: usize,
    sequence: u64,
    seed: u64,
}

impl Writer {
    /// Empty tables for `workers` workers, as version 0.
    pub fn new(workers: usize, limits: Limits) -> Self {
        Self::before(workers, limits, 0)
    }

    /// Empty tables, of which the first transaction makes version `version`: for a copy of other tables.
    pub fn before(workers: usize, limits: Limits, version: u64) -> Self {
        let seed = seed();
        let mut empty = Tables::new(seed);
        empty.apply(version.saturating_sub(1), &[]);
        let current = Arc::new(empty);
        Self {
            store: Store::new(seed),
            published: Arc::new(Published::new(Arc::clone(&current))),
            current,
            spares: Vec::new(),
            history: History::default(),
            limits,
            workers,
            sequence: 0,
            seed,
        }
    }

    /// The side of worker `worker`, with a cache for about `entries` flows. Every worker has one.
    pub fn classifier(&self, worker: usize, entries: usize) -> Classifier {
        Classifier::new(Arc::clone(&self.published), worker, entries)
    }

    /// The newest version.
    pub fn current(&self) -> &Arc<Tables> {
        &self.current
    }

    /// What everybody can read at any time.
    pub fn published(&self) -> &Arc<Published> {
        &self.published
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What becomes of frames that nothing matches.
    pub fn miss(&self) -> Miss {
        self.store.miss
    }

    /// An RSS group.
    pub fn group(&self, id: u32) -> Option<&Arc<Group>> {
        self.store.group(id)
    }

    /// A QUIC group.
    pub fn quic(&self, id: u32) -> Option<&Arc<quic::Group>> {
        self.store.quic(id)
    }

    /// A meter.
    pub fn meter(&self, id: u32) -> Option<&Arc<Meter>> {
        self.store.meter(id)
    }

    /// The rules that are meant, table after table, the one that wins first.
    pub fn rules(&self, filter: &Filter) -> Vec<&Arc<Rule>> {
        let mut rules: Vec<_> = self.store.rules().filter(|rule| filter.covers(rule)).collect();
        rules.sort_unstable_by_key(|rule| (rule.spec.table, std::cmp::Reverse(rule.rank)));
        rules
    }

    /// Does all changes, one after the other, or none of them. Every lookup sees all or none. `now_ns` is when.
    ///
    /// # Errors
    /// The first change that cannot be, and why.
    pub fn commit(&mut self, changes: Vec<Change>, now_ns: u64) -> Result<Committed, CommitError> {
        self.commit_by(&Everybody, changes, now_ns).map(|(committed, _)| committed)
    }

    /// As [`commit`](Self::commit), for somebody who may not change everything; returned are the steps as well.
    ///
    /// # Errors
    /// The first change that cannot be, or is not his to make.
    pub fn commit_by(
        &mut self,
        author: &dyn Author,
        changes: Vec<Change>,
        now_ns: u64,
    ) -> Result<(Committed, Arc<[Op]>), CommitError> {
        let ops: Arc<[Op]> = self.transaction(now_ns).by(author).run(changes)?.into();
        Ok((self.publish(Arc::clone(&ops)), ops))
    }

    /// What [`commit_by`](Self::commit_by) would do; nothing is done. The version is the one that there would be.
    ///
    /// # Errors
    /// As there.
    pub fn try_out(
        &mut self,
        author: &dyn Author,
        changes: Vec<Change>,
        now_ns: u64,
    ) -> Result<(Committed, Arc<[Op]>), CommitError> {
        let ops = self.transaction(now_ns).by(author).run(changes)?;
        for op in ops.iter().rev() {
            self.store.apply(&op.inverse());
        }
        Ok((self.counted(&ops), ops.into()))
    }

    fn transaction(&mut self, now_ns: u64) -> Transaction<'_> {
        Transaction::new(&mut self.store, &self.limits, &mut self.sequence, self.workers, now_ns)
    }

    /// All rules, in no order.
    pub fn each(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.store.rules()
    }

    /// Whether rules use a group or meter.
    pub fn is_used(&self, part: Part) -> bool {
        self.uses(part) > 0
    }

    /// How many actions of rules use a group or meter.
    pub fn uses(&self, part: Part) -> usize {
        match part {
            Part::Miss => 0,
            Part::Group(id) => self.store.uses(Shared::Group(id)),
            Part::Quic(id) => self.store.uses(Shared::Quic(id)),
            Part::Meter(id) => self.store.uses(Shared::Meter(id)),
        }
    }

    /// The oldest version that [`at`](Self::at) can build.
    pub fn oldest(&self) -> u64 {
        self.history.oldest(self.current.version())
    }

    /// Removes the rules whose time is over at `now_ns`, in one transaction; returned are they. With none there is no new
    /// version. Looks at every rule, so a few times a second is often enough.
    pub fn expire(&mut self, now_ns: u64) -> Vec<Arc<Rule>> {
        let over: Vec<_> = self.store.rules().filter(|rule| rule.is_over(now_ns)).cloned().collect();
        if !over.is_empty() {
            let ops: Vec<_> = over.iter().map(|rule| Op::Remove(Arc::clone(rule))).collect();
            for op in &ops {
                self.store.apply(op);
            }
            self.publish(ops.into());
        }
        over
    }

    /// An older version, for questions such as what a frame would have done under it. Takes as long as there were steps
    /// since, and rules.
    ///
    /// # Errors
    /// It is not kept any more, or not there yet.
    pub fn at(&self, version: u64) -> Result<Arc<Tables>, VersionError> {
        let newest = self.current.version();
        if version == newest {
            return Ok(Arc::clone(&self.current));
        }
        let gone = VersionError { version, oldest: self.history.oldest(newest), newest };
        let since = self.history.after(version, newest).ok_or(gone)?;
        let mut store = self.store.clone();
        for (_, ops) in since.rev() {
            for op in ops.iter().rev() {
                store.apply(&op.inverse());
            }
        }
        Ok(Arc::new(store.tables(version, self.seed)))
    }

    /// How many copies of the tables there are.
    #[cfg(test)]
    pub(super) fn copies(&self) -> usize {
        self.spares.len() + 1
    }

    /// What these steps come to, as the next version.
    fn counted(&self, ops: &[Op]) -> Committed {
        let count = |is: fn(&Op) -> bool| ops.iter().filter(|op| is(op)).count();
        Committed {
            version: self.current.version() + 1,
            added: count(|op| matches!(op, Op::Insert(_))),
            modified: count(|op| matches!(op, Op::Swap { .. })),
            removed: count(|op| matches!(op, Op::Remove(_))),
        }
    }

    fn publish(&mut self, ops: Arc<[Op]>) -> Committed {
        for op in &*ops {
            if let Op::Quic { new: Some(group), .. } = op {
                group.prepare();
            }
        }
        let committed = self.counted(&ops);
        let version = committed.version;
        self.history.push(version, ops);
        let next = self.next_copy(version);
        self.published.store(Arc::clone(&next));
        self.spares.push(std::mem::replace(&mut self.current, next));
        self.trim();
        committed
    }

    /// Drops a copy that nobody reads, where there are more than all workers together can hold.
    fn trim(&mut self) {
        if self.spares.len() > self.workers + 2
            && let Some(at) = self.spares.iter_mut().position(|spare| Arc::get_mut(spare).is_some())
        {
            self.spares.remove(at);
        }
    }

    /// A copy of the tables that nobody reads, brought up to `version`.
    fn next_copy(&mut self, version: u64) -> Arc<Tables> {
        // A spare that is read still waits for the next time. The ones that were used last have missed least.
        for at in (0..self.spares.len()).rev() {
            let Some(tables) = Arc::get_mut(&mut self.spares[at]) else { continue };
            if let Some(since) = self.history.after(tables.version(), version) {
                for (version, ops) in since {
                    tables.apply(*version, ops);
                }
                return self.spares.remove(at);
            }
            // Too old to be brought up to date.
            self.spares.remove(at);
        }
        let mut copy = Tables::clone(&self.current);
        if let Some(since) = self.history.after(copy.version(), version) {
            for (version, ops) in since {
                copy.apply(*version, ops);
            }
        }
        Arc::new(copy)
    }
}
