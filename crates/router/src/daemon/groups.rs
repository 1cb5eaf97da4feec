//! Which multicast routes the engine may execute: those of Linux that lead by its own interfaces only, to groups of which nobody on this host is a
//! member.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::sight::Sight;
use crate::engine::{Engine, Group, Ways};
use crate::kernel::mirror::Mirror;
use crate::kernel::route::Multicast;

/// Tells the engine what there is now.
pub fn tell(sight: &mut Sight, engine: &Engine) {
    if sight.mirror.multicast.is_empty() {
        super::changes::report(engine.set_groups(&BTreeMap::new()));
        return;
    }
    let members = members();
    let takes: BTreeSet<u32> = outputs(&sight.mirror)
        .into_iter()
        .filter(|output| engine.takes_copies(*output) && sight.sends_xdp(*output))
        .collect();
    super::changes::report(engine.set_groups(&wanted(&sight.mirror, &members, &takes)));
}

fn outputs(mirror: &Mirror) -> BTreeSet<u32> {
    mirror.multicast.values().flat_map(|route| route.outputs.iter().map(|(output, _)| *output)).collect()
}

/// What the engine may do: `takes` are the interfaces that copies can be sent out of.
fn wanted(mirror: &Mirror, members: &BTreeSet<IpAddr>, takes: &BTreeSet<u32>) -> BTreeMap<Group, Ways> {
    // With several tables, rules say which of them is asked.
    if mirror.multicast.values().any(|route| !route.is_default) {
        return BTreeMap::new();
    }
    let own: BTreeSet<IpAddr> = mirror.addresses.iter().map(|address| address.address).collect();
    let way = |route: &Multicast| {
        let is_for_all = route.source.is_unspecified() || own.contains(&route.source);
        let all_take = route.outputs.iter().all(|(output, _)| takes.contains(output));
        if is_for_all || route.outputs.is_empty() || !all_take || is_near(route.group) || members.contains(&route.group)
        {
            return None;
        }
        let mut outputs: Vec<u32> = route.outputs.iter().map(|(output, _)| *output).collect();
        outputs.sort_unstable();
        outputs.dedup();
        let links =
            outputs.iter().map(|output| mirror.links.get(output).filter(|link| link.is_up() && link.port.is_none()));
        let mtu = links.map(|link| link.map(|link| link.mtu)).collect::<Option<Vec<u32>>>()?.into_iter().min()?;
        let ttl = route.outputs.iter().map(|(_, threshold)| *threshold).max()?.max(1);
        let group = Group { input: route.input?, source: route.source, group: route.group };
        Some((group, Ways { outputs, mtu: u16::try_from(mtu).unwrap_or(u16::MAX), ttl }))
    };
    mirror.multicast.values().filter_map(way).collect()
}

/// Whether no router sends on what goes to this group.
fn is_near(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.octets()[1] & 15 <= 2,
    }
}

/// Groups that this host is a member of, by whatever interface. The kernel tells of no changes, so it is read again and again.
fn members() -> BTreeSet<IpAddr> {
    let text = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    members4(&text("igmp")).chain(members6(&text("igmp6"))).collect()
}

/// Lines of groups begin with a tab, and a group is a number in the order of the processor.
fn members4(text: &str) -> impl Iterator<Item = IpAddr> {
    let group = |line: &str| {
        let word = line.strip_prefix("\t")?.split_whitespace().next()?;
        Some(Ipv4Addr::from(u32::from_str_radix(word, 16).ok()?.to_ne_bytes()).into())
    };
    text.lines().filter_map(group).collect::<Vec<_>>().into_iter()
}

/// Number of the interface, its name, the group.
fn members6(text: &str) -> impl Iterator<Item = IpAddr> {
    let group = |line: &str| {
        let word = line.split_whitespace().nth(2)?;
        Some(Ipv6Addr::from(u128::from_str_radix(word, 16).ok()?).into())
    };
    text.lines().filter_map(group).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::link::{Kind, Link, UP};

    fn link(index: u32) -> Link {
        Link {
            index,
            name: format!("nosuch{index}"),
            kind: Kind::Veth,
            flags: UP,
            mtu: 1500 - index,
            mac: Some([2, 0, 0, 0, 0, 1]),
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
    fn members_are_read() {
        let igmp = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n";
        assert_eq!(members4(igmp).collect::<Vec<_>>(), [IpAddr::from([224, 0, 0, 1])]);
        let igmp6 = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n";
        assert_eq!(members6(igmp6).collect::<Vec<_>>(), ["ff02::1".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn only_what_leads_by_the_engines_interfaces_alone() {
        let mut mirror = Mirror::default();
        let route = |group: [u8; 4], outputs: &[(u32, u8)]| Multicast {
            source: [10, 0, 0, 9].into(),
            group: group.into(),
            input: Some(1),
            outputs: outputs.to_vec(),
            is_default: true,
        };
        for index in [2, 3] {
            mirror.links.insert(index, link(index));
        }
        for one in [
            route([239, 1, 1, 1], &[(2, 1), (3, 9)]),
            route([239, 1, 1, 2], &[(2, 1), (4, 1)]),
            route([224, 0, 0, 9], &[(2, 1)]),
        ] {
            mirror.multicast.insert((one.source, one.group), one);
        }
        let takes = [2, 3].into();
        let found = wanted(&mirror, &BTreeSet::new(), &takes);
        assert_eq!(found.into_values().collect::<Vec<_>>(), [Ways { outputs: vec![2, 3], mtu: 1497, ttl: 9 }]);
        assert!(wanted(&mirror, &[IpAddr::from([239, 1, 1, 1])].into(), &takes).is_empty(), "a member");
        let other = Multicast { is_default: false, ..route([239, 1, 1, 4], &[]) };
        mirror.multicast.insert((other.source, other.group), other);
        assert!(wanted(&mirror, &BTreeSet::new(), &takes).is_empty(), "several tables");
    }
}
