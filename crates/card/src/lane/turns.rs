//! Which rings of a lane a pass looks at: those that were busy lately in every pass, the others in turn.
//!
//! So a pass costs what the busy rings cost, however many are open. A ring that has been quiet for [`PATIENCE`] looks is
//! *cold*: one of the cold ones is looked at in every [`BETWEEN`]th pass, and [`COLD_LOOKS`] of them in every pass once
//! [`BREAK`] passes in a row found nothing. The first frame after a long silence therefore waits for that many passes, some
//! tens of microseconds with a thousand rings; then the ring is hot again. As long as no more than [`FEW`] rings run, all
//! of them are looked at in every pass.

/// Fruitless looks in a row after which a ring is cold.
const PATIENCE: u32 = 4096;
/// Passes between two looks at a cold ring while others are busy.
const BETWEEN: u32 = 4;
/// Fruitless passes in a row after which nobody is kept waiting by more looks.
const BREAK: u32 = 256;
/// Cold rings that a pass then looks at.
const COLD_LOOKS: usize = 8;
/// Rings that are never cold, because looking at so few costs nothing.
const FEW: usize = 8;

/// What a look at a ring found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing to do.
    Quiet,
    /// Work was done.
    Busy,
    /// The ring does not run any more.
    Ended,
}

struct Hot {
    place: u32,
    quiet: u32,
}

/// The rings that run, by their places in the lane.
#[derive(Default)]
pub(super) struct Turns {
    hot: Vec<Hot>,
    cold: Vec<u32>,
    next: usize,
    // Since a pass found something, and in all.
    fruitless: u32,
    passes: u32,
}

impl Turns {
    pub fn len(&self) -> usize {
        self.hot.len() + self.cold.len()
    }

    pub fn places(&self) -> impl Iterator<Item = usize> {
        self.hot.iter().map(|hot| hot.place).chain(self.cold.iter().copied()).map(|place| place as usize)
    }

    pub fn add(&mut self, place: usize) {
        if !self.places().any(|there| there == place) {
            self.hot.push(Hot { place: place as u32, quiet: 0 });
        }
    }

    pub fn remove_if(&mut self, mut gone: impl FnMut(usize) -> bool) {
        self.hot.retain(|hot| !gone(hot.place as usize));
        self.cold.retain(|&place| !gone(place as usize));
    }

    pub fn clear(&mut self) {
        self.hot.clear();
        self.cold.clear();
    }

    /// The place of the `turn`th hot ring.
    #[inline(always)]
    pub fn hot(&self, turn: usize) -> Option<usize> {
        self.hot.get(turn).map(|hot| hot.place as usize)
    }

    /// Notes what a look at the `turn`th hot ring found, and says whose turn is next.
    #[inline(always)]
    pub fn after_hot(&mut self, turn: usize, look: Look) -> usize {
        match look {
            Look::Busy => self.hot[turn].quiet = 0,
            Look::Quiet => {
                self.hot[turn].quiet += 1;
                if self.hot[turn].quiet > PATIENCE {
                    return self.cool(turn);
                }
            }
            Look::Ended => {
                self.hot.remove(turn);
                return turn;
            }
        }
        turn + 1
    }

    #[cold]
    fn cool(&mut self, turn: usize) -> usize {
        self.hot[turn].quiet = 0;
        if self.len() <= FEW {
            return turn + 1;
        }
        let hot = self.hot.swap_remove(turn);
        self.cold.push(hot.place);
        turn
    }

    /// How many cold rings a pass looks at that has found something among the hot ones, or not.
    #[inline(always)]
    pub fn cold_looks(&mut self, worked: bool) -> usize {
        if self.cold.is_empty() {
            return 0;
        }
        self.passes = self.passes.wrapping_add(1);
        self.fruitless = if worked { 0 } else { self.fruitless.saturating_add(1) };
        let looks = if self.fruitless > BREAK { COLD_LOOKS } else { usize::from(self.passes.is_multiple_of(BETWEEN)) };
        self.cold.len().min(looks)
    }

    pub fn cold_count(&self) -> usize {
        self.cold.len()
    }

    /// The place of the cold ring whose turn it is; there must be one.
    #[inline(always)]
    pub fn cold(&mut self) -> usize {
        if self.next >= self.cold.len() {
            self.next = 0;
        }
        self.cold[self.next] as usize
    }

    /// Notes what a look at it found.
    #[inline(always)]
    pub fn after_cold(&mut self, look: Look) {
        match look {
            Look::Quiet => self.next += 1,
            Look::Busy => {
                let place = self.cold.swap_remove(self.next);
                self.hot.push(Hot { place, quiet: 0 });
            }
            Look::Ended => drop(self.cold.swap_remove(self.next)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One pass over rings of which `busy` says which have work; returns the places looked at.
    fn pass(turns: &mut Turns, busy: impl Fn(usize) -> bool) -> Vec<usize> {
        let look = |place| if busy(place) { Look::Busy } else { Look::Quiet };
        let (mut seen, mut turn) = (Vec::new(), 0);
        while let Some(place) = turns.hot(turn) {
            seen.push(place);
            turn = turns.after_hot(turn, look(place));
        }
        let worked = seen.iter().any(|&place| busy(place));
        for _ in 0..turns.cold_looks(worked) {
            let place = turns.cold();
            seen.push(place);
            turns.after_cold(look(place));
        }
        seen
    }

    fn with(rings: usize) -> Turns {
        let mut turns = Turns::default();
        (0..rings).for_each(|place| turns.add(place));
        turns
    }

    #[test]
    fn a_few_rings_are_always_looked_at() {
        let mut turns = with(FEW);
        (0..3 * PATIENCE).for_each(|_| drop(pass(&mut turns, |_| false)));
        assert_eq!(pass(&mut turns, |_| false).len(), FEW);
    }

    #[test]
    fn quiet_rings_cost_a_bounded_number_of_looks_and_none_is_forgotten() {
        let mut turns = with(1000);
        let busy = |place| place == 77;
        (0..=PATIENCE).for_each(|_| drop(pass(&mut turns, busy)));
        let looks = pass(&mut turns, busy);
        assert!(looks.contains(&77) && looks.len() <= FEW + COLD_LOOKS, "{looks:?}");
        let mut seen = std::collections::BTreeSet::new();
        (0..1000 * BETWEEN).for_each(|_| seen.extend(pass(&mut turns, busy)));
        assert_eq!(seen.len(), 1000);
        // When nobody is busy, the others have their turn sooner.
        (0..=BREAK).for_each(|_| drop(pass(&mut turns, |_| false)));
        assert_eq!(pass(&mut turns, |_| false).len(), FEW.min(turns.hot.len()) + COLD_LOOKS);
    }

    #[test]
    fn a_cold_ring_with_work_is_hot_at_once() {
        let mut turns = with(100);
        (0..=PATIENCE).for_each(|_| drop(pass(&mut turns, |_| false)));
        while !pass(&mut turns, |place| place == 50).contains(&50) {}
        assert_eq!((0..5).filter(|_| pass(&mut turns, |place| place == 50).contains(&50)).count(), 5);
    }

    #[test]
    fn removed_rings_are_not_looked_at() {
        let mut turns = with(100);
        (0..=PATIENCE).for_each(|_| drop(pass(&mut turns, |place| place < 10)));
        turns.remove_if(|place| place % 2 == 0);
        let mut seen = std::collections::BTreeSet::new();
        (0..1000).for_each(|_| seen.extend(pass(&mut turns, |place| place < 10)));
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), (1..100).step_by(2).collect::<Vec<_>>());
        turns.add(3);
        assert_eq!(turns.len(), 50, "a ring is there once");
    }
}
