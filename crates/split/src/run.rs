//! References that follow one another, as one word: what is granted is mostly in few pieces.
//!
//! | Bits | |
//! |---|---|
//! | 0 to 48 | the first reference: of a file the number of a page, of Xen a grant |
//! | 49 to 63 | how many more follow it |

/// Bits of a reference.
const BITS: u32 = 49;
/// The highest reference.
pub const MOST_REFERENCE: u64 = (1 << BITS) - 1;
/// References of one run.
const MOST_COUNT: u64 = 1 << (u64::BITS - BITS);

/// References that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run(u64);

impl Run {
    /// As it stands in a message.
    pub fn word(self) -> u64 {
        self.0
    }

    /// Any word is a run.
    pub fn of_word(word: u64) -> Self {
        Self(word)
    }

    /// How many references it has: 1 to 32,768.
    pub fn count(self) -> u64 {
        (self.0 >> BITS) + 1
    }

    /// All of them. The last ones may be higher than a reference can be: no transport knows those.
    pub fn references(self) -> impl Iterator<Item = u64> {
        let first = self.0 & MOST_REFERENCE;
        first..first + self.count()
    }
}

/// References as runs. `None`: one of them is too high.
pub fn runs_of(references: &[u64]) -> Option<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    let mut next = None;
    for reference in references.iter().copied() {
        if reference > MOST_REFERENCE {
            return None;
        }
        match runs.last_mut().filter(|run| next == Some(reference) && run.count() < MOST_COUNT) {
            Some(run) => run.0 += 1 << BITS,
            None => runs.push(Run(reference)),
        }
        next = Some(reference + 1);
    }
    Some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn references_are_the_same_as_runs(pieces in prop::collection::vec((0..=MOST_REFERENCE - 100, 1u64..100), 0..20)) {
            let all: Vec<u64> = pieces.iter().flat_map(|(first, count)| *first..*first + *count).collect();
            let runs = runs_of(&all).unwrap();
            prop_assert!(runs.len() <= pieces.len());
            let back: Vec<u64> = runs.iter().flat_map(|run| Run::of_word(run.word()).references()).collect();
            prop_assert_eq!(back, all);
        }
    }

    #[test]
    fn a_long_run_is_cut_and_what_is_too_high_is_none() {
        let all: Vec<u64> = (7..7 + 2 * MOST_COUNT + 1).collect();
        let counts: Vec<u64> = runs_of(&all).unwrap().into_iter().map(Run::count).collect();
        assert_eq!(counts, [MOST_COUNT, MOST_COUNT, 1]);
        assert_eq!(runs_of(&[MOST_REFERENCE]).map(|runs| runs.len()), Some(1));
        assert_eq!(runs_of(&[MOST_REFERENCE + 1]), None);
    }
}
