//! Sync messages that say themselves when they left. statime sends a Follow_Up behind each, so its Sync is made another one here,
//! and what it would say behind it is never asked for.
//!
//! When a frame will leave is not known before it has: it is the time now and as long as the last ones took.

use millrace_clock::Time;

/// Where it says so: octet 6 of the header, bit 1.
const FLAGS: usize = 6;
const TWO_STEP: u8 = 0x02;
const ORIGIN: core::ops::Range<usize> = 34..44;

/// How long frames take from here to the wire, as those did that were asked after: the middle one of the last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ahead {
    took: [i64; LAST],
    count: usize,
}

/// Frames of which the middle one counts: some that were held up spoil none.
const LAST: usize = 9;

impl Ahead {
    /// When a frame will leave that is handed over now.
    pub fn of(self, now: Time) -> Time {
        let (mut took, count) = (self.took, self.count.min(LAST));
        took[..count].sort_unstable();
        now.plus_nanoseconds(took[count / 2])
    }

    /// One that was handed over at `handed` left at `left`.
    pub fn learn(&mut self, handed: Time, left: Time) {
        self.took[self.count % LAST] = left.nanoseconds_since(handed);
        self.count += 1;
    }

    /// Whether it is known well enough to be sent.
    pub fn is_known(self) -> bool {
        self.count > 0
    }
}

/// Makes a one-step Sync of a two-step one.
pub fn write(message: &mut [u8], at: Time) {
    if let Some(flags) = message.get_mut(FLAGS) {
        *flags &= !TWO_STEP;
    }
    if let Some(origin) = message.get_mut(ORIGIN) {
        origin[..2].fill(0);
        origin[2..6].copy_from_slice(&at.seconds.to_be_bytes());
        origin[6..].copy_from_slice(&at.nanoseconds().to_be_bytes());
    }
}

/// Whether a message is a Sync.
pub fn is_sync(message: &[u8]) -> bool {
    message.first().is_some_and(|first| first & 0x0f == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_says_when_it_leaves() {
        let mut sync = [0u8; 44];
        sync[FLAGS] = TWO_STEP | 0x01;
        write(&mut sync, Time::new(0x0102_0304, 0x0506_0708));
        assert_eq!((sync[FLAGS], &sync[34..]), (1, &[0, 0, 1, 2, 3, 4, 5, 6, 7, 8][..]));
        assert!(is_sync(&sync) && !is_sync(&[0x11]));
        write(&mut [0; 5], Time::default());
    }

    #[test]
    fn the_way_to_the_wire_is_learned() {
        let (mut ahead, now) = (Ahead::default(), Time::new(10, 0));
        assert!(!ahead.is_known());
        let takes = |ahead: Ahead| ahead.of(now).nanoseconds_since(now);
        ahead.learn(now, now.plus_nanoseconds(4_000));
        assert!(ahead.is_known() && (takes(ahead) - 4_000).abs() <= 1);
        for round in 0..40 {
            // Two of nine are late by 80 ms.
            let took = if round % 9 < 2 { 80_000_000 } else { 5_000 };
            ahead.learn(now, now.plus_nanoseconds(took));
            assert!(round < 4 || (takes(ahead) - 5_000).abs() <= 1, "{round}: {} ns", takes(ahead));
        }
        // It is slower from now on.
        (0..5).for_each(|_| ahead.learn(now, now.plus_nanoseconds(60_000)));
        assert!((takes(ahead) - 60_000).abs() <= 1);
    }
}
