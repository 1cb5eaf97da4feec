//! Why a frame is not taken, and how often that was so.

macro_rules! reasons {
    ($($name:ident, $text:literal, $message:literal;)*) => {
        /// Why there is no packet in a frame. Each has a counter in [`Counters`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $message] #[error($message)] $name,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$name),*];

            /// What its counter is called.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    NotRdma, "not_rdma", "it is a frame of another protocol";
    Ethernet, "ethernet", "it ends within the Ethernet header or the VLAN tag";
    Tags, "tags", "it has more than one VLAN tag";
    SourceMac, "source_mac", "its source MAC address is that of a group, or none";
    GroupMac, "group_mac", "it is for a group of stations, but its packet is no datagram";
    SourceAddress, "source_address", "its source address is that of a group, or none";
    IpHeader, "ip_header", "its IP header is cut off, or the version or a length in it is wrong";
    IpOptions, "ip_options", "its IPv4 header has options";
    IpChecksum, "ip_checksum", "the checksum of its IPv4 header is wrong";
    Fragment, "fragment", "it is a fragment of a datagram";
    UdpLength, "udp_length", "the length of UDP is not what IP carries";
    RouteHeader, "route_header", "its global route header is cut off, or says that something else follows";
    TransportHeader, "transport_header", "it ends within the base transport header or the invariant CRC";
    TransportVersion, "transport_version", "the version of its transport is not 0";
    Service, "service", "it is of a transport service that there is not here";
    Operation, "operation", "its transport service has no such operation";
    ExtendedHeaders, "extended_headers", "it ends within the extended transport headers";
    Padding, "padding", "its padding does not make it a multiple of four bytes";
    PayloadLength, "payload_length", "its payload is longer than the largest path MTU";
    Syndrome, "syndrome", "its acknowledgement has a reserved syndrome";
    Icrc, "icrc", "its invariant CRC is wrong";
    LeanHeader, "lean_header", "it ends within the header of SLURPoE";
    LeanVersion, "lean_version", "it is of another version of SLURPoE, or of another experiment";
    LeanFlags, "lean_flags", "it has flags that this version of SLURPoE has not";
    LeanLength, "lean_length", "it is shorter than its header of SLURPoE says";
    LeanChecksum, "lean_checksum", "its CRC-32C is wrong";
}

/// How many frames were not taken, by reason. They only grow, and go round after 2^64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters([u64; Reason::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([0; Reason::ALL.len()])
    }
}

impl Counters {
    /// One more.
    #[inline]
    pub fn count(&mut self, reason: Reason) {
        let counter = &mut self.0[reason as usize];
        *counter = counter.wrapping_add(1);
    }

    /// How many there were.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// Names and values, also those that are 0.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Reason::ALL.iter().zip(self.0).map(|(reason, value)| (reason.name(), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_reason_has_a_counter_of_its_own() {
        let mut counters = Counters::default();
        for (times, reason) in Reason::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| counters.count(reason));
        }
        let pairs: Vec<_> = counters.pairs().collect();
        assert!(pairs.iter().enumerate().all(|(times, pair)| pair.1 == times as u64));
        assert_eq!(pairs.iter().map(|pair| pair.0).collect::<HashSet<_>>().len(), Reason::ALL.len());
        assert_eq!(counters.get(Reason::Icrc), Reason::Icrc as u64);
    }
}
