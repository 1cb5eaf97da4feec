//! The clock as one pass of a worker sees it: read when somebody asks for the first time, and the same until the next pass. A
//! pass in which nobody asks reads no clock.
//!
//! A launch time is one of the card's clock, which can be set and steered; what a worker waits by is the oscillator behind it,
//! which goes on whatever happens. One reading says both.

use crate::tsu::Tsu;
use millrace_clock::{TICKS_PER_SECOND, Ticks};
use millrace_ring::dd::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The clock of a worker. Its words are the worker's alone; they are atomic because rings, which go from worker to worker, refer
/// to the one that they are with.
pub(crate) struct PassClock {
    tsu: Arc<Tsu>,
    is_read: AtomicBool,
    // Of the last reading.
    ticks: AtomicU64,
    card: AtomicU64,
    // How the card's clock goes, and which change of it this is.
    increment: AtomicU64,
    version: AtomicU64,
    #[cfg(test)]
    pub readings: AtomicU64,
}

impl PassClock {
    pub fn new(tsu: Arc<Tsu>) -> Self {
        let (timebase, now) = (tsu.timebase(), Ticks::now());
        Self {
            is_read: AtomicBool::new(false),
            ticks: AtomicU64::new(now.get()),
            card: AtomicU64::new(timebase.at(now).total_nanoseconds()),
            increment: AtomicU64::new(timebase.increment().fractions()),
            // No version is odd.
            version: AtomicU64::new(u64::MAX),
            tsu,
            #[cfg(test)]
            readings: AtomicU64::new(0),
        }
    }

    /// Another pass begins.
    #[inline(always)]
    pub fn begin(&self) {
        self.is_read.store(false, Relaxed);
    }

    /// The oscillator, in ns.
    #[inline]
    pub fn ticks(&self) -> u64 {
        self.read();
        self.ticks.load(Relaxed)
    }

    /// The card's clock, in ns.
    #[inline]
    pub fn card(&self) -> u64 {
        self.read();
        self.card.load(Relaxed)
    }

    /// The card's clock at this very moment, in ns.
    pub fn exactly(&self) -> u64 {
        self.begin();
        self.card()
    }

    /// The card's clock at this tick, which was a moment ago, in ns; `None` while it is being set.
    pub fn card_at(&self, ticks: u64) -> Option<u64> {
        self.tsu.look().map(|(timebase, _)| timebase.at(Ticks::new(ticks)).total_nanoseconds())
    }

    /// A number that changes when somebody sets the card's clock or changes its speed.
    #[inline]
    pub fn version(&self) -> u64 {
        self.read();
        self.version.load(Relaxed)
    }

    /// What the oscillator shows when so many ns of the card's clock will have gone by, in ns, rounded down.
    pub fn ticks_after(&self, card_ns: u64) -> u64 {
        let now = self.ticks();
        let fractions = (u128::from(card_ns) << 64) / u128::from(TICKS_PER_SECOND);
        let ticks = fractions.checked_div(self.increment.load(Relaxed).into());
        // A clock that stands is waited for until somebody changes that.
        now.saturating_add(ticks.and_then(|ticks| u64::try_from(ticks).ok()).unwrap_or(u64::MAX))
    }

    /// Whether the card's clock stands: nothing that waits for it comes.
    #[inline(always)]
    pub fn stands(&self) -> bool {
        self.increment.load(Relaxed) == 0
    }

    #[inline(always)]
    fn read(&self) {
        if !self.is_read.load(Relaxed) {
            self.read_clock();
        }
    }

    #[cold]
    fn read_clock(&self) {
        let now = Ticks::now();
        match self.tsu.look() {
            Some((timebase, version)) => {
                self.card.store(timebase.at(now).total_nanoseconds(), Relaxed);
                self.increment.store(timebase.increment().fractions(), Relaxed);
                self.version.store(version, Relaxed);
            }
            // It is being set just now, or who does so was taken off its core amid that: it goes on from the last reading.
            None => {
                let since = now.get().saturating_sub(self.ticks.load(Relaxed));
                self.card.store(self.card.load(Relaxed).saturating_add(since), Relaxed);
            }
        }
        self.ticks.store(now.get(), Relaxed);
        self.is_read.store(true, Relaxed);
        #[cfg(test)]
        self.readings.fetch_add(1, Relaxed);
    }

    /// The card's clock, for a ring that this worker serves.
    pub fn of_rings(self: &Arc<Self>) -> Box<dyn Clock> {
        Box::new(OfRings(self.clone()))
    }
}

struct OfRings(Arc<PassClock>);

impl Clock for OfRings {
    fn now(&self) -> u64 {
        self.0.exactly()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_abi::register::tsu as r;
    use millrace_clock::Increment;

    fn write(tsu: &Tsu, words: [(u32, u32); 4]) {
        words.iter().for_each(|&(offset, value)| _ = tsu.write(offset, value));
    }

    #[test]
    fn a_pass_has_one_reading_if_anybody_asks() {
        let clock = PassClock::new(Arc::new(Tsu::new(true).unwrap()));
        (0..100).for_each(|_| clock.begin());
        assert_eq!(clock.readings.load(Relaxed), 0);
        let (card, ticks) = (clock.card(), clock.ticks());
        while Ticks::now().get() == ticks {}
        assert_eq!((clock.card(), clock.ticks(), clock.readings.load(Relaxed)), (card, ticks, 1));
        clock.begin();
        assert!(clock.card() > card && clock.ticks() > ticks);
        assert_eq!(clock.readings.load(Relaxed), 2);
    }

    #[test]
    fn it_goes_on_while_the_words_of_the_clock_are_written() {
        let tsu = Arc::new(Tsu::new(true).unwrap());
        let clock = Arc::new(PassClock::new(tsu.clone()));
        let ring = clock.of_rings();
        let before = ring.now();
        tsu.begin_writing();
        // On a thread: who waits for the writer waits for ever.
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(ring.now()));
        let after = wait.recv_timeout(std::time::Duration::from_secs(60)).expect("a clock that answers");
        assert!(after > before && after - before < 100 * TICKS_PER_SECOND, "{before} {after}");
    }

    #[test]
    fn a_clock_that_is_steered_is_waited_for_as_long_as_it_takes() {
        let tsu = Arc::new(Tsu::new(false).unwrap());
        let clock = PassClock::new(tsu.clone());
        let ticks = |ns| clock.ticks_after(ns) - clock.ticks();
        let (second, nominal) = (ticks(TICKS_PER_SECOND), Increment::of_frequency(TICKS_PER_SECOND).fractions());
        assert!((TICKS_PER_SECOND..TICKS_PER_SECOND + 2).contains(&second), "{second}");
        let version = clock.version();
        for (fractions, wanted) in
            [(2 * nominal, Some(TICKS_PER_SECOND / 2)), (nominal / 4, Some(4 * TICKS_PER_SECOND)), (0, None)]
        {
            let [low, high] = [fractions as u32, (fractions >> 32) as u32];
            let [low_at, high_at] = [r::DATA_LOW, r::DATA_MIDDLE].map(|offset| offset.bytes());
            let command = r::COMMAND.bytes();
            write(&tsu, [(low_at, low), (high_at, high), (command, r::COMMAND_WRITE_INCREMENT), (low_at, 0)]);
            clock.begin();
            match wanted {
                Some(wanted) => assert!(ticks(TICKS_PER_SECOND).abs_diff(wanted) < 10, "{}", ticks(TICKS_PER_SECOND)),
                None => assert_eq!(clock.ticks_after(1), u64::MAX),
            }
            assert_ne!(clock.version(), version);
        }
    }
}
