//! What the engine is told about each interface of Linux: all of them, for a packet that comes by a card may belong to a VLAN on it, to the bridge
//! that it is a port of, or to both.

use crate::kernel::link::{Kind, Link, PortVlan};
use crate::kernel::mirror::Mirror;
use crate::kernel::settings;

/// `rp_filter`: the way back has to be the same interface.
pub const STRICT: u8 = 1;
/// `rp_filter`: there has to be a way back.
pub const LOOSE: u8 = 2;

/// An interface, as the engine sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// It is up.
    pub is_up: bool,
    /// It is a bridge; whether that looks at tags.
    pub bridge: Option<bool>,
    /// It is a port of that bridge.
    pub port_of: Option<u32>,
    /// It is a VLAN on that interface: its Ethernet type and its number.
    pub vlan: Option<(u32, u16, u16)>,
    /// Bytes that IP may have.
    pub mtu: u16,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// The VLAN of what comes without a tag, at a port of a bridge that looks at them.
    pub untagged_vlan: Option<u16>,
    /// `rp_filter`: [`STRICT`], [`LOOSE`], or 0.
    pub rp_filter: u8,
    /// Linux forwards IPv4 that comes by it.
    pub forwards_ipv4: bool,
    /// The same of IPv6.
    pub forwards_ipv6: bool,
}

/// Settings of the namespace that concern all interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// The strictest `rp_filter` of `all`.
    pub rp_filter: u8,
    /// IPv6 is forwarded.
    pub ipv6: bool,
}

impl Forwarding {
    /// As the namespace is set.
    pub fn read() -> Self {
        let rp_filter = settings::of_interface("ipv4", "all", "rp_filter").unwrap_or_default();
        let ipv6 = settings::of_interface("ipv6", "all", "forwarding").unwrap_or_default() != 0;
        Self { rp_filter: rp_filter.clamp(0, 2) as u8, ipv6 }
    }
}

impl Device {
    /// What there is to say of an interface.
    pub fn of(mirror: &Mirror, link: &Link, forwarding: Forwarding) -> Self {
        let setting = |family, name| settings::of_interface(family, &link.name, name).unwrap_or_default();
        let port_of = link.master.filter(|_| link.port.is_some());
        let filters = port_of.and_then(|bridge| mirror.links.get(&bridge)).is_some_and(filters_vlans);
        let vlans = mirror.port_vlans.get(&link.index).filter(|_| filters);
        let untagged = |vlans: &Vec<PortVlan>| vlans.iter().find(|vlan| vlan.is_untagged_in).map(|vlan| vlan.id);
        Self {
            is_up: link.is_up(),
            bridge: if let Kind::Bridge { vlan_filtering } = link.kind { Some(vlan_filtering) } else { None },
            port_of,
            vlan: match (&link.kind, link.parent) {
                (Kind::Vlan(vlan), Some(parent)) => Some((parent, vlan.ethertype, vlan.id)),
                _ => None,
            },
            mtu: u16::try_from(link.mtu).unwrap_or(u16::MAX),
            mac: link.mac.unwrap_or_default(),
            untagged_vlan: vlans.and_then(untagged),
            rp_filter: setting("ipv4", "rp_filter").clamp(0, 2).max(forwarding.rp_filter.into()) as u8,
            forwards_ipv4: setting("ipv4", "forwarding") != 0,
            forwards_ipv6: forwarding.ipv6,
        }
    }
}

fn filters_vlans(bridge: &Link) -> bool {
    bridge.kind == Kind::Bridge { vlan_filtering: true }
}

/// Whether a port sends a VLAN with its tag, or not at all.
pub fn sends_tagged(mirror: &Mirror, port: u32, vlan: u16) -> Option<bool> {
    let vlans = mirror.port_vlans.get(&port)?;
    vlans.iter().find(|one| one.id == vlan).map(|one| !one.is_untagged_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::link::{BridgePort, UP, Vlan};

    fn link(index: u32, kind: Kind) -> Link {
        Link {
            index,
            name: format!("nosuch{index}"),
            kind,
            flags: UP,
            mtu: 1500,
            mac: Some([2, 0, 0, 0, 0, index as u8]),
            master: None,
            master_kind: None,
            parent: None,
            port: None,
            xdp: 0,
            qdisc: String::new(),
            rx_queues: 1,
            group: 0,
        }
    }

    #[test]
    fn a_port_of_a_bridge_that_filters_has_its_vlan() {
        let mut mirror = Mirror::default();
        mirror.links.insert(3, link(3, Kind::Bridge { vlan_filtering: true }));
        let port = Link {
            master: Some(3),
            port: Some(BridgePort { state: 3, ..BridgePort::default() }),
            ..link(4, Kind::Physical)
        };
        let vlan = |id, is_untagged_in| PortVlan { id, is_untagged_in, is_untagged_out: is_untagged_in };
        mirror.port_vlans.insert(4, vec![vlan(7, false), vlan(9, true)]);
        let of = |mirror: &Mirror| Device::of(mirror, &port, Forwarding { rp_filter: 2, ipv6: true });
        let device = of(&mirror);
        assert_eq!((device.port_of, device.untagged_vlan, device.rp_filter), (Some(3), Some(9), 2));
        assert_eq!(
            (sends_tagged(&mirror, 4, 7), sends_tagged(&mirror, 4, 9), sends_tagged(&mirror, 4, 8)),
            (Some(true), Some(false), None)
        );
        mirror.links.insert(3, link(3, Kind::Bridge { vlan_filtering: false }));
        assert_eq!(of(&mirror).untagged_vlan, None);
    }

    #[test]
    fn a_vlan_names_what_it_lies_on() {
        let vlan = Link { parent: Some(4), ..link(5, Kind::Vlan(Vlan { ethertype: 0x8100, id: 42 })) };
        let device = Device::of(&Mirror::default(), &vlan, Forwarding::default());
        assert_eq!((device.vlan, device.forwards_ipv6), (Some((4, 0x8100, 42)), false));
    }
}
