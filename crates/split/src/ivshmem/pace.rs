//! How often programs of one peer may come: each costs the backend a guest, a report, and a thread at its end, and a machine says as often as it
//! likes that it is another program.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Programs that may come one right after the other, and how often one may come after that.
const AT_ONCE: u32 = 64;
const EACH: Duration = Duration::from_millis(100);

/// When the programs that have come would have, one after the other, and whether it was said that a peer has too many.
#[derive(Default)]
pub(super) struct Pace(HashMap<u16, (Instant, bool)>);

impl Pace {
    /// Whether one more program of that peer may come now. `Err`: not yet, and whether that is to be said.
    pub fn ask(&mut self, peer: u16, now: Instant) -> Result<(), bool> {
        let (due, is_said) = self.0.entry(peer).or_insert((now, false));
        *due = (*due).max(now);
        if *due - now > EACH * (AT_ONCE - 1) {
            return Err(!core::mem::replace(is_said, true));
        }
        *due += EACH;
        // Once for as long as it goes on.
        *is_said &= *due - now > EACH * (AT_ONCE / 2);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_so_many_programs_in_a_time_and_others_have_theirs() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        let mut ask = |peer, at| (0..1000).map(|_| pace.ask(peer, at)).collect::<Vec<_>>();
        let came = |asked: &[Result<(), bool>]| asked.iter().filter(|asked| asked.is_ok()).count();
        let said = |asked: &[Result<(), bool>]| asked.iter().filter(|asked| **asked == Err(true)).count();
        let first = ask(1, begin);
        assert_eq!((came(&first), said(&first)), (64, 1));
        let later = ask(1, begin + Duration::from_secs(1));
        assert_eq!((came(&later), said(&later)), (10, 0));
        assert_eq!(came(&ask(2, begin + Duration::from_secs(1))), 64);
        let much_later = ask(1, begin + Duration::from_secs(100));
        assert_eq!((came(&much_later), said(&much_later)), (64, 1));
    }
}
