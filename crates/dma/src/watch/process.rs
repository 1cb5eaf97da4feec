//! The watch of this process: one thread that reads the events, and what is covered.

use super::gate::{Entered, GATES, Gate, Gates, Taken, WORDS};
use super::sys::{self, Events, Kind};
use crate::RegionError;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Why memory cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The system's own memory for it could not be had.
    #[error("cannot watch memory: {0}")]
    Memory(#[from] RegionError),
    /// `membarrier` does not work.
    #[error("cannot watch memory: membarrier failed ({0}); a kernel with CONFIG_MEMBARRIER is needed")]
    Barrier(Errno),
    /// There are too many workers.
    #[error("cannot watch memory for more than {GATES} engines in one process")]
    Gates,
    /// No thread could be started.
    #[error("cannot start the thread that watches memory: {0}")]
    Thread(std::io::Error),
    /// `userfaultfd` is not allowed.
    #[error("cannot watch memory: userfaultfd failed ({0}); a sandbox may forbid the system call")]
    Forbidden(Errno),
    /// The watch is of the process that forked this one.
    #[error("cannot watch memory: this is a child of the process that began to; make a new engine in the child")]
    Forked,
    /// This memory cannot be watched.
    #[error("this memory cannot be watched ({0}); it may be read-only, of a file, or watched by somebody else")]
    Memories(Errno),
}

/// Ranges that stay watched after they are not needed, because they are often needed again: to begin anew takes the kernel
/// less than a microsecond then, and to end takes it some tens.
const IDLE: usize = 32;

/// Who knows what happens to the memory of this process.
pub struct Watch {
    gates: Arc<Gates>,
    events: Result<Events, Errno>,
    covers: Mutex<Covers>,
    /// Held while somebody begins to watch memory, and while memory is exchanged. By its gate, covers of what was taken
    /// away are known: nobody needs those any more.
    changing: Mutex<Gate>,
    counters: Counters,
}

#[derive(Default)]
struct Covers {
    /// First page and the address behind the last. Freed places are empty ranges.
    live: Vec<(u64, u64)>,
    free: Vec<usize>,
    idle: VecDeque<(u64, u64)>,
}

#[derive(Default)]
struct Counters {
    unmapped: AtomicU64,
    removed: AtomicU64,
    moved: AtomicU64,
    rounds: AtomicU64,
    nanoseconds: AtomicU64,
}

/// What the watch has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchCounters {
    /// Ranges that were unmapped, or mapped over.
    pub unmapped: u64,
    /// Ranges whose pages were given back.
    pub removed: u64,
    /// Ranges that were moved to other addresses.
    pub moved: u64,
    /// Times that all gates were closed.
    pub rounds: u64,
    /// For how long, all together.
    pub closed_ns: u64,
}

/// The watch that was made last. A child that is forked makes its own.
static CURRENT: AtomicPtr<Watch> = AtomicPtr::new(core::ptr::null_mut());
/// Held while one is made.
static MAKING: Mutex<()> = Mutex::new(());

impl Watch {
    /// The watch of this process. Never ends.
    ///
    /// # Errors
    /// [`WatchError::Memory`], [`WatchError::Barrier`], [`WatchError::Thread`]. That userfaultfd is forbidden is none:
    /// [`Watch::cover`] says so.
    pub fn of_process() -> Result<&'static Self, WatchError> {
        // Pairs with the store below.
        let current = || sys::leaked(CURRENT.load(Ordering::Acquire)).filter(|watch| watch.gates.is_alive());
        if let Some(watch) = current() {
            return Ok(watch);
        }
        let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = current() {
            return Ok(watch);
        }
        let new = Box::new(Self::make()?);
        // Others find it only when its thread reads: without, no region would ever be closed.
        let new: &'static Self = Box::leak(new);
        new.start()?;
        // Publishes what was made.
        CURRENT.store(core::ptr::from_ref(new).cast_mut(), Ordering::Release);
        Ok(new)
    }

    fn make() -> Result<Self, WatchError> {
        sys::register_barrier().map_err(WatchError::Barrier)?;
        let (epoch, words) = (sys::private(4096, true)?, sys::private(WORDS, false)?);
        let gates = Gates::new(&epoch, &words, sys::barrier).map_err(|_| WatchError::Gates)?;
        let gates = Arc::new(gates);
        let changing = Mutex::new(gates.gate().ok_or(WatchError::Gates)?);
        let (covers, counters) = Default::default();
        Ok(Self { gates, events: Events::open(), covers, changing, counters })
    }

    fn start(&'static self) -> Result<(), WatchError> {
        let Ok(events) = &self.events else { return Ok(()) };
        let thread = std::thread::Builder::new().name("millrace-watch".into()).stack_size(128 << 10);
        thread.spawn(move || self.run(events)).map(drop).map_err(WatchError::Thread)
    }

    /// Reads events for ever. Allocates nothing and frees nothing: either could unmap memory and wait for this thread.
    fn run(&self, events: &Events) {
        sys::block_signals();
        while events.wait() {
            let begin = Instant::now();
            self.gates.close(|log| {
                let each = |kind, taken| {
                    log.note(taken);
                    self.counters.of(kind).fetch_add(1, Ordering::Relaxed);
                };
                events.read(each);
            });
            let took = begin.elapsed().as_nanos() as u64;
            self.counters.rounds.fetch_add(1, Ordering::Relaxed);
            self.counters.nanoseconds.fetch_add(took, Ordering::Relaxed);
        }
    }

    /// A gate for one more worker.
    ///
    /// # Errors
    /// [`WatchError::Gates`].
    pub fn gate(&self) -> Result<Gate, WatchError> {
        self.gates.gate().ok_or(WatchError::Gates)
    }

    /// Watches the pages of `len` bytes at `first` until the result is dropped. A worker takes what its gate says was
    /// [taken](Gate::taken) first, because it may be of an older life of these addresses.
    ///
    /// # Errors
    /// [`WatchError::Forbidden`], [`WatchError::Memories`], [`WatchError::Forked`].
    pub fn cover(&'static self, first: u64, len: u64) -> Result<Cover, WatchError> {
        // The descriptor would change what the parent watches.
        if !self.is_alive() {
            return Err(WatchError::Forked);
        }
        let pause = self.pause();
        self.cover_in(&pause, first, len)
    }

    fn cover_in(&'static self, pause: &Pause<'_>, first: u64, len: u64) -> Result<Cover, WatchError> {
        let page = rustix::param::page_size() as u64;
        let start = first & !(page - 1);
        let end = first.checked_add(len.max(1)).and_then(|end| end.checked_next_multiple_of(page));
        let end = end.ok_or(WatchError::Memories(Errno::INVAL))?;
        // First on the list, so that nobody who gives up the same pages meanwhile ends it.
        let place = self.covers().add(start, end);
        let cover = Cover { watch: self, place };
        pause.watch(start, end - start)?;
        Ok(cover)
    }

    /// Keeps others from beginning to watch memory until the result is dropped.
    pub(crate) fn pause(&self) -> Pause<'_> {
        let mut changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let entered = changing.enter();
        if entered != Entered::Forked {
            changing.leave();
        }
        // When more was taken than is remembered, covers count as needed although they may not be.
        if entered == Entered::Changed {
            self.covers().take_away(changing.taken());
        }
        Pause { watch: self, _changing: changing }
    }

    /// Whether this is the process that made it, not a child of it.
    pub(crate) fn is_alive(&self) -> bool {
        self.gates.is_alive()
    }

    fn covers(&self) -> std::sync::MutexGuard<'_, Covers> {
        self.covers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn uncover(&self, place: usize) {
        // A lock that another thread held when this process was forked stays locked here for ever.
        if !self.gates.is_alive() {
            return;
        }
        let mut covers = self.covers();
        let Some((start, end)) = covers.remove(place) else { return };
        if let Ok(events) = &self.events {
            // What is not mapped any more is not watched any more.
            let _ = events.forget(start, end - start);
        }
    }

    /// What has happened so far.
    pub fn counters(&self) -> WatchCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        WatchCounters {
            unmapped: load(&counters.unmapped),
            removed: load(&counters.removed),
            moved: load(&counters.moved),
            rounds: load(&counters.rounds),
            closed_ns: load(&counters.nanoseconds),
        }
    }
}

impl Counters {
    fn of(&self, kind: Kind) -> &AtomicU64 {
        match kind {
            Kind::Unmapped => &self.unmapped,
            Kind::Removed => &self.removed,
            Kind::Moved => &self.moved,
        }
    }
}

impl Covers {
    fn add(&mut self, start: u64, end: u64) -> usize {
        self.idle.retain(|idle| *idle != (start, end));
        match self.free.pop() {
            Some(place) => {
                self.live[place] = (start, end);
                place
            }
            None => {
                self.live.push((start, end));
                self.live.len() - 1
            }
        }
    }

    /// Notes that ranges were taken away: their covers end there. One that loses its middle stays whole, which costs no more
    /// than time.
    fn take_away(&mut self, ranges: &[Taken]) {
        for taken in ranges {
            for (start, end) in &mut self.live {
                if taken.first <= *start && *start < taken.end {
                    *start = taken.end.min(*end);
                } else if *start < taken.first && taken.first < *end && *end <= taken.end {
                    *end = taken.first;
                }
            }
        }
    }

    /// Takes a range off the list. Returns one that is to be watched no more, if there are too many idle ones.
    fn remove(&mut self, place: usize) -> Option<(u64, u64)> {
        let range = core::mem::take(&mut self.live[place]);
        self.free.push(place);
        if range.0 >= range.1 {
            return None;
        }
        self.idle.retain(|idle| *idle != range);
        self.idle.push_back(range);
        let (start, end) = if self.idle.len() > IDLE { self.idle.pop_front()? } else { return None };
        let overlaps = |other: &(u64, u64)| other.0 < other.1 && other.0 < end && other.1 > start;
        // Where another one needs a part of it, all of it stays watched: that costs its owner time, no more.
        (!self.live.iter().any(overlaps)).then_some((start, end))
    }
}

/// While this exists, only its holder changes what is watched. It may exchange the memory behind the addresses.
pub(crate) struct Pause<'a> {
    watch: &'a Watch,
    _changing: std::sync::MutexGuard<'a, Gate>,
}

impl Pause<'_> {
    fn events(&self) -> Result<&Events, WatchError> {
        self.watch.events.as_ref().map_err(|error| WatchError::Forbidden(*error))
    }

    /// The ranges within these addresses that somebody needs watched.
    pub(crate) fn needed(&self, first: u64, end: u64) -> Vec<(u64, u64)> {
        let overlaps = |other: &&(u64, u64)| other.0 < other.1 && other.0 < end && other.1 > first;
        self.watch.covers().live.iter().filter(overlaps).copied().collect()
    }

    /// Watches whole pages, for a cover that is made later.
    pub(crate) fn watch(&self, first: u64, len: u64) -> Result<(), WatchError> {
        self.events()?.watch(first, len).map_err(WatchError::Memories)
    }

    /// Watches them no more. Nobody may need them.
    pub(crate) fn forget(&self, first: u64, len: u64) -> Result<(), WatchError> {
        self.events()?.forget(first, len).map_err(WatchError::Memories)
    }
}

/// Pages that are watched while this exists.
pub struct Cover {
    watch: &'static Watch,
    place: usize,
}

impl Drop for Cover {
    fn drop(&mut self) {
        self.watch.uncover(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_watched_while_somebody_needs_them() {
        let mut covers = Covers::default();
        let long = covers.add(0, 1 << 20);
        let places: Vec<usize> = (0..IDLE as u64 + 1).map(|at| covers.add(at << 12, (at + 1) << 12)).collect();
        let places: Vec<_> = places.into_iter().map(|place| covers.remove(place)).collect();
        assert!(places.iter().all(Option::is_none), "the long one needs them all");
        assert_eq!(covers.remove(long), Some((1 << 12, 2 << 12)), "the oldest, which nobody needs");
        let again = covers.add(2 << 12, 3 << 12);
        assert_eq!(covers.idle.len(), IDLE - 1);
        assert_eq!(covers.remove(again), None);
    }

    #[test]
    fn what_was_taken_away_needs_no_cover() {
        let mut covers = Covers::default();
        let places = [(0, 8), (8, 16), (16, 24), (24, 40)].map(|(start, end)| covers.add(start, end));
        covers.take_away(&[Taken { first: 4, end: 20 }, Taken { first: 30, end: 35 }]);
        assert_eq!(covers.live, [(0, 4), (16, 16), (20, 24), (24, 40)]);
        covers.remove(places[1]);
        assert!(covers.idle.is_empty());
        assert_eq!(covers.add(8, 16), places[1], "its place is free");
    }
}
