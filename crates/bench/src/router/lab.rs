//! Three network namespaces joined by veth: source, router, sink; and a wire from the source straight to the sink.

use std::net::Ipv4Addr;

use super::inline::index;
use super::place::inside;
use super::work::{LEFT_MAC, RIGHT_MAC, ROUTER_LEFT, ROUTER_RIGHT, SINK, SINK_MAC, SOURCE, SOURCE_MAC, Work};
use crate::peers::namespace::Namespace;
use crate::peers::process::find;

/// How long conntrack keeps what the generator sends: longer than a measurement takes.
const KEPT: u32 = 600;

/// The three; everything in them goes with them.
pub struct Lab {
    pub source: Namespace,
    pub router: Namespace,
    pub sink: Namespace,
}

/// What is at the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Nobody: frames are injected and counted.
    Dumb,
    /// Linux, with an address.
    Hosts,
}

/// Waits until Linux has done what it does some time after a link goes up; until then it loses what is sent there. The last command
/// waits for whoever is at work on links.
const UP: &str = "\
for i in $(seq 500); do
    ip -o link show up | grep -qw -e NO-CARRIER -e DOWN -e LOWERLAYERDOWN || break
    sleep 0.01
done
ip link set lo up";

/// Interfaces of the source and of the sink: to the router, and to one another.
pub const WIRE: &str = "wire";
pub const SHORT: &str = "short";
/// Interfaces of the router.
pub const LEFT: &str = "left";
pub const RIGHT: &str = "right";

/// Makes a host of an end.
fn host(place: &Namespace, address: Ipv4Addr, gateway: Ipv4Addr, gateway_mac: [u8; 6]) -> Result<(), String> {
    let ip = |line: String| place.ip(&line.split(' ').collect::<Vec<_>>());
    ip(format!("address add {address}/24 dev {WIRE}"))?;
    ip(format!("neighbour replace {gateway} lladdr {} dev {WIRE} nud permanent", mac(gateway_mac)))?;
    ip(format!("route add default via {gateway}"))
}

/// An Ethernet address as `ip` writes it.
fn mac(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

impl Lab {
    /// Makes them, for so many cores that send at once, with a router that does that work. The error is a sentence.
    pub fn new(work: Work, cores: usize, ends: Ends) -> Result<Self, String> {
        find("ethtool", "ethtool")?;
        if work.ruleset().is_some() {
            find("nft", "nftables")?;
        }
        let lab = Self { source: Namespace::named("a")?, router: Namespace::named("b")?, sink: Namespace::named("c")? };
        lab.join(&lab.source, WIRE, SOURCE_MAC, &lab.router, LEFT, LEFT_MAC, cores)?;
        lab.join(&lab.router, RIGHT, RIGHT_MAC, &lab.sink, WIRE, SINK_MAC, cores)?;
        lab.join(&lab.source, SHORT, SOURCE_MAC, &lab.sink, SHORT, SINK_MAC, cores)?;
        lab.be_router(work)?;
        if ends == Ends::Hosts {
            host(&lab.source, SOURCE, ROUTER_LEFT, LEFT_MAC)?;
            host(&lab.sink, SINK, ROUTER_RIGHT, RIGHT_MAC)?;
        }
        for place in [&lab.source, &lab.router, &lab.sink] {
            place.run(&["sh", "-euc", UP])?;
        }
        Ok(lab)
    }

    #[allow(clippy::too_many_arguments)] // Two ends of three words.
    fn join(
        &self,
        here: &Namespace,
        one: &str,
        one_mac: [u8; 6],
        there: &Namespace,
        other: &str,
        other_mac: [u8; 6],
        queues: usize,
    ) -> Result<(), String> {
        here.add_pair_with(one, there, other, queues)?;
        for (place, name, address) in [(here, one, one_mac), (there, other, other_mac)] {
            place.ip(&["link", "set", name, "address", &mac(address)])?;
            place.ip(&["link", "set", name, "up"])?;
            // Only with GRO, which it gets while it is up, or with a program of its own, does a veth take frames that XDP sends. GRO
            // does not join these. Tags stay in frames, where XDP sees them.
            place.run(&["ethtool", "-K", name, "gro", "on", "rxvlan", "off", "txvlan", "off"])?;
        }
        Ok(())
    }

    fn be_router(&self, work: Work) -> Result<(), String> {
        let ip = |line: String| self.router.ip(&line.split(' ').collect::<Vec<_>>());
        ip(format!("address add {ROUTER_LEFT}/24 dev {LEFT}"))?;
        ip(format!("address add {ROUTER_RIGHT}/24 dev {RIGHT}"))?;
        ip(format!("neighbour replace {SOURCE} lladdr {} dev {LEFT} nud permanent", mac(SOURCE_MAC)))?;
        ip(format!("neighbour replace {SINK} lladdr {} dev {RIGHT} nud permanent", mac(SINK_MAC)))?;
        ip(format!("route add default via {SINK}"))?;
        let mut script = "sysctl -qw net.ipv4.ip_forward=1".to_owned();
        if let Some(ruleset) = work.ruleset() {
            script += &format!("\nnft -f - <<'END'\n{ruleset}END\n");
            for of in ["udp_timeout", "udp_timeout_stream", "tcp_timeout_established", "tcp_timeout_unacknowledged"] {
                script += &format!("sysctl -qw net.netfilter.nf_conntrack_{of}={KEPT}\n");
            }
        }
        self.router.run(&["sh", "-euc", &script])
    }

    /// Makes an interface of the router that has the addresses and routes which were those of `of`, and says its number. To be called in the
    /// router's namespace.
    pub fn stand_in(&self, of: &str, name: &str) -> Result<u32, String> {
        let (own, end, end_mac) =
            if of == LEFT { (ROUTER_LEFT, SOURCE, SOURCE_MAC) } else { (ROUTER_RIGHT, SINK, SINK_MAC) };
        let way = if of == LEFT { String::new() } else { format!("ip route replace default via {end} dev {name}") };
        let script = format!(
            "ip address flush dev {of}\n\
             ip link add {name} type veth peer name {name}-end\n\
             ip link set {name} up\n\
             ip link set {name}-end up\n\
             ip address add {own}/24 dev {name}\n\
             ip neighbour replace {end} lladdr {} dev {name} nud permanent\n\
             {way}",
            mac(end_mac)
        );
        self.router.run(&["sh", "-euc", &script])?;
        index(name)
    }

    /// How many connections conntrack has in the router.
    pub fn tracked(&self) -> Result<u64, String> {
        const FILE: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
        inside(&self.router, || {
            let text = std::fs::read_to_string(FILE).map_err(|why| format!("{FILE}: {why}"))?;
            text.trim().parse().map_err(|_| format!("{FILE} says {text}"))
        })
    }
}
