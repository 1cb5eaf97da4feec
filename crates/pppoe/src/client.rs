//! The client: finds a session, has PPP in it, says what came of it, and begins again.

use crate::config::ConfigError;
use crate::discovery::{Discovery, Found, Step};
use crate::frame::{self, code};
use crate::layer::Out;
use crate::link::{Heard, Link, News};
use crate::tag::{self, Tags};
use crate::{Config, Failure, MacAddress, Moment, Session, data, text};
use fastrand::Rng;
use millrace_packet::parse::ppp;
use std::collections::VecDeque;
use std::time::Duration;

/// Control frames that are looked at in a row, and in a second on the average.
const MOST_AT_ONCE: u32 = 100;
const MOST_PER_SECOND: u32 = 50;
/// Frames and events that wait for who takes them out after each call: each call adds a few.
const MOST_WAITING: usize = 64;
/// A session that has lasted for so long was one: the next attempt comes soon.
const LASTING: Duration = Duration::from_secs(30);
/// How long to wait at least when somebody has to change something.
const RELUCTANCE: Duration = Duration::from_secs(30);

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A PADI was sent.
    Looking,
    /// This access concentrator offers a session, and is asked for it.
    Asked(MacAddress, String),
    /// It has given this one, in which PPP begins.
    Given(u16),
    /// Packets can go.
    Up(Session),
    /// They still can, but not in the same way: other addresses, or another MTU.
    Changed(Session),
    /// Packets of more than 1492 bytes were agreed on, and do not get through (RFC 4638 §6). [`Event::Changed`] follows.
    SmallOnly,
    /// Packets cannot go any more.
    Down(Failure),
    /// There was no session.
    Failed(Failure),
    /// After so long there is another attempt.
    Waiting(Duration),
    /// There is none: [`Client::close`].
    Closed,
}

/// What a frame was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// Looked at.
    Control,
    /// A packet of IPv4 or IPv6.
    Packet(&'a [u8]),
    /// Left out, and counted.
    Unheard(Unheard),
}

/// Why a frame was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unheard {
    /// It is not for us, or not of this session.
    Stranger,
    /// It, or the control packet in it, is malformed.
    Malformed,
    /// It is of a protocol, or a packet, for which it is not the time.
    Untimely,
    /// There are too many control frames.
    TooMany,
    /// It says that it is a packet of IPv4 or IPv6, and is not.
    Packet,
    /// Frames of ours that nobody has taken out.
    NotSent,
}

impl Unheard {
    /// All, in the order of [`Client::unheard`].
    pub const ALL: [Self; 6] =
        [Self::Stranger, Self::Malformed, Self::Untimely, Self::TooMany, Self::Packet, Self::NotSent];

    /// A name, for counters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::Malformed => "malformed",
            Self::Untimely => "untimely",
            Self::TooMany => "too-many",
            Self::Packet => "packet",
            Self::NotSent => "not-sent",
        }
    }
}

#[derive(Debug)]
enum Phase {
    Looking(Discovery),
    Linked(Box<Link>, Found),
    Waiting(Moment),
    Closed,
}

/// A client. See the [crate].
#[derive(Debug)]
pub struct Client {
    config: Config,
    own: MacAddress,
    random: Rng,
    phase: Phase,
    session: Option<Session>,
    /// Since when there is a session.
    since: Moment,
    /// Why packets cannot go any more, while the end of the session is waited for.
    down: Option<Failure>,
    retry: Duration,
    closing: bool,
    frames: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    unheard: [u64; Unheard::ALL.len()],
    /// Control frames that may still come, and when that was counted.
    allowed: u32,
    counted: Moment,
}

impl Client {
    /// Begins, by looking for an access concentrator. `own` is the MAC address of the interface, `seed` a random number.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: Config, own: MacAddress, seed: u64, now: Moment) -> Result<Self, ConfigError> {
        config.check()?;
        let mut client = Self {
            retry: config.retry_first,
            config,
            own,
            random: Rng::with_seed(seed),
            phase: Phase::Waiting(now),
            session: None,
            since: now,
            down: None,
            closing: false,
            frames: VecDeque::new(),
            events: VecDeque::new(),
            unheard: [0; Unheard::ALL.len()],
            allowed: MOST_AT_ONCE,
            counted: now,
        };
        client.look(now);
        Ok(client)
    }

    /// The session, while packets can go.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Ends whatever there is. It takes a few seconds at most; then there is [`Event::Closed`], and nothing more.
    pub fn close(&mut self, now: Moment) {
        self.closing = true;
        if let Phase::Linked(..) = self.phase {
            return self.linked(now, |link, out, news| link.close(now, out, news));
        }
        self.over();
    }

    /// Says that a session of an earlier time is over: that of a program that could not do so itself.
    pub fn forget(&mut self, ac: MacAddress, session: u16) {
        self.send_padt(ac, session);
    }

    /// The next frame to be sent.
    pub fn take_frame(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// What has happened next.
    pub fn take_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// How many frames were left out, by reason.
    pub fn unheard(&self) -> impl Iterator<Item = (Unheard, u64)> + '_ {
        Unheard::ALL.into_iter().zip(self.unheard)
    }

    /// When [`tick`](Self::tick) has something to do.
    pub fn next_tick(&self) -> Option<Moment> {
        match &self.phase {
            Phase::Looking(discovery) => Some(discovery.timer()),
            Phase::Linked(link, _) => link.timer(),
            Phase::Waiting(until) => Some(*until),
            Phase::Closed => None,
        }
    }

    /// If it is time.
    pub fn tick(&mut self, now: Moment) {
        match &mut self.phase {
            Phase::Looking(discovery) => {
                let mut frames = Vec::new();
                let step = discovery.tick(now, &mut frames);
                self.stepped(now, step, frames);
            }
            Phase::Linked(..) => self.linked(now, |link, out, news| link.tick(now, out, news)),
            Phase::Waiting(until) if now >= *until => self.look(now),
            Phase::Waiting(_) | Phase::Closed => {}
        }
    }

    /// A frame from the interface, without its VLAN tags.
    pub fn receive<'a>(&mut self, now: Moment, frame: &'a [u8]) -> Received<'a> {
        let heard = match frame.get(12..14) {
            Some([0x88, 0x63]) => self.discovery(now, frame).map(|()| Received::Control),
            Some([0x88, 0x64]) => self.in_session(now, frame),
            _ => Err(Unheard::Stranger),
        };
        heard.unwrap_or_else(|why| {
            self.count(why);
            Received::Unheard(why)
        })
    }

    fn count(&mut self, why: Unheard) {
        self.unheard[why as usize] += 1;
    }

    fn happened(&mut self, event: Event) {
        // Who does not look has no use for old ones.
        if self.events.len() == MOST_WAITING {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn send(&mut self, frame: Vec<u8>) {
        if self.frames.len() < MOST_WAITING {
            self.frames.push_back(frame);
        } else {
            self.count(Unheard::NotSent);
        }
    }

    /// Whether one more control frame may be looked at.
    fn allow(&mut self, now: Moment) -> Result<(), Unheard> {
        let passed = now.saturating_sub(self.counted).as_millis().min(10_000) as u32 * MOST_PER_SECOND / 1000;
        if passed > 0 {
            self.allowed = (self.allowed + passed).min(MOST_AT_ONCE);
            self.counted = now;
        }
        self.allowed = self.allowed.checked_sub(1).ok_or(Unheard::TooMany)?;
        Ok(())
    }

    fn look(&mut self, now: Moment) {
        let mut frames = Vec::new();
        let uniq = self.random.u64(..);
        self.phase = Phase::Looking(Discovery::new(&self.config, self.own, uniq, now, &mut frames));
        self.happened(Event::Looking);
        frames.into_iter().for_each(|frame| self.send(frame));
    }

    fn discovery(&mut self, now: Moment, bytes: &[u8]) -> Result<(), Unheard> {
        let frame = frame::Discovery::parse(bytes).map_err(|_| Unheard::Malformed)?;
        if frame.code == code::PADT {
            return self.ended(now, &frame);
        }
        match &self.phase {
            Phase::Looking(discovery) if discovery.is_ours(&frame) => {}
            _ => return Err(Unheard::Stranger),
        }
        self.allow(now)?;
        let Phase::Looking(discovery) = &mut self.phase else { return Ok(()) };
        let mut frames = Vec::new();
        let step = discovery.receive(now, &frame, &mut frames);
        self.stepped(now, step, frames);
        Ok(())
    }

    fn stepped(&mut self, now: Moment, step: Step, frames: Vec<Vec<u8>>) {
        frames.into_iter().for_each(|frame| self.send(frame));
        match step {
            Step::Nothing => {}
            Step::Asked(ac, name) => self.happened(Event::Asked(ac, name)),
            Step::Failed(failure) => self.retry(now, failure),
            Step::Found(found) => {
                self.happened(Event::Given(found.session));
                let limit = found.max_payload.unwrap_or(crate::USUAL_MTU);
                let mut out = Out::new();
                let link = Link::new(&self.config, limit, self.random.fork(), now, &mut out);
                self.send_packets(&found, out);
                self.phase = Phase::Linked(Box::new(link), found);
            }
        }
    }

    fn ended(&mut self, now: Moment, frame: &frame::Discovery<'_>) -> Result<(), Unheard> {
        let Phase::Linked(link, found) = &self.phase else { return Err(Unheard::Stranger) };
        if (frame.source, frame.session, frame.destination) != (found.ac, found.session, self.own) {
            return Err(Unheard::Stranger);
        }
        let said = Tags::new(frame.tags).flatten().find(|(kind, _)| *kind == tag::GENERIC_ERROR);
        let padt = Failure::Padt(said.map_or_else(String::new, |(_, value)| text(value)));
        // Of both sides it may be the other one that says so first.
        let why = link.failure().cloned().unwrap_or_else(|| link.reason(padt));
        self.retry(now, why);
        Ok(())
    }

    fn in_session<'a>(&mut self, now: Moment, bytes: &'a [u8]) -> Result<Received<'a>, Unheard> {
        let Phase::Linked(_, found) = &self.phase else { return Err(Unheard::Untimely) };
        let (protocol, payload) = open(self.own, found, bytes)?;
        if matches!(protocol, ppp::IPV4 | ppp::IPV6) {
            let session = self.session.as_ref().ok_or(Unheard::Untimely)?;
            let agreed = if protocol == ppp::IPV4 { session.ipv4.is_some() } else { session.ipv6.is_some() };
            if !agreed {
                return Err(Unheard::Untimely);
            }
            return data::packet_of(protocol, payload).map(Received::Packet).map_err(|_| Unheard::Packet);
        }
        self.allow(now)?;
        let mut heard = Heard::Control;
        self.linked(now, |link, out, news| heard = link.receive(now, protocol, payload, out, news));
        match heard {
            Heard::Control => Ok(Received::Control),
            Heard::Malformed => Err(Unheard::Malformed),
            Heard::Untimely => Err(Unheard::Untimely),
        }
    }

    /// Does something with the link, and then what it says.
    fn linked(&mut self, now: Moment, work: impl FnOnce(&mut Link, &mut Out, &mut Vec<News>)) {
        let Phase::Linked(link, found) = &mut self.phase else { return };
        let (mut out, mut news) = (Out::new(), Vec::new());
        work(link, &mut out, &mut news);
        let found = found.clone();
        self.send_packets(&found, out);
        for news in news {
            self.told(now, &found, news);
        }
    }

    fn send_packets(&mut self, found: &Found, packets: Out) {
        for (protocol, packet) in packets {
            self.send(frame::control((found.ac, self.own), found.session, protocol, &packet));
        }
    }

    fn told(&mut self, now: Moment, found: &Found, news: News) {
        match news {
            News::Up => {
                (self.since, self.down) = (now, None);
                self.session = self.describe(found);
                let up = self.session.clone().map(Event::Up);
                up.into_iter().for_each(|event| self.happened(event));
            }
            News::Changed => {
                let after = self.describe(found);
                let before = std::mem::replace(&mut self.session, after);
                if let Some(session) = self.session.clone().filter(|session| before.as_ref() != Some(session)) {
                    self.happened(Event::Changed(session));
                }
            }
            News::Small => self.happened(Event::SmallOnly),
            News::Suspended(why) => {
                self.session = None;
                self.down = Some(why.clone());
                self.happened(Event::Down(why));
            }
            News::Ended(failure) => {
                self.send_padt(found.ac, found.session);
                self.retry(now, failure);
            }
        }
    }

    fn describe(&self, found: &Found) -> Option<Session> {
        let Phase::Linked(link, _) = &self.phase else { return None };
        Some(Session {
            session: found.session,
            ac: found.ac,
            ac_name: found.name.clone(),
            own: self.own,
            mtu: link.mtu(),
            mru: link.mru(),
            ipv4: link.ipv4(),
            ipv6: link.ipv6(),
            dns: link.dns(),
            method: link.method(),
        })
    }

    fn send_padt(&mut self, ac: MacAddress, session: u16) {
        let padt = frame::Discovery { destination: ac, source: self.own, code: code::PADT, session, tags: &[] };
        self.send(padt.build());
    }

    /// There is no session, or no session any more: waits, and begins again.
    fn retry(&mut self, now: Moment, failure: Failure) {
        let was_up = self.session.take().is_some();
        if was_up && now.saturating_sub(self.since) >= LASTING {
            self.retry = self.config.retry_first;
        }
        let reluctant = failure.needs_somebody();
        if self.down.take().as_ref() != Some(&failure) {
            self.happened(if was_up { Event::Down(failure) } else { Event::Failed(failure) });
        }
        if self.closing {
            return self.over();
        }
        let wait = if reluctant { self.retry.max(RELUCTANCE) } else { self.retry };
        // Not all at the same time, where there are many of us.
        let wait = wait + wait.mul_f64(self.random.f64() / 4.0);
        self.retry = (self.retry * 2).min(self.config.retry_most);
        self.phase = Phase::Waiting(now + wait);
        self.happened(Event::Waiting(wait));
    }

    fn over(&mut self) {
        if !matches!(self.phase, Phase::Closed) {
            self.phase = Phase::Closed;
            self.happened(Event::Closed);
        }
    }
}

/// The PPP packet in a frame from our access concentrator.
fn open<'a>(own: MacAddress, found: &Found, frame: &'a [u8]) -> Result<(u16, &'a [u8]), Unheard> {
    data::open(own, found.ac, found.session, frame).map_err(|error| match error {
        data::DataError::Malformed(_) => Unheard::Malformed,
        _ => Unheard::Stranger,
    })
}
