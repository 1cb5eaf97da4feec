//! All tables of one version.

use super::Table;
use super::verdict::Again;
use crate::field::{Field, Wide};
use crate::key::{Key, Mask};
use crate::meter::Meter;
use crate::quic;
use crate::rss::Group;
use crate::rule::{Next, Rule, TABLES};
use crate::version::Op;
use millrace_packet::parse::Layers;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What becomes of a frame that no rule of a table matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Miss {
    /// As if there were no rules: the port's own RX queue.
    #[default]
    Normal,
    /// Dropped, as OpenFlow has it.
    Drop,
    /// The slow path gets it, with [`Reason::NoMatch`](crate::action::Reason::NoMatch).
    Punt,
}

/// How many changes a version remembers, so that a cached verdict can be checked against what has changed since.
const RECENT: usize = 64;
/// The mask over all rules becomes smaller at most once in so many versions: whenever it changes, caches are empty.
const SHRINK_INTERVAL: u64 = 256;

/// All tables of one version, with groups and meters.
#[derive(Clone, Debug)]
pub struct Tables {
    pub(crate) version: u64,
    tables: Vec<Table>,
    pub(crate) miss: Miss,
    groups: BTreeMap<u32, Arc<Group>>,
    quics: BTreeMap<u32, Arc<quic::Group>>,
    wants_sent: bool,
    meters: BTreeMap<u32, Arc<Meter>>,
    /// Every bit that some rule looks at or some action reads, and perhaps some that none does any more.
    union: Mask,
    /// What actions on the way read besides. Rules that do are few, so this only grows.
    read: Mask,
    shrinkable: bool,
    shrunk: u64,
    recent: VecDeque<(u64, Arc<Rule>)>,
    /// All changes of versions after this one are in `recent`.
    recent_from: u64,
    seed: u64,
    /// Rules for what programs of the host send.
    local: usize,
}

/// How a walk through the tables ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With a rule that goes nowhere.
    Rule,
    /// In a table where nothing matches.
    Miss(u8),
    /// With new headers.
    Again(Again),
}

/// A walk through the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    /// Tables that were searched, as bits.
    pub visited: u64,
    /// Those of them that saw another key than the first one did.
    pub rewritten: u64,
    pub end: End,
}

impl Tables {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            version: 0,
            tables: Vec::new(),
            miss: Miss::Normal,
            groups: BTreeMap::new(),
            quics: BTreeMap::new(),
            wants_sent: false,
            meters: BTreeMap::new(),
            union: Mask::ZERO,
            read: Mask::ZERO,
            shrinkable: false,
            shrunk: 0,
            recent: VecDeque::new(),
            recent_from: 0,
            seed,
            local: 0,
        }
    }

    /// Whether some rule is for what programs of the host send (`in_port=local`).
    pub fn has_local(&self) -> bool {
        self.local > 0
    }

    /// Which version this is.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether some rule looks at what is in QUIC packets.
    pub fn looks_at_quic(&self) -> bool {
        [Field::QuicCid, Field::QuicCidLen].into_iter().any(|field| self.union.get(field) != Wide::ZERO)
    }

    /// Whether it says anything about any frame.
    pub fn decides(&self) -> bool {
        !self.is_empty() || self.miss != Miss::Normal
    }

    /// What becomes of a frame that nothing matches.
    pub fn miss(&self) -> Miss {
        self.miss
    }

    /// An RSS group.
    #[inline]
    pub fn group(&self, group: u32) -> Option<&Arc<Group>> {
        self.groups.get(&group)
    }

    /// A QUIC group.
    #[inline]
    pub fn quic(&self, group: u32) -> Option<&Arc<quic::Group>> {
        self.quics.get(&group)
    }

    /// Whether [`sent`](Self::sent) is to be called for frames that programs send: whether there is a QUIC group that learns
    /// from them.
    #[inline(always)]
    pub fn wants_sent(&self) -> bool {
        self.wants_sent
    }

    /// Tells the QUIC groups of a frame that comes out of TX queue `queue` and is to leave through a port, of which `layers` says
    /// where its headers are. Others than UDP are passed over at once.
    pub fn sent(&self, now_ns: u64, layers: &Layers, frame: &[u8], queue: u16) {
        let Some((path, datagram)) = quic::Path::sent(layers, frame) else { return };
        for group in self.quics.values() {
            if let Some(instance) = group.instance_of(queue) {
                group.sent(now_ns, instance, &path, datagram);
            }
        }
    }

    /// A meter.
    #[inline]
    pub fn meter(&self, meter: u32) -> Option<&Arc<Meter>> {
        self.meters.get(&meter)
    }

    /// All RSS groups, by number.
    pub fn groups(&self) -> impl Iterator<Item = (u32, &Arc<Group>)> {
        self.groups.iter().map(|(id, group)| (*id, group))
    }

    /// All QUIC groups, by number.
    pub fn quics(&self) -> impl Iterator<Item = (u32, &Arc<quic::Group>)> {
        self.quics.iter().map(|(id, group)| (*id, group))
    }

    /// All meters, by number.
    pub fn meters(&self) -> impl Iterator<Item = (u32, &Arc<Meter>)> {
        self.meters.iter().map(|(id, meter)| (*id, meter))
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.tables.iter().map(Table::len).sum()
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rules of a table, the one that wins first. Not for the data path.
    pub fn rules(&self, table: u8) -> Vec<&Arc<Rule>> {
        let mut rules: Vec<_> = self.tables.get(usize::from(table)).into_iter().flat_map(Table::rules).collect();
        rules.sort_unstable_by_key(|rule| std::cmp::Reverse(rule.rank));
        rules
    }

    pub(crate) fn union(&self) -> &Mask {
        &self.union
    }

    /// The changes since `version`, if all of them are known.
    #[inline]
    pub(crate) fn changes_since(&self, version: u64) -> Option<impl Iterator<Item = &Rule>> {
        let newer = self.recent.iter().rev().take_while(move |(changed, _)| *changed > version);
        (version >= self.recent_from).then(|| newer.map(|(_, rule)| &**rule))
    }

    /// The rule of a table that matches a key.
    #[inline]
    pub(crate) fn find(&self, table: u8, key: &Key) -> Option<&Arc<Rule>> {
        self.tables.get(usize::from(table))?.find(key)
    }

    /// Goes through the tables from `table` on and calls `hit` for every rule on the way. Each table is later than the one
    /// before, so there are at most [`TABLES`] of them.
    #[inline]
    pub(crate) fn walk<'t>(&'t self, mut table: u8, first: &Key, mut hit: impl FnMut(&'t Arc<Rule>, &Key)) -> Walk {
        let mut walk = Walk { visited: 0, rewritten: 0, end: End::Rule };
        let mut own;
        let mut key = first;
        let mut changed = false;
        loop {
            let bit = 1 << (table % TABLES);
            walk.visited |= bit;
            walk.rewritten |= if changed { bit } else { 0 };
            let Some(rule) = self.find(table, key) else {
                walk.end = End::Miss(table);
                return walk;
            };
            hit(rule, key);
            let next = match rule.plan.next {
                Next::End => return walk,
                Next::Table(next) | Next::Again(next) => next,
            };
            if rule.plan.rewrites() {
                let mut copy = *key;
                rule.plan.rewrite(&mut copy);
                own = copy;
                key = &own;
                changed = true;
            }
            if let Next::Again(table) = rule.plan.next {
                walk.end = End::Again(Again::new(table, key));
                return walk;
            }
            table = next;
        }
    }

    /// Makes this `version` by what was changed.
    pub(crate) fn apply(&mut self, version: u64, ops: &[Op]) {
        self.version = version;
        if ops.len() > RECENT {
            self.forget();
        }
        for op in ops {
            self.apply_one(op);
        }
        if self.shrinkable && version >= self.shrunk + SHRINK_INTERVAL {
            self.shrinkable = false;
            self.shrunk = version;
            self.union = self.tables.iter().flat_map(Table::masks).fold(self.read, |all, mask| all.union(mask));
        }
    }

    fn forget(&mut self) {
        self.recent.clear();
        self.recent_from = self.version;
    }

    /// What a rule may do to keys counts for whether two of them can share a verdict.
    fn read(&mut self, rule: &Rule) {
        if rule.plan.rewrites() {
            self.read = self.read.union(&rule.plan.reads());
            self.union = self.union.union(&self.read);
        }
    }

    fn remember(&mut self, rule: &Arc<Rule>) {
        if self.recent.len() == RECENT
            && let Some((oldest, _)) = self.recent.pop_front()
        {
            self.recent_from = self.recent_from.max(oldest);
        }
        self.recent.push_back((self.version, Arc::clone(rule)));
    }

    fn table(&mut self, table: u8) -> &mut Table {
        let table = usize::from(table);
        if self.tables.len() <= table {
            self.tables.resize_with(table + 1, Table::default);
        }
        &mut self.tables[table]
    }

    fn apply_one(&mut self, op: &Op) {
        let seed = self.seed;
        match op {
            Op::Insert(rule) => {
                self.local += usize::from(rule.is_local());
                self.read(rule);
                if self.table(rule.spec.table).insert(Arc::clone(rule), seed) {
                    self.union = self.union.union(rule.matching.mask());
                }
                self.remember(rule);
            }
            Op::Remove(rule) => {
                self.local -= usize::from(rule.is_local());
                self.shrinkable |= self.table(rule.spec.table).remove(rule);
                self.remember(rule);
            }
            Op::Swap { new, .. } => {
                self.read(new);
                self.table(new.spec.table).swap(Arc::clone(new));
                self.remember(new);
            }
            Op::Miss { new, .. } => {
                self.miss = *new;
                self.forget();
            }
            // Verdicts name groups and meters by number, so they stay as they are.
            Op::Group { id, new, .. } => replace(&mut self.groups, *id, new.as_ref()),
            Op::Quic { id, new, .. } => {
                replace(&mut self.quics, *id, new.as_ref());
                self.wants_sent = self.quics.values().any(|group| !group.spec().one_way);
            }
            Op::Meter { id, new, .. } => replace(&mut self.meters, *id, new.as_ref()),
        }
    }
}

fn replace<T>(map: &mut BTreeMap<u32, Arc<T>>, id: u32, new: Option<&Arc<T>>) {
    match new {
        Some(new) => drop(map.insert(id, Arc::clone(new))),
        None => drop(map.remove(&id)),
    }
}
