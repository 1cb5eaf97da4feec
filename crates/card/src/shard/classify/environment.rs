//! What actions ask for.

use crate::flows::now_ns;
use millrace_flow::execute::Environment;
use millrace_flow::neighbour::Table as Neighbours;
use millrace_flow::quic;
use millrace_flow::rss::Group;
use millrace_flow::table::Tables;
use millrace_packet::parse::MacAddress;
use std::net::IpAddr;

/// Random numbers for `sample`: xorshift (Marsaglia, "Xorshift RNGs", 2003). Nothing secret depends on them.
pub(super) struct Random(u64);

impl Random {
    pub fn new() -> Self {
        Self(now_ns() | 1)
    }

    pub fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }
}

/// What actions ask for on a worker.
pub(super) struct OnWorker<'w> {
    pub tables: &'w Tables,
    pub random: &'w mut Random,
    /// When this burst is, coarsely.
    pub now_ns: u64,
    /// Neighbours, where somebody finds them.
    pub neighbours: Option<&'w Neighbours>,
    /// Whether the frame is for one that is not known.
    pub waits: bool,
}

impl Environment for OnWorker<'_> {
    fn group(&self, group: u32) -> Option<&Group> {
        self.tables.group(group).map(|group| &**group)
    }

    fn quic(&self, group: u32) -> Option<&quic::Group> {
        self.tables.quic(group).map(|group| &**group)
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn admit(&mut self, meter: u32, bytes: usize) -> bool {
        // A rule's meter is in the tables that have the rule.
        self.tables.meter(meter).is_some_and(|meter| meter.admit(now_ns(), 1, bytes as u64))
    }

    fn remark(&self, meter: u32) -> Option<u8> {
        self.tables.meter(meter)?.spec().remark
    }

    fn random(&mut self) -> u32 {
        self.random.next()
    }

    fn neighbour(&mut self, address: IpAddr) -> Option<MacAddress> {
        let known = self.neighbours?.known.get(&address)?;
        known.touch();
        Some(known.mac)
    }

    fn own_mac(&mut self, towards: IpAddr) -> Option<MacAddress> {
        Some(self.neighbours?.known.get(&towards)?.own)
    }

    fn mac_of_own(&mut self, address: IpAddr) -> Option<MacAddress> {
        self.neighbours?.mac_of_own(address)
    }

    fn waits(&mut self) -> bool {
        self.waits |= self.neighbours.is_some();
        self.waits
    }

    fn is_waiting(&self) -> bool {
        self.waits
    }

    fn stop_waiting(&mut self) {
        self.waits = false;
    }
}
