//! Where a datagram would go, for explanations: nothing is learned, counted or decrypted with keys that somebody has handed over.

use super::answer::{Answer, Why};
use super::connection::{ConnectionId, Learned, Path};
use super::directory::Known;
use super::group::{Group, LONG};
use super::hello::{Hello, Progress};
use super::initial::{self, Opened};
use super::keys::{Side, Version};
use super::protection::Scratch;
use super::steering::looks_first;
use super::table::SHORTEST_ROAMING;
use millrace_packet::parse::{QuicLong, QuicShort, QuicType};

/// Where a datagram would go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The queue; `None`: nobody gets it, or its stream says it.
    pub queue: Option<u16>,
    /// Why.
    pub why: Why,
    /// The connection has keys, and the group steers streams: the number of the stream says the queue, which is not told. `queue` is
    /// that of packets without a stream.
    pub by_stream: bool,
}

impl Group {
    /// Where a datagram would go that comes now: the payload of UDP, and the path on which it comes. Not for workers.
    pub fn look(&self, path: &Path, datagram: &[u8]) -> Look {
        let (instance, why, by_stream) = match datagram.first() {
            Some(first) if first & LONG != 0 => {
                let (instance, why) = self.look_long(path, datagram);
                (instance, why, false)
            }
            Some(_) => self.look_short(path, datagram),
            None => (None, Why::NotQuic, false),
        };
        let answer: Answer = self.setup.answer(&self.setup.config.queues, instance, why);
        Look { queue: self.queue_of(path, &answer), why, by_stream }
    }

    fn look_long(&self, path: &Path, datagram: &[u8]) -> (Option<u16>, Why) {
        let Ok(header) = QuicLong::parse(datagram) else { return (None, Why::NotQuic) };
        let destination = header.destination();
        let directory = &self.state().directory;
        let known = ConnectionId::new(destination).filter(|_| !destination.is_empty()).and_then(|id| {
            let known = directory.find(directory.id(destination))?;
            Some((
                known.instance(),
                known.instance().map_or(Why::HelloIncomplete, |_| Why::KnownId(id, known.learned())),
            ))
        });
        if let Some(known) = known {
            return known;
        }
        let routable = || self.setup.routable(destination);
        let by_hash = || self.setup.by_hash(destination);
        match (Version::of(header.version()), header.kind()) {
            (Some(_), Some(QuicType::Initial)) => {
                // As a new connection; what a client goes on with after a Retry is routable.
                let named =
                    if looks_first(datagram, destination) { self.look_at_names(datagram, destination) } else { None };
                named.or_else(routable).unwrap_or_else(by_hash)
            }
            (Some(_), Some(QuicType::ZeroRtt)) if !self.setup.config.names.is_empty() => (None, Why::HelloIncomplete),
            (None, _) | (_, Some(QuicType::ZeroRtt)) => routable().unwrap_or_else(by_hash),
            _ => {
                let by_path = || Some((Some(directory.find(directory.path(path))?.instance()?), Why::KnownPath));
                routable().or_else(by_path).unwrap_or((None, Why::Unknown))
            }
        }
    }

    /// By the rules of names, if there are any and the datagram can be decrypted.
    fn look_at_names(&self, datagram: &[u8], destination: &[u8]) -> Option<(Option<u16>, Why)> {
        let config = &self.setup.config;
        if config.names.is_empty() {
            return None;
        }
        let mut scratch = Scratch::default();
        let Opened::Frames(frames) = initial::open(datagram, destination, Side::Client, &mut scratch) else {
            return None;
        };
        let mut hello = Hello::default();
        if hello.add(frames) == Progress::Partial {
            return Some((None, Why::HelloIncomplete));
        }
        let read = hello.get()?;
        let rule = config.names.iter().position(|rule| rule.matches(&read))?;
        Some((self.setup.pick(&config.names[rule].instances, destination), Why::Name(rule)))
    }

    fn look_short(&self, path: &Path, datagram: &[u8]) -> (Option<u16>, Why, bool) {
        let Ok(header) = QuicShort::parse(datagram) else { return (None, Why::NotQuic, false) };
        let (directory, rest) = (&self.state().directory, header.rest());
        let on_path = directory.find(directory.path(path));
        let shortest = if on_path.is_some() { 1 } else { SHORTEST_ROAMING };
        let lengths = (shortest..=rest.len().min(31)).rev().filter(|len| directory.lengths() & 1 << len != 0);
        let by_stream = |known: Known| known.has_keys() && !self.setup.config.streams.is_empty();
        for len in lengths {
            let Some(id) = rest.get(..len).and_then(ConnectionId::new) else { continue };
            if let Some(known) = directory.find(directory.id(id.as_slice()))
                && known.learned() != Learned::FirstDestination
            {
                return (known.instance(), Why::KnownId(id, known.learned()), by_stream(known));
            }
        }
        if let Some((instance, why)) = self.setup.routable(rest) {
            return (instance, why, false);
        }
        match on_path.and_then(|known| Some((known.instance()?, known))) {
            Some((instance, known)) => (Some(instance), Why::KnownPath, by_stream(known)),
            None => (None, Why::Unknown, false),
        }
    }
}
