//! Every reader of messages at once, for tests with bytes that no kernel has sent.

use super::link::{self, Link};
use super::neighbour::{Neighbour, Station};
use super::netfilter::NFTABLES;
use super::route::{self, Multicast, Route, Rule};
use super::ruleset::Looks;
use super::wire::Message;
use super::{address::Address, conntrack, netfilter, policy, shaping};

/// Kinds of messages that are read, of all protocols: rtnetlink, conntrack, nftables and its hooks, XFRM.
pub const KINDS: [u16; 37] = [
    16,
    17,
    20,
    21,
    24,
    25,
    28,
    29,
    32,
    33,
    36,
    37,
    40,
    41,
    44,
    45,
    80,
    104,
    105,
    112,
    113,
    0x100,
    0x102,
    NFTABLES,
    NFTABLES | 2,
    NFTABLES | 3,
    NFTABLES | 5,
    NFTABLES | 6,
    NFTABLES | 8,
    NFTABLES | 9,
    NFTABLES | 15,
    12 << 8,
    0x13,
    0x14,
    0x19,
    0x1d,
    0x27,
];

/// Reads a message with each reader, whatever it is; how many found something in it.
pub fn read_all(message: &Message<'_>) -> u64 {
    let body = message.body;
    let mut looks = Looks { is_read: true, ..Looks::default() };
    looks.hear(message);
    let of_route = [
        Address::read(body).is_some(),
        Link::read(body).is_some(),
        link::bridge_port(body).is_some(),
        link::port_vlans(body).is_some(),
        Neighbour::without_question(body).is_some(),
        Neighbour::read(body).is_some(),
        Station::read(body).is_some(),
        Route::read(body).is_some(),
        route::has_mtu(body),
        route::has_choice(body),
        route::is_of_host(body),
        route::is_group(body),
        Rule::read(body).is_some_and(|rule| rule.looks_further()),
        Multicast::read(body).is_some(),
    ];
    let of_others = [
        conntrack::event(message).is_some(),
        netfilter::new_generation(message).is_some(),
        netfilter::read_any(message),
        looks.routes || !looks.unannounced.is_empty() || !looks.is_read,
        policy::is_change(message) && policy::read(message).is_some(),
        shaping::is_ours(body),
        shaping::read_any(message),
    ];
    of_route.iter().chain(&of_others).map(|&found| u64::from(found)).sum()
}
