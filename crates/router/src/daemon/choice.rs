//! Which of the interfaces that were asked for the engine is attached to, and in which of its two places.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::off::Off;
use super::pattern::Pattern;
use crate::kernel::link::{Kind, Link};
use crate::kernel::netfilter::Hooks;
use crate::kernel::shaping::Shaping;

/// Where the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In the driver, before Linux has made a packet of a frame.
    Xdp,
    /// In traffic control, where large segments pass as one.
    Tc,
}

impl Place {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Tc => "tc",
        }
    }
}

/// What is known about an interface when it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// Itself.
    pub link: &'a Link,
    /// Qdiscs and filters.
    pub shaping: &'a Shaping,
    /// The firewall.
    pub hooks: &'a Hooks,
    /// Features that are on (`ethtool -k`).
    pub offloads: &'a BTreeSet<String>,
    /// Numbers of XDP programs on it that are this router's, or were left there by a dead one whose place it takes; 0 for none.
    pub own_xdp: [u32; 2],
    /// Whether somebody has switched it off.
    pub is_switched_off: bool,
}

/// Whether an interface was asked for.
pub fn is_wanted(patterns: &[Pattern], link: &Link) -> bool {
    patterns.iter().any(|pattern| {
        // `*` means what carries packets to others, and not everything that has a name.
        pattern.fits(&link.name)
            && (!pattern.is_wild() || matches!(link.kind, Kind::Physical | Kind::Veth) && link.mac.is_some())
    })
}

/// Why the engine cannot be on there, whatever its place.
pub fn obstacle(look: &Look<'_>) -> Option<Off> {
    let link = look.link;
    match &link.kind {
        Kind::Physical | Kind::Veth => {}
        Kind::Vlan(_) | Kind::Bridge { .. } | Kind::Ppp => return Some(Off::Upper(link.kind_name().to_owned())),
        Kind::Other(name) => return Some(Off::Kind(name.clone())),
    }
    if link.mac.is_none() {
        return Some(Off::NotEthernet);
    }
    if look.is_switched_off {
        return Some(Off::SwitchedOff);
    }
    if !link.is_up() {
        return Some(Off::Down);
    }
    if link.xdp != 0 && !look.own_xdp.contains(&link.xdp) {
        return Some(Off::ForeignXdp(link.xdp));
    }
    if let Some(chain) = look.hooks.at_interface(&link.name) {
        return Some(Off::NetdevHook(chain.name.clone()));
    }
    if let Some(filter) = look.shaping.looks_in() {
        return Some(Off::IngressFilter(filter));
    }
    member(link)
}

fn member(link: &Link) -> Option<Off> {
    const FORWARDING: u8 = 3;
    link.master?;
    let Some(port) = link.port else {
        return Some(Off::Member(link.master_kind.clone().unwrap_or_else(|| "larger interface".to_owned())));
    };
    if port.state != FORWARDING {
        return Some(Off::PortState(port.state));
    }
    (port.isolated || port.locked).then_some(Off::PortGuarded)
}

/// The feature by which a card takes the tag off a frame (`ethtool -K rxvlan`): XDP sees frames of all VLANs as if they had none.
pub const TAGS_TAKEN: &str = "rx-vlan-hw-parse";

/// Why XDP must not be here: it would go around somebody, or take one VLAN for another.
pub fn against_xdp(look: &Look<'_>) -> Option<Off> {
    if look.offloads.contains(TAGS_TAKEN) {
        return Some(Off::VlanOffload);
    }
    if let Some(qdisc) = &look.shaping.qdisc {
        return Some(Off::Shaped(qdisc.clone()));
    }
    look.shaping.looks_out().map(Off::EgressFilter)
}

/// Where the program does best: XDP, but where frames come as large segments.
pub fn best(look: &Look<'_>) -> Place {
    let on = |feature: &str| look.offloads.contains(feature);
    let segments = match look.link.kind {
        // The other end sends them if it may; it is set like this one unless somebody has changed that.
        Kind::Veth => on("tx-tcp-segmentation"),
        _ => on("rx-lro") || on("rx-gro-hw"),
    };
    if segments { Place::Tc } else { Place::Xdp }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::link::{BridgePort, Vlan};
    use crate::kernel::netfilter::{BaseChain, Family};
    use crate::kernel::shaping::Programs;

    fn link() -> Link {
        Link {
            index: 7,
            name: "eth0".to_owned(),
            kind: Kind::Physical,
            flags: crate::kernel::link::UP,
            mtu: 1500,
            mac: Some([2, 0, 0, 0, 0, 1]),
            master: None,
            master_kind: None,
            parent: None,
            port: None,
            xdp: 0,
            qdisc: "mq".to_owned(),
            rx_queues: 1,
            group: 0,
        }
    }

    fn with(change: impl FnOnce(&mut Link)) -> Link {
        let mut changed = link();
        change(&mut changed);
        changed
    }

    fn reason(link: &Link, shaping: &Shaping, hooks: &Hooks) -> Option<&'static str> {
        let offloads = BTreeSet::new();
        let look = Look { link, shaping, hooks, offloads: &offloads, own_xdp: [5, 7], is_switched_off: false };
        obstacle(&look).map(|off| off.name())
    }

    #[test]
    fn each_obstacle_has_its_name() {
        let (plain, none) = (Shaping::default(), Hooks::default());
        let of = |change: &dyn Fn(&mut Link)| reason(&with(change), &plain, &none);
        assert_eq!(of(&|_| ()), None);
        assert_eq!(of(&|link| link.kind = Kind::Vlan(Vlan { ethertype: 0x8100, id: 1 })), Some("upper"));
        assert_eq!(of(&|link| link.kind = Kind::Other("macvlan".to_owned())), Some("kind"));
        assert_eq!(of(&|link| link.mac = None), Some("not-ethernet"));
        assert_eq!(of(&|link| link.flags = 0), Some("down"));
        assert_eq!((of(&|link| link.xdp = 5), of(&|link| link.xdp = 6)), (None, Some("foreign-xdp")));
        assert_eq!(of(&|link| link.xdp = 7), None, "a dead router has left it");
        assert_eq!(of(&|link| (link.master, link.master_kind) = (Some(3), Some("bond".to_owned()))), Some("member"));
        let port = |state, isolated| {
            of(&|link: &mut Link| {
                link.master = Some(3);
                link.port = Some(BridgePort { state, isolated, ..BridgePort::default() });
            })
        };
        assert_eq!((port(3, false), port(4, false), port(3, true)), (None, Some("port-state"), Some("port-guarded")));
        let filtered = Shaping { ingress: vec!["flower".to_owned()], ..Shaping::default() };
        assert_eq!(reason(&link(), &filtered, &none), Some("ingress-filter"));
        let programs = Programs { ingress: vec![12], egress: Vec::new() };
        let filtered = Shaping { programs, ..Shaping::default() };
        assert_eq!(reason(&link(), &filtered, &none), Some("ingress-filter"));
        let chain = BaseChain {
            families: vec![Family::Netdev],
            hook: 0,
            name: "t c".to_owned(),
            interfaces: vec!["eth0".to_owned()],
        };
        let hooks = Hooks { chains: [chain].into(), ..Hooks::default() };
        assert_eq!(reason(&link(), &plain, &hooks), Some("netdev-hook"));
    }

    #[test]
    fn shaping_and_large_segments_take_tc() {
        let (hooks, offloads) = (Hooks::default(), BTreeSet::new());
        let shaping = Shaping { qdisc: Some("tbf".to_owned()), ..Shaping::default() };
        let link = with(|link| link.kind = Kind::Veth);
        let look = |shaping, offloads| Look {
            link: &link,
            shaping,
            hooks: &hooks,
            offloads,
            own_xdp: [0; 2],
            is_switched_off: false,
        };
        assert_eq!(against_xdp(&look(&shaping, &offloads)).map(|off| off.name()), Some("shaped"));
        assert_eq!(best(&look(&shaping, &offloads)), Place::Xdp);
        let programs = Programs { ingress: Vec::new(), egress: vec![12] };
        let shaping = Shaping { programs, ..Shaping::default() };
        assert_eq!(against_xdp(&look(&shaping, &offloads)), Some(Off::EgressFilter("tcx 12".to_owned())));
        let offloads = BTreeSet::from(["tx-tcp-segmentation".to_owned()]);
        assert_eq!(best(&look(&shaping, &offloads)), Place::Tc);
    }

    #[test]
    fn a_star_does_not_mean_bridges() {
        let all = ["*".parse().unwrap()];
        let bridge = with(|link| link.kind = Kind::Bridge { vlan_filtering: false });
        assert!(
            is_wanted(&all, &link()) && !is_wanted(&all, &bridge) && !is_wanted(&all, &with(|link| link.mac = None))
        );
        assert!(is_wanted(&["eth0".parse().unwrap()], &bridge), "who names it is told why not");
    }
}
