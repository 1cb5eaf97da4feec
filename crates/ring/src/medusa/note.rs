//! How far the card is with a ring, in the control page: what is left of it when the card is killed (`millrace_abi::control`).
//!
//! The card notes a place before it publishes it, so that nothing that software has been told of is done again. What it had begun and not noted is done again.

use super::layout::Pointers;
use millrace_abi::control::{NO_UPPER, PLACE_AT};
use millrace_abi::handover::RingPlace;
use millrace_dma::{Ordering, Window, Word64};

/// In the word of the pointers: the second upper address counts. No ring has so many descriptors.
const SECOND: u64 = 1 << 31;
/// Bits of an upper address that can be: more would be beyond 64 bits.
const UPPER_BITS: u64 = (1 << 34) - 1;

/// Where the card's half of a ring notes how far it is.
pub struct Note {
    pointers: Word64,
    uppers: [Word64; 2],
    // What stands in the one that counts, and which that is.
    upper: u64,
    second: u64,
}

impl Note {
    /// In this control page; `None`: it is none.
    pub fn new(control: &Window) -> Option<Self> {
        let word = |at| control.word64(PLACE_AT + at).ok();
        Some(Self { pointers: word(0)?, uppers: [word(8)?, word(16)?], upper: NO_UPPER, second: 0 })
    }

    /// What stands there. Software can write there, too: it is as good as a descriptor of its, and the ring masks the pointers.
    pub fn read(control: &Window) -> Option<RingPlace> {
        let Self { pointers, uppers, .. } = Self::new(control)?;
        // Acquire pairs with the Release in `keep`, of a process that may have gone.
        let word = pointers.load(Ordering::Acquire);
        let Pointers { descriptors, headers } = Pointers::decode(word & !SECOND);
        let upper = uppers[usize::from(word & SECOND != 0)].load(Ordering::Relaxed);
        let upper = (upper != NO_UPPER).then_some(upper & UPPER_BITS);
        Some(RingPlace { head: descriptors, headers, upper, run: None })
    }

    /// The ring begins there: at its beginning, or where another card was.
    pub fn begin(&mut self, place: Pointers, upper: Option<u64>) {
        (self.upper, self.second) = (upper.unwrap_or(NO_UPPER), 0);
        self.uppers[0].store(self.upper, Ordering::Relaxed);
        self.keep(place, upper);
    }

    /// So far everything is done. What was noted before counts until the last store.
    #[inline(always)]
    pub(super) fn keep(&mut self, place: Pointers, upper: Option<u64>) {
        let upper = upper.unwrap_or(NO_UPPER);
        if upper != self.upper {
            self.turn(upper);
        }
        // Release: whoever reads this after the card was killed sees the upper address that goes with it.
        self.pointers.store(place.encode() | self.second, Ordering::Release);
    }

    /// The other word has the upper address from now on: this is never of half of both.
    #[cold]
    fn turn(&mut self, upper: u64) {
        (self.upper, self.second) = (upper, self.second ^ SECOND);
        self.uppers[usize::from(self.second != 0)].store(upper, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use millrace_dma::{Pages, Region};

    #[test]
    fn a_place_is_read_as_it_was_noted_last_and_never_half() {
        let page = Region::allocate(4096, Pages::Ordinary).unwrap();
        let mut note = Note::new(page.window()).unwrap();
        let at = |descriptors, headers| Pointers { descriptors, headers };
        let place = |head, headers, upper| Some(RingPlace { head, headers, upper, run: None });
        note.begin(at(0, 0), None);
        assert_eq!(Note::read(page.window()), place(0, 0, None));
        for (step, upper) in [Some(7), Some(7), Some(9), None, Some(UPPER_BITS)].into_iter().enumerate() {
            let step = step as u32 + 1;
            note.keep(at(step, 0x7fff), upper);
            assert_eq!(Note::read(page.window()), place(step, 0x7fff, upper));
        }
        // Killed between the two stores: what was before still counts.
        note.turn(5);
        assert_eq!(Note::read(page.window()), place(5, 0x7fff, Some(UPPER_BITS)));
        note.begin(at(3, 4), Some(1));
        assert_eq!(Note::read(page.window()), place(3, 4, Some(1)));
    }

    #[test]
    fn what_software_has_written_there_is_no_more_than_a_descriptor_can_say() {
        let page = Region::allocate(4096, Pages::Ordinary).unwrap();
        for at in [0, 8, 16] {
            page.window().word64(PLACE_AT + at).unwrap().store(u64::MAX - 1, Ordering::Relaxed);
        }
        let place = Note::read(page.window()).unwrap();
        assert_eq!((place.head, place.headers, place.upper), (0x7fff_fffe, u32::MAX, Some(UPPER_BITS - 1)));
    }
}
