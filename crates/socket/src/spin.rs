//! How long it is worth to look before a thread sleeps in the kernel.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// What the last looks were worth.
static CREDIT: AtomicU32 = AtomicU32::new(MOST);
const MOST: u32 = 16;
/// Without any credit, one sleep in so many is preceded by a look.
static SLEEPS: AtomicU32 = AtomicU32::new(0);
const SELDOM: u32 = 32;
/// Whoever gives up a core and has it back no sooner has shared it with somebody who works.
const OTHERS: std::time::Duration = std::time::Duration::from_micros(10);

/// Looks until it returns something, or until the time for that is over.
pub(crate) fn until<T>(mut look: impl FnMut(u32) -> Option<T>) -> Option<T> {
    let limit = crate::library().config.spin;
    let credit = CREDIT.load(Ordering::Relaxed);
    if limit.is_zero() || credit == 0 && !SLEEPS.fetch_add(1, Ordering::Relaxed).is_multiple_of(SELDOM) {
        return None;
    }
    let (begin, mut shares) = (Instant::now(), false);
    for turn in 0.. {
        if let Some(found) = look(turn) {
            // Who found something only because others had this core meanwhile would rather sleep: whoever is woken gets a core that
            // is idle, and nobody moves one that runs.
            let credit = if shares { credit.saturating_sub(2) } else { (credit + 2).min(MOST) };
            CREDIT.store(credit, Ordering::Relaxed);
            return Some(found);
        }
        if turn % 16 == 15 {
            let spent = begin.elapsed();
            if spent >= limit {
                break;
            }
            // Perhaps who could write waits for this core.
            if spent * 4 >= limit {
                rustix::thread::sched_yield();
                shares |= begin.elapsed() - spent > OTHERS;
            }
        }
        std::hint::spin_loop();
    }
    CREDIT.store(credit.saturating_sub(1), Ordering::Relaxed);
    None
}
