//! The verdicts that a worker has met, and what each has counted since the last flush.

use super::shape::mix;
use super::{End, Miss, Tables, Verdict, Walk};
use crate::key::Key;
use crate::rule::Hits;
use hashbrown::HashTable;

/// A verdict, and by what it is found again.
#[derive(Debug)]
struct Known {
    verdict: Verdict,
    hash: u64,
    end: End,
    miss: Miss,
}

/// The verdicts that a worker has met: one for each way through the rules, however many flows go it.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    all: Vec<Known>,
    index: HashTable<u32>,
    hits: Vec<Hits>,
    /// Those with something to flush.
    touched: Vec<u32>,
    /// The revisions of a way, while it is gone.
    way: Vec<u64>,
    /// Actions and rules of all verdicts.
    weight: usize,
    /// Forgotten ones. They go one by one, as others are learned: all at once would take a worker milliseconds.
    buried: Vec<Known>,
}

/// What a verdict costs, beside its actions and rules.
const EACH: usize = 4;
/// So many are taken apart each time that something was flushed.
const SOME: usize = 16;

fn cost(verdict: &Verdict) -> usize {
    EACH + verdict.actions.len() + verdict.rules.len()
}

impl Verdicts {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Actions and rules of all verdicts: what they take of memory.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// The same where it may have been forgotten.
    pub fn find(&self, number: u32) -> Option<&Verdict> {
        self.all.get(number as usize).map(|known| &known.verdict)
    }

    #[inline(always)]
    pub fn get(&self, number: u32) -> &Verdict {
        &self.all[number as usize].verdict
    }

    /// Forgets all of them. What they have counted has been flushed.
    pub fn clear(&mut self) {
        // What was learned since has made room, see `dig`.
        debug_assert!(self.buried.is_empty());
        std::mem::swap(&mut self.all, &mut self.buried);
        self.all.clear();
        self.index.clear();
        self.hits.clear();
        self.touched.clear();
        self.weight = 0;
    }

    /// Takes forgotten verdicts apart, for one that is learned: four times what that one costs, so that all are gone when the next
    /// have to be forgotten.
    fn dig(&mut self, learned: usize) {
        let mut left = 4 * learned;
        while left > 0
            && let Some(known) = self.buried.pop()
        {
            left = left.saturating_sub(cost(&known.verdict));
        }
    }

    #[inline]
    pub fn count(&mut self, number: u32, hits: Hits) {
        let sum = &mut self.hits[number as usize];
        if sum.packets == 0 {
            self.touched.push(number);
        }
        sum.packets += hits.packets;
        sum.bytes += hits.bytes;
        sum.last_ns = sum.last_ns.max(hits.last_ns);
    }

    /// Adds what was counted to the rules. How many frames met none in a table.
    pub fn flush(&mut self, worker: usize) -> u64 {
        let mut unmatched = 0;
        for number in self.touched.drain(..) {
            let hits = std::mem::take(&mut self.hits[number as usize]);
            let verdict = &self.all[number as usize].verdict;
            unmatched += if verdict.missed.is_some() { hits.packets } else { 0 };
            for rule in &verdict.rules {
                rule.counters.add(worker, hits);
            }
        }
        self.buried.truncate(self.buried.len().saturating_sub(SOME));
        unmatched
    }

    /// The verdict on a key: one that is known, if the way is.
    pub fn decide(&mut self, tables: &Tables, table: u8, key: &Key) -> u32 {
        self.way.clear();
        let way = &mut self.way;
        let walk = tables.walk(table, key, |rule, _| way.push(rule.revision));
        let miss = tables.miss;
        let hash = way.iter().fold(walk.visited, |hash, revision| mix(hash ^ revision, 0x9e37_79b9_7f4a_7c15));
        let known = self.index.find(hash, |&number| {
            let known = &self.all[number as usize];
            let same = known.verdict.rules.iter().map(|rule| rule.revision).eq(self.way.iter().copied());
            same && known.end == walk.end && known.verdict.visited == walk.visited && known.miss == miss
        });
        match known {
            Some(&number) => number,
            None => self.learn(tables, table, key, walk, hash),
        }
    }

    /// A way that is gone for the first time: it is gone again, and what it says is put together.
    #[cold]
    fn learn(&mut self, tables: &Tables, table: u8, key: &Key, walk: Walk, hash: u64) -> u32 {
        let mut rules = Vec::with_capacity(self.way.len());
        tables.walk(table, key, |rule, _| rules.push(std::sync::Arc::clone(rule)));
        let number = self.all.len() as u32;
        let verdict = Verdict::new(walk, rules, tables.miss);
        self.dig(cost(&verdict));
        self.weight += verdict.actions.len() + verdict.rules.len();
        self.all.push(Known { verdict, hash, end: walk.end, miss: tables.miss });
        self.hits.push(Hits::default());
        self.index.insert_unique(hash, number, |&number| self.all[number as usize].hash);
        number
    }
}
