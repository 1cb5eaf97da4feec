//! One table: its tuples, searched from the one with the highest rule on, until no other can have a higher one than was
//! found (tuple-space search; Srinivasan, Suri, Varghese, 1999; with the order of Open vSwitch).

use super::tuple::Tuple;
use crate::key::{Key, Mask};
use crate::rule::{Rank, Rule};
use std::collections::HashMap;
use std::sync::Arc;

/// One table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// Tuples by number; those that were removed are `None`, and in `free`.
    tuples: Vec<Option<Tuple>>,
    free: Vec<usize>,
    numbers: HashMap<Mask, usize>,
    /// The highest rank of each tuple and its number, highest first.
    order: Vec<(Rank, usize)>,
}

impl Table {
    /// The rule that matches a key.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<&Arc<Rule>> {
        let mut best: Option<&Arc<Rule>> = None;
        for &(top, number) in &self.order {
            if best.is_some_and(|best| best.rank > top) {
                break;
            }
            let Some(tuple) = self.tuples.get(number).and_then(Option::as_ref) else { continue };
            if let Some(found) = tuple.find(key)
                && best.is_none_or(|best| found.rank > best.rank)
            {
                best = Some(found);
            }
        }
        best
    }

    /// All rules, in no order.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.tuples.iter().flatten().flat_map(Tuple::rules)
    }

    /// The masks in use.
    pub fn masks(&self) -> impl Iterator<Item = &Mask> {
        self.tuples.iter().flatten().map(Tuple::mask)
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.tuples.iter().flatten().map(Tuple::len).sum()
    }

    /// Adds a rule; whether its mask is new.
    pub fn insert(&mut self, rule: Arc<Rule>, seed: u64) -> bool {
        let mask = *rule.matching.mask();
        let known = self.numbers.get(&mask).copied();
        let number = known.unwrap_or_else(|| self.create(mask, seed));
        self.change(number, |tuple| tuple.insert(rule));
        known.is_none()
    }

    /// Removes a rule; whether it was the last one with its mask.
    pub fn remove(&mut self, rule: &Rule) -> bool {
        let mask = rule.matching.mask();
        let Some(&number) = self.numbers.get(mask) else { return false };
        self.change(number, |tuple| tuple.remove(rule));
        let last = self.tuples[number].as_ref().is_some_and(|tuple| tuple.len() == 0);
        if last {
            self.tuples[number] = None;
            self.free.push(number);
            self.numbers.remove(mask);
        }
        last
    }

    /// Puts `rule` in the place of the one with its rank and match.
    pub fn swap(&mut self, rule: Arc<Rule>) {
        if let Some(&number) = self.numbers.get(rule.matching.mask()) {
            self.change(number, |tuple| tuple.swap(rule));
        }
    }

    fn create(&mut self, mask: Mask, seed: u64) -> usize {
        let tuple = Some(Tuple::new(mask, seed));
        let number = match self.free.pop() {
            Some(number) => {
                self.tuples[number] = tuple;
                number
            }
            None => {
                self.tuples.push(tuple);
                self.tuples.len() - 1
            }
        };
        self.numbers.insert(mask, number);
        number
    }

    /// Changes a tuple, and its place in the order if its highest rank is another one then.
    fn change(&mut self, number: usize, change: impl FnOnce(&mut Tuple)) {
        let Some(tuple) = &mut self.tuples[number] else { return };
        let before = tuple.top();
        change(tuple);
        let after = tuple.top();
        if before == after {
            return;
        }
        // Ranks are unique, so a rank finds its tuple.
        if let Some(before) = before {
            let at = self.order.partition_point(|(top, _)| *top > before);
            self.order.remove(at);
        }
        if let Some(after) = after {
            let at = self.order.partition_point(|(top, _)| *top > after);
            self.order.insert(at, (after, number));
        }
    }
}
