//! Connections, found by id and by path. All maps name places in [`Slots`]; whoever removes a connection removes what
//! names it, so no map is larger than the connections times a constant.

use super::answer::Counters;
use super::config::Limits;
use super::connection::{Connection, ConnectionId, Learned, MOST_IDS, MOST_ON_PATH, MOST_PATHS, OwnId, Path};
use super::directory::{Directory, Known, path_tag};
use super::keylog::HandedOver;
use super::keys::Side;
use super::one_rtt::Direction;
use super::slots::{List, Slots};
use crate::field::MAX_CID;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

/// Ids that are shorter are only looked up on paths that are known: they would fit too many other packets.
pub const SHORTEST_ROAMING: usize = 4;
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
    /// ClientHellos that are not whole.
    hellos: usize,
    /// Connections with keys, and who has handed those over.
    keyed: Vec<(u64, u32)>,
    pub counters: Counters,
    /// Where other threads look; none if there are none.
    directory: Option<Arc<Directory>>,
    /// Connections of which the directory does not say what is known.
    changed: Vec<u32>,
}

impl Table {
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// With a directory that says the same after each [`publish`](Self::publish), and memory for all that there may be: a
    /// table that grows would hold up whoever waits for it.
    pub fn shared(limits: Limits, directory: Arc<Directory>) -> Self {
        let most = limits.connections;
        Self {
            slots: Slots::with_capacity(most),
            ids: HashMap::with_capacity(2 * most),
            peers: HashMap::with_capacity(most),
            paths: HashMap::with_capacity(most),
            sources: HashMap::with_capacity(most),
            keyed: Vec::with_capacity(limits.keys),
            directory: Some(directory),
            ..Self::new(limits)
        }
    }

    /// Remembers that the directory does not say what is known of a connection.
    fn mark(&mut self, at: u32) {
        if self.directory.is_some() && self.changed.last() != Some(&at) {
            self.changed.push(at);
        }
    }

    /// Tells the directory what has changed: a few connections in each call.
    pub fn publish(&mut self) {
        if self.changed.is_empty() {
            return;
        }
        let mut changed = std::mem::take(&mut self.changed);
        for at in changed.drain(..) {
            self.publish_one(at);
        }
        self.changed = changed;
        if let Some(directory) = &self.directory {
            let used = (0..=MAX_CID).filter(|len| self.lengths[*len] > 0);
            directory.set_lengths(used.fold(0, |bits, len| bits | 1 << len));
        }
    }

    fn publish_one(&self, at: u32) {
        let (Some(directory), Some(connection)) = (&self.directory, self.slots.get(at)) else { return };
        let Connection { instance, decided, confirmed, .. } = *connection;
        let established = connection.is_established();
        let newest = connection.paths[0].map_or(0, |path| path_tag(&path));
        for own in &connection.ids {
            let asks = !decided || connection.hello.is_some() || !confirmed && own.learned.confirms();
            let known = Known::of(instance)
                .with_nobody(!decided)
                .with_confirmed(established)
                .with_keys(connection.keys.is_some())
                .with_learned(own.learned)
                .with_path(newest)
                .with_ask(asks);
            directory.put(directory.id(own.id.as_slice()), known, connection.seen_ns);
        }
        connection.paths.iter().flatten().for_each(|path| self.publish_path(path));
    }

    fn publish_path(&self, path: &Path) {
        let Some(directory) = &self.directory else { return };
        let tag = directory.path(path);
        let Some(on_path) = self.paths.get(path) else { return directory.remove(tag) };
        let connection = self.find_path(path).and_then(|at| self.slots.get(at)).filter(|connection| connection.decided);
        let known = match connection {
            Some(connection) => Known::of(connection.instance)
                .with_confirmed(connection.is_established())
                .with_keys(connection.keys.is_some())
                .with_without_id(on_path.without_id.is_some())
                // An established connection's id is learned; one without ids is established.
                .with_ask(connection.is_established() != (connection.short_len() == 0)),
            None => Known::of(0).with_nobody(true),
        };
        directory.put(tag, known, connection.map_or(0, |connection| connection.seen_ns));
    }

    /// When a packet of the connection was seen last, also by those who have only looked into the directory.
    fn seen_ns(&self, connection: &Connection) -> u64 {
        let Some(directory) = &self.directory else { return connection.seen_ns };
        let ids = connection.ids.iter().map(|own| directory.id(own.id.as_slice()));
        let paths = connection.paths.iter().flatten().map(|path| directory.path(path));
        ids.chain(paths).map(|tag| directory.seen_ns(tag)).fold(connection.seen_ns, u64::max)
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

    /// How many connections have keys that this owner has handed over.
    pub fn keys_of(&self, owner: u64) -> usize {
        self.keyed.iter().filter(|(other, _)| *other == owner).count()
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        [List::Unconfirmed, List::Answered, List::Confirmed].into_iter().map(|list| self.slots.len(list)).sum()
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
        self.mark(at);
        Some(at)
    }

    /// Forgets the oldest handshake if there is no room for one more.
    fn make_room(&mut self) -> bool {
        let full = self.len() >= self.limits.connections || self.slots.len(List::Unconfirmed) >= self.limits.handshakes;
        if !full {
            return true;
        }
        // Those whose addresses are no invention stay.
        let oldest = self.slots.oldest(List::Unconfirmed).or_else(|| self.slots.oldest(List::Answered));
        let Some(oldest) = oldest else { return false };
        self.remove(oldest);
        self.counters.evicted += 1;
        true
    }

    /// Forgets connections on which nothing came for long.
    pub fn expire(&mut self, now_ns: u64) {
        let (handshake, idle) = (self.limits.handshake_ns, self.limits.idle_ns);
        for (list, limit) in [(List::Unconfirmed, handshake), (List::Answered, idle), (List::Confirmed, idle)] {
            for _ in 0..EXPIRED_AT_ONCE {
                let Some(oldest) = self.slots.oldest(list) else { break };
                let Some(connection) = self.slots.get(oldest) else { break };
                if now_ns.saturating_sub(connection.seen_ns) <= limit {
                    break;
                }
                let seen = self.seen_ns(connection);
                if now_ns.saturating_sub(seen) <= limit {
                    self.slots.renew(oldest, list);
                    if let Some(connection) = self.slots.get_mut(oldest) {
                        connection.seen_ns = seen;
                    }
                    continue;
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
        let list = match (connection.confirmed, connection.answered) {
            (true, _) => List::Confirmed,
            (false, true) => List::Answered,
            (false, false) => List::Unconfirmed,
        };
        self.slots.renew(at, list);
        self.mark(at);
    }

    /// The other side has gone on after the instance's answer.
    pub fn set_answered(&mut self, at: u32) {
        if let Some(connection) = self.slots.get_mut(at) {
            connection.answered = true;
        }
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
        if connection.keys.is_some() {
            self.keyed.retain(|(_, other)| *other != at);
        }
    }

    /// Forgets the connections of an instance among the places from `from` on, as many as `most` of them; returned is where
    /// the next ones are, if there are any.
    pub fn remove_instance(&mut self, instance: u16, from: usize, most: usize) -> Option<usize> {
        let end = from.saturating_add(most).min(self.slots.places());
        for at in from..end {
            let at = at as u32;
            if self.slots.get(at).is_some_and(|connection| connection.decided && connection.instance == instance) {
                self.remove(at);
            }
        }
        (end < self.slots.places()).then_some(end)
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
        if !self.make_room_for_id(at, own.learned) {
            return;
        }
        self.ids.insert(own.id, at);
        if own.learned != Learned::FirstDestination {
            self.lengths[own.id.as_slice().len()] += 1;
        }
        if let Some(connection) = self.slots.get_mut(at) {
            connection.ids.push(own);
        }
        self.mark(at);
    }

    /// Whether there is room for one more id, for which another may have gone. Ids that were only seen on a path, which whoever
    /// forges that path's addresses can invent, make room for one another and never take that of others.
    fn make_room_for_id(&mut self, at: u32, learned: Learned) -> bool {
        let Some(connection) = self.slots.get(at) else { return false };
        let seen = || connection.ids.iter().filter(|own| own.learned == Learned::OnPath);
        let full = connection.ids.len() >= MOST_IDS;
        let goes = match learned {
            Learned::OnPath if full || seen().count() >= MOST_ON_PATH => match seen().next() {
                Some(oldest) => oldest.id,
                None => return false,
            },
            // Those that are not used any more are the first, or else it is the oldest.
            _ if full => seen().next().unwrap_or(&connection.ids[0]).id,
            _ => return true,
        };
        self.drop_id(at, &goes);
        true
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
        if let Some(directory) = &self.directory {
            directory.remove(directory.id(own.id.as_slice()));
        }
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
        self.mark(at);
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
        self.publish_path(path);
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
        self.mark(at);
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

    /// Whether somebody may hand over keys of this connection; if not, why.
    pub fn may_have_keys(&self, at: u32, owner: u64) -> Result<(), HandedOver> {
        match self.keyed.iter().find(|(_, other)| *other == at) {
            Some((other, _)) if *other == owner => Ok(()),
            Some(_) => Err(HandedOver::Foreign),
            None if self.keyed.len() < self.limits.keys => Ok(()),
            None => Err(HandedOver::Full),
        }
    }

    /// Gives a connection keys of one side. Those that it has stay: a connection has one secret of each side, and they may have
    /// been updated.
    pub fn set_keys(&mut self, at: u32, owner: u64, side: Side, direction: Arc<Direction>) {
        self.mark(at);
        let Some(connection) = self.slots.get_mut(at) else { return };
        if connection.keys.is_none() {
            self.keyed.push((owner, at));
        }
        let keys = connection.keys.get_or_insert_default();
        if keys.of(side).is_none() {
            keys.put(side, direction);
        }
    }

    /// Forgets keys that this owner has handed over, of at most `most` connections. Returns whether there are more.
    pub fn forget_keys(&mut self, owner: u64, most: usize) -> bool {
        for _ in 0..most {
            let Some(place) = self.keyed.iter().position(|(other, _)| *other == owner) else { return false };
            let (_, at) = self.keyed.swap_remove(place);
            if let Some(connection) = self.slots.get_mut(at) {
                connection.keys = None;
            }
            self.mark(at);
        }
        self.keyed.iter().any(|(other, _)| *other == owner)
    }

    /// Looks whether every map names what is there and nothing else; for tests and fuzzers.
    ///
    /// # Panics
    /// It is not so.
    pub fn check(&self) {
        let mut lengths = [0; MAX_CID + 1];
        let (mut ids, mut sources, mut hellos, mut keyed) = (0, HashMap::new(), 0, Vec::new());
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
            keyed.extend(connection.keys.is_some().then_some(at));
            connection.paths.iter().flatten().for_each(|path| *paths.entry(*path).or_default() += 1);
        }
        assert_eq!((ids, lengths), (self.ids.len(), self.lengths));
        assert_eq!(sources, self.sources);
        assert!(sources.values().all(|count| *count <= self.limits.per_source));
        assert_eq!(hellos, self.hellos);
        let mut named: Vec<u32> = self.keyed.iter().map(|(_, at)| *at).collect();
        named.sort_unstable();
        keyed.sort_unstable();
        assert_eq!(keyed, named);
        assert!(keyed.len() <= self.limits.keys);
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
        if let Some(directory) = self.directory.as_ref().filter(|directory| directory.left_out() == 0) {
            assert_eq!(directory.len(), self.ids.len() + self.paths.len());
            for (id, at) in &self.ids {
                let known = directory.find(directory.id(id.as_slice())).expect("an id that is there");
                let connection = self.slots.get(*at).expect("a connection that is there");
                assert_eq!(known.instance(), connection.decided.then_some(connection.instance));
                assert_eq!(known.is_confirmed(), connection.is_established());
            }
            for path in self.paths.keys() {
                let known = directory.find(directory.path(path)).expect("a path that is there");
                let connection = self.find_path(path).and_then(|at| self.slots.get(at));
                let decided = connection.filter(|connection| connection.decided);
                assert_eq!(known.instance(), decided.map(|connection| connection.instance));
            }
        }
        assert!(self.randoms.iter().all(|(random, at)| self.slots.get(*at).unwrap().random == Some(*random)));
    }
}
