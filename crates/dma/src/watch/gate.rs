//! What lets one thread touch memory only while another has nothing to say about it.
//!
//! A worker goes in by a gate before each access and comes out behind it. Whoever learns that memory is being taken away
//! closes all gates, waits until nobody is inside, notes what is taken, and opens them again; the worker that comes next
//! sees that something has changed and takes the notes first. So once the notes are written, no access that was
//! decided without them is under way, and none begins.
//!
//! A worker pays two stores and a load: its store and the load behind it stay in order because the other side, which comes
//! rarely, makes every thread of the process pass a barrier (`membarrier`).
//!
//! Nothing is allocated and nothing freed under the lock, nor while a gate is entered: that could unmap memory, which then
//! waits for the very thread that waits for the lock.

use super::outside::Outside;
use crate::{Ordering, OutOfRange, Window, Word64, fence};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

/// Addresses from the first to the one behind the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// First address.
    pub first: u64,
    /// The address behind the last one.
    pub end: u64,
}

/// Notes that are kept for workers that come late.
pub(crate) const LOG: usize = if cfg!(loom) { 2 } else { 256 };
/// Most gates of a process.
pub(crate) const GATES: usize = if cfg!(loom) { 2 } else { 256 };
/// Distance of their words, so that two workers share no cache line.
const STRIDE: usize = 64;
/// Bytes for the words of all gates.
pub(crate) const WORDS: usize = GATES * STRIDE;

const FREE: u64 = 0;
const OUTSIDE: u64 = 1;
const INSIDE: u64 = 2;

/// What was taken away lately.
pub(crate) struct Log {
    ranges: [Taken; LOG],
    /// Notes ever written.
    written: u64,
}

impl Log {
    pub(crate) fn note(&mut self, taken: Taken) {
        self.ranges[(self.written % LOG as u64) as usize] = taken;
        self.written += 1;
    }
}

/// All gates of a process, and the notes behind them.
pub(crate) struct Gates {
    /// Changes whenever notes are about to be written; 0 in a child that was forked, where the system wipes it.
    epoch: Word64,
    words: Vec<Word64>,
    log: Mutex<Log>,
    /// By gate: other processes that reach the same memory by themselves.
    outside: Mutex<[Option<Arc<Outside>>; GATES]>,
    barrier: fn(),
}

/// The barrier that a worker needs when the other side makes everybody pass one.
#[inline(always)]
fn light() {
    if cfg!(loom) {
        fence(Ordering::SeqCst);
    } else {
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

impl Gates {
    /// `epoch`: eight bytes that a child finds wiped; `words`: [`WORDS`] zeroed bytes; `barrier`: returns when every thread
    /// of the process has passed a full fence.
    pub(crate) fn new(epoch: &Window, words: &Window, barrier: fn()) -> Result<Self, OutOfRange> {
        let epoch = epoch.word64(0)?;
        epoch.store(1, Ordering::Relaxed);
        let words = (0..GATES).map(|gate| words.word64(gate * STRIDE)).collect::<Result<_, _>>()?;
        let log = Mutex::new(Log { ranges: [Taken::default(); LOG], written: 0 });
        Ok(Self { epoch, words, log, outside: Mutex::new([const { None }; GATES]), barrier })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // A note is written or it is not; a panic elsewhere leaves nothing half done.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the process that made it, not a child of it.
    pub(crate) fn is_alive(&self) -> bool {
        self.epoch.load(Ordering::Relaxed) != 0
    }

    /// Closes all gates, waits until nobody is inside, lets `notes` be written, and opens them again.
    pub(crate) fn close(&self, notes: impl FnOnce(&mut Log)) {
        let mut log = self.log();
        // Release pairs with the Acquire in `Gate::enter`; one writer at a time, under the lock.
        let epoch = self.epoch.load(Ordering::Relaxed) + 1;
        self.epoch.store(epoch, Ordering::Release);
        (self.barrier)();
        for outside in self.outside.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten() {
            outside.close(epoch);
        }
        for word in &self.words {
            // Acquire pairs with the Release in `Gate::leave`: the accesses made inside have happened before. A worker
            // stays inside for one piece of a copy.
            while word.load(Ordering::Acquire) == INSIDE {
                crate::watch::relax();
            }
        }
        notes(&mut log);
    }

    /// A gate for one more worker; `None` when there are too many.
    pub(crate) fn gate(self: &Arc<Self>) -> Option<Gate> {
        let taken = Vec::with_capacity(LOG);
        let free = |word: &Word64| word.compare_exchange(FREE, OUTSIDE).is_ok();
        let place = self.words.iter().position(free)?;
        let word = self.words[place].clone();
        let log = self.log();
        // Under the lock, so that the two belong together.
        let (seen, read) = (self.epoch.load(Ordering::Relaxed), log.written);
        drop(log);
        Some(Gate { epoch: self.epoch.clone(), word, place, seen, read, taken, gates: self.clone() })
    }
}

/// What a worker finds when it has come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// Nothing was taken away since it came in last.
    Same,
    /// What [`Gate::taken`] says was taken away.
    Changed,
    /// More was taken away than is remembered: it could be anything.
    Lost,
    /// This is a child of the process that registered the memory, and has nothing to do with it.
    Forked,
}

/// The gate of one worker, by which it comes to memory that can be taken away.
pub struct Gate {
    epoch: Word64,
    word: Word64,
    place: usize,
    seen: u64,
    read: u64,
    taken: Vec<Taken>,
    gates: Arc<Gates>,
}

impl Gate {
    /// Comes in: until [`Gate::leave`], no call that takes watched memory away returns to the program. To be left soon,
    /// with nothing allocated and nothing freed meanwhile.
    #[inline]
    pub fn enter(&mut self) -> Entered {
        self.word.store(INSIDE, Ordering::Relaxed);
        light();
        // Acquire pairs with the Release in `Gates::close`.
        if self.epoch.load(Ordering::Acquire) == self.seen { Entered::Same } else { self.enter_changed() }
    }

    #[cold]
    fn enter_changed(&mut self) -> Entered {
        self.word.store(OUTSIDE, Ordering::Release);
        // A lock that another thread held when this process was forked stays locked here for ever.
        if self.epoch.load(Ordering::Relaxed) == 0 {
            return Entered::Forked;
        }
        let log = self.gates.log();
        // Under the lock nobody closes the gates: what is read here is all there is until this worker leaves.
        self.word.store(INSIDE, Ordering::Relaxed);
        self.seen = self.epoch.load(Ordering::Relaxed);
        let from = core::mem::replace(&mut self.read, log.written);
        self.taken.clear();
        if log.written - from > LOG as u64 {
            return Entered::Lost;
        }
        self.taken.extend((from..log.written).map(|note| log.ranges[(note % LOG as u64) as usize]));
        Entered::Changed
    }

    /// Other processes reach the same memory: from now on they are kept out, too, when it is taken away. They may come in
    /// again when the word that they look at is what [`Gate::seen`] says.
    pub fn let_in(&self, outside: Arc<Outside>) {
        self.replace_outside(Some(outside));
    }

    /// Up to where this worker knows what was taken away.
    #[inline]
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Whether something was taken away that this worker does not know yet.
    #[inline]
    pub fn is_behind(&self) -> bool {
        // Relaxed: it orders nothing; who enters looks again.
        self.epoch.load(Ordering::Relaxed) != self.seen
    }

    fn replace_outside(&self, new: Option<Arc<Outside>>) {
        let mut all = self.gates.outside.lock().unwrap_or_else(PoisonError::into_inner);
        let old = core::mem::replace(&mut all[self.place], new);
        drop(all);
        // Freed without the lock, as everything here.
        drop(old);
    }

    /// What was taken away, after [`Entered::Changed`].
    pub fn taken(&self) -> &[Taken] {
        &self.taken
    }

    /// Goes out.
    #[inline]
    pub fn leave(&self) {
        // Release pairs with the Acquire in `Gates::close`.
        self.word.store(OUTSIDE, Ordering::Release);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // In a child that was forked the lock may be another thread's for ever.
        if self.gates.is_alive() {
            self.replace_outside(None);
        }
        self.word.store(FREE, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    /// The watcher notes that memory is taken, and after that it is a stranger's. A worker that was let in before then must
    /// have left, and one that comes later must know.
    #[test]
    fn nobody_touches_what_was_taken() {
        loom::model(|| {
            let fence = || fence(Ordering::SeqCst);
            let gates = Gates::new(&Window::model(8), &Window::model(WORDS), fence).unwrap();
            let gates = Arc::new(gates);
            let strange = Arc::new(AtomicBool::new(false));
            let mut gate = gates.gate().unwrap();
            let worker = {
                let strange = strange.clone();
                thread::spawn(move || {
                    let mut mine = true;
                    for _ in 0..2 {
                        if gate.enter() != Entered::Same {
                            mine &= gate.taken().is_empty();
                        }
                        if mine {
                            assert!(!strange.load(Ordering::Relaxed), "touched a stranger's memory");
                        }
                        gate.leave();
                    }
                })
            };
            gates.close(|log| log.note(Taken { first: 0, end: 1 }));
            strange.store(true, Ordering::Relaxed);
            worker.join().unwrap();
        });
    }
}
