//! Fences of which one side pays nothing, and the other, which comes rarely, pays for both: `membarrier` makes every thread of a
//! process, or of all processes that have agreed to it, pass a full fence. May use `unsafe`.

use crate::{Ordering, fence};
use core::ffi::c_int;
use rustix::io::Errno;
use std::sync::LazyLock;

/// linux/membarrier.h.
const QUERY: c_int = 0;
const GLOBAL_EXPEDITED: c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: c_int = 1 << 2;
const PRIVATE_EXPEDITED: c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;

/// Whether [`heavy_fence`] makes all processes that have agreed pass a fence.
pub fn has_heavy_fence() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| membarrier(QUERY).is_ok_and(|has| has & GLOBAL_EXPEDITED != 0));
    *HAS
}

/// This process agrees to pass the [`heavy_fence`] of others, of which it is told that they have one. If it can, a compiler's fence is
/// enough for it where theirs is the other one of a pair.
pub fn agree_to_heavy_fences() -> bool {
    // At each time: a child does not take it over for sure.
    membarrier(REGISTER_GLOBAL_EXPEDITED).is_ok()
}

/// A full fence here, and in all processes that have agreed, of which only those pay that run.
pub fn heavy_fence() {
    fence(Ordering::SeqCst);
    if has_heavy_fence() {
        // The system has said that it has it, which is all that it can fail for; others count on it.
        membarrier(GLOBAL_EXPEDITED).expect("membarrier was there before");
    }
}

/// Allows [`of_this_process`].
pub(crate) fn register_this_process() -> Result<(), Errno> {
    membarrier(REGISTER_PRIVATE_EXPEDITED).map(drop)
}

/// Returns when every thread of this process that runs has passed a full fence.
pub(crate) fn of_this_process() {
    // Registered before, which is all that it can fail for.
    membarrier(PRIVATE_EXPEDITED).expect("membarrier was registered");
}

fn membarrier(command: c_int) -> Result<c_int, Errno> {
    // SAFETY: touches no memory.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::INVAL, Errno::from_raw_os_error)),
        value => Ok(value as c_int),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicU64, compiler_fence};

    const LIGHT: usize = 4_000_000;
    const HEAVY: usize = 400_000;

    #[repr(align(128))]
    struct Word(AtomicU64);

    /// Two threads count in a word of their own, and note after each step what they see in the other's. Whatever one has not seen of the
    /// other one, that one sees of it.
    #[test]
    fn one_of_both_sees_the_other() {
        if !has_heavy_fence() || !agree_to_heavy_fences() {
            println!("skipped: no membarrier here");
            return;
        }
        let [light, heavy] = [const { Word(AtomicU64::new(0)) }; 2];
        let far: Vec<Word> = (0..1 << 18).map(|_| Word(AtomicU64::new(0))).collect();
        let is_over = AtomicBool::new(false);
        let (seen_by_light, seen_by_heavy) = std::thread::scope(|scope| {
            let by_light = scope.spawn(|| {
                let mut seen = Vec::with_capacity(LIGHT);
                for step in 1..=LIGHT as u64 {
                    // A store that takes long, behind which the next one waits.
                    far[(step as usize * 7919) % far.len()].0.store(step, Ordering::Relaxed);
                    light.0.store(step, Ordering::Relaxed);
                    compiler_fence(Ordering::SeqCst);
                    seen.push(heavy.0.load(Ordering::Relaxed));
                }
                is_over.store(true, Ordering::Relaxed);
                seen
            });
            let mut by_heavy = Vec::with_capacity(HEAVY);
            while light.0.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            while !is_over.load(Ordering::Relaxed) && by_heavy.len() < HEAVY {
                heavy.0.store(by_heavy.len() as u64 + 1, Ordering::Relaxed);
                heavy_fence();
                by_heavy.push(light.0.load(Ordering::Relaxed));
            }
            (by_light.join().unwrap(), by_heavy)
        });
        for (step, seen) in (1..).zip(seen_by_heavy) {
            // The first step of the other one that was not seen: what it saw then.
            if let Some(back) = seen_by_light.get(seen as usize) {
                assert!(*back >= step, "step {step} saw {seen}, and step {} saw {back}", seen + 1);
            }
        }
    }
}
