//! What Linux has, kept up to date by its events, and what each event changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::address::Address;
use super::link::{self, Link, PortVlan};
use super::neighbour::{Neighbour, Station};
use super::route::{Multicast, Rule};
use super::shaping;
use super::socket::{Error, Questions};
use super::wire::{self, Message, Request};

/// Groups of rtnetlink that are listened to, as bits: links, neighbours, traffic control, addresses, routes and rules of both families, multicast
/// routes, settings of interfaces, next-hop objects.
pub const GROUPS: u32 = group(1)
    | group(3)
    | group(4)
    | group(5)
    | group(6)
    | group(7)
    | group(8)
    | group(9)
    | group(10)
    | group(11)
    | group(19)
    | group(24)
    | group(25)
    | group(32);

/// The group beyond those: VLANs of bridges.
pub const VLANS: u32 = 33;

const fn group(number: u32) -> u32 {
    1 << (number - 1)
}

/// More neighbours, or addresses in forwarding databases, than this are not kept: what concerns them is taken for a change.
const MOST: usize = 1 << 20;

/// What an event changes for forwarded packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Routes, rules, next-hop objects: every flow may go elsewhere.
    Routes,
    /// The same, where Linux looks at more than where packets go: at marks, at a hash by which it chooses one of several next hops, at what a ruleset
    /// asks the routes for, at whether an address is of this host.
    MarkedRoutes,
    /// An interface came, went, or is another one now.
    Link(u32),
    /// The same, where the ruleset may look at what has changed: its name, its group, or by which interface a route leads.
    RuledLink(u32),
    /// VLANs of a port of a bridge, or of the bridge.
    PortVlans(u32),
    /// Addresses: what was forwarded may be for this host now.
    Addresses(u32),
    /// The way to a neighbour at an interface, whose Ethernet address was this.
    Neighbour(u32, [u8; 6]),
    /// The way to some neighbour at an interface, of which nothing is kept.
    Neighbours(u32),
    /// Where a frame goes in a bridge.
    Station(Station, Move),
    /// Multicast routes.
    Multicast,
    /// Qdiscs and filters of an interface.
    Shaping(u32),
    /// Forwarding, `rp_filter` or the like, of one interface or all.
    Settings,
}

/// What happened to an entry of a forwarding database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// It is there, or at this port now.
    Here,
    /// It is not there any more.
    Gone,
}

/// What Linux has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mirror {
    /// Interfaces by number.
    pub links: BTreeMap<u32, Link>,
    /// VLANs of ports of bridges.
    pub port_vlans: BTreeMap<u32, Vec<PortVlan>>,
    /// Addresses of interfaces.
    pub addresses: BTreeSet<Address>,
    /// Neighbours by interface and address, but for those whose Ethernet address follows from their own: of these come and go no events.
    pub neighbours: HashMap<(u32, IpAddr), Neighbour>,
    /// Forwarding databases of bridges, by [`Station::key`].
    pub stations: HashMap<(u32, u16, [u8; 6]), Station>,
    /// Policy rules.
    pub rules: BTreeSet<Rule>,
    /// How many of them look further ([`Rule::looks_further`]).
    pub further: usize,
    /// Multicast routes by sender and group.
    pub multicast: HashMap<(IpAddr, IpAddr), Multicast>,
    /// Events that concern routes, since the beginning.
    pub route_events: u64,
    /// Whether a route was seen that has an MTU of its own. It stays so: which flows go by such a route is not known here.
    pub has_route_mtu: bool,
    /// Whether a route was seen that has several next hops, or a group of next-hop objects. It stays so. Linux chooses by a hash that a card or a socket has
    /// made, by flow labels, and by which neighbours are there.
    pub has_choice: bool,
    /// Whether the ruleset asks for routes ([`Looks`](super::ruleset::Looks)).
    pub is_asked: bool,
    /// Entries for which there was no room.
    pub left_out: u64,
}

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const DELETE_NEIGHBOUR: u16 = 29;
const GET_NEIGHBOUR: u16 = 30;
const NEW_RULE: u16 = 32;
const DELETE_RULE: u16 = 33;
const GET_RULE: u16 = 34;
const NEW_FILTER: u16 = 44;
const QDISC_AND_FILTER: [u16; 6] = [36, 37, 40, 41, 44, 45];
const SETTINGS: u16 = 80;
const NEW_NEXT_HOP: u16 = 104;
const NEW_VLAN: u16 = 112;
const DELETE_VLAN: u16 = 113;
const DELETE_NEXT_HOP: u16 = 105;
const GET_NEXT_HOP: u16 = 106;

impl Mirror {
    /// Reads everything anew but [routes](Self::read_routes).
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn read(questions: &mut Questions) -> Result<Self, Error> {
        const BRIDGE: u8 = 7;
        let mut mirror = Self::default();
        // VLANs of ports take a filter of their own (`RTEXT_FILTER_BRVLAN_COMPRESSED`).
        let vlans = Request::new(GET_LINK, wire::DUMP, &header::<16>(BRIDGE)).with(29, &4_u32.to_ne_bytes());
        let requests = [
            (Request::new(GET_LINK, wire::DUMP, &header::<16>(0)), true),
            (vlans, false),
            (Request::new(GET_ADDRESS, wire::DUMP, &header::<8>(0)), true),
            (Request::new(GET_NEIGHBOUR, wire::DUMP, &header::<12>(0)), true),
            (Request::new(GET_NEIGHBOUR, wire::DUMP, &header::<12>(BRIDGE)), false),
            (Request::new(GET_RULE, wire::DUMP, &header::<12>(0)), false),
            (Request::new(GET_NEXT_HOP, wire::DUMP, &header::<8>(0)), false),
            (Request::new(GET_ROUTE, wire::DUMP, &header::<12>(super::route::MULTICAST_IPV4)), false),
            (Request::new(GET_ROUTE, wire::DUMP, &header::<12>(super::route::MULTICAST_IPV6)), false),
        ];
        for (request, is_needed) in requests {
            mirror.list(questions, request, is_needed)?;
        }
        Ok(mirror)
    }

    /// Reads routes, of which is kept whether one has an MTU of its own.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn read_routes(questions: &mut Questions, mirror: &mut Self) -> Result<(), Error> {
        const IPV4: u8 = 2;
        const IPV6: u8 = 10;
        for family in [IPV4, IPV6] {
            mirror.list(questions, Request::new(GET_ROUTE, wire::DUMP, &header::<12>(family)), false)?;
        }
        // What was listed is no event.
        mirror.route_events = 0;
        Ok(())
    }

    fn list(&mut self, questions: &mut Questions, request: Request, is_needed: bool) -> Result<(), Error> {
        // A list that begins anew adds what it said before once more, which changes nothing; what went away meanwhile comes as an event.
        let take = |message: Message<'_>| {
            self.apply(&message);
        };
        match questions.ask(request, || (), take) {
            Err(Error::Refused(_)) if !is_needed => Ok(()),
            other => other,
        }
    }

    /// Reads multicast routes alone: no event tells that an interface of theirs is not one of multicast routing any more.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn read_multicast(&mut self, questions: &mut Questions) -> Result<(), Error> {
        let mut fresh = Self::default();
        for family in [super::route::MULTICAST_IPV4, super::route::MULTICAST_IPV6] {
            let request = Request::new(GET_ROUTE, wire::DUMP, &header::<12>(family));
            let keep = |message: Message<'_>| {
                fresh.apply(&message);
            };
            match questions.ask(request, || (), keep) {
                Err(Error::Refused(_)) => {}
                other => other?,
            }
        }
        self.multicast = fresh.multicast;
        Ok(())
    }

    /// Takes in an event of rtnetlink; what it changes for forwarded packets.
    pub fn apply(&mut self, message: &Message<'_>) -> Option<Change> {
        let body = message.body;
        match message.kind {
            NEW_LINK => self.new_link(body),
            DELETE_LINK => self.delete_link(body),
            NEW_ADDRESS => {
                let address = Address::read(body)?;
                self.addresses.insert(address).then_some(Change::Addresses(address.interface))
            }
            DELETE_ADDRESS => {
                let address = Address::read(body)?;
                self.addresses.remove(&address).then_some(Change::Addresses(address.interface))
            }
            NEW_NEIGHBOUR => self.new_neighbour(body),
            DELETE_NEIGHBOUR => self.delete_neighbour(body),
            NEW_ROUTE | DELETE_ROUTE => self.route(message.kind, body),
            NEW_RULE => self.new_rule(Rule::read(body)?),
            DELETE_RULE => self.delete_rule(&Rule::read(body)?),
            // They are not kept: the kernel does not tell of those that go with their interface.
            NEW_NEXT_HOP | DELETE_NEXT_HOP => {
                self.has_choice |= message.kind == NEW_NEXT_HOP && super::route::is_group(body);
                Some(self.routes())
            }
            SETTINGS => Some(Change::Settings),
            // States of the spanning tree by VLAN come by these alone (`struct br_vlan_msg`); VLANs themselves also with their port.
            NEW_VLAN | DELETE_VLAN => wire::u32_at(body, 4).map(Change::PortVlans),
            NEW_FILTER if shaping::is_ours(body) => None,
            // Ours may have been taken away by somebody.
            kind if QDISC_AND_FILTER.contains(&kind) => wire::u32_at(body, 4).map(Change::Shaping),
            _ => None,
        }
    }

    fn new_link(&mut self, body: &[u8]) -> Option<Change> {
        const AF_BRIDGE: u8 = 7;
        if body.first() == Some(&AF_BRIDGE) {
            return self.new_port(body);
        }
        let link = Link::read(body)?;
        let index = link.index;
        let known_as = |link: &Link| (link.name.clone(), link.group);
        let now = known_as(&link);
        let before = self.links.insert(index, link);
        let is_renamed = before.as_ref().is_some_and(|before| known_as(before) != now);
        (before.as_ref() != self.links.get(&index)).then(|| self.link(index, is_renamed))
    }

    fn link(&self, index: u32, is_renamed: bool) -> Change {
        if is_renamed || self.is_asked { Change::RuledLink(index) } else { Change::Link(index) }
    }

    /// A bridge says what a port of it is now.
    fn new_port(&mut self, body: &[u8]) -> Option<Change> {
        let mut changed = None;
        if let Some((index, vlans)) = link::port_vlans(body) {
            let before = self.port_vlans.insert(index, vlans);
            changed = (before.as_ref() != self.port_vlans.get(&index)).then_some(Change::PortVlans(index));
        }
        if let Some((index, port)) = link::bridge_port(body)
            && let Some(link) = self.links.get_mut(&index)
            && link.port.is_some_and(|before| before != port)
        {
            link.port = Some(port);
            changed = changed.or(Some(Change::Link(index)));
        }
        changed
    }

    fn delete_link(&mut self, body: &[u8]) -> Option<Change> {
        const AF_BRIDGE: u8 = 7;
        let index = wire::u32_at(body, 4)?;
        self.port_vlans.remove(&index);
        // It is no longer a port; whether it is gone is said apart.
        if body.first() == Some(&AF_BRIDGE) {
            return Some(Change::Link(index));
        }
        self.addresses.retain(|address| address.interface != index);
        self.neighbours.retain(|(interface, _), _| *interface != index);
        self.stations.retain(|_, station| station.port != index && station.bridge != index);
        self.links.remove(&index).map(|_| self.link(index, false))
    }

    fn new_neighbour(&mut self, body: &[u8]) -> Option<Change> {
        if let Some(interface) = Neighbour::without_question(body) {
            return Some(self.without_question(interface, body));
        }
        let Some(neighbour) = Neighbour::read(body) else { return self.new_station(Station::read(body)?) };
        let key = (neighbour.interface, neighbour.address);
        let before = self.neighbours.get(&key).copied();
        if before.is_none() && self.neighbours.len() >= MOST {
            self.left_out += 1;
            // Whatever it was before.
            return Some(Change::Link(neighbour.interface));
        }
        self.neighbours.insert(key, neighbour);
        let old = before.and_then(|before| before.mac);
        // Of a group of next hops Linux takes those whose neighbours it knows.
        if self.has_choice && old.is_some() != neighbour.mac.is_some() {
            return Some(self.routes());
        }
        // Who had no address has no packets on the way to it.
        let old = old?;
        (neighbour.mac != Some(old)).then_some(Change::Neighbour(key.0, old))
    }

    /// It may have been asked for before; as it is now, it is not kept.
    fn without_question(&mut self, interface: u32, body: &[u8]) -> Change {
        const ADDRESS: u16 = 1;
        if let Some(address) = wire::attributes(body, 12).find(ADDRESS).and_then(wire::address_of) {
            self.neighbours.remove(&(interface, address));
        }
        Change::Neighbours(interface)
    }

    fn delete_neighbour(&mut self, body: &[u8]) -> Option<Change> {
        if let Some(interface) = Neighbour::without_question(body) {
            return Some(self.without_question(interface, body));
        }
        if let Some(neighbour) = Neighbour::read(body) {
            let key = (neighbour.interface, neighbour.address);
            let old = self.neighbours.remove(&key)?.mac?;
            return Some(if self.has_choice { self.routes() } else { Change::Neighbour(key.0, old) });
        }
        let gone = Station::read(body)?;
        // An address that has moved is gone from its old port, and may be known at the new one already.
        let known = self.stations.get(&gone.key()).copied().filter(|known| known.port == gone.port)?;
        self.stations.remove(&known.key());
        Some(Change::Station(known, Move::Gone))
    }

    fn new_station(&mut self, station: Station) -> Option<Change> {
        let before = self.stations.get(&station.key());
        if before == Some(&station) {
            return None;
        }
        match before.is_some() || self.stations.len() < MOST {
            true => drop(self.stations.insert(station.key(), station)),
            false => self.left_out += 1,
        }
        Some(Change::Station(station, Move::Here))
    }

    fn routes(&self) -> Change {
        if self.further > 0 || self.has_choice || self.is_asked { Change::MarkedRoutes } else { Change::Routes }
    }

    fn new_rule(&mut self, rule: Rule) -> Option<Change> {
        let further = usize::from(rule.looks_further());
        self.rules.insert(rule).then(|| {
            self.further += further;
            self.routes()
        })
    }

    fn delete_rule(&mut self, rule: &Rule) -> Option<Change> {
        // As long as it is there, and that is until now.
        let change = self.routes();
        self.rules.remove(rule).then(|| {
            self.further -= usize::from(rule.looks_further());
            change
        })
    }

    fn route(&mut self, kind: u16, body: &[u8]) -> Option<Change> {
        let Some(entry) = Multicast::read(body) else {
            self.route_events += 1;
            self.has_route_mtu |= kind == NEW_ROUTE && super::route::has_mtu(body);
            self.has_choice |= kind == NEW_ROUTE && super::route::has_choice(body);
            return Some(if super::route::is_of_host(body) { Change::MarkedRoutes } else { self.routes() });
        };
        let key = (entry.source, entry.group);
        match kind {
            DELETE_ROUTE => drop(self.multicast.remove(&key)),
            _ if self.multicast.len() < MOST => drop(self.multicast.insert(key, entry)),
            _ => self.left_out += 1,
        }
        Some(Change::Multicast)
    }

    /// The interface of that name.
    pub fn named(&self, name: &str) -> Option<&Link> {
        self.links.values().find(|link| link.name == name)
    }

    /// Its name, or its number where it has none any more.
    pub fn name_of(&self, index: u32) -> String {
        self.links.get(&index).map_or_else(|| format!("#{index}"), |link| link.name.clone())
    }
}

fn header<const N: usize>(family: u8) -> [u8; N] {
    let mut header = [0; N];
    header[0] = family;
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(kind: u16, body: &[u8]) -> Message<'_> {
        Message { kind, flags: 0, sequence: 0, body }
    }

    fn station(kind: u16, port: u32, state: u16) -> Vec<u8> {
        let mut header = header::<12>(7);
        header[4..8].copy_from_slice(&port.to_ne_bytes());
        header[8..10].copy_from_slice(&state.to_ne_bytes());
        let request = Request::new(kind, 0, &header).with(2, &[2, 0, 0, 0, 0, 9]).with(9, &4_u32.to_ne_bytes());
        request.clone().numbered(0)[16..].to_owned()
    }

    #[test]
    fn an_address_that_moved_is_not_gone_with_its_old_port() {
        let mut mirror = Mirror::default();
        let mut tell = |kind, port| mirror.apply(&message(kind, &station(kind, port, 2)));
        assert!(matches!(tell(NEW_NEIGHBOUR, 5), Some(Change::Station(_, Move::Here))));
        assert_eq!(tell(NEW_NEIGHBOUR, 5), None, "nothing new");
        assert!(matches!(tell(NEW_NEIGHBOUR, 6), Some(Change::Station(Station { port: 6, .. }, Move::Here))));
        assert_eq!(tell(DELETE_NEIGHBOUR, 5), None);
        assert!(matches!(tell(DELETE_NEIGHBOUR, 6), Some(Change::Station(_, Move::Gone))));
        assert_eq!(tell(DELETE_NEIGHBOUR, 6), None);
    }

    #[test]
    fn a_neighbour_that_is_asked_for_again_changes_nothing() {
        let neighbour = |state: u16, last: u8| {
            let mut header = header::<12>(2);
            header[8..10].copy_from_slice(&state.to_ne_bytes());
            let request = Request::new(28, 0, &header).with(1, &[10, 0, 0, 9]).with(2, &[2, 0, 0, 0, 0, last]);
            request.clone().numbered(0)[16..].to_owned()
        };
        let mut mirror = Mirror::default();
        let mut tell = |state, last| mirror.apply(&message(NEW_NEIGHBOUR, &neighbour(state, last))).is_some();
        let changes =
            [(0x20, 1), (2, 1), (4, 1), (8, 1), (2, 2), (0x20, 2), (0x20, 2)].map(|(state, last)| tell(state, last));
        assert_eq!(changes, [false, false, false, false, true, true, false]);
    }

    #[test]
    fn a_neighbour_set_without_a_question_moves_what_leads_to_its_interface() {
        let neighbour = |state: u16| {
            let mut header = header::<12>(2);
            header[4..8].copy_from_slice(&7_u32.to_ne_bytes());
            header[8..10].copy_from_slice(&state.to_ne_bytes());
            let request = Request::new(28, 0, &header).with(1, &[10, 0, 0, 9]).with(2, &[2, 0, 0, 0, 0, 9]);
            request.clone().numbered(0)[16..].to_owned()
        };
        const NO_ARP: u16 = 0x40;
        let mut mirror = Mirror::default();
        mirror.apply(&message(NEW_NEIGHBOUR, &neighbour(2)));
        assert_eq!(mirror.apply(&message(NEW_NEIGHBOUR, &neighbour(NO_ARP))), Some(Change::Neighbours(7)));
        assert!(mirror.neighbours.is_empty());
        assert_eq!(mirror.apply(&message(DELETE_NEIGHBOUR, &neighbour(NO_ARP))), Some(Change::Neighbours(7)));
    }

    #[test]
    fn states_of_vlans_at_a_port_move_rules() {
        let mut body = header::<8>(7);
        body[4..8].copy_from_slice(&5_u32.to_ne_bytes());
        assert_eq!(Mirror::default().apply(&message(NEW_VLAN, &body)), Some(Change::PortVlans(5)));
    }

    #[test]
    fn the_routers_own_filters_change_nothing() {
        let filter = |priority: u32| {
            let mut header = header::<20>(0);
            header[4..8].copy_from_slice(&7_u32.to_ne_bytes());
            header[16..20].copy_from_slice(&(priority << 16 | 0x300).to_ne_bytes());
            header
        };
        let tell = |kind, priority| Mirror::default().apply(&message(kind, &filter(priority)));
        const DELETE_FILTER: u16 = 45;
        let there = Some(Change::Shaping(7));
        assert_eq!((tell(NEW_FILTER, 1), tell(DELETE_FILTER, 1)), (there, there));
        assert_eq!(
            (tell(NEW_FILTER, shaping::OUR_PRIORITY), tell(DELETE_FILTER, shaping::OUR_PRIORITY)),
            (None, there)
        );
    }

    #[test]
    fn where_linux_chooses_between_next_hops_every_change_puts_rules_on_trial() {
        let header8 = header::<8>(0);
        let object = |kind: u16| Request::new(NEW_NEXT_HOP, 0, &header8).with(kind, &[1, 0, 0, 0, 0, 0, 0, 0]);
        let neighbour = |state: u16| {
            let mut header = header::<12>(2);
            header[8..10].copy_from_slice(&state.to_ne_bytes());
            Request::new(NEW_NEIGHBOUR, 0, &header).with(1, &[10, 0, 0, 9]).with(2, &[2, 0, 0, 0, 0, 9])
        };
        let route = Request::new(NEW_ROUTE, 0, &header::<12>(2)).with(9, &[8, 0, 0, 0, 3, 0, 0, 0]);
        let mut mirror = Mirror::default();
        let mut tell = |kind, request: &Request| mirror.apply(&message(kind, &request.clone().numbered(0)[16..]));
        const FAILED: u16 = 0x20;
        assert_eq!(tell(NEW_NEXT_HOP, &object(1)), Some(Change::Routes));
        assert_eq!((tell(NEW_NEIGHBOUR, &neighbour(FAILED)), tell(NEW_NEIGHBOUR, &neighbour(2))), (None, None));
        assert_eq!(tell(NEW_NEXT_HOP, &object(2)), Some(Change::MarkedRoutes));
        assert_eq!(tell(NEW_NEIGHBOUR, &neighbour(4)), None, "it is there as before");
        assert_eq!(tell(NEW_NEIGHBOUR, &neighbour(FAILED)), Some(Change::MarkedRoutes));
        assert_eq!(tell(NEW_NEIGHBOUR, &neighbour(2)), Some(Change::MarkedRoutes));
        assert_eq!(tell(DELETE_NEIGHBOUR, &neighbour(2)), Some(Change::MarkedRoutes));
        let mut other = Mirror::default();
        assert_eq!(other.apply(&message(NEW_ROUTE, &route.clone().numbered(0)[16..])), Some(Change::MarkedRoutes));
    }

    #[test]
    fn what_a_ruleset_may_look_at_is_told_from_where_packets_go() {
        let link = |name: &[u8], group: u32| {
            let mut header = header::<16>(0);
            header[4] = 7;
            let request = Request::new(NEW_LINK, 0, &header).with(3, name).with(27, &group.to_ne_bytes());
            request.clone().numbered(0)[16..].to_owned()
        };
        let route = |kind: u8| {
            let mut body = header::<12>(2);
            body[7] = kind;
            body
        };
        let mut mirror = Mirror::default();
        let mut tell = |kind, body: &[u8]| mirror.apply(&message(kind, body));
        assert_eq!(tell(NEW_LINK, &link(b"a\0", 0)), Some(Change::Link(7)));
        assert_eq!(tell(NEW_LINK, &link(b"a\0", 5)), Some(Change::RuledLink(7)));
        assert_eq!(tell(NEW_LINK, &link(b"b\0", 5)), Some(Change::RuledLink(7)));
        let kinds = [1, 2, 3, 6].map(|kind| tell(NEW_ROUTE, &route(kind)).unwrap());
        assert_eq!(kinds, [Change::Routes, Change::MarkedRoutes, Change::MarkedRoutes, Change::Routes]);
        mirror.is_asked = true;
        assert_eq!(mirror.apply(&message(DELETE_ROUTE, &route(1))), Some(Change::MarkedRoutes));
        assert_eq!(mirror.apply(&message(DELETE_LINK, &link(b"b\0", 5))), Some(Change::RuledLink(7)));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_survived(bodies in prop::collection::vec((14_u16..110, prop::collection::vec(any::<u8>(), 0..200)), 0..40)) {
            let mut mirror = Mirror::default();
            for (kind, body) in &bodies {
                mirror.apply(&message(*kind, body));
                let netfilter = message(*kind << 8 | *kind, body);
                let _ = (super::super::conntrack::event(&netfilter), super::super::netfilter::new_generation(&netfilter));
            }
            prop_assert!(mirror.links.len() + mirror.stations.len() <= bodies.len());
        }
    }
}
