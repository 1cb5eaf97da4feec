//! Locks that outlive whoever dies, or is forked away, while holding them. One of the files of this crate that may use
//! `unsafe`.
//!
//! Both are held for as long as a copy takes, never while anybody sleeps.

use millrace_dma::{Ordering, Word64};
use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The number of this process, as locks know it. Set again after a `fork`.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// The same with the time at which the process was started, so that no other process has the same.
static IDENTITY: AtomicU64 = AtomicU64::new(0);

/// The number of this process, or of its parent in what has not told the library that it is another one.
pub(crate) fn process() -> u32 {
    match PROCESS.load(Ordering::Relaxed) {
        0 => learn(),
        known => known,
    }
}

/// This is a new process.
pub(crate) fn learn() -> u32 {
    let process = crate::sys::process();
    PROCESS.store(process, Ordering::Relaxed);
    IDENTITY.store(u64::from(process) << 32 | u64::from(started(process).unwrap_or(0)), Ordering::Relaxed);
    process
}

/// When a process was started, in units of the kernel's; `None` when there is none.
fn started(process: u32) -> Option<u32> {
    let line = crate::files::text(&format!("/proc/{process}/stat"))?;
    let after_name = line.rsplit_once(") ")?.1;
    after_name.split(' ').nth(19)?.parse::<u64>().ok().map(|time| time as u32)
}

/// Waits a little, longer each time.
struct Patience {
    turns: u32,
}

impl Patience {
    const fn new() -> Self {
        Self { turns: 0 }
    }

    /// Whether it is time to ask whether the holder lives.
    fn turn(&mut self) -> bool {
        self.turns += 1;
        match self.turns {
            ..100 => std::hint::spin_loop(),
            100..150 => rustix::thread::sched_yield(),
            _ => drop(rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000 })),
        }
        self.turns % 32 == 31
    }
}

/// A value of this process. In the child of a `fork`, a lock that a thread of the parent held is free.
pub(crate) struct Local<T> {
    holder: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time, the holder.
unsafe impl<T: Send> Send for Local<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Local<T> {}

impl<T> Local<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { holder: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> Held<'_, T> {
        let me = process();
        let mut patience = Patience::new();
        loop {
            let holder = self.holder.load(Ordering::Relaxed);
            let is_free = holder == 0 || holder != me;
            // Acquire pairs with the Release in `Held::drop`.
            if is_free && self.holder.compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Held { lock: self };
            }
            patience.turn();
        }
    }
}

/// What is locked.
pub(crate) struct Held<'a, T> {
    lock: &'a Local<T>,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` is the only one.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `Local::lock`.
        self.lock.holder.store(0, Ordering::Release);
    }
}

thread_local! {
    /// The lock in shared memory that this thread holds: a signal handler would wait for itself.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// So many short sleeps of a thread are a second, or a little less.
const SECOND: u32 = 10_000;

/// A lock between the processes that are one end of a connection.
pub(crate) struct Common {
    /// Between the threads of this process, of which none takes it from another.
    threads: Local<()>,
    holder: Word64,
}

impl Common {
    pub(crate) fn new(holder: Word64) -> Self {
        Self { threads: Local::new(()), holder }
    }

    /// The lock; `None` in a signal handler that has interrupted its holder. Whoever has died is no holder; and the other end,
    /// which can write what it wants there, can make us wait for a second, once for each call. That second is counted in our own
    /// sleeps: when all of us are stopped for a while (`SIGSTOP`, `docker pause`), nobody's time runs.
    pub(crate) fn lock(&self) -> Option<CommonHeld<'_>> {
        let name = core::ptr::from_ref(self).addr();
        if HELD.get() == name {
            return None;
        }
        let before = HELD.replace(name);
        let threads = Some(self.threads.lock());
        process();
        let me = IDENTITY.load(Ordering::Relaxed);
        let mut patience = Patience::new();
        loop {
            match self.holder.compare_exchange(0, me) {
                Ok(_) => break,
                Err(holder) if patience.turn() => {
                    let is_long = patience.turns > SECOND;
                    let is_dead = started((holder >> 32) as u32) != Some(holder as u32);
                    if (is_dead || is_long) && self.holder.compare_exchange(holder, me).is_ok() {
                        break;
                    }
                }
                Err(_) => {}
            }
        }
        Some(CommonHeld { lock: self, threads, me, before })
    }
}

/// The lock is held.
pub(crate) struct CommonHeld<'a> {
    lock: &'a Common,
    me: u64,
    before: usize,
    threads: Option<Held<'a, ()>>,
}

impl Drop for CommonHeld<'_> {
    fn drop(&mut self) {
        // Somebody may have taken it from us. AcqRel pairs with the same in `Common::lock`.
        let _ = self.lock.holder.compare_exchange(self.me, 0);
        self.threads = None;
        HELD.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_dma::Region;

    #[test]
    fn one_at_a_time() {
        let value = Local::new(0_u64);
        let region = Region::heap(64);
        let common = Common::new(region.window().word64(0).unwrap());
        let other = region.window().word64(8).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *value.lock() += 1;
                        let _held = common.lock().unwrap();
                        other.store(other.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!((*value.lock(), other.load(Ordering::Relaxed)), (40_000, 40_000));
    }

    #[test]
    fn the_dead_hold_nothing_and_a_handler_does_not_wait_for_itself() {
        let region = Region::heap(64);
        let word = region.window().word64(0).unwrap();
        let common = Common::new(word.clone());
        // This process, started at another time.
        word.store(u64::from(process()) << 32 | 1, Ordering::Relaxed);
        let held = common.lock().unwrap();
        assert!(common.lock().is_none());
        drop(held);
        assert!(common.lock().is_some());
        let value = Local::new(7);
        value.holder.store(process() + 1, Ordering::Relaxed);
        assert_eq!(*value.lock(), 7, "of a parent");
    }

    #[test]
    fn somebody_who_lives_holds_it_for_a_second_at_most() {
        let region = Region::heap(64);
        let word = region.window().word64(0).unwrap();
        word.store(1 << 32 | u64::from(started(1).unwrap()), Ordering::Relaxed);
        let begin = std::time::Instant::now();
        let common = Common::new(word.clone());
        let held = common.lock().unwrap();
        assert!(begin.elapsed() > std::time::Duration::from_millis(450));
        // Another one waits as long, and is not robbed by who lets go of what was his.
        word.store(7, Ordering::Relaxed);
        drop(held);
        assert_eq!(word.load(Ordering::Relaxed), 7);
    }
}
