//! The port of a backend: frames of SLURPoE between its guests and endpoints on a wire. Each guest has its own address there, and no other
//! frame leaves than those of connections that the backend has made, and what it says for its guests.

use crate::{Address, Error};
use millrace_link::{Frames, Link, LinkError, Maker, Wanted};
use millrace_rdma::memory::Refused;
use millrace_rdma::number::{Gid, Moment, Psn, Qpn};
use millrace_rdma::served::Service;
use millrace_rdma::transport::{Origin, Out, Sent};
use millrace_rdma::wire::{Deth, Format, Headers, Opcode, Packet, Path, Place, Service as Kind, parse};
use millrace_served::network::Doze;
use millrace_slurpoe::connect::{MOST, QKEY, TOLD};
use std::collections::HashSet;

/// Frames that are taken at once.
const BURST: usize = 64;
/// Bytes of payload in a packet over a port, if nothing else is said.
const PORT_MTU: u16 = 1024;
const ETHERNET: usize = 14;
/// All ends of a wire.
const EVERYBODY: Address = Address([0xff; 6]);
/// Backends of one wire: by so many bits their guests' addresses differ.
pub const MOST_NUMBER: u8 = 63;

/// Which port, and who its guests are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortConfig {
    /// A card and its queues, or a port that the backend works on itself.
    pub link: Wanted,
    /// Most bytes of payload in a packet: 256 to 4096 or 8192. By default what fits into frames of the card, and 1024 over a port.
    pub mtu: Option<u16>,
    /// Which of the backends on that wire this is, 0 to 63: the first byte of its guests' addresses is 2 + 4 × this.
    pub number: u8,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Frames that were sent.
    pub sent: u64,
    /// Bytes of guests in them, which were copied into them.
    pub sent_bytes: u64,
    /// Frames for guests that have come.
    pub received: u64,
    /// Bytes in them, which were copied out of them or refused.
    pub received_bytes: u64,
    /// Frames for others, of VLANs, and of other formats.
    pub foreign: u64,
    /// Frames that are no packets.
    pub unreadable: u64,
    /// Frames that say that they come from a guest of this backend: another one on the wire has its number, or somebody forges.
    pub forged: u64,
    /// What was said about connections or told and had no room: it is said again, or lost.
    pub unsent: u64,
    /// Asks and what was told that no guest could take: there is none, it does not read, or it has as many connections as it may have.
    pub untaken: u64,
    /// Connections that nobody had used and that made room for others.
    pub replaced: u64,
}

impl PortCounts {
    /// With their names.
    pub fn pairs(&self) -> [(&'static str, u64); 10] {
        let Self { sent, sent_bytes, received, received_bytes, foreign, unreadable, forged, unsent, untaken, replaced } =
            *self;
        [
            ("sent", sent),
            ("sent_bytes", sent_bytes),
            ("received", received),
            ("received_bytes", received_bytes),
            ("foreign", foreign),
            ("unreadable", unreadable),
            ("forged", forged),
            ("unsent", unsent),
            ("untaken", untaken),
            ("replaced", replaced),
        ]
    }
}

/// What an endpoint on the wire has said about a connection, or told.
pub(crate) struct Said {
    pub from: Address,
    /// One guest; `None`: all of them.
    pub to: Option<Address>,
    pub bytes: Vec<u8>,
}

/// A link with frames for all guests of a backend.
pub struct Port {
    link: Link,
    maker: Maker,
    number: u8,
    mtu: u16,
    guests: HashSet<Address>,
    pub(crate) counts: PortCounts,
    has_framed: bool,
    broken: Option<String>,
    is_told: bool,
    /// What was said in frames that were taken, and nobody has heard yet.
    pub(crate) said: Vec<Said>,
}

fn failed(error: LinkError) -> Error {
    Error::Port(error.to_string())
}

impl Port {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::Port`]: there is no such card or port, or it cannot carry such packets.
    pub fn open(config: &PortConfig) -> Result<Self, Error> {
        if config.number > MOST_NUMBER {
            return Err(Error::Port(format!("the number of a backend is 0 to {MOST_NUMBER}")));
        }
        let link = Link::open(&config.link).map_err(failed)?;
        let (mtu, maker) = (mtu(config.mtu, &link)?, Maker::new(link.longest()));
        Ok(Self {
            link,
            maker,
            number: config.number,
            mtu,
            guests: HashSet::new(),
            counts: PortCounts::default(),
            has_framed: false,
            broken: None,
            is_told: false,
            said: Vec::new(),
        })
    }

    /// Most bytes of payload in a packet.
    pub(crate) fn mtu(&self) -> u16 {
        self.mtu
    }

    /// The address of a guest on this wire.
    pub(crate) fn number(&self, Address([first, rest @ ..]): Address) -> Address {
        let [a, b, c, d, e] = rest;
        Address([first | self.number << 2, a, b, c, d, e])
    }

    /// A guest has come.
    pub(crate) fn add(&mut self, guest: Address) {
        self.guests.insert(guest);
    }

    /// Whether that is a guest's.
    pub(crate) fn has(&self, address: Address) -> bool {
        self.guests.contains(&address)
    }

    /// It has gone.
    pub(crate) fn remove(&mut self, guest: Address) {
        self.guests.remove(&guest);
    }

    /// Bytes that were copied between frames and memory of guests, and between frames and the port.
    pub(crate) fn copied(&self) -> u64 {
        self.counts.sent_bytes + self.counts.received_bytes + self.link.copied()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Why the link has ended; said once.
    pub(crate) fn take_end(&mut self) -> Option<&str> {
        let error = self.broken.as_deref().filter(|_| !self.is_told)?;
        self.is_told = true;
        Some(error)
    }

    /// Takes frames that have come, and keeps what was said in them. How many they were.
    pub(crate) fn receive(&mut self, now: Moment, service: &mut Service) -> usize {
        if self.broken.is_some() {
            return 0;
        }
        let Self { link, guests, counts, said, .. } = self;
        let came = link.receive(BURST, |frame| match parse(frame) {
            Ok((packet, from)) if from.back.format == Format::Slurpoe && from.tag.is_none() => {
                let (to, sender) = (Address(from.back.source_mac), Address(from.back.destination_mac));
                if to != EVERYBODY && !guests.contains(&to) {
                    counts.foreign += 1;
                } else if guests.contains(&sender) || !sender.is_single() {
                    counts.forged += 1;
                } else if let Some(bytes) = datagram(&packet) {
                    counts.received += 1;
                    let to = (to != EVERYBODY).then_some(to);
                    said.push(Said { from: sender, to, bytes: bytes.to_vec() });
                } else if to == EVERYBODY {
                    counts.foreign += 1;
                } else {
                    counts.received += 1;
                    counts.received_bytes += packet.payload.len() as u64;
                    service.receive(now, &packet, &Origin::of(&packet, &from));
                }
            }
            Ok(_) => counts.foreign += 1,
            Err(_) => counts.unreadable += 1,
        });
        came.unwrap_or_else(|error| {
            self.broken = Some(error);
            0
        })
    }

    /// Says something for a guest: once, and it may be lost.
    pub(crate) fn say(&mut self, from: Address, to: Address, bytes: &[u8]) {
        let deth = Some(Deth { qkey: QKEY, source: Qpn::GENERAL });
        let opcode = Opcode::Send { place: Place::Only, immediate: false, invalidate: false };
        let headers = Headers { deth, ..Headers::new(Kind::UnreliableDatagram, opcode, Qpn::GENERAL, Psn::new(0)) };
        let sent = self.frame(&path(from, to), Qpn::GENERAL, &headers, bytes.len(), |to| {
            to.copy_from_slice(bytes);
            Ok(())
        });
        self.counts.unsent += u64::from(sent != Sent::Taken);
    }

    pub(crate) fn frame<F>(&mut self, path: &Path, source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        // What waits for an answer ends when its retries are over, as on every wire that is cut.
        if self.broken.is_some() {
            return Sent::Taken;
        }
        let mut frames = Frames::new(&mut self.link, &mut self.maker);
        let sent = frames.packet(path, source, headers, len, fill);
        if frames.has_framed {
            self.has_framed = true;
            self.counts.sent += 1;
        }
        // Guests of this backend go on.
        if sent == Sent::Full { Sent::Busy } else { sent }
    }

    /// All that was given may leave.
    pub(crate) fn flush(&mut self) {
        if core::mem::take(&mut self.has_framed)
            && let Err(error) = self.link.flush()
        {
            self.broken = Some(error);
        }
    }

    /// Nobody looks from now on.
    pub(crate) fn doze(&mut self, now: Moment, service: &mut Service) -> Doze {
        if self.broken.is_some() {
            return Doze::Ended;
        }
        let fd = self.link.prepare_sleep();
        if self.receive(now, service) > 0 || self.broken.is_some() {
            self.link.awake();
            return Doze::Awake;
        }
        fd.map_or(Doze::Silent, Doze::Wakes)
    }

    /// Somebody looks again.
    pub(crate) fn awake(&mut self) {
        self.link.awake();
    }
}

/// What a datagram says to the queue pair with the number 1.
fn datagram<'p>(packet: &Packet<'p>) -> Option<&'p [u8]> {
    let Headers { service, opcode, destination, deth, .. } = packet.headers;
    let is_whole = matches!(opcode, Opcode::Send { place: Place::Only, .. });
    let is_ours = service == Kind::UnreliableDatagram && destination == Qpn::GENERAL && is_whole;
    let fits = packet.payload.len() <= TOLD.len() + MOST;
    (is_ours && fits && deth.is_some_and(|deth| deth.qkey == QKEY)).then_some(packet.payload)
}

/// The way of frames from a guest.
pub(crate) fn path(from: Address, to: Address) -> Path {
    Path {
        format: Format::Slurpoe,
        source_mac: from.0,
        destination_mac: to.0,
        source: Gid::link_local(from.0),
        destination: Gid::link_local(to.0),
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        source_port: 0xc000,
    }
}

fn mtu(wanted: Option<u16>, link: &Link) -> Result<u16, Error> {
    let longest = link.longest();
    let most = Format::Slurpoe.path_mtu(longest.saturating_sub(ETHERNET)).unwrap_or(0) as u16;
    let mtu = match wanted {
        None => link.usual_mtu().map_or(most, |_| PORT_MTU.min(most)),
        Some(mtu @ (256 | 512 | 1024 | 2048 | 4096 | 8192)) => mtu,
        Some(_) => return Err(Error::Port("the mtu is 256, 512, 1024, 2048, 4096 or 8192".to_owned())),
    };
    if mtu == 0 || mtu > most { Err(failed(LinkError::ShortFrames { longest, mtu })) } else { Ok(mtu) }
}
