//! How a queue changes hands between the worker that serves it and the thread that speaks with the driver.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A place for something that the worker uses burst by burst, and that the control thread puts there and takes away.
///
/// The worker never waits: while the control thread is at the place, it finds nothing there. The control thread waits for
/// the end of a burst at most, whether the worker is busy, asleep or gone; whatever it takes away is then in nobody's use.
pub(crate) struct Slot<T> {
    /// The control thread is waiting. Without this a busy worker could always be faster.
    wanted: AtomicU32,
    content: Mutex<Option<T>>,
}

impl<T> Slot<T> {
    pub fn new() -> Self {
        Self { wanted: AtomicU32::new(0), content: Mutex::new(None) }
    }

    /// For the worker, for the length of one burst.
    #[inline(always)]
    pub fn enter(&self) -> Option<MutexGuard<'_, Option<T>>> {
        // Relaxed: a politeness; what orders is the lock.
        if self.wanted.load(Ordering::Relaxed) != 0 {
            return None;
        }
        match self.content.try_lock() {
            Ok(content) => Some(content),
            Err(TryLockError::WouldBlock) => None,
            // A sink that panicked in the middle of a burst: the ring is consistent between any two of its steps.
            Err(TryLockError::Poisoned(content)) => Some(content.into_inner()),
        }
    }

    /// For the control thread.
    pub fn change<R>(&self, change: impl FnOnce(&mut Option<T>) -> R) -> R {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut content);
        drop(content);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_busy_worker_lets_the_control_thread_in() {
        let (slot, stop) = (Slot::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut seen = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    if let Some(mut content) = slot.enter()
                        && let Some(number) = content.as_mut()
                    {
                        assert_eq!(*number % 2, 0, "half changed");
                        *number += 1;
                        seen += 1;
                        std::hint::spin_loop();
                        *number += 1;
                    }
                }
                seen
            });
            for round in 0..1000 {
                slot.change(|content| *content = Some(round * 2));
            }
            while slot.change(|content| content == &Some(1998)) {
                std::thread::yield_now();
            }
            assert!(slot.change(Option::take).is_some());
            stop.store(true, Ordering::Relaxed);
            assert!(worker.join().unwrap() > 0);
        });
    }
}
