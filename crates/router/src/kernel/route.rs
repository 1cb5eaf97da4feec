//! Routes, policy rules and the multicast forwarding cache (`man 7 rtnetlink`).
//!
//! Routes are not kept: a router may have a million, and who asks for one asks the kernel. What is kept is short by nature.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::socket::{Error, Questions};
use super::wire::{self, Message, Request};

const HEADER: usize = 12;
const GET_ROUTE: u16 = 26;
const NEW_ROUTE: u16 = 24;

/// IPv4's multicast routing, as a family of rtnetlink.
pub const MULTICAST_IPV4: u8 = 128;
/// IPv6's.
pub const MULTICAST_IPV6: u8 = 129;

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// 4 or 6.
    pub version: u8,
    /// Network, with the length of its prefix; `None` for the default.
    pub destination: Option<(IpAddr, u8)>,
    /// Number of the table.
    pub table: u32,
    /// `RTN_*`: 1 unicast, 2 local, 3 broadcast, 6 blackhole, 7 unreachable, 8 prohibit, ...
    pub kind: u8,
    /// By which interface, if by one.
    pub interface: Option<u32>,
    /// By whom, if the destination is not a neighbour itself.
    pub gateway: Option<IpAddr>,
    /// Lower is better.
    pub metric: u32,
    /// By several: interface and weight.
    pub several: Vec<(u32, u8)>,
    /// Number of the next-hop object that it uses.
    pub next_hop: Option<u32>,
}

impl Route {
    /// Reads the body of `RTM_NEWROUTE` or `RTM_DELROUTE`; `None` for multicast.
    pub fn read(body: &[u8]) -> Option<Self> {
        let version = version(*body.first()?)?;
        let (length, table, kind) = (*body.get(1)?, *body.get(4)?, *body.get(7)?);
        let all = wire::attributes(body, HEADER);
        let number = |kind| all.clone().find(kind).and_then(wire::u32_of);
        let destination = all.clone().find(1).and_then(wire::address_of).map(|network| (network, length));
        Some(Self {
            version,
            destination,
            table: number(15).unwrap_or(table.into()),
            kind,
            interface: number(4),
            gateway: all
                .clone()
                .find(5)
                .or_else(|| all.clone().find(18).and_then(|via| via.get(2..)))
                .and_then(wire::address_of),
            metric: number(6).unwrap_or_default(),
            several: all.clone().find(9).map(next_hops).unwrap_or_default(),
            next_hop: number(30),
        })
    }
}

/// Whether the route in the body of `RTM_NEWROUTE` has an MTU of its own (`RTAX_MTU` of `RTA_METRICS`).
pub fn has_mtu(body: &[u8]) -> bool {
    wire::attributes(body, HEADER).find(8).is_some_and(|metrics| wire::nested(metrics).find(2).is_some())
}

/// Whether the route in the body of `RTM_NEWROUTE` leads by several next hops (`RTA_MULTIPATH`).
pub fn has_choice(body: &[u8]) -> bool {
    wire::attributes(body, HEADER).find(9).is_some()
}

/// Whether a route, in the body of `RTM_NEWROUTE` or `RTM_DELROUTE`, says that addresses are this host's: local, broadcast, anycast. Packets that come
/// from such are dropped, and rulesets ask for that.
pub fn is_of_host(body: &[u8]) -> bool {
    body.get(7).is_some_and(|kind| matches!(kind, 2..=4))
}

/// Whether the next-hop object in the body of `RTM_NEWNEXTHOP` is a group of others (`NHA_GROUP`).
pub fn is_group(body: &[u8]) -> bool {
    wire::attributes(body, 8).find(2).is_some()
}

/// 4 or 6, of an address family.
fn version(family: u8) -> Option<u8> {
    match family {
        2 => Some(4),
        10 => Some(6),
        _ => None,
    }
}

/// Interfaces and weights of `RTA_MULTIPATH`.
fn next_hops(mut bytes: &[u8]) -> Vec<(u32, u8)> {
    /// The kernel allows more, but nobody balances over them.
    const MOST: usize = 256;
    let mut all = Vec::new();
    while let (Some(length), Some(hops), Some(interface)) =
        (wire::u16_at(bytes, 0), bytes.get(3), wire::u32_at(bytes, 4))
    {
        if length < 8 || all.len() == MOST {
            break;
        }
        all.push((interface, hops.saturating_add(1)));
        bytes = bytes.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// The route that a packet would take that came by this interface.
///
/// # Errors
/// What the kernel says: `ENETUNREACH` and `EHOSTUNREACH` where there is none, `EACCES` where it is prohibited, `EXDEV` for a source that cannot be there.
pub fn find(
    questions: &mut Questions,
    source: IpAddr,
    destination: IpAddr,
    input: u32,
) -> Result<Option<Route>, Error> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let (family, bits) = if destination.is_ipv4() { (2, 32) } else { (10, 128) };
    let header = [family, bits, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let request = Request::new(GET_ROUTE, wire::ACK, &header).with(1, &octets(destination)).with(2, &octets(source));
    let request = if input == 0 { request } else { request.with(3, &input.to_ne_bytes()) };
    questions.one(request, Route::read)
}

/// Reads all routes of a family (2 IPv4, 10 IPv6), one after the other.
///
/// # Errors
/// When the kernel does not answer.
pub fn list(
    questions: &mut Questions,
    family: u8,
    begin: impl FnMut(),
    mut each: impl FnMut(Route),
) -> Result<(), Error> {
    let mut header = [0; HEADER];
    header[0] = family;
    let keep = |message: Message<'_>| {
        if message.kind == NEW_ROUTE {
            Route::read(message.body).into_iter().for_each(&mut each);
        }
    };
    questions.ask(Request::new(GET_ROUTE, wire::DUMP, &header), begin, keep)
}

/// A policy rule: which table is asked for which packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rule {
    /// 4 or 6.
    pub version: u8,
    /// They are asked in this order.
    pub priority: u32,
    /// Number of the table; 0 for rules that ask none.
    pub table: u32,
    /// `FR_ACT_*`: 1 look into the table, 2 go to another rule, 6 blackhole, 7 unreachable, 8 prohibit.
    pub action: u8,
    /// From whom, with the length of the prefix.
    pub source: Option<(IpAddr, u8)>,
    /// To whom.
    pub destination: Option<(IpAddr, u8)>,
    /// Packets that came by this interface.
    pub input: Option<String>,
    /// Mark and mask.
    pub mark: Option<(u32, u32)>,
    /// The TOS that it is about; 0 for all.
    pub tos: u8,
    /// Everything else that it says, as the kernel writes it.
    pub rest: Vec<(u16, Vec<u8>)>,
}

impl Rule {
    /// Reads the body of `RTM_NEWRULE` or `RTM_DELRULE`; `None` for multicast.
    pub fn read(body: &[u8]) -> Option<Self> {
        let version = version(*body.first()?)?;
        let (to, from, table, action) = (*body.get(1)?, *body.get(2)?, *body.get(4)?, *body.get(7)?);
        let all = wire::attributes(body, HEADER);
        let number = |kind| all.clone().find(kind).and_then(wire::u32_of);
        let network = |kind, length| all.clone().find(kind).and_then(wire::address_of).map(|network| (network, length));
        Some(Self {
            version,
            priority: number(6).unwrap_or_default(),
            table: number(15).unwrap_or(table.into()),
            action,
            source: network(2, from),
            destination: network(1, to),
            input: all.clone().find(3).and_then(wire::text_of),
            mark: number(10).map(|mark| (mark, number(16).unwrap_or(u32::MAX))),
            tos: *body.get(3)?,
            rest: all
                .filter(|(kind, _)| !matches!(kind, 1 | 2 | 3 | 6 | 10 | 15 | 16))
                .map(|(kind, value)| (kind, value.to_owned()))
                .collect(),
        })
    }

    /// Whether it is about something that the program's question to the tables (`bpf_fib_lookup`) does not have: marks above all. Where such a rule
    /// is, the same answer does not mean that Linux does the same.
    pub fn looks_further(&self) -> bool {
        /// Where to go on, realms, what is not good enough, padding, VRFs, who has made it, protocol and ports (`FRA_*`). Of VRFs the router takes no
        /// interface, and protocol and ports are asked with.
        const KNOWN: [u16; 11] = [4, 11, 13, 14, 17, 18, 19, 21, 22, 23, 24];
        // The question has the TOS of IPv4 only.
        let by_class = self.version == 6 && self.tos != 0;
        self.mark.is_some() || by_class || self.rest.iter().any(|(kind, _)| !KNOWN.contains(kind))
    }
}

/// An entry of the multicast forwarding cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multicast {
    /// Who sends; `0.0.0.0` or `::` for everybody.
    pub source: IpAddr,
    /// To which group.
    pub group: IpAddr,
    /// By which interface it has to come.
    pub input: Option<u32>,
    /// By which interfaces it leaves, and what the hop limit has to be higher than there.
    pub outputs: Vec<(u32, u8)>,
    /// It is in the table that is asked where no rule says otherwise.
    pub is_default: bool,
}

impl Multicast {
    /// Reads the body of `RTM_NEWROUTE` or `RTM_DELROUTE`; `None` for routes to one.
    pub fn read(body: &[u8]) -> Option<Self> {
        let default = match *body.first()? {
            MULTICAST_IPV4 => 253,
            MULTICAST_IPV6 => 254,
            _ => return None,
        };
        let table = u32::from(*body.get(4)?);
        let all = wire::attributes(body, HEADER);
        let outputs = all.clone().find(9).map(next_hops).unwrap_or_default();
        Some(Self {
            source: all.clone().find(2).and_then(wire::address_of)?,
            group: all.clone().find(1).and_then(wire::address_of)?,
            input: all.clone().find(3).and_then(wire::u32_of),
            // What is a weight in other routes is one more.
            outputs: outputs.into_iter().map(|(output, weight)| (output, weight - 1)).collect(),
            is_default: all.clone().find(15).and_then(wire::u32_of).unwrap_or(table) == default,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(header: &[u8], fill: impl FnOnce(Request) -> Request) -> Vec<u8> {
        fill(Request::new(24, 0, header)).numbered(0)[16..].to_owned()
    }

    fn two_ways() -> Vec<u8> {
        [(3_u32, 0_u8), (4, 9)]
            .iter()
            .flat_map(|(interface, hops)| [&[8, 0, 0, *hops][..], &interface.to_ne_bytes()].concat())
            .collect()
    }

    #[test]
    fn a_route_by_several_is_read() {
        let body = body(&[2, 24, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0], |request| {
            request.with(1, &[10, 9, 0, 0]).with(15, &1000_u32.to_ne_bytes()).with(9, &two_ways())
        });
        let route = Route::read(&body).unwrap();
        assert_eq!((route.destination, route.table), (Some(([10, 9, 0, 0].into(), 24)), 1000));
        assert_eq!(route.several, [(3, 1), (4, 10)]);
        assert_eq!(next_hops(&[0; 64]), [], "what has no length ends the list");
    }

    #[test]
    fn multicast_is_told_from_routes() {
        let body = body(&[128, 32, 32, 0, 253, 0, 0, 5, 0, 0, 0, 0], |request| {
            request.with(1, &[239, 0, 0, 1]).with(2, &[10, 0, 0, 1]).with(3, &7_u32.to_ne_bytes()).with(9, &two_ways())
        });
        assert_eq!(Route::read(&body), None);
        let entry = Multicast::read(&body).unwrap();
        assert_eq!((entry.input, entry.outputs), (Some(7), vec![(3, 0), (4, 9)]));
        assert!(entry.is_default);
    }

    #[test]
    fn a_rule_is_read_with_all_that_it_says() {
        let rule = body(&[2, 0, 24, 0, 100, 0, 0, 1, 0, 0, 0, 0], |request| {
            request
                .with(2, &[10, 1, 0, 0])
                .with(6, &77_u32.to_ne_bytes())
                .with(10, &5_u32.to_ne_bytes())
                .with(24, &[1; 4])
        });
        let rule = Rule::read(&rule).unwrap();
        assert_eq!((rule.priority, rule.table, rule.mark), (77, 100, Some((5, u32::MAX))));
        assert_eq!((rule.source, rule.rest), (Some(([10, 1, 0, 0].into(), 24)), vec![(24, vec![1; 4])]));
    }
}
