//! Packets into frames of the card's TX queue.

use super::local::{Go, Sessions};
use super::tap::{Tap, Way};
use millrace_link::{Given, Link, write};
use millrace_rdma::engine::Near;
use millrace_rdma::local::{Short, Source};
use millrace_rdma::memory::Refused;
use millrace_rdma::number::{Moment, Qpn};
use millrace_rdma::transport::{Out, Sent};
use millrace_rdma::wire::{Headers, Path, Prepared, Service};
use std::collections::VecDeque;

/// Paths that are kept ready, by queue pair.
const READY: usize = 64;
/// Frames to this end itself that wait.
const MOST_OWN: usize = 256;

/// Most bytes of payload of a packet.
const MOST_PAYLOAD: usize = 4096;

/// A path, the front of its frames, and the way of its packets if they go without frames.
struct Ready {
    source: Qpn,
    path: Path,
    prepared: Prepared,
    go: Go,
}

/// What frames are made with.
pub(super) struct Maker {
    mac: [u8; 6],
    ready: Vec<Option<Ready>>,
    /// A packet for another process of this host.
    packet: Box<[u8]>,
    /// Frames to this end itself: a card need not send them back.
    pub own: VecDeque<Vec<u8>>,
    /// Packets that no frame can be made of.
    pub unbuildable: u64,
}

impl Maker {
    pub fn new(mac: [u8; 6]) -> Self {
        Self {
            mac,
            ready: (0..READY).map(|_| None).collect(),
            packet: vec![0; MOST_PAYLOAD].into(),
            own: VecDeque::new(),
            unbuildable: 0,
        }
    }
}

/// Takes packets of the engine.
pub(super) struct Frames<'l> {
    now: Moment,
    /// None: the card has gone.
    link: Option<&'l mut Link>,
    pub maker: &'l mut Maker,
    sessions: &'l mut Sessions,
    /// Frames were given to the card.
    pub has_framed: bool,
}

impl<'l> Frames<'l> {
    pub fn new(now: Moment, link: Option<&'l mut Link>, maker: &'l mut Maker, sessions: &'l mut Sessions) -> Self {
        Self { now, link, maker, sessions, has_framed: false }
    }
}

impl Out for Frames<'_> {
    fn packet<F>(&mut self, path: &Path, source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        let Maker { mac, ready, packet, own, unbuildable } = &mut *self.maker;
        let Some(Ready { prepared, go, .. }) = be_ready(ready, self.sessions, path, source) else {
            *unbuildable += 1;
            return Sent::Taken;
        };
        if let Some(way) = go.session
            && headers.service != Service::UnreliableDatagram
            && let Some(to) = packet.get_mut(..len)
        {
            return self.sessions.send(self.now, way, headers, to, fill);
        }
        let Ok(frame_len) = prepared.frame_len(headers, len) else {
            *unbuildable += 1;
            return Sent::Taken;
        };
        if path.destination_mac == *mac {
            if own.len() >= MOST_OWN {
                return Sent::Full;
            }
            let mut frame = vec![0; frame_len];
            return match write(prepared, source, headers, len, &mut frame, fill) {
                Ok(()) => {
                    copy(&mut self.sessions.tap, Way::Sent, &frame);
                    own.push_back(frame);
                    Sent::Taken
                }
                Err(refused) => Sent::Refused(refused),
            };
        }
        // What asks for it has failed, or will when nobody answers.
        let Some(link) = &mut self.link else { return Sent::Taken };
        let tap = &mut self.sessions.tap;
        let given = link.give(frame_len, |frame| {
            write(prepared, source, headers, len, frame, fill)?;
            copy(tap, Way::Sent, frame);
            Ok(())
        });
        match given {
            Given::Taken => {
                self.has_framed = true;
                Sent::Taken
            }
            Given::Full => Sent::Full,
            Given::Refused(refused) => Sent::Refused(refused),
        }
    }
}

/// Keeps a copy of a frame, if somebody captures them.
#[inline]
pub(super) fn copy(tap: &mut Option<Box<Tap>>, way: Way, frame: &[u8]) {
    if let Some(tap) = tap {
        tap.frame(way, frame);
    }
}

/// The front of the frames of a queue pair, and which way they go; `None`: there can be none.
#[inline]
fn be_ready<'r>(
    ready: &'r mut [Option<Ready>],
    sessions: &Sessions,
    path: &Path,
    source: Qpn,
) -> Option<&'r mut Ready> {
    let place = &mut ready[source.value() as usize % READY];
    if place.as_ref().is_none_or(|ready| ready.source != source || ready.path != *path) {
        let ready = |prepared| Ready { source, path: *path, prepared, go: Go::default() };
        *place = Prepared::new(path).ok().map(ready);
    }
    let ready = place.as_mut()?;
    if ready.go.generation != sessions.generation {
        ready.go = sessions.way(path);
    }
    Some(ready)
}

/// Takes short SENDs to other processes of this host.
pub(super) struct Rings<'l> {
    pub maker: &'l mut Maker,
    pub sessions: &'l mut Sessions,
}

impl Near for Rings<'_> {
    #[inline(always)]
    fn short(&mut self, path: &Path, source: Source, short: &Short, payload: &[u8]) -> bool {
        let (ready, qpn) = (&mut self.maker.ready, source.qpn);
        // A connected queue pair has one path until it is told another one, and then ways are found anew.
        let way = match &ready[qpn.value() as usize % READY] {
            Some(ready) if ready.source == qpn && ready.go.generation == self.sessions.generation => ready.go.session,
            _ => be_ready(ready, self.sessions, path, qpn).and_then(|ready| ready.go.session),
        };
        way.is_some_and(|way| self.sessions.send_short(way, source, short, payload))
    }

    fn hurry(&mut self, path: &Path, qpn: Qpn) {
        let ready = be_ready(&mut self.maker.ready, self.sessions, path, qpn);
        if let Some((place, _)) = ready.and_then(|ready| ready.go.session) {
            self.sessions.hurry(place);
        }
    }
}
