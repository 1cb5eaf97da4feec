//! The engine: a port of statime, its timers, and frames.

use crate::Led;
use crate::filter::{Seen, Watched};
use crate::one_step::{self, Ahead};
use crate::settings::{Role, Settings};
use crate::timers::{Timer, Timers};
use crate::timescale;
use crate::transport::{Message, Transport};
use millrace_abi::clock::{Report, Source, State};
use millrace_clock::Time;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use statime::PtpInstance;
use statime::config::{AcceptAnyMaster, TimePropertiesDS};
use statime::port::{InBmca, NoForwardedTLVs, Port, PortAction, PortActionIterator, Running, TimestampContext};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// What the middle one of the last offsets must not exceed for a clock to be called locked, in ns.
const NEAR: i64 = 20_000;
/// As many times in a row it has to be near.
const SETTLED: u32 = 4;
/// Intervals between Sync messages without one after which the clock is on its own, and how long that is at least, in ns: a
/// program that others keep off its core for a moment has not lost its master.
const SILENT_SYNCS: u64 = 4;
const SILENT_LEAST: u64 = 1_000_000_000;
/// Intervals of which the longest counts: some messages come together because they were looked at late.
const INTERVALS: usize = 4;
/// Times before it are of a clock that nobody has set: they are not reckoned with, in s.
const FIRST_SECOND: u32 = 3;
/// Frames to be sent that nobody fetches: the oldest go.
const MOST_FRAMES: usize = 64;

/// What the engine stands on: to be made before it, and to outlive it.
pub struct Instance(PtpInstance<Watched>);

impl Instance {
    /// A clock that is to be so.
    pub fn new(settings: &Settings) -> Self {
        Self(PtpInstance::new(settings.instance(), settings.time_properties()))
    }
}

/// A frame to be sent.
pub struct Outgoing {
    /// The whole frame, without FCS.
    pub frame: Vec<u8>,
    /// When it left is to be told with this ([`Engine::sent`]).
    pub sent: Option<Sent>,
}

/// What a frame was, whose time matters.
pub struct Sent(What);

enum What {
    /// statime wants to know, and of a Sync, how long frames take that were handed over then.
    Told(TimestampContext, Option<Time>),
    /// It has said itself when it would leave; it was handed over then.
    Expected(Time),
}

/// A message to be sent. When a Sync leaves is written into it as late as can be.
struct Due {
    data: Vec<u8>,
    link_local: bool,
    context: Option<TimestampContext>,
}

/// How the clock does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status {
    /// As it is told to others.
    pub report: Report,
    /// The last offset as it was measured, before the filter, in ns.
    pub measured_ns: Option<i64>,
    /// Offsets measured so far.
    pub measurements: u64,
    /// Offsets that were passed over: more came than a clock is led by.
    pub passed_over: u64,
    /// How long the path would be, in ns, by stamps that are wrong, of this clock or the other one: it is not led by them.
    pub impossible_ns: Option<i64>,
    /// The clock that is followed.
    pub master: Option<[u8; 8]>,
}

/// A clock as statime has it.
struct Clock<C> {
    led: Rc<RefCell<C>>,
}

impl<C: Led> statime::Clock for Clock<C> {
    type Error = ();

    fn now(&self) -> statime::time::Time {
        to_statime(self.led.borrow().now())
    }

    fn step_clock(&mut self, offset: statime::time::Duration) -> Result<statime::time::Time, ()> {
        let ns = offset.nanos_rounded().clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        let done = self.led.borrow_mut().step(ns);
        if done { Ok(self.now()) } else { Err(()) }
    }

    fn set_frequency(&mut self, ppm: f64) -> Result<statime::time::Time, ()> {
        let done = self.led.borrow_mut().set_frequency(ppm);
        if done { Ok(self.now()) } else { Err(()) }
    }

    fn set_properties(&mut self, _: &TimePropertiesDS) -> Result<(), ()> {
        // They are read from the instance.
        Ok(())
    }
}

type PortOf<'a, L, C> = Port<'a, L, AcceptAnyMaster, SmallRng, Clock<C>, Watched>;

/// A PTP ordinary clock. Times that it is told with `now` are ns of anything that goes on; times of frames are those of the clock.
pub struct Engine<'a, C: Led> {
    instance: &'a Instance,
    // `None` only while it is with statime's comparison of masters.
    port: Option<PortOf<'a, Running, C>>,
    out: Out,
    seen: Rc<Cell<Seen>>,
    led: Rc<RefCell<C>>,
    settings: Settings,
    last: Last,
}

/// What was seen last of offsets.
#[derive(Default)]
struct Last {
    offsets: u64,
    at: Option<u64>,
    settled: u32,
    intervals: [u64; INTERVALS],
    was_led: bool,
    report: Report,
}

/// What actions come to.
struct Out {
    timers: Timers,
    messages: VecDeque<Due>,
    transport: Transport,
    mac: [u8; 6],
    utc_offset: Option<i16>,
    // With one-step Sync.
    ahead: Option<Ahead>,
}

impl<'a, C: Led> Engine<'a, C> {
    /// A clock that begins now, over `led`, which goes faster than nominal by `ppm` for now.
    pub fn new(instance: &'a Instance, settings: &Settings, led: C, ppm: f64, now: u64) -> Self {
        let (led, seen) = (Rc::new(RefCell::new(led)), Rc::new(Cell::new(Seen { ppm, ..Seen::default() })));
        let clock = Clock { led: led.clone() };
        let rng = SmallRng::seed_from_u64(settings.seed);
        let (port, actions) = instance.0.add_port(settings.port(), seen.clone(), clock, rng).end_bmca();
        let mut out = Out {
            timers: Timers::default(),
            messages: VecDeque::new(),
            transport: settings.transport,
            mac: settings.mac,
            utc_offset: settings.utc_offset,
            ahead: settings.one_step.then(Ahead::default),
        };
        out.take(actions, now);
        out.timers.set(Timer::Compare, now, instance.0.bmca_interval());
        Self { instance, port: Some(port), out, seen, led, settings: *settings, last: Last::default() }
    }

    /// A frame has come, at `at` by the clock. `false`: it is no message of PTP.
    pub fn receive(&mut self, now: u64, frame: &[u8], at: Time) -> bool {
        let Some(message) = self.out.transport.message(frame) else { return false };
        // statime computes with times that are not before 1970, and what is taken off them is never this much.
        if at.seconds < FIRST_SECOND {
            return true;
        }
        let Some(port) = &mut self.port else { return true };
        self.seen.set(Seen { now, ..self.seen.get() });
        let actions = match message {
            Message::Event(message) => port.handle_event_receive(message, to_statime(at)),
            Message::General(message) => port.handle_general_receive(message),
        };
        self.out.take(actions, now);
        self.note(now);
        true
    }

    /// A frame has left at `at`.
    pub fn sent(&mut self, now: u64, sent: Sent, at: Time) {
        match (sent.0, &mut self.port) {
            (What::Told(context, from), Some(port)) => {
                if let (Some(from), Some(ahead)) = (from, &mut self.out.ahead) {
                    ahead.learn(from, at);
                }
                let actions = port.handle_send_timestamp(context, to_statime(at));
                self.out.take(actions, now);
            }
            (What::Expected(from), _) => {
                if let Some(ahead) = &mut self.out.ahead {
                    ahead.learn(from, at);
                }
            }
            (What::Told(..), None) => {}
        }
        self.note(now);
    }

    /// Does what it is time for.
    pub fn tick(&mut self, now: u64) {
        for timer in self.out.timers.take_due(now) {
            if timer == Timer::Compare {
                self.compare(now);
                continue;
            }
            let Some(port) = &mut self.port else { return };
            let actions = match timer {
                Timer::Announce => port.handle_announce_timer(&mut NoForwardedTLVs),
                Timer::Sync => port.handle_sync_timer(),
                Timer::Delay => port.handle_delay_request_timer(),
                Timer::Receipt => port.handle_announce_receipt_timer(),
                Timer::Filter | Timer::Compare => port.handle_filter_update_timer(),
            };
            self.out.take(actions, now);
        }
        self.note(now);
    }

    /// Compares the masters that have announced themselves.
    fn compare(&mut self, now: u64) {
        if let Some(port) = self.port.take() {
            let mut port: PortOf<'a, InBmca, C> = port.start_bmca();
            self.instance.0.bmca(&mut [&mut port]);
            let (port, actions) = port.end_bmca();
            self.out.take(actions, now);
            self.port = Some(port);
        }
        self.out.timers.set(Timer::Compare, now, self.instance.0.bmca_interval());
    }

    /// When [`Engine::tick`] has something to do.
    pub fn next(&self) -> Option<u64> {
        self.out.timers.next()
    }

    /// The next frame, to be sent at once: a one-step Sync says when it will leave.
    pub fn next_frame(&mut self) -> Option<Outgoing> {
        let due = self.out.messages.pop_front()?;
        Some(self.out.outgoing(due, || self.led.borrow().now()))
    }

    /// Takes note of what has been measured.
    fn note(&mut self, now: u64) {
        let seen = self.seen.get();
        let last = &mut self.last;
        if seen.offsets != last.offsets {
            last.offsets = seen.offsets;
            let near = seen.middle_ns.is_some_and(|middle| middle.abs() <= NEAR);
            last.settled = if near { last.settled.saturating_add(1) } else { 0 };
            if let Some(before) = last.at.replace(now) {
                last.intervals.rotate_left(1);
                last.intervals[INTERVALS - 1] = now.saturating_sub(before);
            }
        }
        let report = self.report(now);
        self.last.was_led |= report.state == State::Locked;
        self.last.report = report;
    }

    fn report(&self, now: u64) -> Report {
        let (last, properties) = (&self.last, self.instance.0.time_properties_ds());
        let Some(port) = &self.port else { return last.report };
        // Seconds that a master takes for a Sync at the most count as well, before two have come.
        let interval = match last.intervals.iter().max() {
            None | Some(0) => 2_000_000_000,
            Some(&longest) => longest,
        };
        let silent = interval.saturating_mul(SILENT_SYNCS).max(SILENT_LEAST);
        let fresh = last.at.is_some_and(|at| now.saturating_sub(at) <= silent);
        let state = match (port.is_master(), port.is_steering()) {
            (true, _) if self.settings.role != Role::Slave => State::Master,
            (_, true) if fresh && last.settled >= SETTLED => State::Locked,
            _ if last.was_led && !(port.is_steering() && fresh) => State::Holdover,
            _ => State::Acquiring,
        };
        // Without a master statime makes up what time it is.
        let (utc_offset, tai) = match state {
            State::Master => (self.settings.utc_offset, self.settings.utc_offset.is_some()),
            _ if port.is_steering() => (properties.utc_offset(), properties.is_ptp()),
            _ => (last.report.utc_offset, last.report.tai),
        };
        let seen = self.seen.get();
        let measured = (seen.offsets > 0 && state != State::Master).then_some(seen.offset_ns);
        Report {
            state,
            source: if state == State::Master { Source::None } else { Source::Ptp },
            offset_ns: measured,
            path_delay_ns: seen.delay_ns.filter(|_| state != State::Master),
            utc_offset,
            tai,
        }
    }

    /// It ends: the clock goes on at the speed at which it would neither gain nor lose, as far as is known.
    pub fn leave(&mut self, now: u64) {
        if let Some(port) = self.port.as_mut().filter(|port| port.is_steering()) {
            let actions = port.handle_filter_update_timer();
            self.out.take(actions, now);
        }
    }

    /// How the clock does.
    pub fn status(&mut self, now: u64) -> Status {
        self.note(now);
        let seen = self.seen.get();
        let steering = self.port.as_ref().is_some_and(Port::is_steering);
        let master = self.instance.0.parent_ds().grandmaster_identity.0;
        Status {
            report: self.last.report,
            measured_ns: (seen.offsets > 0).then_some(seen.offset_ns),
            measurements: seen.offsets,
            passed_over: seen.passed_over,
            impossible_ns: seen.is_in_doubt().then_some(seen.impossible_ns),
            master: steering.then_some(master),
        }
    }
}

impl Out {
    /// Does what statime wants to be done. Of a set of actions one at most is a frame whose time matters.
    fn take(&mut self, actions: PortActionIterator<'_>, now: u64) {
        for action in actions {
            match action {
                PortAction::SendEvent { context, data, link_local } => self.send(data, link_local, Some(context)),
                PortAction::SendGeneral { data, link_local } if timescale::is_announce(data) => {
                    let mut message = data.to_vec();
                    timescale::write(&mut message, self.utc_offset);
                    self.send(&message, link_local, None);
                }
                PortAction::SendGeneral { data, link_local } => self.send(data, link_local, None),
                PortAction::ResetAnnounceTimer { duration } => self.timers.set(Timer::Announce, now, duration),
                PortAction::ResetSyncTimer { duration } => self.timers.set(Timer::Sync, now, duration),
                PortAction::ResetDelayRequestTimer { duration } => self.timers.set(Timer::Delay, now, duration),
                PortAction::ResetAnnounceReceiptTimer { duration } => self.timers.set(Timer::Receipt, now, duration),
                PortAction::ResetFilterUpdateTimer { duration } => self.timers.set(Timer::Filter, now, duration),
                PortAction::ForwardTLV { .. } => {}
            }
        }
    }

    fn send(&mut self, data: &[u8], link_local: bool, context: Option<TimestampContext>) {
        if self.messages.len() == MOST_FRAMES {
            self.messages.pop_front();
        }
        self.messages.push_back(Due { data: data.to_vec(), link_local, context });
    }

    /// A message as a frame that is handed over `now`.
    fn outgoing(&self, due: Due, now: impl FnOnce() -> Time) -> Outgoing {
        let Due { mut data, link_local, context } = due;
        let ahead = self.ahead.filter(|_| one_step::is_sync(&data));
        let what = context.map(|context| {
            let Some(ahead) = ahead else { return What::Told(context, None) };
            let from = now();
            if !ahead.is_known() {
                // The first one is two-step, and tells how long a frame takes.
                return What::Told(context, Some(from));
            }
            one_step::write(&mut data, ahead.of(from));
            What::Expected(from)
        });
        Outgoing { frame: self.transport.frame(self.mac, &data, link_local), sent: what.map(Sent) }
    }
}

fn to_statime(time: Time) -> statime::time::Time {
    statime::time::Time::from_nanos(time.total_nanoseconds())
}
