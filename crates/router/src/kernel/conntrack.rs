//! Conntrack: what comes and goes, the list of what there is, and what can be changed (`linux/netfilter/nfnetlink_conntrack.h`).

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::netfilter::HEADER;
use super::socket::{Error, Questions};
use super::wire::{self, Attributes, Message, Request};

/// Numbers of conntrack within netfilter's protocol.
const CONNTRACK: u16 = 1 << 8;
const NEW: u16 = CONNTRACK;
const GET: u16 = CONNTRACK | 1;
const DELETE: u16 = CONNTRACK | 2;

const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOCOL_INFO: u16 = 4;
const TIMEOUT: u16 = 7;
const MARK: u16 = 8;
const ID: u16 = 12;
const ZONE: u16 = 18;

/// TCP, by its number in IP.
pub const TCP: u8 = 6;

/// Packets of one direction, by what is in them. For ICMP echo both ports are the identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Tuple {
    /// Who sends.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// TCP 6, UDP 17, ICMP 1, ICMPv6 58, ...
    pub protocol: u8,
    /// From which port.
    pub source_port: u16,
    /// To which port.
    pub destination_port: u16,
}

impl std::fmt::Display for Tuple {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = |address, port| std::net::SocketAddr::new(address, port);
        let (from, to) = (end(self.source, self.source_port), end(self.destination, self.destination_port));
        write!(f, "{} {from} -> {to}", protocol_name(self.protocol))
    }
}

/// The name of a protocol in IP, or its number.
pub fn protocol_name(number: u8) -> String {
    match number {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        47 => "gre".to_owned(),
        50 => "esp".to_owned(),
        58 => "icmpv6".to_owned(),
        132 => "sctp".to_owned(),
        other => other.to_string(),
    }
}

/// A connection, as conntrack says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Packets of who began, as they come.
    pub original: Tuple,
    /// Packets of the other side, as they come; another pair than the original one where addresses are translated.
    pub reply: Tuple,
    /// `IPS_*`.
    pub status: u32,
    /// `CT ZONE`.
    pub zone: u16,
    /// `ct mark`.
    pub mark: u32,
    /// Seconds until it is forgotten.
    pub timeout: Option<u32>,
    /// Its number; another one when the same connection begins anew.
    pub id: u32,
    /// `TCP_CONNTRACK_*`, for TCP: 1 SYN sent, 2 SYN received, 3 established, 4 and more: it ends.
    pub tcp_state: Option<u8>,
    /// Whether conntrack looks at windows of TCP no more, in both directions.
    pub is_liberal: bool,
}

/// Packets have been seen both ways.
pub const SEEN_REPLY: u32 = 1 << 1;
/// It is not forgotten when the table is full.
pub const ASSURED: u32 = 1 << 2;
/// Addresses or ports of who began are changed.
pub const SOURCE_NAT: u32 = 1 << 4;
/// Those of whom it is for are.
pub const DESTINATION_NAT: u32 = 1 << 5;
/// A helper reads along (FTP, SIP): such packets are Linux's.
pub const HELPER: u32 = 1 << 13;
/// Somebody else's flow table forwards it.
pub const OFFLOADED: u32 = 1 << 14;

/// What an event says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is there, or something about it has changed.
    There(Connection),
    /// It is gone.
    Gone(Connection),
}

/// Reads an event or an entry of the list.
pub fn event(message: &Message<'_>) -> Option<Event> {
    match message.kind {
        NEW => read(message.body).map(Event::There),
        DELETE => read(message.body).map(Event::Gone),
        _ => None,
    }
}

fn read(body: &[u8]) -> Option<Connection> {
    let all = wire::attributes(body, HEADER);
    let number = |kind| all.clone().find(kind).and_then(wire::be32_of);
    let tcp = all.clone().find(PROTOCOL_INFO).and_then(|info| wire::nested(info).find(1)).map(wire::nested);
    let of_tcp = |kind| tcp.clone().and_then(|tcp| tcp.find(kind)).and_then(wire::u8_of);
    Some(Connection {
        original: tuple(wire::nested(all.clone().find(ORIGINAL)?))?,
        reply: tuple(wire::nested(all.clone().find(REPLY)?))?,
        status: number(STATUS).unwrap_or_default(),
        zone: all.clone().find(ZONE).and_then(wire::be16_of).unwrap_or_default(),
        mark: number(MARK).unwrap_or_default(),
        timeout: number(TIMEOUT),
        id: number(ID).unwrap_or_default(),
        tcp_state: of_tcp(1),
        is_liberal: [4, 5].iter().all(|&kind| of_tcp(kind).is_some_and(|flags| flags & BE_LIBERAL != 0)),
    })
}

fn tuple(all: Attributes<'_>) -> Option<Tuple> {
    const ADDRESSES: u16 = 1;
    const PROTOCOL: u16 = 2;
    const ICMP_ID: u16 = 4;
    const ICMPV6_ID: u16 = 7;
    let addresses = wire::nested(all.clone().find(ADDRESSES)?);
    let address = |v4, v6| addresses.clone().find(v4).or_else(|| addresses.clone().find(v6)).and_then(wire::address_of);
    let ports = wire::nested(all.clone().find(PROTOCOL)?);
    let id = || ports.clone().find(ICMP_ID).or_else(|| ports.clone().find(ICMPV6_ID));
    let port = |kind| ports.clone().find(kind).or_else(id).and_then(wire::be16_of).unwrap_or_default();
    Some(Tuple {
        source: address(1, 3)?,
        destination: address(2, 4)?,
        protocol: ports.clone().find(1).and_then(wire::u8_of)?,
        source_port: port(2),
        destination_port: port(3),
    })
}

/// Reads the list of all connections, of both families.
///
/// # Errors
/// When the kernel does not answer.
pub fn list(questions: &mut Questions, begin: impl FnMut(), mut each: impl FnMut(Connection)) -> Result<(), Error> {
    let request = Request::new(GET, wire::DUMP, &[0; HEADER]);
    questions.ask(request, begin, |message| match event(&message) {
        Some(Event::There(connection)) => each(connection),
        Some(Event::Gone(_)) | None => {}
    })
}

/// The connection that packets of this tuple belong to, in whichever direction.
///
/// # Errors
/// When the kernel does not answer; one that is not there is `None`.
pub fn find(questions: &mut Questions, of: &Tuple, zone: u16) -> Result<Option<Connection>, Error> {
    let request = named(GET, of, zone);
    match questions.one(request, read) {
        Err(Error::Refused(rustix::io::Errno::NOENT)) => Ok(None),
        other => other,
    }
}

const BE_LIBERAL: u8 = 0x08;
/// It has noted what was acknowledged last.
const ACKNOWLEDGED: u8 = 0x20;
/// Data is on its way of which conntrack has seen no acknowledgement (`IP_CT_TCP_FLAG_DATA_UNACKNOWLEDGED`).
const UNACKNOWLEDGED: u8 = 0x10;

/// Tells conntrack not to look at windows of this connection of TCP: it does not see the packets between.
///
/// # Errors
/// What the kernel says: `ENOENT` for one that is gone.
pub fn be_liberal(questions: &mut Questions, of: &Tuple, zone: u16) -> Result<(), Error> {
    set_flags(questions, of, zone, [BE_LIBERAL, BE_LIBERAL])
}

/// What conntrack notes of a connection of TCP, and is too old when enough has gone by that it has not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// That something is not acknowledged yet, with which it would keep the connection for 5 minutes instead of 5 days. It is too old once nothing is in
    /// the window that it knows.
    Unacknowledged,
    /// And what was acknowledged last: it calls an RST invalid that is before that, and after 2 GB every other one is.
    Acknowledged,
}

/// Has conntrack forget this of a connection of TCP, in both directions. It notes it anew with the next packet that is in the window it knows.
///
/// # Errors
/// What the kernel says: `ENOENT` for one that is gone.
pub fn forget_acknowledged(questions: &mut Questions, of: &Tuple, zone: u16, old: Old) -> Result<(), Error> {
    let flags = match old {
        Old::Unacknowledged => UNACKNOWLEDGED,
        Old::Acknowledged => UNACKNOWLEDGED | ACKNOWLEDGED,
    };
    set_flags(questions, of, zone, [0, flags])
}

/// Sets flags of both directions: what they are to be, and which of them are meant.
fn set_flags(questions: &mut Questions, of: &Tuple, zone: u16, flags: [u8; 2]) -> Result<(), Error> {
    const TCP_INFO: u16 = 1;
    const FLAGS: [u16; 2] = [4, 5];
    let request = named(NEW, of, zone).within(PROTOCOL_INFO, |info| {
        info.within(TCP_INFO, |tcp| FLAGS.iter().fold(tcp, |tcp, &kind| tcp.with(kind, &flags)))
    });
    questions.ask(request, || (), |_| ())
}

/// Has conntrack forget a connection of TCP, which it takes for established, in so many seconds if no packet comes; whether it was such a one, and would
/// have been kept longer.
///
/// # Errors
/// When the kernel does not answer.
pub fn forget_sooner(questions: &mut Questions, of: &Tuple, zone: u16, seconds: u32) -> Result<bool, Error> {
    const ESTABLISHED: u8 = 3;
    let is_kept = |found: &Connection| {
        found.tcp_state == Some(ESTABLISHED) && found.timeout.is_some_and(|timeout| timeout > seconds)
    };
    if !find(questions, of, zone)?.is_some_and(|found| is_kept(&found)) {
        return Ok(false);
    }
    questions.ask(named(NEW, of, zone).with(TIMEOUT, &seconds.to_be_bytes()), || (), |_| ())?;
    Ok(true)
}

/// A request about one connection.
fn named(kind: u16, of: &Tuple, zone: u16) -> Request {
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    let family = if of.source.is_ipv4() { AF_INET } else { AF_INET6 };
    let request = Request::new(kind, wire::ACK, &[family, 0, 0, 0]).within(ORIGINAL, |tuple| written(tuple, of));
    if zone == 0 { request } else { request.with(ZONE, &zone.to_be_bytes()) }
}

fn written(request: Request, of: &Tuple) -> Request {
    let addresses = |request: Request| match (of.source, of.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            request.with(1, &source.octets()).with(2, &destination.octets())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            request.with(3, &source.octets()).with(4, &destination.octets())
        }
        // No such connection: the kernel refuses it.
        _ => request,
    };
    let protocol = |request: Request| {
        let request = request.with(1, &[of.protocol]);
        match of.protocol {
            // Type 8 and 128 are echo requests.
            1 => request.with(4, &of.source_port.to_be_bytes()).with(5, &[8]).with(6, &[0]),
            58 => request.with(7, &of.source_port.to_be_bytes()).with(8, &[128]).with(9, &[0]),
            _ => request.with(2, &of.source_port.to_be_bytes()).with(3, &of.destination_port.to_be_bytes()),
        }
    };
    request.within(1, addresses).within(2, protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple_of(source: &str, destination: &str, protocol: u8, ports: (u16, u16)) -> Tuple {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        Tuple { source, destination, protocol, source_port: ports.0, destination_port: ports.1 }
    }

    fn read_back(kind: u16, original: &Tuple, reply: &Tuple) -> Option<Event> {
        let mut request = Request::new(kind, 0, &[2, 0, 0, 0])
            .within(ORIGINAL, |tuple| written(tuple, original))
            .within(REPLY, |tuple| written(tuple, reply))
            .with(STATUS, &(SEEN_REPLY | ASSURED | SOURCE_NAT).to_be_bytes())
            .with(TIMEOUT, &300_u32.to_be_bytes())
            .with(ZONE, &7_u16.to_be_bytes())
            .within(PROTOCOL_INFO, |info| info.within(1, |tcp| tcp.with(1, &[3]).with(4, &[0x28, 0]).with(5, &[8, 0])));
        event(&wire::messages(request.numbered(0)).next().unwrap())
    }

    #[test]
    fn connections_of_all_kinds_are_read_as_they_are_written() {
        for (original, reply) in [
            (tuple_of("10.0.0.1", "10.1.0.1", TCP, (1000, 80)), tuple_of("10.1.0.1", "192.0.2.1", TCP, (80, 5000))),
            (tuple_of("fd00::1", "fd01::1", 17, (1, 2)), tuple_of("fd01::1", "fd00::1", 17, (2, 1))),
            (tuple_of("10.0.0.1", "10.1.0.1", 1, (77, 77)), tuple_of("10.1.0.1", "10.0.0.1", 1, (77, 77))),
            (tuple_of("fd00::1", "fd01::1", 58, (9, 9)), tuple_of("fd01::1", "fd00::1", 58, (9, 9))),
        ] {
            let Some(Event::There(found)) = read_back(NEW, &original, &reply) else { panic!("{original}") };
            assert_eq!((found.original, found.reply, found.zone), (original, reply, 7));
            assert_eq!((found.status, found.timeout), (SEEN_REPLY | ASSURED | SOURCE_NAT, Some(300)));
            assert_eq!((found.tcp_state, found.is_liberal), (Some(3), true));
            assert_eq!(read_back(DELETE, &original, &reply), Some(Event::Gone(found)));
            assert_eq!(read_back(NFTABLES_KIND, &original, &reply), None);
        }
    }

    const NFTABLES_KIND: u16 = 10 << 8;

    #[test]
    fn what_has_no_tuple_is_no_connection() {
        let mut request = Request::new(NEW, 0, &[2, 0, 0, 0]).with(STATUS, &[0; 4]);
        assert_eq!(event(&wire::messages(request.numbered(0)).next().unwrap()), None);
    }
}
