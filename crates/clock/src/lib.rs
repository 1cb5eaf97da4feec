//! The clock of a card, as PTP hardware clocks are: a time, and an increment that steers it.
//!
//! A time-stamp unit adds an increment to a 96-bit time at every tick of an oscillator (`docs/spec/nfb-card.md` §2.8).
//! Software steers it by writing the increment, a fraction of a second, and sets it by writing the time. Here the
//! oscillator is a clock of the system ([`Ticks::now`], 1 GHz), and nothing is added tick by tick: [`Timebase`] says what
//! the time was at one tick, and from there it is a multiplication. Programs read it from a page ([`ClockReader`]) without a
//! system call; a [`Servo`] leads it after another clock.
//!
//! ```
//! use millrace_clock::{Increment, Ticks, Time, Timebase};
//! let mut clock = Timebase::new(Ticks::new(1000));
//! clock.set_time(Ticks::new(1000), Time { seconds: 7, fraction: 1 << 63 });
//! // A second later, or nearly: the increment of a billionth of a second is rounded down.
//! let later = clock.at(Ticks::new(1_000_001_000));
//! assert_eq!((later.seconds, later.nanoseconds()), (8, 499_999_999));
//! clock.set_increment(Ticks::new(1_000_001_000), Increment::new(0));
//! assert_eq!(clock.at(Ticks::new(9_000_000_000)), later, "it stands");
//! ```
#![forbid(unsafe_code)]

mod page;
mod servo;
mod time;
mod timebase;

pub use page::{ClockPage, ClockReader, PageError, Snapshot, nominal};
pub use servo::{Correction, Servo};
pub use time::{Increment, Time};
pub use timebase::{TICKS_PER_SECOND, Ticks, Timebase};
