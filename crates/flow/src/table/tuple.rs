//! The rules of a table that have one mask: a hash table of masked keys.

use super::shape::Shape;
use crate::key::{Key, Mask};
use crate::rule::{Rank, Rule};
use hashbrown::HashTable;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Rules that ask for the same bits. There is at least one.
#[derive(Clone, Debug)]
struct Entry {
    hash: u64,
    /// The one that wins.
    best: Arc<Rule>,
    /// The others, highest rank first.
    rest: Vec<Arc<Rule>>,
}

/// The rules of a table that have one mask.
#[derive(Clone, Debug)]
pub(crate) struct Tuple {
    mask: Mask,
    shape: Shape,
    /// Numbers of entries by hash.
    index: HashTable<u32>,
    /// The masked words of each entry, one entry behind the other.
    words: Vec<u64>,
    /// Those of removed rules are `None`, and in `free`.
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Ranks of all rules, to know the highest.
    ranks: BTreeSet<Rank>,
}

impl Tuple {
    pub fn new(mask: Mask, seed: u64) -> Self {
        Self {
            shape: Shape::new(&mask, seed),
            mask,
            index: HashTable::new(),
            words: Vec::new(),
            entries: Vec::new(),
            free: Vec::new(),
            ranks: BTreeSet::new(),
        }
    }

    pub fn mask(&self) -> &Mask {
        &self.mask
    }

    /// The highest rank; none if there is no rule.
    pub fn top(&self) -> Option<Rank> {
        self.ranks.last().copied()
    }

    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.entries.iter().flatten().flat_map(|entry| std::iter::once(&entry.best).chain(&entry.rest))
    }

    #[inline]
    fn entry(&self, hash: u64, key: &Key) -> Option<u32> {
        let len = self.shape.len();
        let found = self.index.find(hash, |&at| {
            let from = at as usize * len;
            self.words.get(from..from + len).is_some_and(|words| self.shape.equals(key, words))
        });
        found.copied()
    }

    /// The rule that matches a key, the highest of them.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<&Arc<Rule>> {
        let at = self.entry(self.shape.hash(key), key)?;
        self.entries[at as usize].as_ref().map(|entry| &entry.best)
    }

    pub fn insert(&mut self, rule: Arc<Rule>) {
        self.ranks.insert(rule.rank);
        let key = rule.matching.key();
        let hash = self.shape.hash(key);
        if let Some(at) = self.entry(hash, key) {
            if let Some(entry) = &mut self.entries[at as usize] {
                entry.insert(rule);
            }
            return;
        }
        let words: Vec<u64> = self.shape.pack(key).collect();
        let entry = Some(Entry { hash, best: rule, rest: Vec::new() });
        let at = match self.free.pop() {
            Some(at) => {
                let from = at as usize * words.len();
                self.words[from..from + words.len()].copy_from_slice(&words);
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.words.extend(words);
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        let entries = &self.entries;
        self.index.insert_unique(hash, at, |&at| entries[at as usize].as_ref().map_or(0, |entry| entry.hash));
    }

    /// Removes the rule with the rank and match of `rule`.
    pub fn remove(&mut self, rule: &Rule) {
        self.ranks.remove(&rule.rank);
        let key = rule.matching.key();
        let hash = self.shape.hash(key);
        let Some(at) = self.entry(hash, key) else { return };
        let slot = &mut self.entries[at as usize];
        if slot.as_mut().is_some_and(|entry| entry.remove(rule.rank)) {
            *slot = None;
            self.free.push(at);
            if let Ok(found) = self.index.find_entry(hash, |&other| other == at) {
                found.remove();
            }
        }
    }

    /// Puts `rule` where the rule with the same rank and match is.
    pub fn swap(&mut self, rule: Arc<Rule>) {
        let key = rule.matching.key();
        let Some(at) = self.entry(self.shape.hash(key), key) else { return };
        let Some(entry) = &mut self.entries[at as usize] else { return };
        let mut all = std::iter::once(&mut entry.best).chain(&mut entry.rest);
        if let Some(old) = all.find(|old| old.rank == rule.rank) {
            *old = rule;
        }
    }
}

impl Entry {
    fn insert(&mut self, mut rule: Arc<Rule>) {
        if rule.rank > self.best.rank {
            std::mem::swap(&mut self.best, &mut rule);
        }
        let at = self.rest.partition_point(|other| other.rank > rule.rank);
        self.rest.insert(at, rule);
    }

    /// Removes the rule of that rank; whether it was the last one.
    fn remove(&mut self, rank: Rank) -> bool {
        if self.best.rank != rank {
            self.rest.retain(|other| other.rank != rank);
        } else if self.rest.is_empty() {
            return true;
        } else {
            self.best = self.rest.remove(0);
        }
        false
    }
}
