//! What actions need from outside.

use crate::quic;
use crate::rss::Group;
use millrace_packet::parse::MacAddress;
use std::net::IpAddr;

/// What actions need from outside of the frame. It is asked on the data path: answers come without waiting.
pub trait Environment {
    /// The RSS group of that number. The version of the tables that decided has every group that its rules use.
    fn group(&self, group: u32) -> Option<&Group>;

    /// The QUIC group of that number; as with [`group`](Self::group), those that rules use are there.
    fn quic(&self, group: u32) -> Option<&quic::Group>;

    /// A QUIC group has said which queue a packet goes to, and why; for explanations.
    #[inline(always)]
    fn steered(&mut self, _group: u32, _queue: Option<u16>, _why: quic::Why) {}

    /// What time it is, for QUIC groups: nanoseconds of the clock whose times [`Tables::sent`](crate::table::Tables::sent) gets.
    fn now_ns(&self) -> u64;

    /// Whether a meter admits a frame of so many bytes, now.
    fn admit(&mut self, meter: u32, bytes: usize) -> bool;

    /// What a meter does to packets that it does not admit: steps by which their drop precedence rises; `None`: they are dropped.
    fn remark(&self, meter: u32) -> Option<u8> {
        let _ = meter;
        None
    }

    /// A random number, for `sample`.
    fn random(&mut self) -> u32;

    /// The MAC address to which packets for an address are sent; `None` while it is not known.
    fn neighbour(&mut self, address: IpAddr) -> Option<MacAddress>;

    /// The MAC address of the port at which packets for an address leave; `None` while no way leads there.
    fn own_mac(&mut self, towards: IpAddr) -> Option<MacAddress>;

    /// The MAC address that belongs to an address of the card's own, where the rule says to whom a packet goes and not from whom.
    fn mac_of_own(&mut self, address: IpAddr) -> Option<MacAddress> {
        let _ = address;
        None
    }

    /// Whether a frame to a neighbour that is not known goes on, with zeros for addresses that somebody fills in. Otherwise the host
    /// gets it.
    fn waits(&mut self) -> bool {
        false
    }

    /// Whether the frame has such zeros.
    fn is_waiting(&self) -> bool {
        false
    }

    /// What had such zeros was a copy, and the frame itself has none.
    fn stop_waiting(&mut self) {}
}

/// Nothing is outside: there are no groups, meters admit everything, nobody is sampled, and no neighbour is known. Frames for tunnels go on with zeros
/// for addresses, which is for whoever gets them to fill in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone {
    waits: bool,
}

impl Environment for Alone {
    fn group(&self, _: u32) -> Option<&Group> {
        None
    }

    fn quic(&self, _: u32) -> Option<&quic::Group> {
        None
    }

    fn now_ns(&self) -> u64 {
        0
    }

    fn admit(&mut self, _: u32, _: usize) -> bool {
        true
    }

    fn random(&mut self) -> u32 {
        u32::MAX
    }

    fn neighbour(&mut self, _: IpAddr) -> Option<MacAddress> {
        None
    }

    fn own_mac(&mut self, _: IpAddr) -> Option<MacAddress> {
        None
    }

    fn waits(&mut self) -> bool {
        self.waits = true;
        true
    }

    fn is_waiting(&self) -> bool {
        self.waits
    }

    fn stop_waiting(&mut self) {
        self.waits = false;
    }
}
