//! RX queues for whose room somebody waits. Their programs wake a worker that sleeps when they have made room; those of all others
//! need not, so that falling asleep costs what is blocked and not what is open.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A set of RX queues, by number. One worker alone looks at it; it is atomic because its queues, which go from worker to worker,
/// refer to it.
pub(crate) struct Wanted {
    is_any: AtomicBool,
    words: Box<[AtomicU64]>,
}

impl Wanted {
    /// An empty set for a card with so many RX queues.
    pub fn new(queues: usize) -> Self {
        Self { is_any: AtomicBool::new(false), words: (0..queues.div_ceil(64)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Somebody waits for room in this queue, or is about to.
    pub fn add(&self, queue: u32) {
        if let Some(word) = self.words.get(queue as usize / 64) {
            word.store(word.load(Relaxed) | 1 << (queue % 64), Relaxed);
            self.is_any.store(true, Relaxed);
        }
    }

    /// Empties the set, in the order of the numbers.
    pub fn take_all(&self, mut each: impl FnMut(u32)) {
        if !self.is_any.load(Relaxed) {
            return;
        }
        self.is_any.store(false, Relaxed);
        for (at, word) in self.words.iter().enumerate() {
            let mut bits = word.load(Relaxed);
            word.store(0, Relaxed);
            while bits != 0 {
                each(at as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Whether there is a queue in it that is not among these, which are sorted.
    pub fn has_others(&self, than: &[u32]) -> bool {
        self.is_any.load(Relaxed)
            && self.words.iter().enumerate().any(|(at, word)| {
                let mut bits = word.load(Relaxed);
                let mut found = false;
                while bits != 0 && !found {
                    found = than.binary_search(&(at as u32 * 64 + bits.trailing_zeros())).is_err();
                    bits &= bits - 1;
                }
                found
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(added in proptest::collection::vec(0..300_u32, 0..40), others in proptest::collection::btree_set(0..300_u32, 0..300)) {
            let wanted = Wanted::new(300);
            added.iter().for_each(|&queue| wanted.add(queue));
            let others: Vec<u32> = others.into_iter().collect();
            prop_assert_eq!(wanted.has_others(&others), added.iter().any(|queue| !others.contains(queue)));
            for left in [added.into_iter().collect::<BTreeSet<_>>(), BTreeSet::new()] {
                let mut taken = Vec::new();
                wanted.take_all(|queue| taken.push(queue));
                prop_assert_eq!(taken, left.into_iter().collect::<Vec<_>>());
                prop_assert!(!wanted.has_others(&[]));
            }
        }
    }

    #[test]
    fn a_queue_that_a_card_has_not_is_not_in_it() {
        let wanted = Wanted::new(64);
        wanted.add(64);
        assert!(!wanted.has_others(&[]));
    }
}
