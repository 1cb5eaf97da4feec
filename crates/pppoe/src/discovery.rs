//! Discovery (RFC 2516 §5): who offers a session, and which one it is.
//!
//! The first who offers what is wanted is asked for a session. Who offers one meanwhile is asked when the first does not give one.

use crate::failure::{Failure, Refusal};
use crate::frame::{BROADCAST, Discovery as Frame, code};
use crate::tag::{self, Tags, put};
use crate::{Config, MacAddress, Moment, text};
use std::collections::VecDeque;
use std::time::Duration;

/// How long the first answer is waited for; each further one twice as long (RFC 2516 §8).
const PATIENCE: Duration = Duration::from_secs(1);
/// PADIs of an attempt: 31 seconds.
const MOST_PADI: u8 = 5;
/// PADRs to the same: 7 seconds.
const MOST_PADR: u8 = 3;
/// Offers that are kept.
const MOST_OFFERS: usize = 8;
/// Bytes of cookie and relay's tag: more does not fit into a frame with both.
const MOST_ECHOED: usize = 600;

/// A session that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// By whom.
    pub ac: MacAddress,
    /// What that is called.
    pub name: String,
    /// Its number.
    pub session: u16,
    /// Whether packets may be larger than 1492 bytes (RFC 4638), and how large.
    pub max_payload: Option<u16>,
}

/// What a frame or the time has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing new.
    Nothing,
    /// Somebody offers a session, and is asked for it.
    Asked(MacAddress, String),
    /// There it is.
    Found(Found),
    /// There is none.
    Failed(Failure),
}

#[derive(Clone, Debug)]
struct Offer {
    ac: MacAddress,
    name: String,
    /// Tags that the request has to have: cookie, relay.
    echoed: Vec<u8>,
    max_payload: Option<u16>,
}

/// An attempt to find a session.
#[derive(Debug)]
pub struct Discovery {
    own: MacAddress,
    uniq: [u8; 8],
    service: Option<String>,
    ac: Option<String>,
    wanted: Option<u16>,
    /// The first is asked, as soon as there is one.
    offers: VecDeque<Offer>,
    tries: u8,
    timer: Moment,
    /// Who has answered and is not wanted.
    others: Vec<String>,
    /// Why the last one refused.
    refusal: Option<Failure>,
}

/// What the tags of a frame say.
#[derive(Debug, Default)]
struct Said {
    names: Vec<Vec<u8>>,
    ac: Option<String>,
    echoed: Vec<u8>,
    max_payload: Option<u16>,
    error: Option<Failure>,
}

impl Discovery {
    /// Asks who is there. `uniq` is what answers to us have in them.
    pub fn new(config: &Config, own: MacAddress, uniq: u64, now: Moment, out: &mut Vec<Vec<u8>>) -> Self {
        let mut discovery = Self {
            own,
            uniq: uniq.to_be_bytes(),
            service: config.service.clone(),
            ac: config.ac.clone(),
            wanted: config.wants_more().then_some(config.mru),
            offers: VecDeque::new(),
            tries: 0,
            timer: now,
            others: Vec::new(),
            refusal: None,
        };
        discovery.send(now, out);
        discovery
    }

    /// When it goes on by itself.
    pub fn timer(&self) -> Moment {
        self.timer
    }

    /// Whether the frame has to do with this attempt.
    pub fn is_ours(&self, frame: &Frame<'_>) -> bool {
        let uniq = || Tags::new(frame.tags).flatten().any(|tag| tag == (tag::HOST_UNIQ, &self.uniq[..]));
        let unicast = frame.source.0[0] & 1 == 0;
        frame.destination == self.own && unicast && matches!(frame.code, code::PADO | code::PADS) && uniq()
    }

    /// A frame that [is ours](Self::is_ours).
    pub fn receive(&mut self, now: Moment, frame: &Frame<'_>, out: &mut Vec<Vec<u8>>) -> Step {
        let Some(said) = said(frame.tags) else { return Step::Nothing };
        match frame.code {
            code::PADO if frame.session == 0 => self.offered(now, frame.source, said, out),
            code::PADS => self.given(now, frame, said, out),
            _ => Step::Nothing,
        }
    }

    /// If it is time.
    pub fn tick(&mut self, now: Moment, out: &mut Vec<Vec<u8>>) -> Step {
        if now < self.timer {
            return Step::Nothing;
        }
        let Some(offer) = self.offers.front() else {
            if self.tries < MOST_PADI {
                self.send(now, out);
                return Step::Nothing;
            }
            return Step::Failed(self.nobody());
        };
        if self.tries < MOST_PADR {
            self.send(now, out);
            return Step::Nothing;
        }
        let failure = Failure::NoAnswer(offer.ac);
        self.next_offer(now, failure, out)
    }

    /// Why there is nobody to be asked.
    fn nobody(&mut self) -> Failure {
        match self.refusal.take() {
            Some(refusal) => refusal,
            None if self.others.is_empty() => Failure::NoOffer,
            None => Failure::NoSuitableOffer(self.others.join(", ")),
        }
    }

    fn next_offer(&mut self, now: Moment, failure: Failure, out: &mut Vec<Vec<u8>>) -> Step {
        self.offers.pop_front();
        self.tries = 0;
        let Some(next) = self.offers.front() else { return Step::Failed(failure) };
        let asked = Step::Asked(next.ac, next.name.clone());
        self.send(now, out);
        asked
    }

    fn offered(&mut self, now: Moment, ac: MacAddress, said: Said, out: &mut Vec<Vec<u8>>) -> Step {
        let name = said.ac.unwrap_or_default();
        if let Some(failure) = said.error {
            self.refusal = Some(failure);
            return Step::Nothing;
        }
        let service = self.service.as_ref();
        let serves = service.is_none_or(|wanted| said.names.iter().any(|name| name == wanted.as_bytes()));
        if !serves || self.ac.as_ref().is_some_and(|wanted| *wanted != name) {
            let services: Vec<_> = said.names.iter().map(|name| text(name)).filter(|name| !name.is_empty()).collect();
            let other = format!("{name} ({ac}){}", if serves { String::new() } else { format!(" with {services:?}") });
            if self.others.len() < MOST_OFFERS && !self.others.contains(&other) {
                self.others.push(other);
            }
            return Step::Nothing;
        }
        let known = self.offers.iter().any(|offer| offer.ac == ac);
        if known || self.offers.len() >= MOST_OFFERS || said.echoed.len() > MOST_ECHOED {
            return Step::Nothing;
        }
        self.offers.push_back(Offer { ac, name: name.clone(), echoed: said.echoed, max_payload: said.max_payload });
        if self.offers.len() > 1 {
            return Step::Nothing;
        }
        self.tries = 0;
        self.send(now, out);
        Step::Asked(ac, name)
    }

    fn given(&mut self, now: Moment, frame: &Frame<'_>, said: Said, out: &mut Vec<Vec<u8>>) -> Step {
        let Some(offer) = self.offers.front().filter(|offer| offer.ac == frame.source) else { return Step::Nothing };
        if let Some(failure) = said.error {
            return self.next_offer(now, failure, out);
        }
        if frame.session == 0 {
            let failure = Failure::Refused { what: Refusal::Generic, text: "a session without a number".to_owned() };
            return self.next_offer(now, failure, out);
        }
        // Both have to have it, and who gives less is taken at that (RFC 4638 §4).
        let agreed = said.max_payload.or(offer.max_payload).zip(self.wanted).map(|(theirs, ours)| theirs.min(ours));
        let max_payload = agreed.filter(|agreed| *agreed > crate::USUAL_MTU);
        Step::Found(Found { ac: offer.ac, name: offer.name.clone(), session: frame.session, max_payload })
    }

    /// A PADI, or a PADR to whom it is the turn of.
    fn send(&mut self, now: Moment, out: &mut Vec<Vec<u8>>) {
        let mut tags = Vec::new();
        put(&mut tags, tag::SERVICE_NAME, self.service.as_deref().unwrap_or_default().as_bytes());
        put(&mut tags, tag::HOST_UNIQ, &self.uniq);
        if let Some(wanted) = self.wanted {
            put(&mut tags, tag::PPP_MAX_PAYLOAD, &wanted.to_be_bytes());
        }
        let (destination, code) = match self.offers.front() {
            None => (BROADCAST, code::PADI),
            Some(offer) => {
                tags.extend_from_slice(&offer.echoed);
                (offer.ac, code::PADR)
            }
        };
        out.push(Frame { destination, source: self.own, code, session: 0, tags: &tags }.build());
        self.timer = now + PATIENCE * (1 << self.tries);
        self.tries += 1;
    }
}

/// What the tags say; `None` if they are malformed.
fn said(tags: &[u8]) -> Option<Said> {
    let mut said = Said::default();
    for tag in Tags::new(tags) {
        let (kind, value) = tag.ok()?;
        let refused = |what| Some(Failure::Refused { what, text: text(value) });
        match kind {
            tag::SERVICE_NAME => said.names.push(value.to_vec()),
            tag::AC_NAME => said.ac = Some(text(value)),
            tag::AC_COOKIE | tag::RELAY_SESSION_ID => put(&mut said.echoed, kind, value),
            tag::PPP_MAX_PAYLOAD => said.max_payload = value.try_into().ok().map(u16::from_be_bytes),
            tag::SERVICE_NAME_ERROR => said.error = refused(Refusal::ServiceName),
            tag::AC_SYSTEM_ERROR => said.error = refused(Refusal::AcSystem),
            tag::GENERIC_ERROR => said.error = refused(Refusal::Generic),
            _ => {}
        }
    }
    Some(said)
}
