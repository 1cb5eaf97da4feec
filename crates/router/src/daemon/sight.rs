//! All that the daemon knows of Linux, and the sockets by which it knows.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::devices::Forwarding;
use crate::kernel::conntrack::{self, Old, Tuple};
use crate::kernel::link::Link;
use crate::kernel::mirror::{Change, GROUPS, Mirror, VLANS};
use crate::kernel::neighbour::Neighbour;
use crate::kernel::netfilter::Hooks;
use crate::kernel::offloads::Offloads;
use crate::kernel::policy::Policies;
use crate::kernel::ruleset::Looks;
use crate::kernel::settings;
use crate::kernel::shaping::{Programs, Shaping};
use crate::kernel::socket::{Error, Events, Protocol, Questions};
use crate::kernel::wire::{self, Message, Request};

/// Filters of this name in traffic control are the router's own.
const OUR_FILTERS: &str = "router_";

/// For how long at what rules look is not read again, besides twenty times what it took.
const LOOKS: Duration = Duration::from_secs(5);

/// What is known, and whom to ask.
pub struct Sight {
    /// Interfaces, neighbours and the like.
    pub mirror: Mirror,
    /// The firewall.
    pub hooks: Hooks,
    /// IPsec.
    pub policies: Policies,
    /// Settings of all interfaces.
    pub forwarding: Forwarding,
    /// How Linux chooses between next hops.
    pub choices: [Option<i64>; 5],
    /// Interfaces that take packets from addresses of this host.
    accept_local: BTreeSet<String>,
    /// Before then it is not read again at what rules look.
    looks_again: Option<Instant>,
    route: Questions,
    netfilter: Option<Questions>,
    xfrm: Option<Questions>,
    offloads: Option<Offloads>,
    /// Traffic control and features of interfaces, until an event speaks of them.
    shapings: BTreeMap<u32, Shaping>,
    features: BTreeMap<u32, BTreeSet<String>>,
}

impl Sight {
    /// Looks for the first time.
    ///
    /// # Errors
    /// When rtnetlink does not answer; what else this kernel has not is taken as empty.
    pub fn open() -> Result<Self, Error> {
        let mut sight = Self {
            mirror: Mirror::default(),
            hooks: Hooks::default(),
            policies: Policies::default(),
            forwarding: Forwarding::default(),
            choices: settings::choices(),
            accept_local: BTreeSet::new(),
            looks_again: None,
            route: Questions::open(Protocol::Route)?,
            netfilter: Questions::open(Protocol::Netfilter).ok(),
            xfrm: Questions::open(Protocol::Xfrm).ok(),
            offloads: Offloads::open().ok().flatten(),
            shapings: BTreeMap::new(),
            features: BTreeMap::new(),
        };
        sight.read()?;
        sight.has_accept_local_moved();
        Ok(sight)
    }

    /// Reads everything anew.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn read(&mut self) -> Result<(), Error> {
        self.mirror = Mirror::read(&mut self.route)?;
        Mirror::read_routes(&mut self.route, &mut self.mirror)?;
        self.read_the_rest()
    }

    /// Reads everything but routes, after events have been lost: a full table takes seconds. One of those that were not seen may have an MTU of its
    /// own, or several next hops, so that is taken for granted.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn read_again(&mut self) -> Result<(), Error> {
        let mut mirror = Mirror::read(&mut self.route)?;
        mirror.route_events = self.mirror.route_events;
        mirror.left_out += self.mirror.left_out;
        mirror.has_route_mtu = true;
        mirror.has_choice = true;
        self.mirror = mirror;
        self.read_the_rest()
    }

    fn read_the_rest(&mut self) -> Result<(), Error> {
        self.shapings.clear();
        self.features.clear();
        self.forwarding = Forwarding::read();
        (self.hooks.looks, self.looks_again) = (Looks::default(), None);
        self.read_hooks()?;
        self.read_policies()
    }

    /// Reads what looks at packets.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn read_hooks(&mut self) -> Result<(), Error> {
        if let Some(netfilter) = &mut self.netfilter {
            let looks = std::mem::take(&mut self.hooks.looks);
            self.hooks = Hooks::read(netfilter)?;
            self.hooks.looks = looks;
        }
        self.read_looks()
    }

    /// Reads at what rules look, if something of it may be gone, which does no harm: so not again for a while, for a ruleset may be long.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn read_looks(&mut self) -> Result<(), Error> {
        let is_known = self.hooks.looks.is_read || self.looks_again.is_some_and(|again| Instant::now() < again);
        if let Some(netfilter) = self.netfilter.as_mut().filter(|_| !is_known) {
            let begin = Instant::now();
            let read = Looks::read(netfilter);
            let was_read = self.looks_again.replace(Instant::now() + LOOKS + 20 * begin.elapsed()).is_some();
            match read {
                Ok(looks) => self.hooks.looks = looks,
                // What was known and heard since is all there is, and more.
                Err(error) if was_read => tracing::debug!("what rules look at cannot be read again: {error}"),
                Err(error) => {
                    self.looks_again = None;
                    return Err(error);
                }
            }
        }
        self.mirror.is_asked = self.hooks.looks.routes;
        Ok(())
    }

    /// Takes in an event of the ruleset: what a new rule looks at counts at once.
    pub fn hear_rule(&mut self, message: &Message<'_>) {
        self.hooks.looks.hear(message);
        self.mirror.is_asked |= self.hooks.looks.routes;
    }

    /// Reads which interfaces take packets from addresses of this host; whether that has changed.
    pub fn has_accept_local_moved(&mut self) -> bool {
        const MOST: usize = 1024;
        let now = settings::accept_local(self.mirror.links.values().map(|link| link.name.as_str()).take(MOST));
        now != std::mem::replace(&mut self.accept_local, now.clone())
    }

    /// Looks for hooks, and programs at interfaces, that come and go without an event; whether one has.
    pub fn look_again(&mut self) -> bool {
        let known = self.shapings.len();
        self.shapings.retain(|index, shaping| programs(*index) == shaping.programs);
        let have_hooks_moved = self.netfilter.as_mut().is_some_and(|netfilter| self.hooks.look_again(netfilter));
        have_hooks_moved || self.shapings.len() != known
    }

    /// Reads policies of IPsec.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn read_policies(&mut self) -> Result<(), Error> {
        if let Some(xfrm) = &mut self.xfrm {
            self.policies = Policies::read(xfrm)?;
        }
        Ok(())
    }

    /// Takes in an event of rtnetlink; what it changes for forwarded packets.
    pub fn apply(&mut self, message: &Message<'_>) -> Option<Change> {
        // Headers of links, qdiscs and filters have the interface at the same place. Links are told of also when only a feature has changed.
        const LINKS: std::ops::RangeInclusive<u16> = 16..=17;
        const TRAFFIC_CONTROL: std::ops::RangeInclusive<u16> = 36..=45;
        if LINKS.contains(&message.kind) || TRAFFIC_CONTROL.contains(&message.kind) {
            let index = wire::u32_at(message.body, 4).unwrap_or_default();
            self.shapings.remove(&index);
            self.features.remove(&index);
        }
        self.mirror.apply(message)
    }

    /// Traffic control at interfaces; nothing where it cannot be read.
    pub fn shaping(&mut self, interfaces: &BTreeSet<u32>) -> &BTreeMap<u32, Shaping> {
        let unknown: BTreeSet<u32> =
            interfaces.iter().filter(|index| !self.shapings.contains_key(index)).copied().collect();
        if !unknown.is_empty() {
            let mut read = Shaping::read(&mut self.route, &unknown, OUR_FILTERS).unwrap_or_default();
            read.iter_mut().for_each(|(index, shaping)| shaping.programs = programs(*index));
            self.shapings.extend(read);
        }
        &self.shapings
    }

    /// Has traffic control at interfaces read again when it is asked for.
    pub fn forget_shaping(&mut self, interfaces: &BTreeSet<u32>) {
        self.shapings.retain(|index, _| !interfaces.contains(index));
    }

    /// Features of an interface that are on; none where they cannot be read.
    pub fn features(&mut self, interface: u32) -> BTreeSet<String> {
        let offloads = &mut self.offloads;
        let ask = || offloads.as_mut().and_then(|offloads| offloads.on(interface).ok()).unwrap_or_default();
        self.features.entry(interface).or_insert_with(ask).clone()
    }

    /// Whether frames of XDP can be sent out of an interface, as far as the kernel tells.
    pub fn sends_xdp(&mut self, interface: u32) -> bool {
        self.offloads.as_mut().and_then(|offloads| offloads.sends_xdp(interface)).unwrap_or(true)
    }

    /// Reads multicast routes again, if there were some.
    pub fn read_multicast(&mut self) {
        if !self.mirror.multicast.is_empty()
            && let Err(error) = self.mirror.read_multicast(&mut self.route)
        {
            tracing::warn!("{error}");
        }
    }

    /// The number of the XDP program that is on an interface now; 0 for none.
    pub fn xdp_of(&mut self, interface: u32) -> u32 {
        const GET_LINK: u16 = 18;
        let mut header = [0; 16];
        header[4..8].copy_from_slice(&interface.to_ne_bytes());
        let request = Request::new(GET_LINK, wire::ACK, &header);
        self.route.one(request, Link::read).ok().flatten().map_or(0, |link| link.xdp)
    }

    /// Has Linux ask those neighbours whether they are still there that it takes for unused: packets without Linux go to them.
    pub fn keep_neighbours(&mut self, used: &HashSet<(u32, [u8; 6])>) {
        const NEW_NEIGHBOUR: u16 = 28;
        const STALE: u16 = 0x04;
        const USE: u8 = 1;
        const MOST: usize = 256;
        let is_used =
            |one: &&Neighbour| one.state == STALE && one.mac.is_some_and(|mac| used.contains(&(one.interface, mac)));
        let stale: Vec<Neighbour> = self.mirror.neighbours.values().filter(is_used).take(MOST).copied().collect();
        for one in stale {
            let mut header = [0; 12];
            header[0] = if one.address.is_ipv4() { 2 } else { 10 };
            header[4..8].copy_from_slice(&one.interface.to_ne_bytes());
            header[10] = USE;
            let octets = match one.address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            // One that is gone by now is not missed.
            let _ = self.route.ask(Request::new(NEW_NEIGHBOUR, wire::ACK, &header).with(1, &octets), || (), |_| ());
        }
    }

    /// Has conntrack forget a connection of TCP sooner that it takes for established though it was reset. One that is gone is not missed.
    pub fn forget_sooner(&mut self, of: &Tuple, seconds: u32) {
        if let Some(netfilter) = &mut self.netfilter {
            let _ = conntrack::forget_sooner(netfilter, of, 0, seconds);
        }
    }

    /// Makes conntrack liberal about windows of a connection of TCP; whether that was so.
    pub fn be_liberal(&mut self, of: &Tuple) -> bool {
        self.netfilter.as_mut().is_some_and(|netfilter| conntrack::be_liberal(netfilter, of, 0).is_ok())
    }

    /// Has conntrack forget what was acknowledged last on a connection of TCP; one that is gone by now needs nothing.
    pub fn forget_acknowledged(&mut self, of: &Tuple, old: Old) {
        let netfilter = self.netfilter.as_mut();
        let _ = netfilter.map(|netfilter| conntrack::forget_acknowledged(netfilter, of, 0, old));
    }
}

/// Programs at an interface that are no filters. Without an engine in this build nobody asks.
fn programs(interface: u32) -> Programs {
    #[cfg(feature = "bpf")]
    return crate::kernel::tcx::programs(interface);
    #[cfg(not(feature = "bpf"))]
    return (interface, Programs::default()).1;
}

/// What tells of changes, each kind by a socket of its own, so that many of one kind do not push out another.
pub struct Ears {
    /// Links, routes, neighbours.
    pub route: Events,
    /// Rulesets of nftables.
    pub ruleset: Option<Events>,
    /// Connections that end.
    pub conntrack: Option<Events>,
    /// Policies of IPsec.
    pub policies: Option<Events>,
}

impl Ears {
    /// Listens.
    ///
    /// # Errors
    /// Without rtnetlink. What else this kernel has not is not listened to.
    pub fn open() -> Result<Self, Error> {
        const DESTROYED: u32 = 1 << 2;
        const NFTABLES: u32 = 1 << 6;
        const POLICY: u32 = 1 << 3;
        let route = Events::listen(Protocol::Route, GROUPS)?;
        if let Err(error) = route.join(VLANS) {
            // Before Linux 5.8 there are none.
            tracing::debug!("VLANs of bridges are heard of with their ports only: {error}");
        }
        Ok(Self {
            route,
            ruleset: Events::listen(Protocol::Netfilter, NFTABLES).ok(),
            conntrack: Events::listen(Protocol::Netfilter, DESTROYED).ok(),
            policies: Events::listen(Protocol::Xfrm, POLICY).ok(),
        })
    }
}
