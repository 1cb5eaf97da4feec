//! One ring of a port with a schedule: its class, its rate, and until when it waits.

use super::{Leave, PortSchedule, Terms};
use crate::pass_clock::PassClock;
use millrace_abi::schedule::OVERHEAD;
use millrace_dma::Span;
use millrace_port::Accept;
use millrace_ring::FrameSink;
use std::sync::Arc;

/// What the frames of a ring have to keep to.
pub(crate) struct Discipline {
    schedule: Arc<PortSchedule>,
    // Until the schedule counts, and from then on; whether it does, as found by which version of the clock.
    terms: [Terms; 2],
    counts: bool,
    found: u64,
    // When the rate allows the next frame.
    next: u64,
    // Until when the frame at the head waits, and by which version of the clock that was found.
    until: u64,
    version: u64,
}

impl Discipline {
    /// That of a TX queue.
    pub fn new(schedule: Arc<PortSchedule>, queue: u32) -> Self {
        let terms = schedule.terms(queue);
        // No version is odd.
        Self { schedule, terms, counts: false, found: u64::MAX, next: 0, until: 0, version: 0 }
    }

    /// Looks whether the schedule counts by now, or what was there before it.
    pub fn settle(&mut self, clock: &PassClock) {
        if !self.counts || self.found != clock.version() {
            self.settle_at(clock.exactly());
            self.found = clock.version();
        }
    }

    fn settle_at(&mut self, now: u64) {
        let counts = self.schedule.counts(now);
        if counts != self.counts {
            // What another rate allows says nothing of this one.
            (self.counts, self.next) = (counts, 0);
        }
    }

    fn terms(&self) -> Terms {
        self.terms[usize::from(self.counts)]
    }

    /// The class that counts, as was found last.
    pub fn class(&self) -> u8 {
        self.terms().class
    }

    /// How many ns the frame at the head has to wait; 0: it has to be judged.
    pub fn waits(&self, clock: &PassClock) -> u64 {
        if self.until == 0 {
            return 0;
        }
        let left = self.until.saturating_sub(clock.exactly());
        // By a clock that was set since, the time means something else.
        if self.version == clock.version() { left } else { 0 }
    }

    /// Until when the frame at the head waits, in ns of the card's clock; `None`: it has to be judged.
    pub fn waits_until(&self, clock: &PassClock) -> Option<u64> {
        (self.waits(clock) > 0).then_some(self.until)
    }

    /// Until when the frame at the head waits, as was found last; 0: it does not.
    pub fn until(&self) -> u64 {
        self.until
    }

    fn interval(&self, len: usize) -> u64 {
        ((len as u64 + OVERHEAD) * 8_000_000_000).div_ceil(self.terms().rate.max(1))
    }

    fn judge(&mut self, len: usize, clock: &PassClock) -> (Leave, u64) {
        let now = clock.exactly();
        self.settle_at(now);
        if self.terms().rate > 0 {
            // Further ahead than one frame it is only when the clock was set back.
            self.next = self.next.min(now.saturating_add(self.interval(usize::from(u16::MAX))));
            if self.next > now {
                let from = if self.counts { u64::MAX } else { self.schedule.from };
                return (Leave::At(self.next.min(from)), now);
            }
        }
        (self.schedule.leave(self.terms, len, now), now)
    }

    /// A frame has left at `now`. The distance from one to the next is kept, not made up for after a pause.
    fn left(&mut self, len: usize, now: u64) {
        if self.terms().rate > 0 {
            let interval = self.interval(len);
            // Late by less than a frame, it keeps the distances that it had.
            let due = if now.saturating_sub(self.next) < interval { self.next } else { now };
            self.next = due + interval;
        }
    }
}

/// A sink that takes frames only when they may leave.
pub(crate) struct Scheduled<'s, S> {
    pub behind: S,
    pub discipline: &'s mut Discipline,
    pub clock: &'s PassClock,
    /// Frames, and their bytes, that no window is long enough for: taken and dropped.
    pub never: (u64, u64),
    /// The class has something that could leave if the wire were free, or that has left.
    pub is_ahead: bool,
    has_dropped: bool,
    // When the last frame was judged.
    judged: u64,
}

impl<'s, S: FrameSink> Scheduled<'s, S> {
    pub fn new(behind: S, discipline: &'s mut Discipline, clock: &'s PassClock) -> Self {
        discipline.until = 0;
        Self { behind, discipline, clock, never: (0, 0), is_ahead: false, has_dropped: false, judged: 0 }
    }

    fn wait(&mut self, until: u64) -> Accept {
        (self.discipline.until, self.discipline.version) = (until, self.clock.version());
        Accept::Full
    }
}

impl<S: FrameSink> FrameSink for Scheduled<'_, S> {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        let len = frame.len();
        let (leave, now) = self.discipline.judge(len, self.clock);
        (self.has_dropped, self.judged) = (leave == Leave::Never, now);
        match leave {
            Leave::At(until) => return self.wait(until),
            Leave::Wire(until) => {
                self.is_ahead = true;
                return self.wait(until);
            }
            Leave::Never => {
                self.never.0 += 1;
                self.never.1 += len as u64;
                return Accept::Taken;
            }
            Leave::Now => {}
        }
        self.is_ahead = true;
        match self.behind.take(frame) {
            Accept::Taken => {
                self.discipline.left(len, now);
                Accept::Taken
            }
            Accept::Full => {
                self.discipline.schedule.give_back(len, now);
                Accept::Full
            }
        }
    }

    fn has_dropped(&self) -> bool {
        self.has_dropped
    }

    fn let_go_at(&self) -> Option<u64> {
        Some(self.judged)
    }
}
