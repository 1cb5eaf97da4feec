//! Why the fast path is not on at an interface that it was asked for. Each reason has a name, and a sentence that says what to do.

use std::fmt;

/// Why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Off {
    /// There is no such interface; it is taken when it comes.
    Absent,
    /// `millrace router off --interface`.
    SwitchedOff,
    /// It is down.
    Down,
    /// It has no Ethernet frames.
    NotEthernet,
    /// It is a VLAN, a bridge or a session: its packets are taken at the interface below.
    Upper(String),
    /// It is of a kind that the fast path does not know, such as `macvlan`, `bond`, `wireguard`.
    Kind(String),
    /// It is part of a bond, a VRF, Open vSwitch or the like.
    Member(String),
    /// A bridge's port that does not forward, by the spanning tree.
    PortState(u8),
    /// A bridge's port that is isolated or locked.
    PortGuarded,
    /// An XDP program of somebody else, by its number.
    ForeignXdp(u32),
    /// Another router's programs are there.
    OtherRouter(String),
    /// Its qdisc delays or drops on purpose, and XDP would go around it.
    Shaped(String),
    /// Somebody's filters look at what comes in.
    IngressFilter(String),
    /// Somebody's filters look at what goes out, and XDP would go around them.
    EgressFilter(String),
    /// The card takes tags off, and XDP would take frames of every VLAN for such without one.
    VlanOffload,
    /// A chain of nftables at the interface.
    NetdevHook(String),
    /// The programs could not be attached.
    Failed(String),
}

impl Off {
    /// Its name, as in JSON and documents.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::SwitchedOff => "switched-off",
            Self::Down => "down",
            Self::NotEthernet => "not-ethernet",
            Self::Upper(_) => "upper",
            Self::Kind(_) => "kind",
            Self::Member(_) => "member",
            Self::PortState(_) => "port-state",
            Self::PortGuarded => "port-guarded",
            Self::ForeignXdp(_) => "foreign-xdp",
            Self::OtherRouter(_) => "other-router",
            Self::Shaped(_) => "shaped",
            Self::IngressFilter(_) => "ingress-filter",
            Self::EgressFilter(_) => "egress-filter",
            Self::VlanOffload => "vlan-offload",
            Self::NetdevHook(_) => "netdev-hook",
            Self::Failed(_) => "failed",
        }
    }
}

impl Off {
    /// In a sentence whose commands name this interface.
    pub fn sentence(&self, interface: &str) -> String {
        self.to_string().replace("NAME", interface)
    }
}

/// Of no particular interface: commands have `NAME` instead.
impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("there is no such interface; it is taken when it comes"),
            Self::SwitchedOff => f.write_str("switched off; `millrace router on --interface NAME` switches it on"),
            Self::Down => f.write_str("it is down; `ip link set dev NAME up` changes that"),
            Self::NotEthernet => f.write_str("it has no Ethernet frames"),
            Self::Upper(kind) => {
                write!(f, "it is a {kind}: its packets are taken at the interface below, so name that one")
            }
            Self::Kind(kind) => write!(f, "it is a {kind}, which the fast path does not know"),
            Self::Member(kind) => {
                write!(f, "it is part of a {kind}, which does with its packets what the fast path does not know")
            }
            Self::PortState(state) => write!(f, "the spanning tree does not let the port forward (state {state})"),
            Self::PortGuarded => f.write_str("the port is isolated or locked in its bridge"),
            Self::ForeignXdp(program) => {
                write!(
                    f,
                    "XDP program {program} of somebody else is on it; `bpftool prog show id {program}` tells whose, `ip link set dev NAME xdp off` or (of a link) \
                     the end of that program removes it; what a router left that was killed is taken over if this one has CAP_SYS_ADMIN"
                )
            }
            Self::OtherRouter(who) => write!(f, "another router has it: {who}"),
            Self::Shaped(qdisc) => {
                write!(f, "qdisc {qdisc} delays or drops what it sends, and XDP would go around it: use --mode tc")
            }
            Self::IngressFilter(filter) => {
                write!(
                    f,
                    "filter {filter} of somebody else looks at what comes in (`tc filter show dev NAME ingress`, `bpftool net`)"
                )
            }
            Self::EgressFilter(filter) => write!(
                f,
                "filter {filter} of somebody else looks at what goes out, and XDP would go around it: use --mode tc"
            ),
            Self::VlanOffload => f.write_str(
                "the card takes VLAN tags off before XDP sees a frame: `ethtool -K NAME rxvlan off` (of a pair of veth also txvlan off at the other \
                 end), or --mode tc",
            ),
            Self::NetdevHook(chain) => write!(f, "chain {chain} of nftables is at the interface"),
            Self::Failed(why) => write!(f, "its programs could not be attached: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reason;

    const DOCUMENT: &str = include_str!("../../../../docs/router.md");

    #[test]
    fn every_reason_is_in_the_document_and_names_its_interface() {
        let text = String::new;
        let all = [
            Off::Absent,
            Off::SwitchedOff,
            Off::Down,
            Off::NotEthernet,
            Off::Upper(text()),
            Off::Kind(text()),
            Off::Member(text()),
            Off::PortState(0),
            Off::PortGuarded,
            Off::ForeignXdp(0),
            Off::OtherRouter(text()),
            Off::Shaped(text()),
            Off::IngressFilter(text()),
            Off::EgressFilter(text()),
            Off::VlanOffload,
            Off::NetdevHook(text()),
            Off::Failed(text()),
        ];
        for off in all {
            assert!(DOCUMENT.contains(&format!("`{}`", off.name())), "{}", off.name());
            assert!(!off.sentence("eth1").contains("NAME"), "{off}");
        }
        assert!(Off::Down.sentence("eth1").contains("`ip link set dev eth1 up`"));
        for reason in Reason::ALL.into_iter().filter(|reason| *reason != Reason::Fast) {
            let line = format!("| {} | `{reason}` | ", reason.step());
            assert!(DOCUMENT.contains(&line), "docs/router.md lacks the line\n{line}{} |", reason.sentence());
        }
    }
}
