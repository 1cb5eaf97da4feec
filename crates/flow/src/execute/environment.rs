//! What actions need from outside.

use crate::rss::Group;
use millrace_packet::parse::MacAddress;
use std::net::IpAddr;

/// What actions need from outside of the frame. It is asked on the data path: answers come without waiting.
pub trait Environment {
    /// The RSS group of that number. The version of the tables that decided has every group that its rules use.
    fn group(&self, group: u32) -> Option<&Group>;

    /// Whether a meter admits a frame of so many bytes, now.
    fn admit(&mut self, meter: u32, bytes: usize) -> bool;

    /// A random number, for `sample`.
    fn random(&mut self) -> u32;

    /// The MAC address to which packets for an address are sent; `None` while it is not known.
    fn neighbour(&mut self, address: IpAddr) -> Option<MacAddress>;

    /// The MAC address of the port at which packets for an address leave; `None` while no way leads there.
    fn own_mac(&mut self, towards: IpAddr) -> Option<MacAddress>;
}
