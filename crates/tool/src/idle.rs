//! What a loop does when it finds nothing to do: spin for a while, then sleep until there is.

use std::hint;
use std::time::Duration;

use crate::failure::{Failure, While};
use crate::host::{RxQueue, TxQueue};

/// How long to sleep at most, so that Ctrl-C is heard.
const NAP: Duration = Duration::from_millis(100);

/// Empty rounds before the first sleep: some tens of microseconds, about what falling asleep and waking up cost.
const SPINS: u32 = 2_000;

/// The patience of one loop.
#[derive(Debug)]
pub struct Idle {
    /// Never sleep.
    poll: bool,
    empty_rounds: u32,
}

impl Idle {
    /// Patience that sleeps, or with `poll` never does.
    pub fn new(poll: bool) -> Self {
        Self { poll, empty_rounds: 0 }
    }

    /// There was something to do.
    #[inline]
    pub fn busy(&mut self) {
        self.empty_rounds = 0;
    }

    /// Whether nothing has come for so long that the next wait sleeps: the moment to tidy up.
    pub fn is_about_to_sleep(&self) -> bool {
        self.empty_rounds + 1 == SPINS
    }

    /// Nothing came: perhaps sleep until something does.
    #[inline]
    pub fn await_frame(&mut self, rx: &mut RxQueue) -> Result<(), Failure> {
        if self.must_spin() {
            return Ok(());
        }
        rx.wait(NAP).map(drop).doing(|| "cannot wait for a frame".to_owned())
    }

    /// There was no room: perhaps sleep until there is.
    #[inline]
    pub fn await_room(&mut self, tx: &mut TxQueue) -> Result<(), Failure> {
        if self.must_spin() {
            return Ok(());
        }
        tx.wait(NAP).map(drop).doing(|| "cannot wait for room in the queue".to_owned())
    }

    fn must_spin(&mut self) -> bool {
        self.empty_rounds = self.empty_rounds.saturating_add(1);
        let spin = self.poll || self.empty_rounds < SPINS;
        if spin {
            hint::spin_loop();
        }
        spin
    }
}
