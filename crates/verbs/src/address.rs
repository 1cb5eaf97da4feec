//! Who this end is: its addresses, and the table of GIDs that programs see.

use crate::config::Config;
use millrace_rdma::number::Gid;
use millrace_rdma::wire::Format;
use std::net::{IpAddr, Ipv4Addr};

/// How many GIDs there are.
pub(crate) const GIDS: usize = 4;

/// The addresses of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub mac: [u8; 6],
    pub ip: IpAddr,
}

impl Address {
    /// What the configuration says. Without an IP address it is one of those for benchmarks (RFC 2544, 198.18.0.0/15), by
    /// number of the TX queue; without a MAC address it is one of those that anybody may give (IEEE 802, 8.2), by IP address.
    pub fn new(config: &Config, tx: u32) -> Self {
        let ip = config.ip.unwrap_or_else(|| {
            let host = u32::from(Ipv4Addr::new(198, 18, 0, 1)) + tx % 0xfffe;
            IpAddr::V4(host.into())
        });
        Self { mac: config.mac.unwrap_or_else(|| Gid::mac_of_ip(ip)), ip }
    }

    /// Entry `index` of the table of GIDs. RoCE v2 with the IP address comes first: programs that do not choose take that.
    pub fn gid(&self, index: usize) -> Option<(Gid, Format)> {
        Some(match index {
            0 => (Gid::from_ip(self.ip), Format::RoceV2),
            1 => (Gid::from_ip(self.ip), Format::RoceV1),
            2 => (Gid::link_local(self.mac), Format::RoceV2),
            3 => (Gid::link_local(self.mac), Format::RoceV1),
            _ => return None,
        })
    }

    /// The number of this device in the world (EUI-64 of its MAC address), in the order of the network.
    pub fn guid(&self) -> [u8; 8] {
        let gid = Gid::link_local(self.mac).0;
        [gid[8], gid[9], gid[10], gid[11], gid[12], gid[13], gid[14], gid[15]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_from_the_queue_and_from_each_other() {
        let address = Address::new(&Config::default(), 1);
        assert_eq!(address, Address { mac: [2, 0x4d, 198, 18, 0, 2], ip: "198.18.0.2".parse().unwrap() });
        assert_eq!(address.gid(0).unwrap().0.to_string(), "::ffff:198.18.0.2");
        assert_eq!(address.gid(2).unwrap().0.to_string(), "fe80::4d:c6ff:fe12:2");
        assert_eq!(address.gid(GIDS), None);
        let config = Config { ip: Some("2001:db8::7".parse().unwrap()), ..Config::default() };
        assert_eq!(Address::new(&config, 0).mac, [2, 0x4d, 0, 0, 0, 7]);
    }
}
