//! The time-stamp unit (`docs/spec/nfb-card.md` §2.8): the card's clock as registers show it, and as lanes read it.

use crate::published::Published;
use millrace_abi::header::{LEN, RxMetadata};
use millrace_abi::register::{Offset, tsu as r};
use millrace_clock::{Increment, TICKS_PER_SECOND, Ticks, Time, Timebase};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// A timebase, and whether time stamps are wanted.
const WORDS: usize = Timebase::WORDS + 1;
/// One oscillator, and one pulse per second: that of the system's clock.
const SOURCES: u32 = 1 << r::SOURCES_CLOCK_SHIFT | 1;

/// The time-stamp unit: the side of the registers.
pub(crate) struct Tsu {
    clock: Published<WORDS>,
    latches: Mutex<Latches>,
}

struct Latches {
    // Bits 31:0, 63:32, 95:64.
    window: [u32; 3],
    timebase: Timebase,
    enabled: bool,
}

impl Latches {
    fn to_words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[..Timebase::WORDS].copy_from_slice(&self.timebase.to_words());
        words[Timebase::WORDS] = self.enabled.into();
        words
    }

    fn show(&mut self, time: Time) {
        self.window = [time.fraction as u32, (time.fraction >> 32) as u32, time.seconds];
    }

    fn fraction(&self) -> u64 {
        u64::from(self.window[0]) | u64::from(self.window[1]) << 32
    }
}

/// The system's time of day.
fn time_of_day() -> Time {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::new(now.as_secs() as u32, now.subsec_nanos())
}

impl Tsu {
    /// A clock that is not enabled and shows 0, or one that is and shows the time of day.
    pub fn new(enabled: bool) -> Self {
        let now = Ticks::now();
        let mut timebase = Timebase::new(now);
        if enabled {
            timebase.set_time(now, time_of_day());
        }
        let latches = Latches { window: [0; 3], timebase, enabled };
        Self { clock: Published::new(latches.to_words()), latches: Mutex::new(latches) }
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
            r::ENABLE => latches.enabled.into(),
            r::FREQUENCY => (TICKS_PER_SECOND - 1) as u32,
            r::SOURCES => SOURCES,
            // Of each kind of source there is one, so that no other can be selected.
            _ => 0,
        }
    }

    /// `true`: the clock goes differently from now on, or time stamps are wanted or not as before.
    #[must_use]
    pub fn write(&self, offset: u32, value: u32) -> bool {
        let mut latches = self.latches();
        match Offset::new(offset) {
            r::DATA_LOW => latches.window[0] = value,
            r::DATA_MIDDLE => latches.window[1] = value,
            r::DATA_HIGH => latches.window[2] = value,
            r::ENABLE => latches.enabled = value & 1 != 0,
            r::COMMAND => obey(&mut latches, value),
            _ => return false,
        }
        let words = latches.to_words();
        let changes = self.clock.read() != words;
        if changes {
            self.clock.publish(&words);
        }
        changes
    }
}

fn timebase_of([since, seconds, fraction, increment, _]: [u64; WORDS]) -> Timebase {
    Timebase::from_words([since, seconds, fraction, increment])
}

fn obey(latches: &mut Latches, command: u32) {
    let now = Ticks::now();
    match command {
        r::COMMAND_WRITE_INCREMENT => {
            let increment = Increment::new(latches.fraction());
            latches.timebase.set_increment(now, increment);
        }
        r::COMMAND_WRITE_TIME => {
            let time = Time { seconds: latches.window[2], fraction: latches.fraction() };
            latches.timebase.set_time(now, time);
        }
        r::COMMAND_READ_INCREMENT => {
            let fraction = latches.timebase.increment().fractions();
            latches.show(Time { seconds: 0, fraction });
        }
        r::COMMAND_READ_TIME => {
            let time = latches.timebase.at(now);
            latches.show(time);
        }
        r::COMMAND_READ_PPS_TIME => {
            // The pulse comes when the system's clock begins a second.
            let since_pulse = u64::from(time_of_day().nanoseconds());
            let pulse = Ticks::new(now.get().saturating_sub(since_pulse));
            let time = latches.timebase.at(pulse);
            latches.show(time);
        }
        _ => {}
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

    /// What goes before the next frame: nothing while the unit is not enabled. All frames of a burst have the time at
    /// which the lane came to the first of them; a burst is at most 64 frames, and reading the
    /// clock takes about as long as copying one.
    #[inline(always)]
    pub fn metadata(&mut self) -> &[u8] {
        if !self.enabled {
            return &[];
        }
        if !self.stamped {
            self.stamp();
        }
        &self.metadata
    }

    fn stamp(&mut self) {
        let time = self.timebase.at(Ticks::now());
        let metadata = RxMetadata { port: self.port, seconds: time.seconds, nanoseconds: time.nanoseconds() };
        (self.metadata, self.stamped) = (metadata.encode(), true);
    }
}
