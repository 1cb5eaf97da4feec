//! Interfaces: what kind they are, what they hang on, and what is attached to them (`man 7 rtnetlink`, `linux/if_link.h`).

use serde::{Deserialize, Serialize};

use super::wire::{self, Attributes};

const HEADER: usize = 16;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_QDISC: u16 = 6;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_GROUP: u16 = 27;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;

/// `IFF_UP`: it is switched on.
pub const UP: u32 = 1;
/// `IFF_LOOPBACK`.
pub const LOOPBACK: u32 = 1 << 3;
/// `IFF_POINTOPOINT`: a line with one other end.
pub const POINT_TO_POINT: u32 = 1 << 4;
/// `IFF_RUNNING`: it has a carrier.
pub const RUNNING: u32 = 1 << 6;
/// `IFF_NOARP`: nobody is asked for an Ethernet address.
pub const NO_ARP: u32 = 1 << 7;
/// Those of which a change makes rules invalid.
pub const FLAGS: u32 = UP | LOOPBACK | POINT_TO_POINT | RUNNING | NO_ARP;

/// What an interface is made of, as far as the router tells kinds apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A card, or what looks like one: nothing lies below.
    Physical,
    /// One end of a pair.
    Veth,
    /// A tag on another interface.
    Vlan(Vlan),
    /// A bridge.
    Bridge {
        /// Whether it looks at tags.
        vlan_filtering: bool,
    },
    /// PPP, of PPPoE or of something else.
    Ppp,
    /// Whatever else has a name of its own in Linux, such as `bond`, `macvlan`, `vrf`.
    Other(String),
}

/// The tag of a VLAN interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vlan {
    /// 0x8100 or 0x88a8.
    pub ethertype: u16,
    /// 1 to 4094.
    pub id: u16,
}

/// A port of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgePort {
    /// `BR_STATE_*`: 0 disabled, 1 listening, 2 learning, 3 forwarding, 4 blocking.
    pub state: u8,
    /// Frames may leave by the port that they came by.
    pub hairpin: bool,
    /// The bridge learns addresses here.
    pub learning: bool,
    /// No frames between this port and others that are isolated.
    pub isolated: bool,
    /// Only frames of addresses that are known already.
    pub locked: bool,
}

/// A VLAN of a port of a bridge that filters by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortVlan {
    /// 1 to 4094.
    pub id: u16,
    /// What comes without a tag belongs to it.
    pub is_untagged_in: bool,
    /// It leaves without a tag.
    pub is_untagged_out: bool,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// `IFF_*`.
    pub flags: u32,
    /// Bytes that IP may have.
    pub mtu: u32,
    /// Its Ethernet address; `None` for what is not Ethernet.
    pub mac: Option<[u8; 6]>,
    /// Of which bridge, bond or VRF it is a part.
    pub master: Option<u32>,
    /// What it is of its master, such as `bridge`, `bond`, `vrf`.
    pub master_kind: Option<String>,
    /// What it lies upon, if that is in this network namespace.
    pub parent: Option<u32>,
    /// What it is as a port of a bridge.
    pub port: Option<BridgePort>,
    /// The number of the XDP program on it; 0 without one.
    pub xdp: u32,
    /// The queueing discipline of what leaves.
    pub qdisc: String,
    /// How many queues it receives by.
    pub rx_queues: u32,
    /// The group that `ip link set ... group` has put it into, by which a ruleset may know it.
    pub group: u32,
}

impl Link {
    /// Reads the body of `RTM_NEWLINK`; `None` for what is no interface.
    pub fn read(body: &[u8]) -> Option<Self> {
        const AF_UNSPEC: u8 = 0;
        const ETHERNET: u16 = 1;
        const PPP: u16 = 512;
        // The bridge says of its ports what is said otherwise too.
        (body.first() == Some(&AF_UNSPEC)).then_some(())?;
        let (medium, index, flags) = (wire::u16_at(body, 2)?, wire::u32_at(body, 4)?, wire::u32_at(body, 8)?);
        let kind = if medium == PPP { Kind::Ppp } else { Kind::Physical };
        let mut link = Self {
            index,
            name: String::new(),
            kind,
            flags: flags & FLAGS,
            mtu: 0,
            mac: None,
            master: None,
            master_kind: None,
            parent: None,
            port: None,
            xdp: 0,
            qdisc: String::new(),
            rx_queues: 1,
            group: 0,
        };
        let mut is_elsewhere = false;
        for (attribute, value) in wire::attributes(body, HEADER) {
            match attribute {
                IFLA_ADDRESS if medium == ETHERNET => link.mac = wire::mac_of(value),
                IFLA_IFNAME => link.name = wire::text_of(value)?,
                IFLA_MTU => link.mtu = wire::u32_of(value)?,
                IFLA_LINK => link.parent = wire::u32_of(value).filter(|&parent| parent != index && parent != 0),
                IFLA_QDISC => link.qdisc = wire::text_of(value).unwrap_or_default(),
                IFLA_MASTER => link.master = wire::u32_of(value).filter(|&master| master != 0),
                IFLA_LINKINFO => link.read_kind(wire::nested(value)),
                IFLA_NUM_RX_QUEUES => link.rx_queues = wire::u32_of(value)?,
                IFLA_GROUP => link.group = wire::u32_of(value)?,
                IFLA_LINK_NETNSID => is_elsewhere = true,
                IFLA_XDP => link.xdp = program(wire::nested(value)),
                _ => {}
            }
        }
        // The other end of a pair is not below this one, and the kernel does not tell when it comes or goes.
        if is_elsewhere || link.kind == Kind::Veth {
            link.parent = None;
        }
        (!link.name.is_empty()).then_some(link)
    }

    fn read_kind(&mut self, info: Attributes<'_>) {
        const KIND: u16 = 1;
        const DATA: u16 = 2;
        const PORT_KIND: u16 = 4;
        const PORT_DATA: u16 = 5;
        let data = || wire::nested(info.clone().find(DATA).unwrap_or_default());
        match info.clone().find(KIND).and_then(wire::text_of).as_deref() {
            Some("veth") => self.kind = Kind::Veth,
            Some("vlan") => self.kind = vlan(data()).map_or_else(|| Kind::Other("vlan".to_owned()), Kind::Vlan),
            Some("bridge") => self.kind = Kind::Bridge { vlan_filtering: filters(data()) },
            Some("ppp") => self.kind = Kind::Ppp,
            Some(other) => self.kind = Kind::Other(other.to_owned()),
            None => {}
        }
        self.master_kind = info.clone().find(PORT_KIND).and_then(wire::text_of);
        if self.master_kind.as_deref() == Some("bridge") {
            self.port = info.clone().find(PORT_DATA).map(|data| port(wire::nested(data)));
        }
    }

    /// Whether frames come and go by it.
    pub fn is_up(&self) -> bool {
        self.flags & UP != 0
    }

    /// The name of its kind, as `ip -details link` says it; empty for a card.
    pub fn kind_name(&self) -> &str {
        match &self.kind {
            Kind::Physical => "",
            Kind::Veth => "veth",
            Kind::Vlan(_) => "vlan",
            Kind::Bridge { .. } => "bridge",
            Kind::Ppp => "ppp",
            Kind::Other(name) => name,
        }
    }
}

fn program(xdp: Attributes<'_>) -> u32 {
    const ATTACHED: u16 = 2;
    const PROGRAM: u16 = 4;
    /// Several at once: in the driver and in the kernel's generic place.
    const DRIVER_PROGRAM: u16 = 5;
    let number = |kind| xdp.clone().find(kind).and_then(wire::u32_of);
    match xdp.clone().find(ATTACHED).and_then(wire::u8_of) {
        None | Some(0) => 0,
        Some(_) => number(PROGRAM).or_else(|| number(DRIVER_PROGRAM)).unwrap_or(u32::MAX),
    }
}

fn vlan(data: Attributes<'_>) -> Option<Vlan> {
    const ID: u16 = 1;
    const PROTOCOL: u16 = 5;
    let id = data.clone().find(ID).and_then(wire::u16_of)?;
    let ethertype = data.clone().find(PROTOCOL).and_then(wire::be16_of).unwrap_or(0x8100);
    Some(Vlan { ethertype, id })
}

fn filters(data: Attributes<'_>) -> bool {
    const VLAN_FILTERING: u16 = 7;
    data.clone().find(VLAN_FILTERING).and_then(wire::u8_of).is_some_and(|on| on != 0)
}

fn port(data: Attributes<'_>) -> BridgePort {
    let byte = |kind| data.clone().find(kind).and_then(wire::u8_of).unwrap_or_default();
    let set = |kind| byte(kind) != 0;
    BridgePort { state: byte(1), hairpin: set(4), learning: set(8), isolated: set(33), locked: set(39) }
}

/// Reads what a port of a bridge is from `RTM_NEWLINK` of the bridge's family, which alone tells when that changes; `None` for other messages.
pub fn bridge_port(body: &[u8]) -> Option<(u32, BridgePort)> {
    const AF_BRIDGE: u8 = 7;
    const PORT: u16 = 12;
    (body.first() == Some(&AF_BRIDGE)).then_some(())?;
    let index = wire::u32_at(body, 4)?;
    // In old kernels one byte, the state alone.
    let all = wire::attributes(body, HEADER).find(PORT).filter(|all| all.len() > 4)?;
    Some((index, port(wire::nested(all))))
}

/// Reads the VLANs of a port from `RTM_NEWLINK` of the bridge's family; `None` for other messages.
pub fn port_vlans(body: &[u8]) -> Option<(u32, Vec<PortVlan>)> {
    const AF_BRIDGE: u8 = 7;
    const VLAN_INFO: u16 = 2;
    (body.first() == Some(&AF_BRIDGE)).then_some(())?;
    let index = wire::u32_at(body, 4)?;
    let spec = wire::attributes(body, HEADER).find(IFLA_AF_SPEC)?;
    let mut vlans = Vec::new();
    let mut first = None;
    for (_, value) in wire::nested(spec).filter(|(kind, _)| *kind == VLAN_INFO) {
        add_vlans(&mut vlans, &mut first, wire::u16_at(value, 0)?, wire::u16_at(value, 2)?);
    }
    Some((index, vlans))
}

/// A VLAN, or a range of them, of which the first and the last are said.
fn add_vlans(vlans: &mut Vec<PortVlan>, first: &mut Option<u16>, flags: u16, id: u16) {
    const UNTAGGED_IN: u16 = 1 << 1;
    const UNTAGGED_OUT: u16 = 1 << 2;
    const RANGE_BEGIN: u16 = 1 << 3;
    const RANGE_END: u16 = 1 << 4;
    const LAST: u16 = 4094;
    if flags & RANGE_BEGIN != 0 {
        *first = Some(id);
        return;
    }
    let from = if flags & RANGE_END != 0 { first.take().unwrap_or(id) } else { id };
    let (is_untagged_in, is_untagged_out) = (flags & UNTAGGED_IN != 0, flags & UNTAGGED_OUT != 0);
    // However often ranges are repeated, a port has no more than there are.
    let room = usize::from(LAST).saturating_sub(vlans.len());
    vlans.extend((from..=id.min(LAST)).take(room).map(|id| PortVlan { id, is_untagged_in, is_untagged_out }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::wire::Request;

    fn body(request: Request) -> Vec<u8> {
        let mut request = request;
        wire::messages(request.numbered(0)).next().unwrap().body.to_owned()
    }

    fn header(family: u8, medium: u16) -> [u8; 16] {
        let mut header = [0; 16];
        header[0] = family;
        header[2..4].copy_from_slice(&medium.to_ne_bytes());
        header[4..8].copy_from_slice(&7_u32.to_ne_bytes());
        header[8..12].copy_from_slice(&0x1_0043_u32.to_ne_bytes());
        header
    }

    #[test]
    fn a_vlan_interface_is_read() {
        let info = |request: Request| {
            request
                .with(1, b"vlan\0")
                .within(2, |data| data.with(1, &42_u16.to_ne_bytes()).with(5, &0x88a8_u16.to_be_bytes()))
        };
        let request = Request::new(16, 0, &header(0, 1))
            .with(IFLA_IFNAME, b"eth0.42\0")
            .with(IFLA_LINK, &3_u32.to_ne_bytes())
            .with(IFLA_MTU, &1496_u32.to_ne_bytes())
            .with(IFLA_GROUP, &5_u32.to_ne_bytes())
            .with(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1])
            .within(IFLA_LINKINFO, info);
        let link = Link::read(&body(request)).unwrap();
        assert_eq!((link.index, link.name.as_str(), link.mtu, link.parent), (7, "eth0.42", 1496, Some(3)));
        assert_eq!(link.group, 5);
        assert_eq!(link.kind, Kind::Vlan(Vlan { ethertype: 0x88a8, id: 42 }));
        assert_eq!((link.mac, link.is_up(), link.flags), (Some([2, 0, 0, 0, 0, 1]), true, UP | RUNNING));
    }

    #[test]
    fn a_pair_whose_other_end_is_elsewhere_has_no_parent_here() {
        let request = Request::new(16, 0, &header(0, 1))
            .with(IFLA_IFNAME, b"a\0")
            .with(IFLA_LINK, &3_u32.to_ne_bytes())
            .with(IFLA_LINK_NETNSID, &0_u32.to_ne_bytes());
        assert_eq!(Link::read(&body(request)).unwrap().parent, None);
    }

    #[test]
    fn a_bridge_tells_of_its_ports_apart() {
        let request =
            |family| Request::new(16, 0, &header(family, 1)).within(12, |port| port.with(1, &[3]).with(33, &[1]));
        let port = BridgePort { state: 3, isolated: true, ..BridgePort::default() };
        assert_eq!(bridge_port(&body(request(7))), Some((7, port)));
        assert_eq!(bridge_port(&body(request(0))), None);
        assert_eq!(bridge_port(&body(Request::new(16, 0, &header(7, 1)).with(12, &[3]))), None);
    }

    #[test]
    fn vlans_of_ports_come_alone_and_as_ranges_and_never_without_end() {
        let vlan = |flags: u16, id: u16| [flags.to_ne_bytes(), id.to_ne_bytes()].concat();
        let request = Request::new(16, 0, &header(7, 1)).within(IFLA_AF_SPEC, |spec| {
            let spec = spec.with(2, &vlan(6, 1)).with(2, &vlan(8, 10)).with(2, &vlan(16, 12));
            (0..5).fold(spec, |spec, _| spec.with(2, &vlan(8, 0)).with(2, &vlan(16, 65_535)))
        });
        let (index, vlans) = port_vlans(&body(request)).unwrap();
        assert_eq!((index, vlans.len()), (7, 4094));
        assert_eq!(vlans[0], PortVlan { id: 1, is_untagged_in: true, is_untagged_out: true });
        assert_eq!(vlans[1..4].iter().map(|vlan| vlan.id).collect::<Vec<_>>(), [10, 11, 12]);
        assert!(!vlans[1].is_untagged_in);
    }
}
