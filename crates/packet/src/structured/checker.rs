//! The receiving end: what became of the frames of one queue.

use super::{MIN_LEN, Sequence, Stamping, holds_only, size_hash, word};

/// How many frames behind the newest one a frame may be and still be told late from repeated.
pub const WINDOW: usize = 4096;

/// What one frame turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The frame that was expected, or the first after a gap.
    InOrder {
        /// Frames missing just before this one.
        skipped: u64,
    },
    /// A frame that had been given up as lost.
    Late,
    /// A frame that has been seen before.
    Duplicate,
    /// A frame more than [`WINDOW`] frames behind: late or repeated, nobody can tell.
    Stray,
    /// Not a structured frame, or not one of this length.
    Corrupt,
}

/// What was found in all frames of one queue so far.
///
/// For frames `sent` by one sender and received through something that loses, reorders and damages but invents nothing:
/// `sent = in_order + reordered + corrupt + lost` after [`Checker::finish`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Good frames, each newer than all before it.
    pub in_order: u64,
    /// Good frames that came after newer ones.
    pub reordered: u64,
    /// Frames seen before.
    pub duplicates: u64,
    /// Frames too far behind to be told late from repeated.
    pub strays: u64,
    /// Frames with content that no sender of structured frames writes.
    pub corrupt: u64,
    /// Frames that never came, as far as later ones show.
    pub lost: u64,
}

impl Findings {
    /// Frames looked at.
    pub const fn received(&self) -> u64 {
        self.in_order + self.reordered + self.duplicates + self.strays + self.corrupt
    }

    /// Whether every frame came once, whole and in order.
    pub const fn is_clean(&self) -> bool {
        self.reordered == 0 && self.duplicates == 0 && self.strays == 0 && self.corrupt == 0 && self.lost == 0
    }

    /// Adds what was found on another queue.
    pub fn add(&mut self, other: &Findings) {
        self.in_order += other.in_order;
        self.reordered += other.reordered;
        self.duplicates += other.duplicates;
        self.strays += other.strays;
        self.corrupt += other.corrupt;
        self.lost += other.lost;
    }
}

/// Checks the frames of one queue. Has a fixed size, allocates nothing, and touches an expected frame once.
#[derive(Clone, Debug)]
pub struct Checker {
    stamping: Stamping,
    /// The sequence number that comes next; `None` until the first frame of a checker that joins.
    next: Option<Sequence>,
    /// One bit per number below `run`, at number modulo [`WINDOW`]: has it been seen?
    seen: [u64; WINDOW / 64],
    /// Everything from here to `next` came in order and is noted in `seen` only when something unexpected comes.
    run: Sequence,
    /// Corrupt frames that have not yet explained a gap. A damaged frame cannot say which it was, so the next gap is
    /// charged to it first.
    unplaced: u64,
    found: Findings,
}

impl Checker {
    /// A checker that expects the sender's frames from [`Sequence::ZERO`] on.
    pub const fn new(stamping: Stamping) -> Self {
        Self::starting(stamping, Some(Sequence::ZERO))
    }

    /// A checker that joins a sender under way: whatever comes first is where counting begins.
    pub const fn joining(stamping: Stamping) -> Self {
        Self::starting(stamping, None)
    }

    /// Everything before the start counts as seen, so that an older frame is a repeated one and not a late one.
    const fn starting(stamping: Stamping, next: Option<Sequence>) -> Self {
        let found = Findings { in_order: 0, reordered: 0, duplicates: 0, strays: 0, corrupt: 0, lost: 0 };
        Self { stamping, next, seen: [u64::MAX; WINDOW / 64], run: Sequence::ZERO, unplaced: 0, found }
    }

    /// What was found so far.
    pub const fn findings(&self) -> &Findings {
        &self.found
    }

    /// The sequence number that comes next, if anything came yet or was expected.
    pub const fn expected(&self) -> Option<Sequence> {
        self.next
    }

    /// Looks at the next frame of the queue.
    #[inline]
    pub fn check(&mut self, frame: &[u8]) -> Verdict {
        if let Some(next) = self.next
            && frame.len() >= MIN_LEN
            && holds_only(&frame[self.stamping.words_at()..], word(frame.len(), next))
        {
            self.next = Some(next.next());
            self.found.in_order += 1;
            return Verdict::InOrder { skipped: 0 };
        }
        self.check_unexpected(frame)
    }

    /// Ends the check: `sent` frames went out in all (that is, `sent` is the number of the first that did not), so
    /// those that are still missing are lost.
    pub fn finish(&mut self, sent: Sequence) -> Findings {
        if let Some(next) = self.next {
            let next = self.settle(next.wire());
            let missing = sent.distance_from(next).max(0).unsigned_abs();
            self.take_missing(next.offset(missing as i64), missing);
        }
        self.found
    }

    #[cold]
    fn check_unexpected(&mut self, frame: &[u8]) -> Verdict {
        let Some(wire) = self.read_wire(frame) else {
            self.found.corrupt += 1;
            self.unplaced += 1;
            return Verdict::Corrupt;
        };
        let next = self.settle(wire);
        let sequence = next.nearest(wire);
        let ahead = sequence.distance_from(next);
        match u64::try_from(ahead) {
            Ok(skipped) => self.take_ahead(sequence, skipped),
            Err(_) => self.take_behind(sequence, ahead.unsigned_abs()),
        }
    }

    /// Notes the run of frames that ended here, and says what was expected; a joining checker expects what came.
    fn settle(&mut self, wire: u32) -> Sequence {
        let Some(next) = self.next else {
            let first = Sequence::new(u64::from(wire));
            (self.run, self.next) = (first, Some(first));
            return first;
        };
        let run = next.distance_from(self.run).min(WINDOW as i64);
        (1..=run).for_each(|back| self.mark(next.offset(-back)));
        self.run = next;
        next
    }

    /// The 24 sequence bits of a frame that is sound in itself: reference word at byte 8, right hash, all words equal.
    fn read_wire(&self, frame: &[u8]) -> Option<u32> {
        let reference = u32::from_be_bytes(*frame.get(MIN_LEN - 4..)?.first_chunk()?);
        let sound = reference >> 24 == u32::from(size_hash(frame.len()))
            && holds_only(&frame[self.stamping.words_at()..], reference);
        sound.then_some(reference & 0x00ff_ffff)
    }

    fn take_ahead(&mut self, sequence: Sequence, skipped: u64) -> Verdict {
        self.take_missing(sequence, skipped);
        (self.run, self.next) = (sequence, Some(sequence.next()));
        self.found.in_order += 1;
        Verdict::InOrder { skipped }
    }

    /// The `missing` frames before `sequence` have not come.
    fn take_missing(&mut self, sequence: Sequence, missing: u64) {
        self.give_up(missing);
        for back in 1..=missing.min(WINDOW as u64) {
            self.unmark(sequence.offset(-(back as i64)));
        }
        (self.run, self.next) = (sequence, Some(sequence));
    }

    fn take_behind(&mut self, sequence: Sequence, behind: u64) -> Verdict {
        if behind > WINDOW as u64 {
            self.found.strays += 1;
            return Verdict::Stray;
        }
        if self.has_seen(sequence) {
            self.found.duplicates += 1;
            return Verdict::Duplicate;
        }
        self.mark(sequence);
        self.found.reordered += 1;
        self.take_back_a_loss();
        Verdict::Late
    }

    /// Counts `missing` frames as lost, except as many as came damaged.
    fn give_up(&mut self, missing: u64) {
        let damaged = missing.min(self.unplaced);
        self.unplaced -= damaged;
        self.found.lost += missing - damaged;
    }

    /// A late frame fills a gap: one loss less, or else the damaged frame that had been put there was another.
    fn take_back_a_loss(&mut self) {
        match self.found.lost.checked_sub(1) {
            Some(lost) => self.found.lost = lost,
            None => self.unplaced += 1,
        }
    }

    fn mark(&mut self, sequence: Sequence) {
        let (at, bit) = place(sequence);
        self.seen[at] |= bit;
    }

    fn unmark(&mut self, sequence: Sequence) {
        let (at, bit) = place(sequence);
        self.seen[at] &= !bit;
    }

    fn has_seen(&self, sequence: Sequence) -> bool {
        let (at, bit) = place(sequence);
        self.seen[at] & bit != 0
    }
}

const fn place(sequence: Sequence) -> (usize, u64) {
    let at = sequence.number() as usize % WINDOW;
    (at / 64, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::super::{Stamp, fill, fill_stamped};
    use super::*;
    use proptest::prelude::*;

    fn frame(number: u64) -> [u8; 64] {
        let mut bytes = [0; 64];
        fill(&mut bytes, Sequence::new(number));
        bytes
    }

    fn run(checker: &mut Checker, numbers: &[u64]) -> Vec<Verdict> {
        numbers.iter().map(|number| checker.check(&frame(*number))).collect()
    }

    #[test]
    fn a_gap_is_lost_until_the_late_frame_comes() {
        let mut checker = Checker::new(Stamping::Off);
        let verdicts = run(&mut checker, &[0, 3, 1, 1, 3]);
        assert_eq!(
            verdicts,
            [
                Verdict::InOrder { skipped: 0 },
                Verdict::InOrder { skipped: 2 },
                Verdict::Late,
                Verdict::Duplicate,
                Verdict::Duplicate
            ]
        );
        let wanted = Findings { in_order: 2, reordered: 1, duplicates: 2, lost: 1, ..Findings::default() };
        assert_eq!(*checker.findings(), wanted);
        assert_eq!(checker.finish(Sequence::new(6)), Findings { lost: 3, ..wanted });
    }

    #[test]
    fn a_damaged_frame_is_corrupt_and_not_lost_as_well() {
        let mut checker = Checker::new(Stamping::Off);
        assert_eq!(checker.check(&frame(0)), Verdict::InOrder { skipped: 0 });
        let mut damaged = frame(1);
        damaged[63] ^= 0x80;
        assert_eq!(checker.check(&damaged), Verdict::Corrupt);
        assert_eq!(checker.check(&frame(2)), Verdict::InOrder { skipped: 1 });
        let found = checker.finish(Sequence::new(3));
        assert_eq!(found, Findings { in_order: 2, corrupt: 1, ..Findings::default() });
        assert!(!found.is_clean());
    }

    #[test]
    fn cut_and_padded_frames_are_corrupt() {
        let mut checker = Checker::new(Stamping::Off);
        for bytes in [&frame(0)[..60], &frame(0)[..8], &[], &[frame(0), [0; 64]].concat()] {
            assert_eq!(checker.check(bytes), Verdict::Corrupt);
        }
        assert_eq!(checker.check(&frame(0)), Verdict::InOrder { skipped: 0 });
    }

    #[test]
    fn a_joining_checker_takes_the_first_frame_as_its_beginning() {
        let mut checker = Checker::joining(Stamping::Off);
        assert_eq!(checker.expected(), None);
        run(&mut checker, &[0xff_fffe, 0xff_ffff, 0x100_0000]);
        assert_eq!(*checker.findings(), Findings { in_order: 3, ..Findings::default() });
        assert_eq!(checker.check(&frame(0xff_fffd)), Verdict::Duplicate);
    }

    #[test]
    fn what_lies_before_the_window_is_a_stray() {
        let mut checker = Checker::new(Stamping::Off);
        run(&mut checker, &[0, WINDOW as u64 + 1]);
        assert_eq!(checker.check(&frame(0)), Verdict::Stray);
        assert_eq!(checker.check(&frame(1)), Verdict::Stray);
        assert_eq!(checker.check(&frame(2)), Verdict::Late);
    }

    #[test]
    fn a_stamp_may_hold_anything() {
        let mut checker = Checker::new(Stamping::On);
        let mut bytes = [0; 13];
        for number in 0..1000 {
            fill_stamped(&mut bytes, Sequence::new(number), Stamp::from_nanos(number << 40));
            assert_eq!(checker.check(&bytes), Verdict::InOrder { skipped: 0 });
        }
        assert!(checker.finish(Sequence::new(1000)).is_clean());
    }

    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Pass,
        Lose,
        Damage,
        Delay(usize),
        Repeat,
    }

    fn fates() -> impl Strategy<Value = Vec<Fate>> {
        let fate = prop_oneof![
            6 => Just(Fate::Pass),
            1 => Just(Fate::Lose),
            1 => Just(Fate::Damage),
            1 => (1..100usize).prop_map(Fate::Delay),
            1 => Just(Fate::Repeat),
        ];
        prop::collection::vec(fate, 1..600)
    }

    /// What arrives, as (time, frame), and how many frames were damaged and repeated.
    fn suffer(fates: &[Fate]) -> (Vec<Vec<u8>>, u64, u64) {
        let mut arrivals = Vec::new();
        let (mut damaged, mut repeated) = (0, 0);
        for (number, fate) in fates.iter().enumerate() {
            let mut bytes = frame(number as u64).to_vec();
            match fate {
                Fate::Pass => arrivals.push((number, bytes)),
                Fate::Lose => {}
                Fate::Damage => {
                    bytes[number % 64] ^= 1;
                    damaged += 1;
                    arrivals.push((number, bytes));
                }
                Fate::Delay(by) => arrivals.push((number + by, bytes)),
                Fate::Repeat => {
                    repeated += 1;
                    arrivals.push((number, bytes.clone()));
                    arrivals.push((number + 1, bytes));
                }
            }
        }
        arrivals.sort_by_key(|(time, _)| *time);
        (arrivals.into_iter().map(|(_, bytes)| bytes).collect(), damaged, repeated)
    }

    proptest! {
        #[test]
        fn every_frame_sent_is_accounted_for(fates in fates()) {
            let (arrivals, damaged, repeated) = suffer(&fates);
            let mut checker = Checker::new(Stamping::Off);
            for bytes in &arrivals {
                let _ = checker.check(bytes);
            }
            let found = checker.finish(Sequence::new(fates.len() as u64));
            prop_assert_eq!(found.received(), arrivals.len() as u64);
            prop_assert_eq!(found.corrupt, damaged);
            prop_assert_eq!(found.duplicates, repeated);
            prop_assert_eq!(found.in_order + found.reordered + found.corrupt + found.lost, fates.len() as u64);
            // One that is delayed and overtaken by nobody arrives as if nothing had been.
            let as_sent = arrivals.iter().zip(0..).all(|(bytes, number)| *bytes == frame(number));
            prop_assert_eq!(found.is_clean(), as_sent && arrivals.len() == fates.len());
        }

        #[test]
        fn random_bytes_never_pass(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut checker = Checker::new(Stamping::Off);
            let verdict = checker.check(&bytes);
            let uniform = bytes.len() >= MIN_LEN && bytes.chunks(4).all(|word| bytes.starts_with(word));
            prop_assert!(verdict == Verdict::Corrupt || uniform);
        }
    }
}
