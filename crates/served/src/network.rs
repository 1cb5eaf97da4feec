//! The way to other hosts: frames of a link, and who has which address there.

use crate::server::Address;
use millrace_link::{Frames, Given, Link, Maker};
use millrace_rdma::memory::Refused;
use millrace_rdma::neighbour::{Found, Neighbours};
use millrace_rdma::number::{Gid, Moment, Qpn};
use millrace_rdma::served::{ServeError, Service};
use millrace_rdma::transport::{Origin, Out, Sent};
use millrace_rdma::wire::{Counters, Headers, Path, parse};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::convert::Infallible;

/// Frames that are taken at once.
const BURST: usize = 64;
/// Addresses that a program may have asked for at a time.
const MOST_ASKED: usize = 16;

/// A link with frames for all programs of the card.
pub struct Network {
    link: Link,
    maker: Maker,
    mac: [u8; 6],
    neighbours: Neighbours,
    /// Frames that were no packets, by reason.
    reasons: Counters,
    /// Frames with packets for somebody else, or of a VLAN.
    foreign: u64,
    /// Questions and answers about neighbours for which there was no room.
    unsent: u64,
    has_framed: bool,
    /// Why nothing goes or comes any more.
    broken: Option<String>,
    is_told: bool,
}

/// Addresses that a program has asked for, as far as they are not known yet.
#[derive(Default)]
pub struct Asked(Vec<Gid>);

/// What is left to do before whoever looks after the link may sleep.
pub enum Doze {
    /// Something has come.
    Awake,
    /// It is readable when something comes.
    Wakes(OwnedFd),
    /// Nothing says when something comes.
    Silent,
    /// Nothing comes any more.
    Ended,
}

impl Network {
    /// Frames of that link are of, and for, those who have that address.
    pub fn new(link: Link, address: &Address) -> Self {
        let mut neighbours = Neighbours::new(address.mac, address.gids.to_vec());
        neighbours.announce();
        let maker = Maker::new(link.longest());
        Self {
            link,
            maker,
            mac: address.mac,
            neighbours,
            reasons: Counters::default(),
            foreign: 0,
            unsent: 0,
            has_framed: false,
            broken: None,
            is_told: false,
        }
    }

    /// Frames that were no packets for these programs, by reason, and packets that no frame could be made of: longer than those of the
    /// link, or between addresses of two kinds.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let own = [("foreign", self.foreign), ("unbuildable", self.maker.unbuildable), ("unsent", self.unsent)];
        let counts = self.neighbours.counts();
        let neighbours = [
            ("neighbours_unasked", counts.unasked),
            ("neighbours_conflicts", counts.conflicts),
            ("neighbours_dropped", counts.dropped),
            ("neighbours_evicted", counts.evicted),
        ];
        self.reasons.pairs().chain(own).chain(neighbours).collect()
    }

    /// What a port of the engine's own has counted.
    pub fn port(&self) -> Vec<(String, u64)> {
        self.link.counters()
    }

    /// An address of the engine that somebody else has, too; said once.
    pub fn take_conflict(&mut self) -> Option<(Gid, [u8; 6])> {
        self.neighbours.take_conflict()
    }

    /// Who has an address that a program asks for, if it is known; `asks` otherwise. Each program may have a few asked for at a time, so that there
    /// is room for those that others ask for.
    ///
    /// # Errors
    /// [`ServeError::Quota`]; [`ServeError::NoHosts`].
    pub fn resolve(
        &mut self,
        now: Moment,
        gid: Gid,
        asks: bool,
        asked: &mut Asked,
    ) -> Result<Option<[u8; 6]>, ServeError> {
        if !asks {
            return Ok(self.neighbours.known(gid));
        }
        let asked = &mut asked.0;
        asked.retain(|one| *one == gid || self.neighbours.is_asked(*one));
        if asked.len() >= MOST_ASKED && !asked.contains(&gid) {
            return Err(ServeError::Quota { what: "addresses that are being asked for", limit: MOST_ASKED as u64 });
        }
        asked.retain(|one| *one != gid);
        let found = if self.broken.is_some() { Found::Unreachable } else { self.neighbours.find(now, gid) };
        match found {
            Found::Known(mac) => Ok(Some(mac)),
            Found::Asked => {
                asked.push(gid);
                Ok(None)
            }
            Found::Unreachable => Err(ServeError::NoHosts(Errno::HOSTUNREACH.raw_os_error())),
            Found::NoSource => Err(ServeError::NoHosts(Errno::NETUNREACH.raw_os_error())),
            Found::Full => Err(ServeError::NoHosts(Errno::NOBUFS.raw_os_error())),
        }
    }

    /// When [`Network::send`] is to be called although nothing moves.
    pub fn next_due(&self) -> Option<Moment> {
        self.neighbours.next_due().filter(|_| self.broken.is_none())
    }

    /// Takes frames that have come. How many they were.
    pub fn receive(&mut self, now: impl FnOnce() -> Moment, service: &mut Service) -> usize {
        if self.broken.is_some() {
            return 0;
        }
        let Self { link, neighbours, reasons, foreign, mac, .. } = self;
        let (mut now, mut at) = (Some(now), Moment::default());
        let came = link.receive(BURST, |frame| {
            if let Some(now) = now.take() {
                at = now();
            }
            match parse(frame) {
                Ok((packet, from)) if from.back.source_mac == *mac && from.tag.is_none_or(|tag| tag.id() == 0) => {
                    let origin = Origin::of(&packet, &from);
                    service.receive(at, &packet, &origin);
                }
                Ok(_) => *foreign += 1,
                Err(_) if neighbours.hear(at, frame) => {}
                Err(reason) => reasons.count(reason),
            }
        });
        came.unwrap_or_else(|error| {
            self.broken = Some(error);
            0
        })
    }

    /// Questions and answers about neighbours go, and all that was given may leave.
    pub fn send(&mut self, now: Moment) {
        if self.broken.is_some() {
            return;
        }
        self.neighbours.tick(now);
        while let Some(frame) = self.neighbours.take_frame() {
            let given = self.link.give(frame.len(), |to| {
                to.copy_from_slice(&frame);
                Ok::<_, Infallible>(())
            });
            match given {
                Given::Taken => self.has_framed = true,
                // Whoever asks or is asked does so again.
                _ => self.unsent += 1,
            }
        }
        if core::mem::take(&mut self.has_framed)
            && let Err(error) = self.link.flush()
        {
            self.broken = Some(error);
        }
    }

    /// Why the link has ended; said once.
    pub fn take_end(&mut self) -> Option<&str> {
        let error = self.broken.as_deref().filter(|_| !self.is_told)?;
        self.is_told = true;
        Some(error)
    }

    /// Nobody looks from now on.
    pub fn doze(&mut self, now: impl FnOnce() -> Moment, service: &mut Service) -> Doze {
        if self.broken.is_some() {
            return Doze::Ended;
        }
        let fd = self.link.prepare_sleep();
        if self.receive(now, service) > 0 {
            self.link.awake();
            return Doze::Awake;
        }
        fd.map_or(Doze::Silent, Doze::Wakes)
    }

    /// Somebody looks again.
    pub fn awake(&mut self) {
        self.link.awake();
    }
}

impl Out for Network {
    fn packet<F>(&mut self, path: &Path, source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        // What waits for an answer ends when its retries are over, as on every wire that is cut.
        if self.broken.is_some() {
            return Sent::Taken;
        }
        let mut frames = Frames::new(&mut self.link, &mut self.maker);
        let sent = frames.packet(path, source, headers, len, fill);
        self.has_framed |= frames.has_framed;
        // Programs of this card go on.
        if sent == Sent::Full { Sent::Busy } else { sent }
    }
}

/// The way out of a card, if it has one; otherwise what goes to other hosts ends when its retries are over.
pub(crate) struct Outside<'n>(pub Option<&'n mut Network>);

impl Out for Outside<'_> {
    fn packet<F>(&mut self, path: &Path, source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        match &mut self.0 {
            Some(network) => network.packet(path, source, headers, len, fill),
            None => Sent::Taken,
        }
    }
}
