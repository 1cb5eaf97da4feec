//! What the kernel says of associations and policies, and what it is told: messages of XFRM over netlink (`linux/xfrm.h`), as
//! bytes. Sockets are the caller's.
//!
//! | The caller asks or hears | It gets |
//! |---|---|
//! | [`list_associations`], [`list_policies`] | all that there are: [`read`] of each message between [`crate::database::Database::begin_list`] and `end_list` |
//! | events of [`GROUPS`] | [`read`] of each |
//! | [`report`] | the kernel takes over sequence numbers and use, which `ip xfrm state` and IKE then see |
//! | [`expire`] | the kernel tells IKE that an association is to be renewed, or is over, and forgets it then |
//!
//! Structures are those of `netlink-packet-xfrm`; attributes that say nothing here are not looked at, so that those of later kernels
//! do no harm.

mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::{Error, read};
pub use write::{expire, list_associations, list_policies, report};

use std::net::IpAddr;

use netlink_packet_xfrm::{AF_INET, Address};

/// Multicast groups of the events that [`read`] knows: expiries, associations, policies (`XFRMNLGRP_EXPIRE` and so on).
pub const GROUPS: [u32; 3] = [2, 3, 4];

/// The address, whose family is said elsewhere.
fn address(bytes: &Address, family: u16) -> IpAddr {
    if family == AF_INET { bytes.to_ipv4().into() } else { bytes.to_ipv6().into() }
}

/// Where the bit of a number is in the kernel's ring of `window` bits, of which `highest` is the newest number: it goes round by
/// the lower half of the number, whatever the window is.
pub(crate) fn ring_bit(highest: u64, number: u64, window: u32) -> usize {
    let newest = (highest as u32).wrapping_sub(1) % window;
    let back = (highest - number) as u32;
    (if newest >= back { newest - back } else { window - (back - newest) }) as usize
}
