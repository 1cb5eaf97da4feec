//! Numbers that one thread writes and any thread may read, all of them of one moment and without a lock.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// How often a reader that waits tries again: for much longer than any writer writes.
const MOST_TRIES: usize = 100_000;

/// A sequence lock around `N` words: one writer that never waits, readers that try again.
#[repr(align(128))] // Not on a cache line with anything that another core writes.
pub(crate) struct Published<const N: usize> {
    sequence: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Default for Published<N> {
    fn default() -> Self {
        Self::new([0; N])
    }
}

impl<const N: usize> Published<N> {
    pub fn new(words: [u64; N]) -> Self {
        Self { sequence: AtomicU64::new(0), words: words.map(AtomicU64::new) }
    }

    /// Publishes all words. Only one thread may do so at a time: the worker that owns them, or who holds a lock.
    #[inline]
    pub fn publish(&self, words: &[u64; N]) {
        self.write(|to| to.iter().zip(words).for_each(|(to, &word)| to.store(word, Ordering::Relaxed)));
    }

    /// Publishes the words whose bits are set in `which`; the others are as they were.
    #[inline(always)]
    fn publish_some(&self, words: &[u64; N], mut which: u64) {
        self.write(|to| {
            while which != 0 {
                let at = which.trailing_zeros() as usize;
                to[at].store(words[at], Ordering::Relaxed);
                which &= which - 1;
            }
        });
    }

    #[inline(always)]
    fn write(&self, store: impl FnOnce(&[AtomicU64; N])) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the Acquire fence in `look`: a reader that saw any of the words below sees the odd sequence.
        fence(Ordering::Release);
        store(&self.words);
        // Release pairs with the Acquire load in `version`.
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// As a writer that has only begun.
    #[cfg(test)]
    pub fn begin_writing(&self) {
        self.sequence.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that changes with every publication.
    #[inline(always)]
    pub fn version(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// All words of one moment and their version, unless they are being changed just now. For readers that have
    /// something better to do than to wait.
    pub fn look(&self) -> Option<([u64; N], u64)> {
        let before = self.version();
        let mut words = [0; N];
        for (word, from) in words.iter_mut().zip(&self.words) {
            *word = from.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        let whole = before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before;
        whole.then_some((words, before))
    }

    /// All words of one moment. A writer that the system has taken off its core is waited for, so this is not for workers; one
    /// that has ended in the middle of it is not, and the words are of two moments then.
    pub fn read(&self) -> [u64; N] {
        for _ in 0..MOST_TRIES {
            if let Some((words, _)) = self.look() {
                return words;
            }
            std::thread::yield_now();
        }
        core::array::from_fn(|at| self.words[at].load(Ordering::Relaxed))
    }
}

/// The writer's own copy of published words: plain numbers, of which it remembers those that changed, because few do in
/// one burst.
pub(crate) struct Tally<const N: usize> {
    words: [u64; N],
    changed: u64,
}

impl<const N: usize> Tally<N> {
    pub fn new() -> Self {
        const { assert!(N <= 64, "one bit for each word") };
        Self { words: [0; N], changed: 0 }
    }

    #[inline(always)]
    pub fn add(&mut self, at: usize, count: u64) {
        self.words[at] += count;
        self.changed |= 1 << at;
    }

    pub fn get(&self, at: usize) -> u64 {
        self.words[at]
    }

    #[cfg(test)]
    pub fn words(&self) -> [u64; N] {
        self.words
    }

    /// Makes what changed readable.
    #[inline(always)]
    pub fn publish(&mut self, to: &Published<N>) {
        if self.changed != 0 {
            to.publish_some(&self.words, self.changed);
            self.changed = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_never_ends_makes_nobody_wait_for_ever() {
        let shared = Published::<2>::new([1, 2]);
        shared.begin_writing();
        assert_eq!((shared.look(), shared.read()), (None, [1, 2]));
    }

    #[test]
    fn a_reader_never_sees_half_an_update() {
        let shared = Published::<3>::default();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..200_000).for_each(|i| shared.publish(&[i, i * 64, i]));
                stop.store(true, Ordering::Relaxed);
            });
            while !stop.load(Ordering::Relaxed) {
                let [one, many, again] = shared.read();
                assert_eq!((one * 64, one), (many, again));
            }
        });
    }

    #[test]
    fn a_tally_publishes_what_changed_and_only_then() {
        let shared = Published::<5>::default();
        let mut tally = Tally::new();
        tally.add(1, 7);
        tally.add(4, 1);
        assert_eq!(shared.read(), [0; 5]);
        tally.publish(&shared);
        assert_eq!(shared.read(), [0, 7, 0, 0, 1]);
        let version = shared.version();
        tally.publish(&shared);
        assert_eq!(shared.version(), version, "nothing was new");
        tally.add(4, 1);
        tally.publish(&shared);
        assert_eq!(shared.look(), Some(([0, 7, 0, 0, 2], version + 2)));
    }
}
