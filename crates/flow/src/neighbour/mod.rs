//! Neighbours of the outer addresses of tunnels: which MAC address has the next hop (ARP, RFC 826; neighbour discovery, RFC 4861).
//!
//! ```text
//! worker --- frame whose next hop is not known, ARP and ND for the card ---> Resolver --- table ---> worker
//!                                                                               |
//!                                                     requests, answers, frames that waited
//! ```
//!
//! Nothing here talks to anybody: who runs a [`Resolver`] gives it what was heard and what time it is, publishes its
//! [`Table`] and sends what it wants sent.
//!
//! * here: the table that workers read. `published`: how they do. `resolver`: what becomes of each neighbour. `wire`: ARP and ND packets.

mod published;
mod resolver;
#[cfg(test)]
mod tests;
mod wire;

pub use published::{Published, Reader};
pub use resolver::{Neighbour, Outgoing, Refused, Resolver, State};
pub use wire::{Concern, concerns};

use crate::action::{Action, Vxlan};
use millrace_packet::parse::MacAddress;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most neighbours at once.
pub const MOST_NEIGHBOURS: usize = 4096;
/// Most static neighbours of users who may not do everything.
pub const MOST_OF_USERS: usize = MOST_NEIGHBOURS / 2;
/// Most addresses of the card whose ports are learned from frames.
pub const MOST_LEARNED: usize = 1024;
/// Most frames that wait for one neighbour.
pub const MOST_WAITING: usize = 8;
/// Most bytes of frames that wait for all neighbours together.
pub const MOST_WAITING_BYTES: usize = 4 << 20;

/// An address of the card: the source of a tunnel whose neighbours have to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Own {
    /// The address.
    pub address: IpAddr,
    /// Its MAC address, if a rule names it; otherwise that of the port.
    pub mac: Option<u64>,
    /// The port at which it is; `None`: no rule says it, and it is only there for neighbours that are known.
    pub port: Option<u32>,
}

impl Own {
    /// The addresses for which actions need neighbours. The port is that of the first `output` behind the tunnel.
    pub fn of(actions: &[Action]) -> impl Iterator<Item = Self> {
        actions.iter().enumerate().filter_map(|(at, action)| match action {
            Action::EncapVxlan(outer) => Self::of_tunnel(outer, port_of(&actions[at..])),
            Action::VxlanPort(port) => Self::of_tunnel(&port.outer, Some(port.output)),
            _ => None,
        })
    }

    fn is_at(&self, address: IpAddr, port: u16, is_known: impl FnOnce() -> bool) -> bool {
        self.address == address && self.port.map_or_else(is_known, |at| at == u32::from(port))
    }

    fn of_tunnel(outer: &Vxlan, port: Option<u32>) -> Option<Self> {
        let needed = outer.dl_dst.is_none() || outer.dl_src.is_none();
        needed.then_some(Self { address: outer.src, mac: outer.dl_src, port })
    }
}

/// The port of the first `output` of these actions.
fn port_of(actions: &[Action]) -> Option<u32> {
    actions.iter().find_map(|action| match action {
        Action::Output(port) => Some(*port),
        _ => None,
    })
}

/// What workers know of a neighbour.
#[derive(Debug)]
pub struct Known {
    /// Its address.
    pub mac: MacAddress,
    /// The card's address at its port.
    pub own: MacAddress,
    /// The port where it is.
    pub port: u16,
    used: AtomicBool,
}

impl Known {
    fn new(mac: MacAddress, own: MacAddress, port: u16) -> Self {
        Self { mac, own, port, used: AtomicBool::new(false) }
    }

    /// Notes that a frame goes there.
    #[inline]
    pub fn touch(&self) {
        // Most of the time the line stays where it is.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

/// What workers read: it never changes; a newer one takes its place.
#[derive(Clone, Debug)]
pub struct Table {
    /// Neighbours whose address is known.
    pub known: HashMap<IpAddr, std::sync::Arc<Known>>,
    /// Neighbours to whom nothing goes now: they have not answered, or enough waits for them.
    pub closed: HashSet<IpAddr>,
    /// Addresses of the card.
    pub own: Vec<Own>,
    base: MacAddress,
}

impl Default for Table {
    fn default() -> Self {
        Self { known: HashMap::new(), closed: HashSet::new(), own: Vec::new(), base: MacAddress([0; 6]) }
    }
}

impl Table {
    /// Whether an address is the card's at a port, for somebody there. Where no rule says the port, it is for those who are known there:
    /// the same address at another port is somebody else's.
    #[inline]
    pub fn is_own(&self, address: IpAddr, port: u16, by: IpAddr) -> bool {
        let is_known = || self.known.get(&by).is_some_and(|known| known.port == port);
        self.own.iter().any(|own| own.is_at(address, port, is_known))
    }

    /// Whether any address of the card is at a port.
    fn is_anybody_at(&self, port: u16) -> bool {
        self.own.iter().any(|own| own.port.is_none_or(|at| at == u32::from(port)))
    }

    /// Whether a frame whose next hop is not known is for one to whom nothing goes now.
    #[cold]
    pub fn is_closed(&self, frame: &[u8]) -> bool {
        !self.closed.is_empty()
            && resolver::addresses(frame).is_some_and(|(_, next_hop)| self.closed.contains(&next_hop))
    }

    /// The MAC address that belongs to an address of the card; at port 0, where rules do not say which.
    pub fn mac_of_own(&self, address: IpAddr) -> Option<MacAddress> {
        let mut all = self.own.iter().filter(|own| own.address == address);
        let first = all.next()?;
        let own = if first.port.is_some() { first } else { all.next().unwrap_or(first) };
        let port = own.port.and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
        Some(own.mac.map_or_else(|| at_port(self.base, port), mac_of))
    }
}

/// The card's address at a port: the last bytes count on with ports.
fn at_port(base: MacAddress, port: u16) -> MacAddress {
    let MacAddress([a, b, c, d, e, f]) = base;
    let [e, f] = u16::from_be_bytes([e, f]).wrapping_add(port).to_be_bytes();
    MacAddress([a, b, c, d, e, f])
}

/// The MAC address in the lower 48 bits of a number.
pub(crate) fn mac_of(number: u64) -> MacAddress {
    let [_, _, a, b, c, d, e, f] = number.to_be_bytes();
    MacAddress([a, b, c, d, e, f])
}
