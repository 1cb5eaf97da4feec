//! The card's clock: read from a page that the card writes, steered by requests.

use crate::error::Error;
use millrace_abi::clock::{ClockRequest, Report, SCALED_PER_PPM, Steering};
use millrace_clock::{ClockReader, PageError, Snapshot, Time, Timebase};
use millrace_driver::Client;
use std::sync::Arc;

/// The clock of a card. Reading it is no system call: some loads, and the clock of the system in its vDSO.
///
/// ```
/// use millrace::{Device, Time};
/// # fn main() -> Result<(), millrace::Error> {
/// let device = Device::open("embedded")?;
/// let clock = device.clock()?;
/// clock.set(Time::new(1_000, 0))?;
/// clock.step(-250_000_000)?;
/// let now = clock.now()?;
/// assert_eq!(now.seconds, 999);
/// clock.set_frequency_ppm(100.0)?; // 100 us more in each second
/// # Ok(())
/// # }
/// ```
pub struct Clock {
    client: Arc<Client>,
    reader: ClockReader,
}

/// Leads a card's clock: nobody else steers it meanwhile. When it is dropped, or its program ends, the clock goes on as it went,
/// and says that it is in holdover if it was locked.
pub struct Leader {
    client: Arc<Client>,
}

impl Clock {
    pub(crate) fn new(client: Arc<Client>) -> Result<Self, Error> {
        let reader = ClockReader::new(client.clock_page()?)?;
        Ok(Self { client, reader })
    }

    /// The time that it shows.
    ///
    /// # Errors
    /// [`PageError::Torn`], only when the card has ended in the very moment in which it was set.
    #[inline]
    pub fn now(&self) -> Result<Time, PageError> {
        self.reader.now()
    }

    /// The same in ns, as launch times are given.
    ///
    /// # Errors
    /// [`Error::Clock`] as [`Clock::now`].
    #[inline]
    pub fn nanoseconds(&self) -> Result<u64, Error> {
        Ok(self.now()?.total_nanoseconds())
    }

    /// How it goes: for whoever has more than one moment to convert.
    ///
    /// # Errors
    /// As [`Clock::now`].
    #[inline]
    pub fn timebase(&self) -> Result<Timebase, PageError> {
        self.reader.timebase()
    }

    /// All that its page says.
    ///
    /// # Errors
    /// As [`Clock::now`].
    pub fn snapshot(&self) -> Result<Snapshot, PageError> {
        self.reader.snapshot()
    }

    /// Sets it (`settime`).
    ///
    /// # Errors
    /// [`Error::Client`], refused for want of the right `configure:clock`, or because another program leads it.
    pub fn set(&self, time: Time) -> Result<(), Error> {
        self.steer(Steering::Set { seconds: time.seconds, fraction: time.fraction })
    }

    /// Moves it forward or back by so many ns (`adjtime`).
    ///
    /// # Errors
    /// As [`Clock::set`].
    pub fn step(&self, ns: i64) -> Result<(), Error> {
        self.steer(Steering::Step { ns })
    }

    /// Has it go so much faster than its nominal speed from now on, in 2^-16 of a millionth (`adjfine`).
    ///
    /// # Errors
    /// As [`Clock::set`]; refused beyond [`MOST_PPM`](millrace_abi::clock::MOST_PPM).
    pub fn set_frequency(&self, scaled_ppm: i64) -> Result<(), Error> {
        self.steer(Steering::Frequency { scaled_ppm })
    }

    /// As [`Clock::set_frequency`], in millionths.
    ///
    /// # Errors
    /// The same.
    pub fn set_frequency_ppm(&self, ppm: f64) -> Result<(), Error> {
        self.set_frequency((ppm * SCALED_PER_PPM as f64).round() as i64)
    }

    /// Makes its oscillator wrong by so much, in 2^-16 of a millionth: for tests of what leads it.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn bend(&self, scaled_ppm: i64) -> Result<(), Error> {
        Ok(self.client.clock(ClockRequest::Bend { scaled_ppm })?)
    }

    /// Leads it from now on.
    ///
    /// # Errors
    /// As [`Clock::set`].
    pub fn lead(&self) -> Result<Leader, Error> {
        self.client.clock(ClockRequest::Lead)?;
        Ok(Leader { client: self.client.clone() })
    }

    fn steer(&self, steering: Steering) -> Result<(), Error> {
        Ok(self.client.clock(ClockRequest::Steer(steering))?)
    }
}

impl Leader {
    /// Says how the clock does, to all who read it; `measured`: its offset has been measured since that was said last, which is what
    /// [`ClockSnapshot::reported`](millrace_clock::Snapshot::reported) tells them.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn report(&self, report: Report, measured: bool) -> Result<(), Error> {
        Ok(self.client.clock(ClockRequest::Report { report, measured })?)
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // A card that is gone has no leader either.
        let _ = self.client.clock(ClockRequest::Release);
    }
}
