//! The clock page: 4 KiB from which any program reads the card's clock without a system call. The card writes it, programs
//! map it for reading only; and the requests that steer the clock.
//!
//! ```text
//! offset  meaning
//! 0x000   magic and version, once
//! 0x008   the time namespace of the card, as in /proc/PID/ns/time; 0: not known
//! 0x040   sequence: odd while the words below are written, another number after each change
//! 0x048   the words, 64 bits each, see `word`
//! ```
//!
//! A reader takes the sequence, the words, and the sequence again; they are of one moment when it is the same, and even. The
//! time is then `seconds, fraction` plus `(CLOCK_MONOTONIC - since) * increment`, in 2^-64 of a second. `CLOCK_MONOTONIC` is the
//! same for all processes of a host but those of another time namespace, who therefore cannot read this clock.
//!
//! Frequencies are in the unit of Linux' `adjfine`: millionths with a fraction of 16 bits ([`SCALED_PER_PPM`]).

use serde::{Deserialize, Serialize};

/// Size of the clock page in bytes.
pub const PAGE_SIZE: usize = 4096;
/// What its first word holds: `MRCLOCK` and the version, 1.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MRCLOCK\x01");
/// Offset of [`MAGIC`].
pub const MAGIC_AT: usize = 0x000;
/// Offset of the time namespace.
pub const NAMESPACE_AT: usize = 0x008;
/// Offset of the sequence.
pub const SEQUENCE_AT: usize = 0x040;
/// Offset of the first of [`WORDS`] words.
pub const WORDS_AT: usize = 0x048;
/// Words behind the sequence.
pub const WORDS: usize = 14;

/// A millionth in the unit of frequencies, as for Linux' `adjfine`.
pub const SCALED_PER_PPM: i64 = 1 << 16;
/// How far the clock can be steered from its nominal speed, in millionths: a tenth.
pub const MOST_PPM: i64 = 100_000;
/// How wrong an oscillator can be made for a test, in millionths.
pub const MOST_DRIFT_PPM: i64 = 1_000;

/// Which word is what.
pub mod word {
    /// `CLOCK_MONOTONIC`, in ns, at which the clock showed what the next two words say.
    pub const SINCE: usize = 0;
    /// Seconds, mostly since 1970.
    pub const SECONDS: usize = 1;
    /// 2^-64 of a second each.
    pub const FRACTION: usize = 2;
    /// What each ns of `CLOCK_MONOTONIC` adds, in 2^-64 of a second.
    pub const INCREMENT: usize = 3;
    /// See [`flag`](super::flag).
    pub const FLAGS: usize = 4;
    /// [`State`](super::State), and shifted by 8 [`Source`](super::Source).
    pub const STATE: usize = 5;
    /// The clock less its source, in ns, when it was last compared; signed.
    pub const OFFSET: usize = 6;
    /// How much faster than nominal it is told to go, in 2^-16 of a millionth; signed.
    pub const FREQUENCY: usize = 7;
    /// The path to the source, one way, in ns; signed.
    pub const PATH_DELAY: usize = 8;
    /// `CLOCK_MONOTONIC` of the last comparison.
    pub const REPORTED: usize = 9;
    /// `CLOCK_MONOTONIC` since when the state is what it is.
    pub const CHANGED: usize = 10;
    /// How often the clock was set or stepped.
    pub const STEPS: usize = 11;
    /// By how much the oscillator was made wrong for a test, in 2^-16 of a millionth; signed.
    pub const DRIFT: usize = 12;
    /// TAI less UTC, in s, as the source says; signed.
    pub const UTC_OFFSET: usize = 13;
}

/// Bits of [`word::FLAGS`].
pub mod flag {
    /// Received frames are stamped.
    pub const STAMPS: u64 = 1;
    /// [`word::OFFSET`](super::word::OFFSET) says something.
    pub const OFFSET: u64 = 1 << 1;
    /// [`word::PATH_DELAY`](super::word::PATH_DELAY) says something.
    pub const PATH_DELAY: u64 = 1 << 2;
    /// [`word::UTC_OFFSET`](super::word::UTC_OFFSET) says something.
    pub const UTC_OFFSET: u64 = 1 << 3;
    /// The clock shows TAI, as the source says, not UTC.
    pub const TAI: u64 = 1 << 4;
}

/// What the clock is led by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Nothing.
    #[default]
    None,
    /// The clock of the host, `CLOCK_REALTIME`.
    Host,
    /// A PTP master.
    Ptp,
}

/// What the clock is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Nobody leads it.
    #[default]
    Free,
    /// Somebody leads it, and it is not there yet.
    Acquiring,
    /// It goes with its source.
    Locked,
    /// It has lost its source, and goes on at the speed that it had.
    Holdover,
    /// Others follow it.
    Master,
}

impl Source {
    const ALL: [Self; 3] = [Self::None, Self::Host, Self::Ptp];
}

impl State {
    const ALL: [Self; 5] = [Self::Free, Self::Acquiring, Self::Locked, Self::Holdover, Self::Master];
}

/// [`word::STATE`] of a state and a source.
pub fn state_word(state: State, source: Source) -> u64 {
    state as u64 | (source as u64) << 8
}

/// What [`word::STATE`] says; `None` for a word that no card writes.
pub fn state_of(word: u64) -> Option<(State, Source)> {
    let state = usize::try_from(word & 0xff).ok()?;
    let source = usize::try_from(word >> 8).ok()?;
    Some((*State::ALL.get(state)?, *Source::ALL.get(source)?))
}

/// Something about the clock. What is not for telling takes the right `configure:clock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClockRequest {
    /// Asks for the clock page.
    Page,
    /// Steers the clock. Refused while another program leads it.
    Steer(Steering),
    /// Leads the clock from now on, until [`ClockRequest::Release`] or the end of the connection; refused while another does.
    Lead,
    /// Says how the clock does; of who leads it.
    Report {
        /// How it does.
        report: Report,
        /// Its offset has been measured since that was said last.
        measured: bool,
    },
    /// Leads it no longer: it goes on by itself.
    Release,
    /// For tests: the oscillator is wrong by so much from now on, in 2^-16 of a millionth. What is measured by it changes, what
    /// was set does not.
    Bend {
        /// At most [`MOST_DRIFT_PPM`] either way.
        scaled_ppm: i64,
    },
}

/// How the clock is steered; the words are those of Linux' PTP clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Steering {
    /// `settime`: the clock shows this time.
    Set {
        /// Seconds.
        seconds: u32,
        /// 2^-64 of a second each.
        fraction: u64,
    },
    /// `adjtime`: the clock goes forward or back by so many ns at once.
    Step {
        /// Nanoseconds.
        ns: i64,
    },
    /// `adjfine`: it goes so much faster than its nominal speed from now on, at most [`MOST_PPM`]. Not on top of what was before.
    Frequency {
        /// 2^-16 of a millionth each.
        scaled_ppm: i64,
    },
}

/// How a clock does, by who leads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What it is doing.
    pub state: State,
    /// What it is led by.
    pub source: Source,
    /// The clock less its source, in ns.
    pub offset_ns: Option<i64>,
    /// The path to the source, one way, in ns.
    pub path_delay_ns: Option<i64>,
    /// TAI less UTC, in s.
    pub utc_offset: Option<i16>,
    /// Whether the clock shows TAI.
    pub tai: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_survives_its_word() {
        for state in State::ALL {
            for source in Source::ALL {
                assert_eq!(state_of(state_word(state, source)), Some((state, source)));
            }
        }
        assert_eq!((state_of(5), state_of(3 << 8), state_of(u64::MAX)), (None, None, None));
        assert_eq!((State::ALL[4], Source::ALL[2]), (State::Master, Source::Ptp));
    }

    #[test]
    fn the_words_lie_in_the_page_and_not_on_the_line_of_the_magic() {
        const { assert!(WORDS_AT + 8 * WORDS <= PAGE_SIZE && SEQUENCE_AT / 64 != MAGIC_AT / 64) };
        assert_eq!(word::UTC_OFFSET + 1, WORDS);
    }
}
