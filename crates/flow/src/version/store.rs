//! The rules as the control side has them: found by what a change names.

use super::Op;
use crate::action::Action;
use crate::key::Mask;
use crate::matching::Match;
use crate::meter::Meter;
use crate::quic;
use crate::rss::Group;
use crate::rule::Rule;
use crate::table::{Miss, Tables, mix};
use hashbrown::HashTable;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What a group or meter is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shared {
    Group(u32),
    Quic(u32),
    Meter(u32),
}

impl Shared {
    /// What an action uses.
    fn of(action: &Action) -> Option<Self> {
        match action {
            Action::Rss(group) | Action::Balance(group) => Some(Self::Group(*group)),
            Action::Quic(group) => Some(Self::Quic(*group)),
            Action::Meter(meter) => Some(Self::Meter(*meter)),
            _ => None,
        }
    }
}

/// The rules as the control side has them.
#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    rules: HashTable<Arc<Rule>>,
    pub miss: Miss,
    groups: BTreeMap<u32, Arc<Group>>,
    quics: BTreeMap<u32, Arc<quic::Group>>,
    meters: BTreeMap<u32, Arc<Meter>>,
    /// How many rules have each mask, by table: a frame that no worker knows is compared under all masks of a table.
    masks: HashMap<(u8, Mask), usize>,
    /// How many actions use a group or meter.
    uses: HashMap<Shared, usize>,
    seed: u64,
}

impl Store {
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// How many masks there are, in all tables together.
    pub fn masks(&self) -> usize {
        self.masks.len()
    }

    fn count_mask(&mut self, rule: &Rule, is_new: bool) {
        let place = (rule.spec.table, *rule.matching.mask());
        let count = self.masks.entry(place).or_default();
        *count = if is_new { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.masks.remove(&place);
        }
    }

    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.iter()
    }

    pub fn group(&self, id: u32) -> Option<&Arc<Group>> {
        self.groups.get(&id)
    }

    /// How many QUIC groups there are.
    pub fn quics(&self) -> usize {
        self.quics.len()
    }

    /// How many connections they have room for together.
    pub fn quic_connections(&self) -> usize {
        self.quics.values().map(|group| group.spec().connections).sum()
    }

    pub fn quic(&self, id: u32) -> Option<&Arc<quic::Group>> {
        self.quics.get(&id)
    }

    pub fn meter(&self, id: u32) -> Option<&Arc<Meter>> {
        self.meters.get(&id)
    }

    /// Whether a group or meter is there.
    pub fn has(&self, shared: Shared) -> bool {
        match shared {
            Shared::Group(id) => self.groups.contains_key(&id),
            Shared::Quic(id) => self.quics.contains_key(&id),
            Shared::Meter(id) => self.meters.contains_key(&id),
        }
    }

    /// A group or meter that a rule uses and that is not there.
    pub fn missing<'a>(&self, mut actions: impl Iterator<Item = &'a Action>) -> Option<Shared> {
        actions.find_map(|action| Shared::of(action).filter(|shared| !self.has(*shared)))
    }

    /// How many actions use a group or meter.
    pub fn uses(&self, shared: Shared) -> usize {
        self.uses.get(&shared).copied().unwrap_or(0)
    }

    pub fn is_used(&self, shared: Shared) -> bool {
        self.uses.contains_key(&shared)
    }

    fn hash(seed: u64, table: u8, priority: u16, matching: &Match) -> u64 {
        let words = matching.key().words().iter().chain(matching.mask().words());
        let first = mix(seed ^ u64::from(table) << 16 ^ u64::from(priority), 0x9e37_79b9_7f4a_7c15);
        words.enumerate().fold(first, |sum, (at, word)| {
            if *word == 0 { sum } else { mix(sum ^ word, 0x9e37_79b9_7f4a_7c15 ^ (at as u64) << 1) }
        })
    }

    fn hash_of(&self, rule: &Rule) -> u64 {
        Self::hash(self.seed, rule.spec.table, rule.spec.priority, &rule.spec.matching)
    }

    /// The rule with exactly this table, priority and match.
    pub fn find(&self, table: u8, priority: u16, matching: &Match) -> Option<&Arc<Rule>> {
        let hash = Self::hash(self.seed, table, priority, matching);
        self.rules.find(hash, |rule| {
            (rule.spec.table, rule.spec.priority) == (table, priority) && rule.spec.matching == *matching
        })
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Insert(rule) => {
                let (hash, seed) = (self.hash_of(rule), self.seed);
                let rehash =
                    |rule: &Arc<Rule>| Self::hash(seed, rule.spec.table, rule.spec.priority, &rule.spec.matching);
                self.rules.insert_unique(hash, Arc::clone(rule), rehash);
                self.count_uses(rule, true);
                self.count_mask(rule, true);
            }
            Op::Remove(rule) => {
                let hash = self.hash_of(rule);
                if let Ok(found) = self.rules.find_entry(hash, |other| other.revision == rule.revision) {
                    found.remove();
                }
                self.count_uses(rule, false);
                self.count_mask(rule, false);
            }
            Op::Swap { old, new } => {
                let hash = self.hash_of(old);
                if let Some(found) = self.rules.find_mut(hash, |other| other.revision == old.revision) {
                    *found = Arc::clone(new);
                }
                self.count_uses(new, true);
                self.count_uses(old, false);
            }
            Op::Miss { new, .. } => self.miss = *new,
            Op::Group { id, new, .. } => set(&mut self.groups, *id, new.clone()),
            Op::Quic { id, new, .. } => set(&mut self.quics, *id, new.clone()),
            Op::Meter { id, new, .. } => set(&mut self.meters, *id, new.clone()),
        }
    }

    /// Tables with these rules, as that version.
    pub fn tables(&self, version: u64, seed: u64) -> Tables {
        let mut ops: Vec<Op> = self.rules.iter().map(|rule| Op::Insert(Arc::clone(rule))).collect();
        ops.push(Op::Miss { old: Miss::Normal, new: self.miss });
        let group = |(id, group): (&u32, &Arc<Group>)| Op::Group { id: *id, old: None, new: Some(Arc::clone(group)) };
        let quic =
            |(id, group): (&u32, &Arc<quic::Group>)| Op::Quic { id: *id, old: None, new: Some(Arc::clone(group)) };
        let meter = |(id, meter): (&u32, &Arc<Meter>)| Op::Meter { id: *id, old: None, new: Some(Arc::clone(meter)) };
        ops.extend(self.quics.iter().map(quic));
        ops.extend(self.groups.iter().map(group).chain(self.meters.iter().map(meter)));
        let mut tables = Tables::new(seed);
        tables.apply(version, &ops);
        tables
    }

    fn count_uses(&mut self, rule: &Rule, more: bool) {
        for shared in rule.spec.actions.iter().filter_map(Shared::of) {
            let uses = self.uses.entry(shared).or_default();
            *uses = if more { *uses + 1 } else { uses.saturating_sub(1) };
            if *uses == 0 {
                self.uses.remove(&shared);
            }
        }
    }
}

fn set<T>(map: &mut BTreeMap<u32, T>, id: u32, new: Option<T>) {
    match new {
        Some(new) => drop(map.insert(id, new)),
        None => drop(map.remove(&id)),
    }
}
