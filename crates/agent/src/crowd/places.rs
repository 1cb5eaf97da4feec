//! Who may stay when more connect than there are places. Places are shared by network: who has many addresses has one share.
//!
//! Those that have not said hello have a room of their own, in which the network with most of them gives way. With its hello a connection takes a place,
//! as long as its network has fewer than are free. When none is free, somebody of the network with most of them gives way, if that has two more. To those
//! who have shown a certificate, places of those who have not are free.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Places.
pub const PLACES: usize = 256;
/// Most that have not said hello.
pub const WAITING: usize = 128;

/// A network: the first 24 bits of an IPv4 address, 64 of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network(IpAddr);

impl Network {
    /// That of an address.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4((address.to_bits() & !0xff).into()),
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        })
    }
}

/// A connection that somebody else has begun.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Its number; who came later has a higher one.
    pub number: u64,
    /// Where it is from.
    pub network: Network,
    /// It has shown a certificate.
    pub is_certified: bool,
}

/// Whether a connection may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// There is room.
    Free,
    /// If this one goes.
    Of(u64),
    /// No.
    None,
}

/// Who of those that have not said hello goes, if they are too many: the oldest of the network with most of them.
pub fn gives_way(waiting: &[Caller]) -> Option<u64> {
    if waiting.len() <= WAITING {
        return None;
    }
    let crowd = crowds(waiting).into_iter().max_by_key(|(_, crowd)| crowd.count)?;
    Some(crowd.1.first)
}

/// Whether one that has said hello may stay beside those who have a place.
pub fn place(of: &Caller, seated: &[Caller]) -> Place {
    let (certified, others): (Vec<_>, Vec<_>) = seated.iter().partition(|caller| caller.is_certified);
    let all: Vec<_> = seated.to_vec();
    let rivals = if of.is_certified { &certified } else { &all };
    let free = PLACES.saturating_sub(rivals.len());
    let own = rivals.iter().filter(|caller| caller.network == of.network).count();
    if own < free {
        if seated.len() < PLACES {
            return Place::Free;
        }
        return last_of_most(&others, 0);
    }
    // A network that has its half has no claim to what is free.
    if free > 0 { Place::None } else { last_of_most(if of.is_certified { &certified } else { &others }, own + 1) }
}

/// The last one of the network with most of them, if these are more.
fn last_of_most(callers: &[Caller], than: usize) -> Place {
    let most = crowds(callers).into_iter().max_by_key(|(_, crowd)| crowd.count);
    most.filter(|(_, crowd)| crowd.count > than).map_or(Place::None, |(_, crowd)| Place::Of(crowd.last))
}

/// Callers of a network.
struct Crowd {
    count: usize,
    first: u64,
    last: u64,
}

fn crowds(callers: &[Caller]) -> BTreeMap<Network, Crowd> {
    let mut crowds = BTreeMap::new();
    for caller in callers {
        let number = caller.number;
        let crowd = crowds.entry(caller.network).or_insert(Crowd { count: 0, first: number, last: number });
        crowd.count += 1;
        crowd.first = crowd.first.min(number);
        crowd.last = crowd.last.max(number);
    }
    crowds
}
