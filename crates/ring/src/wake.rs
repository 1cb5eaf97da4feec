//! Sleeping without losing a wake-up.
//!
//! ```text
//! sleeper                                  ringer
//! flag = 1                                 pointer word = new        (doorbell, or update word)
//! fence(SeqCst)   -- pairs with --         fence(SeqCst)
//! look at the pointer word again           look at the flag
//! nothing new: wait on the eventfd         flag set: flag = 0, then signal the eventfd
//! flag = 0
//! ```
//!
//! Either the sleeper's second look sees the new pointer, or the ringer's look sees the flag: the two fences are in one
//! total order. The ringer takes the flag down before it signals, so that a sleeper that is slow to get up is signalled
//! once and not for every burst: a system call per sleep, not per packet. Whoever takes the flag down signals, hence a
//! flag that is down always means "awake, or about to be". A signal that comes after the sleeper has found work only
//! makes its next wait return at once.

use millrace_dma::{Ordering, Word32, fence};

/// The side that may sleep: the owner of the flag.
pub struct Sleeper {
    flag: Word32,
}

impl Sleeper {
    /// The sleeper behind `flag`.
    pub fn new(flag: Word32) -> Self {
        Self { flag }
    }

    /// Sets the flag only, for a caller that makes one fence for several flags.
    pub fn mark(&self) {
        self.flag.store(1, Ordering::Relaxed);
    }

    /// Says that this side is about to sleep. Look for work once more after this, and sleep only if there is none.
    pub fn announce(&self) {
        self.mark();
        // Pairs with the fence in `Ringer::must_signal`.
        fence(Ordering::SeqCst);
    }

    /// Says that this side is awake again.
    pub fn awake(&self) {
        self.flag.store(0, Ordering::Relaxed);
    }
}

/// The side that moves the pointer: it reads the other's flag.
pub struct Ringer {
    flag: Word32,
}

impl Ringer {
    /// The ringer for the sleeper behind `flag`.
    pub fn new(flag: Word32) -> Self {
        Self { flag }
    }

    /// Whether the other side must be signalled. To be asked after the pointer word was stored.
    #[inline(always)]
    pub fn must_signal(&self) -> bool {
        // Pairs with the fence in `Sleeper::announce`.
        fence(Ordering::SeqCst);
        self.claim()
    }

    /// As [`Ringer::must_signal`], for a caller that has made the fence itself for several flags at once.
    #[inline(always)]
    pub fn claim(&self) -> bool {
        if self.flag.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.flag.store(0, Ordering::Relaxed);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use millrace_dma::Region;

    #[test]
    fn only_a_sleeper_that_has_said_so_is_signalled() {
        let flag = Region::heap(4).window().word32(0).unwrap();
        let (sleeper, ringer) = (Sleeper::new(flag.clone()), Ringer::new(flag.clone()));
        assert!(!ringer.must_signal());
        sleeper.announce();
        assert!(ringer.must_signal());
        assert!(!ringer.must_signal(), "one signal per sleep");
        sleeper.announce();
        sleeper.awake();
        assert!(!ringer.must_signal());
        sleeper.mark();
        assert!(ringer.claim());
        // A peer may write anything into its flag: it costs a signal.
        flag.store(u32::MAX, Ordering::Relaxed);
        assert!(ringer.claim() && !ringer.claim());
    }

    #[test]
    fn no_wake_up_is_lost_between_two_threads() {
        use std::sync::mpsc::{RecvTimeoutError, sync_channel};
        use std::time::Duration;
        const ROUNDS: u32 = 20_000;
        let words = Region::heap(128);
        let (flag, pointer) = (words.window().word32(0).unwrap(), words.window().word32(64).unwrap());
        let (sleeper, ringer) = (Sleeper::new(flag.clone()), Ringer::new(flag));
        let (signal, event) = sync_channel(1);
        let (done, acknowledged) = sync_channel(1);
        let written = pointer.clone();
        let peer = std::thread::spawn(move || {
            for round in 1..=ROUNDS {
                written.store(round, Ordering::Release);
                if ringer.must_signal() {
                    // Full: a signal waits already, as in an eventfd.
                    let _ = signal.try_send(());
                }
                acknowledged.recv().unwrap();
            }
        });
        for round in 1..=ROUNDS {
            while pointer.load(Ordering::Acquire) != round {
                sleeper.announce();
                if pointer.load(Ordering::Acquire) != round {
                    match event.recv_timeout(Duration::from_secs(20)) {
                        Ok(()) => {}
                        Err(RecvTimeoutError::Timeout) => panic!("round {round}: nobody woke us"),
                        Err(RecvTimeoutError::Disconnected) => break,
                    }
                }
                sleeper.awake();
            }
            done.send(()).unwrap();
        }
        peer.join().unwrap();
    }
}
