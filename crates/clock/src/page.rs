//! The clock page ([`millrace_abi::clock`]): the card writes it, programs read it without a system call.

use crate::time::{Increment, Time};
use crate::timebase::{Ticks, Timebase};
use millrace_abi::clock::{
    MAGIC, MAGIC_AT, NAMESPACE_AT, PAGE_SIZE, Report, SEQUENCE_AT, Source, State, WORDS, WORDS_AT, flag, state_of,
    state_word, word,
};
use millrace_dma::{Ordering, OutOfRange, Pages, Protection, Region, RegionError, Window, Word64, fence};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;
use thiserror::Error;

/// How often a reader tries again: for much longer than any writer writes.
const MOST_TRIES: u32 = 100_000;

/// Why the clock cannot be read from its page.
#[derive(Debug, Error)]
pub enum PageError {
    /// The memory cannot be had, or is not what a card hands out.
    #[error("the clock page cannot be mapped: {0}")]
    Memory(#[from] RegionError),
    /// It is too small.
    #[error("the clock page is too small: {0}")]
    Small(#[from] OutOfRange),
    /// Of another version, or no clock page.
    #[error("what the card handed over is no clock page of this version")]
    Strange,
    /// `CLOCK_MONOTONIC` is another clock here.
    #[error(
        "the card is in another time namespace, so its clock cannot be read from here; run in the same one (nsenter --time), or \
         read the registers (`millrace regs`)"
    )]
    Namespace,
    /// The card has ended while it wrote.
    #[error("the card has ended while it set its clock; open it again")]
    Torn,
}

/// All that a clock page says, of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// How the clock goes.
    pub timebase: Timebase,
    /// How it does, by who leads it.
    pub report: Report,
    /// Whether received frames are stamped.
    pub stamps: bool,
    /// How much faster than nominal it is told to go, in 2^-16 of a millionth.
    pub scaled_ppm: i64,
    /// When it was last compared with its source; `None`: never.
    pub reported: Option<Ticks>,
    /// Since when its state is what it is.
    pub changed: Ticks,
    /// How often it was set or stepped.
    pub steps: u64,
    /// By how much its oscillator was made wrong, for a test, in 2^-16 of a millionth.
    pub drift: i64,
}

impl Snapshot {
    /// A clock that nobody leads.
    pub const fn new(timebase: Timebase, now: Ticks) -> Self {
        let report = Report {
            state: State::Free,
            source: Source::None,
            offset_ns: None,
            path_delay_ns: None,
            utc_offset: None,
            tai: false,
        };
        Self { timebase, report, stamps: false, scaled_ppm: 0, reported: None, changed: now, steps: 0, drift: 0 }
    }

    /// How long it has had the state that it has.
    pub fn since_change(&self) -> Duration {
        Duration::from_nanos(Ticks::now().get().saturating_sub(self.changed.get()))
    }

    fn to_words(self) -> [u64; WORDS] {
        let (report, mut flags) = (&self.report, 0);
        for (is_set, bit) in [
            (self.stamps, flag::STAMPS),
            (report.offset_ns.is_some(), flag::OFFSET),
            (report.path_delay_ns.is_some(), flag::PATH_DELAY),
            (report.utc_offset.is_some(), flag::UTC_OFFSET),
            (report.tai, flag::TAI),
        ] {
            flags |= if is_set { bit } else { 0 };
        }
        let mut words = [0; WORDS];
        words[..Timebase::WORDS].copy_from_slice(&self.timebase.to_words());
        words[word::FLAGS] = flags;
        words[word::STATE] = state_word(report.state, report.source);
        words[word::OFFSET] = report.offset_ns.unwrap_or_default() as u64;
        words[word::FREQUENCY] = self.scaled_ppm as u64;
        words[word::PATH_DELAY] = report.path_delay_ns.unwrap_or_default() as u64;
        words[word::REPORTED] = self.reported.map_or(0, Ticks::get);
        words[word::CHANGED] = self.changed.get();
        words[word::STEPS] = self.steps;
        words[word::DRIFT] = self.drift as u64;
        words[word::UTC_OFFSET] = i64::from(report.utc_offset.unwrap_or_default()) as u64;
        words
    }

    fn from_words(words: [u64; WORDS]) -> Self {
        let has = |bit| words[word::FLAGS] & bit != 0;
        let signed = |at: usize, bit| has(bit).then_some(words[at] as i64);
        let [since, seconds, fraction, increment, ..] = words;
        let (state, source) = state_of(words[word::STATE]).unwrap_or_default();
        let report = Report {
            state,
            source,
            offset_ns: signed(word::OFFSET, flag::OFFSET),
            path_delay_ns: signed(word::PATH_DELAY, flag::PATH_DELAY),
            utc_offset: signed(word::UTC_OFFSET, flag::UTC_OFFSET).map(|offset| offset as i16),
            tai: has(flag::TAI),
        };
        Self {
            timebase: Timebase::from_words([since, seconds, fraction, increment]),
            report,
            stamps: has(flag::STAMPS),
            scaled_ppm: words[word::FREQUENCY] as i64,
            reported: (words[word::REPORTED] != 0).then_some(Ticks::new(words[word::REPORTED])),
            changed: Ticks::new(words[word::CHANGED]),
            steps: words[word::STEPS],
            drift: words[word::DRIFT] as i64,
        }
    }
}

/// The words of a page.
struct Words {
    sequence: Word64,
    words: [Word64; WORDS],
}

impl Words {
    fn new(window: &Window) -> Result<Self, OutOfRange> {
        let word = |at: usize| window.word64(WORDS_AT + 8 * at);
        let first = word(0)?;
        let mut words = [const { None }; WORDS];
        for (at, place) in words.iter_mut().enumerate() {
            *place = Some(word(at)?);
        }
        let words = words.map(|word| word.unwrap_or_else(|| first.clone()));
        Ok(Self { sequence: window.word64(SEQUENCE_AT)?, words })
    }
}

/// The page as the card has it.
pub struct ClockPage {
    region: Region,
    words: Words,
}

impl ClockPage {
    /// A page that says so. Nobody but this process can write it.
    ///
    /// # Errors
    /// [`PageError::Memory`].
    pub fn new(snapshot: &Snapshot) -> Result<Self, PageError> {
        let region = Region::allocate(PAGE_SIZE, Pages::Ordinary)?;
        region.seal_future_writes()?;
        let window = region.window();
        window.word64(MAGIC_AT)?.store(MAGIC, Ordering::Relaxed);
        window.word64(NAMESPACE_AT)?.store(time_namespace(), Ordering::Relaxed);
        let words = Words::new(window)?;
        let page = Self { region, words };
        page.publish(snapshot);
        Ok(page)
    }

    /// Says so from now on. Only one thread may do so at a time.
    pub fn publish(&self, snapshot: &Snapshot) {
        let words = snapshot.to_words();
        let sequence = self.words.sequence.load(Ordering::Relaxed);
        self.words.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the Acquire fence in `ClockReader::look`: who saw any of the words below sees the odd sequence.
        fence(Ordering::Release);
        for (to, word) in self.words.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        // Release pairs with the first Acquire load in `ClockReader::look`.
        self.words.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// The memory, to be handed to programs.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.region.fd()
    }
}

/// The page as a program has it.
pub struct ClockReader(Words);

impl ClockReader {
    /// Maps the page behind an fd that a card has handed over.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn new(fd: OwnedFd) -> Result<Self, PageError> {
        let region = Region::map(fd, PAGE_SIZE, Protection::Read, false)?.without_fd();
        let window = region.window();
        if window.word64(MAGIC_AT)?.load(Ordering::Relaxed) != MAGIC {
            return Err(PageError::Strange);
        }
        let (theirs, ours) = (window.word64(NAMESPACE_AT)?.load(Ordering::Relaxed), time_namespace());
        if theirs != ours && theirs != 0 && ours != 0 {
            return Err(PageError::Namespace);
        }
        Ok(Self(Words::new(window)?))
    }

    /// The words of one moment, unless they are being written just now.
    #[inline]
    fn look<const N: usize>(&self) -> Option<[u64; N]> {
        // Acquire pairs with the Release store that ends `ClockPage::publish`.
        let before = self.0.sequence.load(Ordering::Acquire);
        let words = core::array::from_fn(|at| self.0.words[at].load(Ordering::Relaxed));
        // Pairs with the Release fence in `ClockPage::publish`.
        fence(Ordering::Acquire);
        (before.is_multiple_of(2) && self.0.sequence.load(Ordering::Relaxed) == before).then_some(words)
    }

    #[inline]
    fn read<const N: usize>(&self) -> Result<[u64; N], PageError> {
        self.look().map_or_else(|| self.wait(), Ok)
    }

    #[cold]
    fn wait<const N: usize>(&self) -> Result<[u64; N], PageError> {
        for _ in 0..MOST_TRIES {
            if let Some(words) = self.look() {
                return Ok(words);
            }
            // The writer may have been taken off this very core.
            std::thread::yield_now();
        }
        Err(PageError::Torn)
    }

    /// How the clock goes.
    ///
    /// # Errors
    /// [`PageError::Torn`].
    #[inline]
    pub fn timebase(&self) -> Result<Timebase, PageError> {
        Ok(Timebase::from_words(self.read()?))
    }

    /// The time that the card's clock shows.
    ///
    /// # Errors
    /// [`PageError::Torn`].
    #[inline]
    pub fn now(&self) -> Result<Time, PageError> {
        let timebase = self.timebase()?;
        Ok(timebase.at(Ticks::now()))
    }

    /// All that the page says.
    ///
    /// # Errors
    /// [`PageError::Torn`].
    pub fn snapshot(&self) -> Result<Snapshot, PageError> {
        Ok(Snapshot::from_words(self.read()?))
    }
}

/// The time namespace of this process; 0: not known, as before Linux 5.6.
fn time_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/time").map_or(0, |file| file.ino())
}

/// What the nominal increment of a card's clock is.
pub fn nominal() -> Increment {
    Increment::of_frequency(crate::TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn reader(page: &ClockPage) -> ClockReader {
        ClockReader::new(page.fd().unwrap().try_clone_to_owned().unwrap()).unwrap()
    }

    fn snapshot(n: u64) -> Snapshot {
        let mut timebase = Timebase::new(Ticks::new(n));
        timebase.set_time(Ticks::new(n), Time { seconds: n as u32, fraction: n });
        Snapshot::new(timebase, Ticks::new(n))
    }

    #[test]
    fn a_reader_finds_what_the_card_says() {
        let report = Report {
            state: State::Locked,
            source: Source::Ptp,
            offset_ns: Some(-12),
            path_delay_ns: Some(400),
            utc_offset: Some(37),
            tai: true,
        };
        let said = Snapshot {
            report,
            stamps: true,
            scaled_ppm: -65_536,
            reported: Some(Ticks::new(9)),
            steps: 3,
            drift: -5,
            ..snapshot(7)
        };
        let page = ClockPage::new(&snapshot(1)).unwrap();
        let reader = reader(&page);
        assert_eq!(reader.snapshot().unwrap(), snapshot(1));
        page.publish(&said);
        assert_eq!(reader.snapshot().unwrap(), said);
        assert_eq!(reader.timebase().unwrap(), said.timebase);
    }

    #[test]
    fn it_goes_with_the_clock_of_the_host_and_nobody_else_writes_it() {
        let mut timebase = Timebase::new(Ticks::now());
        timebase.set_time(Ticks::now(), Time::new(1_000, 0));
        let page = ClockPage::new(&Snapshot::new(timebase, Ticks::now())).unwrap();
        let reader = reader(&page);
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(10));
            let before = Ticks::now();
            let shown = reader.now().unwrap();
            let after = Ticks::now();
            assert!((timebase.at(before)..=timebase.at(after)).contains(&shown), "{shown:?} {before:?} {after:?}");
        }
        let fd = page.fd().unwrap().try_clone_to_owned().unwrap();
        assert!(Region::map(fd, PAGE_SIZE, Protection::ReadWrite, false).is_err(), "sealed");
    }

    #[test]
    fn nobody_sees_half_a_change() {
        let page = ClockPage::new(&snapshot(0)).unwrap();
        let reader = reader(&page);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..100_000 {
                    page.publish(&snapshot(n));
                    // Nobody sets a clock without a pause.
                    (0..50).for_each(|_| std::hint::spin_loop());
                }
                stop.store(true, Ordering::Relaxed);
            });
            while !stop.load(Ordering::Relaxed) {
                let seen = reader.snapshot().unwrap();
                assert_eq!(seen, snapshot(seen.changed.get()));
            }
        });
    }

    #[test]
    fn a_card_that_ends_while_it_writes_makes_nobody_wait_for_ever() {
        let page = ClockPage::new(&snapshot(0)).unwrap();
        let reader = reader(&page);
        page.words.sequence.store(3, Ordering::Relaxed);
        assert!(matches!(reader.now(), Err(PageError::Torn)));
    }

    #[test]
    fn what_is_no_clock_page_is_refused() {
        let region = Region::allocate(PAGE_SIZE, Pages::Ordinary).unwrap();
        let open = |region: &Region| ClockReader::new(region.fd().unwrap().try_clone_to_owned().unwrap());
        assert!(matches!(open(&region), Err(PageError::Strange)));
        region.window().word64(MAGIC_AT).unwrap().store(MAGIC, Ordering::Relaxed);
        region.window().word64(NAMESPACE_AT).unwrap().store(1, Ordering::Relaxed);
        assert!(matches!(open(&region), Err(PageError::Namespace)));
    }
}
