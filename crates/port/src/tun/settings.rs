//! What is set of a TUN interface by messages of `rtnetlink`.

use super::Address;
use crate::link::ask;
use rustix::io::{self, Errno};
use std::net::IpAddr;

// Of linux/netlink.h, linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h.
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
/// `NLM_F_REQUEST`, `NLM_F_ACK`.
const PLAIN: u16 = 1 | 4;
/// With `NLM_F_REPLACE`, `NLM_F_CREATE`.
const REPLACE: u16 = PLAIN | 0x100 | 0x400;
/// With `NLM_F_EXCL`, `NLM_F_CREATE`.
const NEW: u16 = PLAIN | 0x200 | 0x400;
const UP: u32 = 1;
const LINK_MTU: u16 = 4;
const ADDRESS_PEER: u16 = 1;
const ADDRESS_OWN: u16 = 2;
/// Nobody is asked whether he has it (`IFA_F_NODAD`): there are two at this link.
const NO_DAD: u8 = 2;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_METRIC: u16 = 6;
/// `RT_TABLE_MAIN`, `RTPROT_STATIC`, `RT_SCOPE_LINK` (IPv4), `RTN_UNICAST`.
const MAIN: u8 = 254;
const STATIC: u8 = 4;
const SCOPE_LINK: u8 = 253;
const UNICAST: u8 = 1;

/// MTU, and up.
pub(super) fn link(index: u32, mtu: u16) -> io::Result<()> {
    let mut body = vec![0; 16];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..12].copy_from_slice(&UP.to_ne_bytes());
    body[12..16].copy_from_slice(&UP.to_ne_bytes());
    put(&mut body, LINK_MTU, &u32::from(mtu).to_ne_bytes());
    change(NEW_LINK, PLAIN, &body)
}

/// An address, to be there or not.
pub(super) fn address(index: u32, address: &Address, there: bool) -> io::Result<()> {
    let (family, bits) = family(address.own.is_ipv6());
    let mut body = vec![family, bits, NO_DAD, 0];
    body.extend_from_slice(&index.to_ne_bytes());
    put(&mut body, ADDRESS_OWN, &bytes(&address.own));
    put(&mut body, ADDRESS_PEER, &bytes(&address.peer.unwrap_or(address.own)));
    match there {
        true => change(NEW_ADDRESS, REPLACE, &body),
        false => change(DELETE_ADDRESS, PLAIN, &body),
    }
}

/// To everywhere, to be there or not. `EEXIST`: another one of this metric is there, and stays.
pub(super) fn default_route(index: u32, ipv6: bool, metric: u32, there: bool) -> io::Result<()> {
    let scope = if ipv6 { 0 } else { SCOPE_LINK };
    let mut body = vec![family(ipv6).0, 0, 0, 0, MAIN, STATIC, scope, UNICAST, 0, 0, 0, 0];
    put(&mut body, ROUTE_INTERFACE, &index.to_ne_bytes());
    put(&mut body, ROUTE_METRIC, &metric.to_ne_bytes());
    match there {
        true => change(NEW_ROUTE, NEW, &body),
        false => change(DELETE_ROUTE, PLAIN, &body),
    }
}

/// `AF_INET6` or `AF_INET`, and the bits of an address.
fn family(ipv6: bool) -> (u8, u8) {
    if ipv6 { (10, 128) } else { (2, 32) }
}

fn bytes(address: &IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn put(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn change(kind: u16, flags: u16, body: &[u8]) -> Result<(), Errno> {
    let len = (16 + body.len()) as u32;
    let head = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]].concat();
    ask(&[head, body.to_vec()].concat())
}
