//! Connections, found by id and by path. All maps name places in [`Slots`]; whoever removes a connection removes what
//! names it, so no map is larger than the connections times a constant.

use super::answer::Counters;
use super::config::Limits;
use super::connection::{Connection, ConnectionId, Learned, MOST_IDS, MOST_PATHS, OwnId, Path};
use super::slots::{List, Slots};
use crate::field::MAX_CID;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

/// Ids that are shorter are only looked up on paths that are known: they would fit too many other packets.
const SHORTEST_ROAMING: usize = 4;
/// Connections that are forgotten in one call, so that each call has little to do.
const EXPIRED_AT_ONCE: usize = 2;

/// Which connections a path has.
#[derive(Clone, Copy, Debug)]
struct OnPath {
    /// The newest.
    newest: u32,
    /// How many.
    count: u32,
    /// There were connections of several instances.
    mixed: bool,
    /// The one whose instance has ids of length 0.
    without_id: Option<u32>,
}

/// All connections.
#[derive(Debug, Default)]
pub struct Table {
    limits: Limits,
    slots: Slots<Connection>,
    /// Ids that instances are written to.
    ids: HashMap<ConnectionId, u32>,
    /// Ids that instances write to.
    peers: HashMap<(Path, ConnectionId), u32>,
    paths: HashMap<Path, OnPath>,
    sources: HashMap<IpAddr, usize>,
    randoms: HashMap<[u8; 32], u32>,
    /// How many ids that short headers can have are how long; and how many that instances write to.
    lengths: [u32; MAX_CID + 1],
    peer_lengths: [u32; MAX_CID + 1],
    /// ClientHellos that are not whole; connections with keys.
    hellos: usize,
    keyed: usize,
    pub counters: Counters,
}

impl Table {
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub fn get(&self, at: u32) -> Option<&Connection> {
        self.slots.get(at)
    }

    /// For what no map names.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut Connection> {
        self.slots.get_mut(at)
    }

    /// Whether one more ClientHello may be put together.
    pub fn has_room_for_hello(&self) -> bool {
        self.hellos < self.limits.hellos
    }

    /// Whether one more connection may have keys.
    pub fn has_room_for_keys(&self) -> bool {
        self.keyed < self.limits.keys
    }

    /// How many connections have keys.
    pub fn keyed(&self) -> usize {
        self.keyed
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.slots.len(List::Unconfirmed) + self.slots.len(List::Confirmed)
    }

    /// Enters a connection, if there is room.
    pub fn insert(&mut self, connection: Connection) -> Option<u32> {
        let of_source = self.sources.get(&connection.source).copied().unwrap_or(0);
        if of_source >= self.limits.per_source || !self.make_room() {
            self.counters.refused += 1;
            return None;
        }
        self.counters.opened += 1;
        *self.sources.entry(connection.source).or_default() += 1;
        self.hellos += usize::from(connection.hello.is_some());
        let paths = connection.paths;
        let at = self.slots.insert(List::Unconfirmed, connection);
        paths.into_iter().flatten().for_each(|path| self.name_path(at, &path));
        Some(at)
    }

    /// Forgets the oldest handshake if there is no room for one more.
    fn make_room(&mut self) -> bool {
        let full = self.len() >= self.limits.connections || self.slots.len(List::Unconfirmed) >= self.limits.handshakes;
        if !full {
            return true;
        }
        let Some(oldest) = self.slots.oldest(List::Unconfirmed) else { return false };
        self.remove(oldest);
        self.counters.evicted += 1;
        true
    }

    /// Forgets connections on which nothing came for long.
    pub fn expire(&mut self, now_ns: u64) {
        for (list, limit) in [(List::Unconfirmed, self.limits.handshake_ns), (List::Confirmed, self.limits.idle_ns)] {
            for _ in 0..EXPIRED_AT_ONCE {
                let Some(oldest) = self.slots.oldest(list) else { break };
                let seen = self.slots.get(oldest).map_or(0, |connection| connection.seen_ns);
                if now_ns.saturating_sub(seen) <= limit {
                    break;
                }
                self.remove(oldest);
                self.counters.expired += 1;
            }
        }
    }

    /// A packet of the connection came or went.
    pub fn touch(&mut self, at: u32, now_ns: u64, confirms: bool) {
        let Some(connection) = self.slots.get_mut(at) else { return };
        connection.seen_ns = now_ns;
        connection.confirmed |= confirms;
        let list = if connection.confirmed { List::Confirmed } else { List::Unconfirmed };
        self.slots.renew(at, list);
    }

    /// Forgets a connection and all that names it.
    pub fn remove(&mut self, at: u32) {
        let Some(connection) = self.slots.remove(at) else { return };
        connection.ids.iter().for_each(|own| self.unname_id(own));
        for path in connection.paths.iter().flatten() {
            self.unname_path(at, path, &connection.peer);
        }
        if let Entry::Occupied(mut count) = self.sources.entry(connection.source) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if let Some(random) = connection.random
            && self.randoms.get(&random) == Some(&at)
        {
            self.randoms.remove(&random);
        }
        self.hellos -= usize::from(connection.hello.is_some());
        self.keyed -= usize::from(connection.keys.is_some());
    }

    /// Forgets all connections of an instance.
    pub fn remove_instance(&mut self, instance: u16) {
        let is_of = |connection: &Connection| connection.decided && connection.instance == instance;
        let all: Vec<u32> = self.slots.iter().filter(|(_, connection)| is_of(connection)).map(|(at, _)| at).collect();
        all.into_iter().for_each(|at| self.remove(at));
    }

    /// The connection with this id.
    pub fn find(&self, id: &[u8]) -> Option<(u32, OwnId)> {
        let id = ConnectionId::new(id).filter(|id| !id.as_slice().is_empty())?;
        let at = *self.ids.get(&id)?;
        let own = self.slots.get(at)?.ids.iter().find(|own| own.id == id)?;
        Some((at, *own))
    }

    /// The connection whose id stands at the start of what follows the first byte of a short header.
    pub fn find_short(&self, rest: &[u8], path: &Path) -> Option<(u32, OwnId)> {
        let shortest = if self.paths.contains_key(path) { 1 } else { SHORTEST_ROAMING };
        let lengths = (shortest..=MAX_CID).rev().filter(|len| self.lengths[*len] > 0);
        lengths.filter_map(|len| self.find(rest.get(..len)?)).find(|(_, own)| {
            // The client's choice is for long headers.
            own.learned != Learned::FirstDestination
        })
    }

    /// The connection of a path on which there are those of one instance only, or one without ids.
    pub fn find_path(&self, path: &Path) -> Option<u32> {
        let on_path = self.paths.get(path)?;
        on_path.without_id.or((!on_path.mixed).then_some(on_path.newest))
    }

    /// The connection of which this path and the id that its instance writes to are known.
    pub fn find_peer(&self, path: &Path, peer: &[u8]) -> Option<u32> {
        self.peers.get(&(*path, ConnectionId::new(peer)?)).copied()
    }

    /// The connection of a packet with a short header that an instance sends, and how long its id is.
    pub fn find_sent(&self, rest: &[u8], path: &Path) -> Option<(u32, usize)> {
        let lengths = (0..=MAX_CID).rev().filter(|len| self.peer_lengths[*len] > 0);
        lengths.filter_map(|len| Some((self.find_peer(path, rest.get(..len)?)?, len))).next()
    }

    /// Remembers that an instance is written to by this id. Another instance's id stays what it is.
    pub fn add_id(&mut self, at: u32, own: OwnId) {
        if own.id.as_slice().is_empty() {
            return;
        }
        let Some(instance) = self.slots.get(at).map(|connection| connection.instance) else { return };
        if let Some((holder, known)) = self.find(own.id.as_slice()) {
            if holder == at && known.learned == own.learned {
                return;
            }
            if self.slots.get(holder).is_some_and(|other| other.instance != instance) {
                self.counters.conflicts += 1;
                return;
            }
            self.drop_id(holder, &own.id);
        }
        self.make_room_for_id(at);
        self.ids.insert(own.id, at);
        if own.learned != Learned::FirstDestination {
            self.lengths[own.id.as_slice().len()] += 1;
        }
        if let Some(connection) = self.slots.get_mut(at) {
            connection.ids.push(own);
        }
    }

    /// An id that is not used any more, or else the oldest one, makes room for another.
    fn make_room_for_id(&mut self, at: u32) {
        let Some(connection) = self.slots.get(at) else { return };
        if connection.ids.len() >= MOST_IDS {
            let id = connection.ids[0].id;
            self.drop_id(at, &id);
        }
    }

    /// Forgets an id of a connection.
    pub fn drop_id(&mut self, at: u32, id: &ConnectionId) {
        let Some(connection) = self.slots.get_mut(at) else { return };
        if let Some(place) = connection.ids.iter().position(|own| own.id == *id) {
            let own = connection.ids.remove(place);
            self.unname_id(&own);
        }
    }

    /// Ids with lower numbers are not to be used any more (RFC 9000 §5.1.2). They are still met for a while, so they stay
    /// until there is no room for others, and are the first to go.
    pub fn retire(&mut self, at: u32, prior_to: u64) {
        if let Some(connection) = self.slots.get_mut(at) {
            connection.ids.sort_by_key(|own| own.sequence.unwrap_or(0) >= prior_to);
        }
    }

    fn unname_id(&mut self, own: &OwnId) {
        self.ids.remove(&own.id);
        if own.learned != Learned::FirstDestination {
            self.lengths[own.id.as_slice().len()] -= 1;
        }
    }

    /// The connection was seen on this path, which becomes its newest; the oldest is forgotten.
    pub fn move_to(&mut self, at: u32, path: &Path) {
        let Some(connection) = self.slots.get_mut(at) else { return };
        if connection.paths[0] == Some(*path) {
            return;
        }
        self.counters.moved += 1;
        if let Some(place) = connection.paths.iter().position(|other| *other == Some(*path)) {
            connection.paths[..=place].rotate_right(1);
            return;
        }
        let peer = connection.peer;
        let oldest = connection.paths[MOST_PATHS - 1];
        connection.paths.rotate_right(1);
        connection.paths[0] = Some(*path);
        if let Some(oldest) = oldest {
            self.unname_path(at, &oldest, &peer);
        }
        self.name_path(at, path);
    }

    /// The id that the instance writes to is another one now.
    pub fn set_peer(&mut self, at: u32, peer: ConnectionId) {
        let Some(connection) = self.slots.get_mut(at) else { return };
        if connection.peer == peer {
            return;
        }
        let old = std::mem::replace(&mut connection.peer, peer);
        let paths = connection.paths;
        for path in paths.iter().flatten() {
            self.unname_peer(at, path, &old);
            self.name_peer(at, path, peer);
        }
    }

    /// The instance chose to have no id on the newest path.
    pub fn set_without_id(&mut self, at: u32, path: &Path) {
        if let Some(on_path) = self.paths.get_mut(path) {
            on_path.without_id = Some(at);
        }
    }

    fn name_path(&mut self, at: u32, path: &Path) {
        let Some(connection) = self.slots.get(at) else { return };
        let (peer, instance) = (connection.peer, connection.instance);
        let on_path =
            self.paths.entry(*path).or_insert(OnPath { newest: at, count: 0, mixed: false, without_id: None });
        let other = self.slots.get(on_path.newest);
        on_path.mixed |= on_path.count > 0 && other.is_none_or(|other| other.instance != instance);
        on_path.count += 1;
        on_path.newest = at;
        self.name_peer(at, path, peer);
    }

    fn unname_path(&mut self, at: u32, path: &Path, peer: &ConnectionId) {
        self.unname_peer(at, path, peer);
        let Entry::Occupied(mut entry) = self.paths.entry(*path) else { return };
        let on_path = entry.get_mut();
        on_path.count -= 1;
        if on_path.without_id == Some(at) {
            on_path.without_id = None;
        }
        // Who the newest is among the others is not known any more.
        on_path.mixed |= on_path.newest == at;
        if on_path.count == 0 {
            entry.remove();
        }
    }

    fn name_peer(&mut self, at: u32, path: &Path, peer: ConnectionId) {
        if self.peers.insert((*path, peer), at).is_none() {
            self.peer_lengths[peer.as_slice().len()] += 1;
        }
    }

    fn unname_peer(&mut self, at: u32, path: &Path, peer: &ConnectionId) {
        if let Entry::Occupied(entry) = self.peers.entry((*path, *peer))
            && *entry.get() == at
        {
            entry.remove();
            self.peer_lengths[peer.as_slice().len()] -= 1;
        }
    }

    /// Whose connection it is, is decided.
    pub fn decide(&mut self, at: u32, instance: u16) {
        let Some(connection) = self.slots.get_mut(at) else { return };
        connection.decided = true;
        connection.instance = instance;
        let paths = connection.paths;
        for path in paths.iter().flatten() {
            if let Some(on_path) = self.paths.get_mut(path) {
                on_path.mixed |= on_path.count > 1;
            }
        }
    }

    /// The ClientHello of a connection was taken out.
    pub fn hello_is_out(&mut self) {
        self.hellos -= 1;
    }

    /// The client's random number, by which its keys are found. One that another connection has stays with that.
    pub fn set_random(&mut self, at: u32, random: [u8; 32]) {
        let Some(connection) = self.slots.get_mut(at) else { return };
        if let Entry::Vacant(entry) = self.randoms.entry(random) {
            entry.insert(at);
            connection.random = Some(random);
        }
    }

    /// The connection whose client sent this random number.
    pub fn find_random(&self, random: &[u8; 32]) -> Option<u32> {
        self.randoms.get(random).copied()
    }

    /// Gives a connection room for keys.
    pub fn set_keys(&mut self, at: u32) -> Option<&mut super::one_rtt::OneRtt> {
        let connection = self.slots.get_mut(at)?;
        self.keyed += usize::from(connection.keys.is_none());
        Some(connection.keys.get_or_insert_default())
    }

    /// Looks whether every map names what is there and nothing else; for tests and fuzzers.
    ///
    /// # Panics
    /// It is not so.
    pub fn check(&self) {
        let mut lengths = [0; MAX_CID + 1];
        let (mut ids, mut sources, mut hellos, mut keyed) = (0, HashMap::new(), 0, 0);
        let mut paths: HashMap<Path, u32> = HashMap::new();
        for (at, connection) in self.slots.iter() {
            for own in &connection.ids {
                assert_eq!(self.ids.get(&own.id), Some(&at));
                lengths[own.id.as_slice().len()] += u32::from(own.learned != Learned::FirstDestination);
            }
            ids += connection.ids.len();
            assert!(connection.ids.len() <= MOST_IDS);
            *sources.entry(connection.source).or_insert(0usize) += 1;
            hellos += usize::from(connection.hello.is_some());
            keyed += usize::from(connection.keys.is_some());
            connection.paths.iter().flatten().for_each(|path| *paths.entry(*path).or_default() += 1);
        }
        assert_eq!((ids, lengths), (self.ids.len(), self.lengths));
        assert_eq!(sources, self.sources);
        assert!(sources.values().all(|count| *count <= self.limits.per_source));
        assert_eq!((hellos, keyed), (self.hellos, self.keyed));
        assert!(self.len() <= self.limits.connections);
        assert!(self.slots.len(List::Unconfirmed) <= self.limits.handshakes);
        assert_eq!(paths.len(), self.paths.len());
        for (path, on_path) in &self.paths {
            assert_eq!(paths[path], on_path.count);
            assert!(on_path.without_id.is_none_or(|at| self.slots.get(at).is_some()));
            assert!(on_path.mixed || self.slots.get(on_path.newest).is_some());
        }
        let mut peer_lengths = [0; MAX_CID + 1];
        for ((path, peer), at) in &self.peers {
            let connection = self.slots.get(*at).expect("a connection that is there");
            assert!(connection.peer == *peer && connection.paths.contains(&Some(*path)));
            peer_lengths[peer.as_slice().len()] += 1;
        }
        assert_eq!(peer_lengths, self.peer_lengths);
        assert!(self.randoms.iter().all(|(random, at)| self.slots.get(*at).unwrap().random == Some(*random)));
    }
}
