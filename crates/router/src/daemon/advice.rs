//! What of Linux would better be switched for the fast path: said when it starts, and never done.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::choice::{self, Place};
#[cfg(feature = "bpf")]
use super::options::OnDeath;
#[cfg(feature = "bpf")]
use crate::engine::pins;
use crate::kernel::address::Address;
use crate::kernel::link::{Kind, Link};
use crate::kernel::mirror::Mirror;
use crate::kernel::netfilter::{Family, Hooks};
use crate::kernel::settings;

/// One thing to switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What is so, and what comes of it.
    pub what: String,
    /// The command that changes it.
    pub command: String,
}

fn advice(what: impl Into<String>, command: impl Into<String>) -> Advice {
    Advice { what: what.into(), command: command.into() }
}

/// What concerns the whole network namespace.
pub fn of_namespace(hooks: &Hooks, mirror: &Mirror) -> Vec<Advice> {
    let number = |name: &str| settings::number(name);
    let mut all = Vec::new();
    if number("ipv4/ip_forward") == Some(0) {
        all.push(advice("Linux does not forward IPv4, and so nothing becomes fast", "sysctl -w net.ipv4.ip_forward=1"));
    }
    // Those of one link alone do not count: every interface has one.
    let is_global = |address: &Address| matches!(address.address, IpAddr::V6(v6) if !v6.is_loopback() && !v6.is_unicast_link_local());
    if number("ipv6/conf/all/forwarding") == Some(0) && mirror.addresses.iter().any(is_global) {
        all.push(advice(
            "Linux does not forward IPv6, and so nothing of it becomes fast",
            "sysctl -w net.ipv6.conf.all.forwarding=1",
        ));
    }
    for (family, name) in [(Family::Ipv4, "IPv4"), (Family::Ipv6, "IPv6")] {
        if let Some(chain) = hooks.queue(family) {
            let what = format!(
                "chain {chain} gives packets to a program (queue), which is to see all of them: so nothing of {name} becomes fast, until that rule is gone"
            );
            all.push(advice(what, "nft -a list ruleset"));
        }
    }
    let is_ruled = hooks.look_at(Family::Ipv4) || hooks.look_at(Family::Ipv6);
    if is_ruled {
        if number("netfilter/nf_conntrack_count").is_none() {
            let what = "the ruleset looks at forwarded packets, and this kernel has no conntrack: flows stay slow";
            all.push(advice(what, "modprobe nf_conntrack"));
        }
        if number("netfilter/nf_conntrack_events") == Some(0) {
            let what = "conntrack tells nobody when connections end or are deleted: their packets go on for up to five seconds";
            all.push(advice(what, "sysctl -w net.netfilter.nf_conntrack_events=1"));
        }
    }
    let bridged = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];
    let has_bridge = mirror.links.values().any(|link| matches!(link.kind, Kind::Bridge { .. }));
    for name in bridged.into_iter().filter(|_| has_bridge && is_ruled) {
        if number(&format!("bridge/{name}")) == Some(1) {
            let what = format!("{name} is on: bridged packets pass the rules for routed ones, and so stay slow");
            all.push(advice(what, format!("sysctl -w net.bridge.{name}=0")));
        }
    }
    all
}

/// What concerns what is to outlive the router.
#[cfg(feature = "bpf")]
pub fn of_pins(on_death: OnDeath) -> Option<Advice> {
    let is_in_vain = on_death == OnDeath::Keep && !pins::outlive_process();
    is_in_vain.then(|| {
        advice(
            "--on-death keep keeps nothing: /sys/fs/bpf is seen by this command alone, as `ip netns exec` makes it",
            "nsenter --net=/run/netns/NAME millrace router start ...",
        )
    })
}

/// What concerns an interface with the program in that place.
pub fn of_interface(link: &Link, place: Place, offloads: &BTreeSet<String>) -> Vec<Advice> {
    let name = &link.name;
    let on = |feature: &str| offloads.contains(feature);
    let mut all = Vec::new();
    let strict = ["all", name].iter().filter_map(|of| settings::of_interface("ipv4", of, "rp_filter")).max() == Some(1);
    if strict {
        let what = format!(
            "rp_filter is strict at {name}: flows whose way back is another one are dropped by Linux, and never fast"
        );
        all.push(advice(what, format!("sysctl -w net.ipv4.conf.{name}.rp_filter=2")));
    }
    if on("rx-lro") {
        let what = format!("{name} merges what it receives (LRO), which cannot be forwarded as it came");
        all.push(advice(what, format!("ethtool -K {name} lro off")));
    }
    if place == Place::Xdp && on("rx-gro-hw") {
        let what = format!("{name} merges what it receives (rx-gro-hw), which XDP cannot forward");
        all.push(advice(what, format!("ethtool -K {name} rx-gro-hw off")));
    }
    if place == Place::Tc && on(choice::TAGS_TAKEN) && !on("tx-tcp-segmentation") {
        let what = format!("{name} takes VLAN tags off (rxvlan) before XDP, which is faster, would see them");
        all.push(advice(what, format!("ethtool -K {name} rxvlan off")));
    }
    all
}

/// The same, but what nobody sees here whether it has been done: said once, at the start.
pub fn at_start(link: &Link, place: Place) -> Option<Advice> {
    (place == Place::Xdp && link.kind == Kind::Veth).then(|| {
        let name = &link.name;
        let what = format!(
            "XDP on {name} switches off segmentation at the other end of the pair, and frames from there must have their checksums, and \
             their VLAN tags in them; with large segments --mode tc is faster"
        );
        advice(what, "ethtool -K OTHER_END tx off txvlan off")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_advice_has_a_command() {
        let link = Link {
            index: 1,
            name: "nosuch0".to_owned(),
            kind: Kind::Veth,
            flags: 0,
            mtu: 1500,
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
        let offloads = ["rx-lro", "rx-gro-hw"].map(str::to_owned).into();
        let all = of_interface(&link, Place::Xdp, &offloads);
        let commands: Vec<&str> = all.iter().map(|advice| advice.command.as_str()).collect();
        assert!(commands.contains(&"ethtool -K nosuch0 lro off"), "{commands:?}");
        assert!(at_start(&link, Place::Xdp).is_some() && at_start(&link, Place::Tc).is_none());
        assert!(!of_interface(&link, Place::Tc, &offloads).iter().any(|advice| advice.command.contains("gro-hw")));
    }
}
