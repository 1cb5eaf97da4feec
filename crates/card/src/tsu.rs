//! The time-stamp unit (`docs/spec/nfb-card.md` §2.8): the card's clock as registers show it, and as lanes read it.

use crate::published::Published;
use millrace_abi::clock::{MOST_DRIFT_PPM, MOST_PPM, Report, SCALED_PER_PPM, State, Steering};
use millrace_abi::header::{LEN, RxMetadata};
use millrace_abi::register::{Offset, tsu as r};
use millrace_clock::{ClockPage, Increment, PageError, Snapshot, TICKS_PER_SECOND, Ticks, Time, Timebase, nominal};
use rustix::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// A timebase, and whether time stamps are wanted.
const WORDS: usize = Timebase::WORDS + 1;
/// One oscillator, and one pulse per second: that of the system's clock.
const SOURCES: u32 = 1 << r::SOURCES_CLOCK_SHIFT | 1;

/// The time-stamp unit: the side of the registers, and of those who steer it by requests.
pub(crate) struct Tsu {
    // For workers.
    clock: Published<WORDS>,
    // For programs.
    page: ClockPage,
    latches: Mutex<Latches>,
}

/// A steering that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SteeringError {
    /// Too fast or too slow.
    #[error("the clock can be steered by at most {MOST_PPM} ppm from its nominal speed")]
    TooFar,
    /// More than a test needs.
    #[error("the oscillator can be made wrong by at most {MOST_DRIFT_PPM} ppm")]
    TooWrong,
}

struct Latches {
    // Bits 31:0, 63:32, 95:64.
    window: [u32; 3],
    // Of the oscillator as it is: what software has set, and by how much it was made wrong.
    increment: Increment,
    said: Snapshot,
}

impl Latches {
    fn to_words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[..Timebase::WORDS].copy_from_slice(&self.said.timebase.to_words());
        words[Timebase::WORDS] = self.said.stamps.into();
        words
    }

    fn set_time(&mut self, now: Ticks, time: Time) {
        self.said.timebase.set_time(now, time);
        self.said.steps += 1;
    }

    /// A clock that holds over what it followed, and is set, does so no more.
    fn forget_source(&mut self, now: Ticks) {
        if self.said.report.state == State::Holdover {
            (self.said.report, self.said.changed, self.said.reported) = (Report::default(), now, None);
        }
    }

    /// The increment that software wants, of an oscillator that may be wrong.
    fn set_increment(&mut self, now: Ticks, increment: Increment) {
        self.increment = increment;
        self.said.scaled_ppm = increment.faster_than(nominal());
        self.said.timebase.set_increment(now, increment.faster(self.said.drift));
    }

    fn show(&mut self, time: Time) {
        self.window = window(time);
    }

    fn fraction(&self) -> u64 {
        u64::from(self.window[0]) | u64::from(self.window[1]) << 32
    }
}

/// A time as the data registers show it.
fn window(time: Time) -> [u32; 3] {
    [time.fraction as u32, (time.fraction >> 32) as u32, time.seconds]
}

/// The system's time of day.
fn time_of_day() -> Time {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::new(now.as_secs() as u32, now.subsec_nanos())
}

impl Tsu {
    /// A clock that is not enabled and shows 0, or one that is and shows the time of day.
    pub fn new(enabled: bool) -> Result<Self, PageError> {
        let now = Ticks::now();
        let mut timebase = Timebase::new(now);
        if enabled {
            timebase.set_time(now, time_of_day());
        }
        let said = Snapshot { stamps: enabled, ..Snapshot::new(timebase, now) };
        let latches = Latches { window: [0; 3], increment: timebase.increment(), said };
        let (clock, page) = (Published::new(latches.to_words()), ClockPage::new(&said)?);
        Ok(Self { clock, page, latches: Mutex::new(latches) })
    }

    /// The page that programs read the clock from.
    pub fn page(&self) -> Option<BorrowedFd<'_>> {
        self.page.fd()
    }

    /// Steers the clock. `false`: it goes as it went.
    pub fn steer(&self, steering: Steering) -> Result<bool, SteeringError> {
        let mut latches = self.latches();
        let now = Ticks::now();
        match steering {
            Steering::Set { seconds, fraction } => {
                latches.set_time(now, Time { seconds, fraction });
                latches.forget_source(now);
            }
            Steering::Step { ns } => {
                let time = latches.said.timebase.at(now).plus_nanoseconds(ns);
                latches.set_time(now, time);
            }
            Steering::Frequency { scaled_ppm } => {
                if scaled_ppm.unsigned_abs() > MOST_PPM.unsigned_abs() * SCALED_PER_PPM.unsigned_abs() {
                    return Err(SteeringError::TooFar);
                }
                let increment = nominal().faster(scaled_ppm);
                if increment == latches.increment {
                    return Ok(false);
                }
                latches.set_increment(now, increment);
            }
        }
        self.publish(&latches);
        Ok(true)
    }

    /// Makes the oscillator wrong, for a test. The time does not jump.
    pub fn bend(&self, scaled_ppm: i64) -> Result<(), SteeringError> {
        if scaled_ppm.unsigned_abs() > MOST_DRIFT_PPM.unsigned_abs() * SCALED_PER_PPM.unsigned_abs() {
            return Err(SteeringError::TooWrong);
        }
        let mut latches = self.latches();
        let increment = latches.increment;
        latches.said.drift = scaled_ppm;
        latches.set_increment(Ticks::now(), increment);
        self.publish(&latches);
        Ok(())
    }

    /// Says how the clock does; `measured`: the offset has just been measured, and was not when that was said before.
    pub fn report(&self, report: Report, measured: bool) {
        let (mut latches, now) = (self.latches(), Ticks::now());
        let before = latches.said.report;
        if (before.state, before.source) != (report.state, report.source) {
            latches.said.changed = now;
        }
        if measured && report.offset_ns.is_some() {
            latches.said.reported = Some(now);
        }
        latches.said.report = report;
        self.page.publish(&latches.said);
    }

    /// Nobody leads the clock any more, who did: it goes on as it went.
    pub fn release(&self) {
        let report = self.latches().said.report;
        // Who was not there yet has led it nowhere: what he has measured is no speed to go on with.
        let has_arrived = matches!(report.state, State::Locked | State::Holdover);
        let state = if has_arrived { State::Holdover } else { State::Free };
        self.report(Report { state, ..report }, false);
    }

    /// Makes readable what has changed.
    fn publish(&self, latches: &Latches) {
        self.clock.publish(&latches.to_words());
        self.page.publish(&latches.said);
    }

    fn latches(&self) -> MutexGuard<'_, Latches> {
        self.latches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clock, and a number that changes with it, unless it is being changed just now. It goes whether or not time stamps are
    /// enabled.
    #[inline]
    pub fn look(&self) -> Option<(Timebase, u64)> {
        self.clock.look().map(|(words, version)| (timebase_of(words), version))
    }

    /// The clock. For those who can wait.
    pub fn timebase(&self) -> Timebase {
        timebase_of(self.clock.read())
    }

    /// As a writer that has only begun.
    #[cfg(test)]
    pub fn begin_writing(&self) {
        self.clock.begin_writing();
    }

    pub fn read(&self, offset: u32) -> u32 {
        let latches = self.latches();
        match Offset::new(offset) {
            r::DATA_LOW => latches.window[0],
            r::DATA_MIDDLE => latches.window[1],
            r::DATA_HIGH => latches.window[2],
            r::STATUS => r::STATUS_PPS_ACTIVE | r::STATUS_CLOCK_ACTIVE,
            r::ENABLE => latches.said.stamps.into(),
            r::FREQUENCY => (TICKS_PER_SECOND - 1) as u32,
            r::SOURCES => SOURCES,
            // Of each kind of source there is one, so that no other can be selected.
            _ => 0,
        }
    }

    /// What the data registers would show after a command that asks, without touching them: who asks this way is in nobody's way. `None`: the command
    /// does not ask.
    pub fn ask(&self, command: u32) -> Option<[u32; 3]> {
        answer(&self.latches(), command, Ticks::now()).map(window)
    }

    /// `true`: the clock goes differently from now on, or time stamps are wanted or not as before.
    #[must_use]
    pub fn write(&self, offset: u32, value: u32) -> bool {
        let mut latches = self.latches();
        match Offset::new(offset) {
            r::DATA_LOW => latches.window[0] = value,
            r::DATA_MIDDLE => latches.window[1] = value,
            r::DATA_HIGH => latches.window[2] = value,
            r::ENABLE => latches.said.stamps = value & 1 != 0,
            r::COMMAND => obey(&mut latches, value),
            _ => return false,
        }
        let words = latches.to_words();
        let changes = self.clock.read() != words;
        if changes {
            self.publish(&latches);
        }
        changes
    }
}

fn timebase_of([since, seconds, fraction, increment, _]: [u64; WORDS]) -> Timebase {
    Timebase::from_words([since, seconds, fraction, increment])
}

/// What a command that asks is answered with; `None`: it asks for nothing.
fn answer(latches: &Latches, command: u32, now: Ticks) -> Option<Time> {
    let timebase = &latches.said.timebase;
    Some(match command {
        r::COMMAND_READ_INCREMENT => Time { seconds: 0, fraction: latches.increment.fractions() },
        r::COMMAND_READ_TIME => timebase.at(now),
        r::COMMAND_READ_PPS_TIME => {
            // The pulse comes when the system's clock begins a second.
            let since_pulse = u64::from(time_of_day().nanoseconds());
            timebase.at(Ticks::new(now.get().saturating_sub(since_pulse)))
        }
        _ => return None,
    })
}

fn obey(latches: &mut Latches, command: u32) {
    let now = Ticks::now();
    match command {
        r::COMMAND_WRITE_INCREMENT => {
            let increment = Increment::new(latches.fraction());
            latches.set_increment(now, increment);
        }
        r::COMMAND_WRITE_TIME => {
            let time = Time { seconds: latches.window[2], fraction: latches.fraction() };
            latches.set_time(now, time);
            latches.forget_source(now);
        }
        _ => {
            if let Some(time) = answer(latches, command, now) {
                latches.show(time);
            }
        }
    }
}

/// The time-stamp unit as a lane has it: makes the metadata of the frames of one port.
pub(crate) struct Stamper {
    tsu: Arc<Tsu>,
    version: u64,
    timebase: Timebase,
    enabled: bool,
    port: u8,
    stamped: bool,
    metadata: [u8; LEN],
}

impl Stamper {
    pub fn new(tsu: Arc<Tsu>, port: usize) -> Self {
        let timebase = Timebase::new(Ticks::new(0));
        let mut this = Self {
            tsu,
            // No version is odd, hence the first burst takes over what the registers say.
            version: u64::MAX,
            timebase,
            enabled: false,
            port: port as u8,
            stamped: false,
            metadata: [0; LEN],
        };
        this.begin();
        this
    }

    /// Begins a burst: frames from now on have a new time stamp.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.stamped = false;
        if self.tsu.clock.version() != self.version {
            self.take_over();
        }
    }

    #[cold]
    fn take_over(&mut self) {
        // If they are being written just now, the next burst will see them.
        if let Some((words, version)) = self.tsu.clock.look() {
            self.timebase = timebase_of(words);
            (self.enabled, self.version) = (words[Timebase::WORDS] != 0, version);
        }
    }

    /// Whether frames are stamped.
    #[inline(always)]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The next frame came at this tick, as its port knows; it did not come later than now.
    pub fn arrived(&mut self, at: Ticks) {
        self.stamp(at.min(Ticks::now()));
    }

    /// What goes before the next frame: nothing while the unit is not enabled. Where the port does not know when each frame came
    /// ([`Stamper::arrived`]), all frames of a burst have the time at which the lane came to the first of them; a burst is at
    /// most 64 frames, and reading the clock takes about as long as copying one.
    #[inline(always)]
    pub fn metadata(&mut self) -> &[u8] {
        if !self.enabled {
            return &[];
        }
        if !self.stamped {
            self.stamp(Ticks::now());
        }
        &self.metadata
    }

    fn stamp(&mut self, at: Ticks) {
        let time = self.timebase.at(at);
        let metadata = RxMetadata { port: self.port, seconds: time.seconds, nanoseconds: time.nanoseconds() };
        (self.metadata, self.stamped) = (metadata.encode(), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whichever way the clock is set.
    #[test]
    fn a_clock_that_is_set_holds_over_nothing() {
        let tsu = Tsu::new(true).unwrap();
        tsu.report(Report { state: State::Holdover, ..Report::default() }, false);
        assert_eq!(tsu.latches().said.report.state, State::Holdover);
        _ = tsu.write(r::COMMAND.bytes(), r::COMMAND_WRITE_TIME);
        assert_eq!(tsu.latches().said.report.state, Report::default().state);
    }
}
