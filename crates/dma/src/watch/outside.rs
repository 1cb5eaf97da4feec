//! Other processes that reach memory of this one by themselves, and how to wait until they are out of it.
//!
//! Each of them has a word in memory shared with it: a count that is odd while it is inside. Whoever takes something away says
//! so in shared memory first, and then waits for those who are inside; who comes in later sees what was said.

use crate::{Ordering, Word64, fence};
#[cfg(loom)]
use loom::sync::Mutex;
#[cfg(not(loom))]
use std::sync::Mutex;
use std::sync::{Arc, PoisonError};

/// Most processes that have a seat at a time.
pub const SEATS: usize = if cfg!(loom) { 2 } else { 128 };
/// A process that is inside for longer was stopped, or does harm: nobody waits for it before it has left. All are waited for together:
/// many of them cost no more than one.
#[cfg(not(loom))]
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(20);
/// Who was waited for in vain so often is to be put out.
const VAIN: u32 = 4;

struct Seated {
    word: Word64,
    /// It is waited for until its word is another one.
    inside_at: Option<u64>,
    /// It was waited for in vain while this was its word.
    stuck_at: Option<u64>,
    /// How often that was so.
    vain: u32,
}

impl Seated {
    /// Whether it is still where it was when the waiting began.
    fn is_inside(&mut self) -> bool {
        // Acquire: as in `Outside::wait`.
        let is_inside = self.inside_at.is_some_and(|first| self.word.load(Ordering::Acquire) == first);
        self.inside_at = self.inside_at.filter(|_| is_inside);
        is_inside
    }
}

/// One of the processes that may come in.
pub struct Seat {
    outside: Arc<Outside>,
    number: usize,
}

impl Seat {
    /// Whether it was waited for in vain too often: whoever has it is to lose it.
    pub fn is_to_leave(&self) -> bool {
        let seats = self.outside.seats.lock().unwrap_or_else(PoisonError::into_inner);
        seats.get(self.number).is_some_and(|seat| seat.as_ref().is_some_and(|seat| seat.vain >= VAIN))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.outside.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let old = seats.get_mut(self.number).and_then(Option::take);
        drop(seats);
        // Freed without the lock: that may unmap watched memory, whose watcher waits for the lock.
        drop(old);
    }
}

/// The processes that may come in.
pub struct Outside {
    /// What they look at: while it is not what the owner of the memory has said last, they stay out.
    changed: Word64,
    seats: Mutex<[Option<Seated>; SEATS]>,
}

impl Outside {
    /// Nobody yet. `changed` is a word that all of them can read.
    pub fn new(changed: Word64) -> Self {
        Self { changed, seats: Mutex::new([const { None }; SEATS]) }
    }

    /// One more process, with the word of its [`Presence`]: it is waited for as long as the seat is there. `None` when there are
    /// as many as there may be.
    pub fn seat(self: &Arc<Self>, word: Word64) -> Option<Seat> {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let number = seats.iter().position(Option::is_none)?;
        seats[number] = Some(Seated { word, inside_at: None, stuck_at: None, vain: 0 });
        Some(Seat { outside: self.clone(), number })
    }

    /// Nobody comes in any more until `epoch` was answered; returns when those inside have left.
    pub(crate) fn close(&self, epoch: u64) {
        self.changed.store(epoch, Ordering::Relaxed);
        self.wait();
    }

    /// Returns when everybody has left who was inside before, and did not see what the caller has stored. How many did not
    /// leave in time; they are not waited for again until they have left.
    pub fn wait(&self) -> usize {
        // Pairs with the fence in `Presence::enter`: either they see what was stored before, or we see them inside.
        fence(Ordering::SeqCst);
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_any = false;
        for seat in seats.iter_mut().flatten() {
            // Acquire pairs with the Release in `Presence::leave`: what they did inside has happened before.
            let first = seat.word.load(Ordering::Acquire);
            seat.inside_at = (first & 1 == 1 && seat.stuck_at != Some(first)).then_some(first);
            is_any |= seat.inside_at.is_some();
        }
        if is_any { wait_for(&mut *seats) } else { 0 }
    }
}

/// Until all have left, or for as long as there is patience.
#[cold]
fn wait_for(seats: &mut [Option<Seated>]) -> usize {
    #[cfg(not(loom))]
    let begin = std::time::Instant::now();
    loop {
        let inside = seats.iter_mut().flatten().map(|seat| usize::from(seat.is_inside())).sum::<usize>();
        #[cfg(not(loom))]
        if inside > 0 && begin.elapsed() > PATIENCE {
            for seat in seats.iter_mut().flatten().filter(|seat| seat.inside_at.is_some()) {
                (seat.stuck_at, seat.vain) = (seat.inside_at.take(), seat.vain.saturating_add(1));
            }
            return inside;
        }
        if inside == 0 {
            return 0;
        }
        super::relax();
    }
}

/// The word by which a process says that it is inside of another one's memory.
pub struct Presence {
    word: Word64,
    count: u64,
}

impl Presence {
    /// Nobody else stores to `word`.
    pub fn new(word: Word64) -> Self {
        word.store(0, Ordering::Relaxed);
        Self { word, count: 0 }
    }

    /// Comes in; what is looked at from here on is what counts. To be left soon.
    #[inline(always)]
    pub fn enter(&mut self) {
        self.count = self.count.wrapping_add(1);
        self.word.store(self.count, Ordering::Relaxed);
        // Pairs with the fence in `Outside::wait`.
        fence(Ordering::SeqCst);
    }

    /// Goes out.
    #[inline(always)]
    pub fn leave(&mut self) {
        self.count = self.count.wrapping_add(1);
        // Release pairs with the Acquire in `Outside::wait`.
        self.word.store(self.count, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::Window;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    /// The owner says that its memory is gone, waits, and after that it is a stranger's.
    #[test]
    fn nobody_from_outside_touches_what_was_taken() {
        loom::model(|| {
            let (changed, word) = (Window::model(8), Window::model(8));
            let changed = changed.word64(0).unwrap();
            let outside = Arc::new(Outside::new(changed.clone()));
            let word = word.word64(0).unwrap();
            let _seat = outside.seat(word.clone()).unwrap();
            let strange = Arc::new(AtomicBool::new(false));
            let visitor = {
                let strange = strange.clone();
                thread::spawn(move || {
                    let mut presence = Presence::new(word);
                    for _ in 0..2 {
                        presence.enter();
                        if changed.load(Ordering::Relaxed) == 0 {
                            assert!(!strange.load(Ordering::Relaxed), "touched a stranger's memory");
                        }
                        presence.leave();
                    }
                })
            };
            outside.close(1);
            strange.store(true, Ordering::Relaxed);
            visitor.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn who_does_not_leave_is_waited_for_once_each_time() {
        let region = Region::heap(64);
        let word = |at| region.window().word64(at).unwrap();
        let outside = Arc::new(Outside::new(word(0)));
        let seat = outside.seat(word(8)).unwrap();
        let mut presence = Presence::new(word(8));
        assert_eq!(outside.wait(), 0);
        presence.enter();
        assert_eq!(outside.wait(), 1, "it is inside, and stays");
        let begin = std::time::Instant::now();
        assert_eq!(outside.wait(), 0, "known to be stuck");
        assert!(begin.elapsed() < PATIENCE);
        presence.leave();
        presence.enter();
        assert_eq!(outside.wait(), 1, "it has left and is in again: that is another time");
        presence.leave();
        assert!(!seat.is_to_leave());
        drop(seat);
        let seats: Vec<Seat> = (0..SEATS).filter_map(|_| outside.seat(word(8))).collect();
        assert_eq!(seats.len(), SEATS);
        assert!(outside.seat(word(8)).is_none());
    }

    #[test]
    fn many_that_stay_cost_no_more_than_one_and_are_put_out() {
        let region = Region::heap(8 * 64);
        let word = |at: usize| region.window().word64(8 * at).unwrap();
        let outside = Arc::new(Outside::new(word(0)));
        let seats: Vec<Seat> = (1..60).map(|at| outside.seat(word(at)).unwrap()).collect();
        for time in 0..VAIN {
            assert!(seats.iter().all(|seat| !seat.is_to_leave()));
            (1..60).for_each(|at| word(at).store(u64::from(2 * time + 1), Ordering::Relaxed));
            let begin = std::time::Instant::now();
            assert_eq!(outside.wait(), 59);
            assert!(begin.elapsed() < 20 * PATIENCE, "together, not one after the other");
        }
        assert!(seats.iter().all(Seat::is_to_leave));
    }
}
