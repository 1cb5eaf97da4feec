//! Where a datagram goes that comes from the wire.

use super::answer::{Answer, Counters, Target, Why};
use super::config::{Config, ConfigError};
use super::connection::{Connection, ConnectionId, Learned, OwnId, Path};
use super::directory::Directory;
use super::hello::{Hello, Progress};
use super::initial::{self, LongPacket, Opened, long_packets};
use super::keylog::{HandedOver, KeyLogLine};
use super::keys::{Side, Version};
use super::limiter::Limiter;
use super::one_rtt::Direction;
use super::protection::Scratch;
use super::routable::RoutableIds;
use super::table::Table;
use millrace_packet::parse::{QuicBody, QuicFrame, QuicFrames, QuicLong, QuicShort, QuicType};
use std::hash::BuildHasher;
use std::sync::Arc;

/// Shortest datagram in which a client may begin a connection, in bytes (RFC 9000 §14.1).
pub(super) const SHORTEST_FIRST: usize = 1200;
/// Shortest id that a client may choose for its first packets, in bytes (RFC 9000 §7.2).
pub(super) const SHORTEST_DESTINATION: usize = 8;

/// Most places of connections that [`Steering::forget_some`] looks at.
const FORGOTTEN_AT_ONCE: usize = 64;

/// What is configured, ready to be used. It does not change.
#[derive(Debug)]
pub(super) struct Setup {
    pub config: Config,
    pub routable: RoutableIds,
}

impl Setup {
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let routable = RoutableIds::new(&config.routable)?;
        Ok(Self { config, routable })
    }

    pub fn routable(&self, bytes: &[u8]) -> Option<(Option<u16>, Why)> {
        self.routable.find(bytes).map(|(configuration, instance)| (Some(instance), Why::Routable(configuration)))
    }

    pub fn by_hash(&self, destination: &[u8]) -> (Option<u16>, Why) {
        (self.pick(&self.config.instances, destination), Why::Hash)
    }

    /// Where something goes; `queues` are those of the instances.
    pub fn answer(&self, queues: &[u16], instance: Option<u16>, why: Why) -> Answer {
        let streams = &self.config.streams;
        let queue = match (instance, why) {
            (_, Why::Stream(id)) => streams.get((id / 4 % streams.len().max(1) as u64) as usize),
            (Some(instance), _) => queues.get(usize::from(instance)),
            (None, _) => None,
        };
        let target = instance.zip(queue).map(|(instance, queue)| Target { instance, queue: *queue });
        Answer { target, why }
    }

    pub fn pick(&self, instances: &[u16], destination: &[u8]) -> Option<u16> {
        let hash = self.config.hasher.hash_one(destination);
        // The upper half of the product is spread evenly over 0..len.
        let at = (u128::from(hash) * instances.len() as u128) >> 64;
        instances.get(at as usize).copied()
    }
}

/// What the table says of a datagram.
#[derive(Debug)]
pub(super) struct Found {
    pub instance: Option<u16>,
    pub why: Why,
    /// Keys that may say which stream it is of, and how long the id before them is: nobody decrypts while he has the table.
    pub keys: Option<(Arc<Direction>, usize)>,
}

/// Steers the QUIC of one port. It belongs to one thread, asks the system for nothing, and keeps no more than [`Limits`]
/// say. Times are nanoseconds of any clock that does not go back. Several threads share a [`Group`](super::Group).
///
/// [`Limits`]: super::Limits
#[derive(Debug)]
pub struct Steering {
    pub(super) setup: Arc<Setup>,
    queues: Vec<u16>,
    pub(super) table: Table,
    pub(super) scratch: Scratch,
    /// For datagrams before the table is asked.
    opening: Scratch,
    decryptions: Arc<Limiter>,
}

impl Steering {
    /// With no connections.
    ///
    /// # Errors
    /// The configuration names what is not there.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let limits = config.limits;
        let decryptions = Arc::new(Limiter::new(limits.decryptions));
        Ok(Self::with(Arc::new(Setup::new(config)?), Table::new(limits), decryptions))
    }

    /// With a table whose directory others look into, and a limit to decryptions that they share.
    pub(super) fn shared(setup: Arc<Setup>, directory: Arc<Directory>, decryptions: Arc<Limiter>) -> Self {
        let table = Table::shared(setup.config.limits, directory);
        Self::with(setup, table, decryptions)
    }

    fn with(setup: Arc<Setup>, table: Table, decryptions: Arc<Limiter>) -> Self {
        let queues = setup.config.queues.clone();
        Self { setup, queues, table, scratch: Scratch::default(), opening: Scratch::default(), decryptions }
    }

    /// Where a datagram goes that came from the wire: the payload of UDP, and the path on which it came.
    pub fn steer(&mut self, now_ns: u64, path: &Path, datagram: &[u8]) -> Answer {
        let mut opening = std::mem::take(&mut self.opening);
        let opened = match self.to_open(path, datagram) {
            Some(destination) if self.decryptions.admit(now_ns) => {
                initial::open(datagram, destination, Side::Client, &mut opening)
            }
            Some(_) => Opened::Refused,
            None => Opened::No,
        };
        let found = self.find(now_ns, path, datagram, opened);
        self.opening = opening;
        let stream = found.keys.and_then(|(keys, id_len)| stream_of(&keys, datagram, id_len, &mut self.scratch));
        let why = stream.unwrap_or(found.why);
        self.table.counters.count(why);
        self.setup.answer(&self.queues, found.instance, why)
    }

    /// What the table says, where somebody has decrypted the Initial packets in it, if that was worth it. It is not counted.
    pub(super) fn find(&mut self, now_ns: u64, path: &Path, datagram: &[u8], opened: Opened<'_>) -> Found {
        self.table.expire(now_ns);
        let (instance, why) = match datagram.first() {
            Some(first) if first & 0x80 != 0 => self.steer_long(now_ns, path, datagram, opened),
            Some(_) => {
                let found = self.steer_short(now_ns, path, datagram);
                self.table.publish();
                return found;
            }
            None => (None, Why::NotQuic),
        };
        self.table.publish();
        Found { instance, why, keys: None }
    }

    /// The id from which keys of the datagram's Initial packets are derived, if what is in them is of use.
    fn to_open<'d>(&self, path: &Path, datagram: &'d [u8]) -> Option<&'d [u8]> {
        let header = QuicLong::parse(datagram).ok().filter(|header| header.kind() == Some(QuicType::Initial))?;
        let destination = header.destination();
        let is_of_use = match self.table.find(destination) {
            Some((at, _)) => self.table.get(at).is_some_and(|connection| {
                connection.hello.is_some() && connection.first_destination.as_slice() == destination
            }),
            None => {
                let config = &self.setup.config;
                let from_peer = || self.table.find_peer(path, header.source()).is_some();
                let tells = config.one_way || header.source().is_empty();
                looks_first(datagram, destination) && (config.reads_hellos() || tells && from_peer())
            }
        };
        is_of_use.then_some(destination)
    }

    /// Takes a secret that an application hands over, as `owner`'s.
    pub fn hand_over(&mut self, owner: u64, line: &KeyLogLine) -> HandedOver {
        let direction = self.version_of(owner, &line.random).and_then(|version| make(version, line));
        self.put_keys(owner, line, direction)
    }

    /// The version of the connection with this random number, if its keys may be handed over.
    pub(super) fn version_of(&self, owner: u64, random: &[u8; 32]) -> Result<Version, HandedOver> {
        let known = self.table.find_random(random).filter(|_| self.setup.config.keys).ok_or(HandedOver::Unknown)?;
        self.table.may_have_keys(known, owner)?;
        self.table.get(known).and_then(|connection| connection.version).ok_or(HandedOver::Unknown)
    }

    /// Gives the connection of a secret the keys that were made of it; it may have gone meanwhile.
    pub(super) fn put_keys(
        &mut self,
        owner: u64,
        line: &KeyLogLine,
        direction: Result<Arc<Direction>, HandedOver>,
    ) -> HandedOver {
        let put = direction.and_then(|direction| {
            let at = self.table.find_random(&line.random).ok_or(HandedOver::Unknown)?;
            self.table.may_have_keys(at, owner)?;
            self.table.set_keys(at, owner, line.side, direction);
            Ok(())
        });
        self.table.counters.secrets_refused += u64::from(put.is_err());
        self.table.publish();
        put.err().unwrap_or(HandedOver::Taken)
    }

    /// Forgets the keys that `owner` has handed over, of some connections. Returns whether there are more.
    pub(super) fn forget_some_keys(&mut self, owner: u64) -> bool {
        let more = self.table.forget_keys(owner, FORGOTTEN_AT_ONCE);
        self.table.publish();
        more
    }

    /// The queue of an instance is another one from now on. Returns whether there is such an instance.
    pub fn set_queue(&mut self, instance: u16, queue: u16) -> bool {
        match self.queues.get_mut(usize::from(instance)) {
            Some(place) => {
                *place = queue;
                true
            }
            None => false,
        }
    }

    /// Forgets all connections of an instance that has ended. It still gets new ones.
    pub fn forget_instance(&mut self, instance: u16) {
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.forget_some(instance, from);
        }
    }

    /// A part of [`forget_instance`](Self::forget_instance), from a place on; returned is where the next part begins.
    pub(super) fn forget_some(&mut self, instance: u16, from: usize) -> Option<usize> {
        self.table.remove_instance(instance, from, FORGOTTEN_AT_ONCE)
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.table.counters
    }

    /// How many connections are known, handshakes included.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Looks whether what is kept fits together and is within its bounds; for tests and fuzzers.
    ///
    /// # Panics
    /// It is not so.
    pub fn check(&self) {
        self.table.check();
    }

    fn steer_long(&mut self, now_ns: u64, path: &Path, datagram: &[u8], opened: Opened<'_>) -> (Option<u16>, Why) {
        let Ok(header) = QuicLong::parse(datagram) else { return (None, Why::NotQuic) };
        if let Some((at, own)) = self.table.find(header.destination()) {
            return self.known_long(now_ns, path, datagram, &header, (at, own), opened);
        }
        // Versions that are not known keep their ids in the same place (RFC 8999 §5.1).
        let Some(version) = Version::of(header.version()) else {
            return self.routable(header.destination()).unwrap_or_else(|| self.by_hash(header.destination()));
        };
        let Some(packet) = long_packets(datagram).next() else { return (None, Why::NotQuic) };
        match header.kind() {
            Some(QuicType::Initial) => self.initial(now_ns, path, datagram, (version, &packet), opened),
            // It came before its Initial. With rules of names nobody can say yet.
            Some(QuicType::ZeroRtt) if !self.setup.config.names.is_empty() => (None, Why::HelloIncomplete),
            Some(QuicType::ZeroRtt) => {
                self.routable(header.destination()).unwrap_or_else(|| self.by_hash(header.destination()))
            }
            _ => self.other_long(now_ns, path, &header),
        }
    }

    /// A packet to an id that is known.
    fn known_long(
        &mut self,
        now_ns: u64,
        path: &Path,
        datagram: &[u8],
        header: &QuicLong<'_>,
        (at, own): (u32, OwnId),
        opened: Opened<'_>,
    ) -> (Option<u16>, Why) {
        self.seen(now_ns, path, at, own.learned);
        // An instance that is a client learns here whom it writes to.
        if let Some(peer) = ConnectionId::new(header.source())
            && matches!(header.kind(), Some(QuicType::Initial | QuicType::Handshake | QuicType::Retry))
        {
            self.table.set_peer(at, peer);
        }
        let why = self.read_hello(now_ns, at, datagram, opened).unwrap_or(Why::KnownId(own.id, own.learned));
        (self.instance_of(at), why)
    }

    /// An Initial packet to an id that is not known: a new connection, or one that the table does not know.
    fn initial(
        &mut self,
        now_ns: u64,
        path: &Path,
        datagram: &[u8],
        (version, packet): (Version, &LongPacket<'_>),
        opened: Opened<'_>,
    ) -> (Option<u16>, Why) {
        let destination = packet.header.destination();
        let known = self.table.find_peer(path, packet.header.source());
        let one_way = self.setup.config.one_way;
        let is_named = !packet.header.source().is_empty();
        // Who has got an answer goes on with another id of the instance, which may have been issued in secret. Otherwise keys say
        // whether it is the client's own choice: they follow from that.
        let goes_on =
            is_named && !one_way && known.is_some_and(|at| self.table.get(at).is_some_and(Connection::has_named));
        let must_open = self.setup.config.reads_hellos() || known.is_some() && (one_way || !is_named);
        let fits = !(must_open && matches!(opened, Opened::Failed));
        let is_first = looks_first(datagram, destination) && fits && !goes_on;
        let routable = self.routable(destination);
        if !is_first {
            let learned = known.and_then(|at| self.learn_from_other_side(now_ns, path, at, destination));
            return learned.or(routable).unwrap_or_else(|| self.by_hash(destination));
        }
        let has_token = matches!(packet.body, QuicBody::Initial { token: [_, ..], .. });
        // Behind a Retry the client writes to an id of the server; otherwise ids only look routable by chance.
        let routable = routable.filter(|_| has_token || self.setup.config.names.is_empty());
        let (instance, why) = routable.unwrap_or_else(|| self.by_hash(destination));
        let decided = routable.is_some() || self.setup.config.names.is_empty();
        self.open(now_ns, path, datagram, (version, packet, opened), (instance, why), decided)
    }

    /// Enters a new connection.
    fn open(
        &mut self,
        now_ns: u64,
        path: &Path,
        datagram: &[u8],
        (version, packet, opened): (Version, &LongPacket<'_>, Opened<'_>),
        (instance, why): (Option<u16>, Why),
        decided: bool,
    ) -> (Option<u16>, Why) {
        let wants = self.setup.config.reads_hellos();
        let is_open = matches!(opened, Opened::Frames(_));
        self.table.counters.not_decrypted += u64::from(wants && !is_open);
        let reads = wants && is_open && self.table.has_room_for_hello();
        let ids = (ConnectionId::new(packet.header.destination()), ConnectionId::new(packet.header.source()));
        let (Some(destination), Some(peer)) = ids else { return (None, Why::NotQuic) };
        // Without default instances and without a rule it would be nobody's.
        if instance.is_none() && (decided || !reads) {
            return (None, why);
        }
        let connection = Connection {
            version: Some(version),
            first_destination: destination,
            decided: decided || !reads,
            hello: reads.then(Box::<Hello>::default),
            ..Connection::new(instance.unwrap_or(0), path, peer, now_ns)
        };
        let Some(at) = self.table.insert(connection) else { return (instance, why) };
        self.table.add_id(at, OwnId { id: destination, learned: Learned::FirstDestination, sequence: None });
        let why = self.read_hello(now_ns, at, datagram, opened).unwrap_or(why);
        (self.instance_of(at), why)
    }

    /// Reads on in the ClientHello of a connection. Returns why it goes where it goes, if that was decided here, or that it
    /// cannot be decided yet.
    fn read_hello(&mut self, now_ns: u64, at: u32, datagram: &[u8], opened: Opened<'_>) -> Option<Why> {
        let connection = self.table.get_mut(at)?;
        let mut hello = connection.hello.take()?;
        let (first, decided) = (connection.first_destination, connection.decided);
        let late = now_ns.saturating_sub(connection.opened_ns) > self.setup.config.limits.hello_ns;
        let header = QuicLong::parse(datagram).ok().filter(|header| header.kind() == Some(QuicType::Initial));
        let opened = match header {
            // It goes on with an id of the server; keys stay those of the first.
            Some(header) if header.destination() != first.as_slice() && self.decryptions.admit(now_ns) => {
                initial::open(datagram, first.as_slice(), Side::Client, &mut self.scratch)
            }
            Some(header) if header.destination() != first.as_slice() => Opened::Refused,
            Some(_) => opened,
            None => Opened::No,
        };
        self.table.counters.not_decrypted += u64::from(matches!(opened, Opened::Refused));
        let progress = match opened {
            Opened::Frames(frames) => hello.add(frames),
            _ => Progress::Partial,
        };
        if progress == Progress::Partial && !late {
            self.table.get_mut(at)?.hello = Some(hello);
            return (!decided).then_some(Why::HelloIncomplete);
        }
        self.table.hello_is_out();
        let read = hello.get();
        if let Some(read) = read
            && self.setup.config.keys
        {
            self.table.set_random(at, *read.random());
        }
        if decided {
            return None;
        }
        let rule = read.and_then(|read| self.setup.config.names.iter().position(|rule| rule.matches(&read)));
        let (instances, why) = match rule {
            Some(rule) => (&self.setup.config.names[rule].instances, Why::Name(rule)),
            None => (&self.setup.config.instances, Why::Hash),
        };
        match self.setup.pick(instances, first.as_slice()) {
            Some(instance) => self.table.decide(at, instance),
            None => self.table.remove(at),
        }
        Some(why)
    }

    /// A Handshake or Retry packet to an id that is not known.
    fn other_long(&mut self, now_ns: u64, path: &Path, header: &QuicLong<'_>) -> (Option<u16>, Why) {
        let destination = header.destination();
        let learned = self.table.find_peer(path, header.source());
        let learned = learned.and_then(|at| self.learn_from_other_side(now_ns, path, at, destination));
        let known = learned.or_else(|| self.routable(destination)).or_else(|| self.by_path(path));
        known.unwrap_or((None, Why::Unknown))
    }

    /// What the other side writes to in its handshake is an id of the instance. If what that sends is not seen, this is how its
    /// ids are known; otherwise it counts for as much as an id that is seen on the path.
    fn learn_from_other_side(
        &mut self,
        now_ns: u64,
        path: &Path,
        at: u32,
        destination: &[u8],
    ) -> Option<(Option<u16>, Why)> {
        let id = ConnectionId::new(destination)?;
        let instance = self.instance_of(at)?;
        if !self.setup.config.one_way {
            if !self.table.get(at)?.has_named() {
                return None;
            }
            self.table.set_answered(at);
            self.table.add_id(at, OwnId { id, learned: Learned::OnPath, sequence: None });
            self.table.touch(at, now_ns, false);
            return Some((Some(instance), Why::KnownPath));
        }
        if destination.is_empty() {
            self.table.set_without_id(at, path);
        }
        self.table.add_id(at, OwnId { id, learned: Learned::OtherSide, sequence: None });
        self.seen(now_ns, path, at, Learned::OtherSide);
        Some((Some(instance), Why::KnownId(id, Learned::OtherSide)))
    }

    fn steer_short(&mut self, now_ns: u64, path: &Path, datagram: &[u8]) -> Found {
        let without = |(instance, why): (Option<u16>, Why)| Found { instance, why, keys: None };
        let Ok(header) = QuicShort::parse(datagram) else { return without((None, Why::NotQuic)) };
        if let Some((at, own)) = self.table.find_short(header.rest(), path) {
            self.seen(now_ns, path, at, own.learned);
            let keys = self.stream_keys(at, own.id.as_slice().len());
            return Found { instance: self.instance_of(at), why: Why::KnownId(own.id, own.learned), keys };
        }
        if let Some(found) = self.routable(header.rest()) {
            return without(found);
        }
        let Some(at) = self.table.find_path(path) else { return without((None, Why::Unknown)) };
        let Some(connection) = self.table.get(at).filter(|connection| connection.decided) else {
            return without((None, Why::Unknown));
        };
        let len = connection.short_len();
        let is_established = connection.is_established();
        // A connection without ids has nothing else to show that the handshake is over.
        if len == 0 {
            self.table.set_answered(at);
        }
        self.table.touch(at, now_ns, false);
        // Most ids of a connection have one length. If this one moves to another path later, it is known there.
        if let Some(id) = header.destination(len).and_then(ConnectionId::new)
            && is_established
        {
            self.table.add_id(at, OwnId { id, learned: Learned::OnPath, sequence: None });
        }
        Found { instance: self.instance_of(at), why: Why::KnownPath, keys: self.stream_keys(at, len) }
    }

    /// The keys of a connection's client, if streams are steered and they are known, and how long the id before them is.
    fn stream_keys(&self, at: u32, id_len: usize) -> Option<(Arc<Direction>, usize)> {
        if self.setup.config.streams.is_empty() {
            return None;
        }
        let keys = self.table.get(at)?.keys.as_ref()?;
        Some((Arc::clone(keys.of(Side::Client)?), id_len))
    }

    /// A packet of a known connection came on this path.
    fn seen(&mut self, now_ns: u64, path: &Path, at: u32, learned: Learned) {
        // Who writes to what the instance chose has got its answer.
        self.table.touch(at, now_ns, learned.confirms());
        if learned != Learned::OnPath {
            self.table.move_to(at, path);
        }
    }

    fn instance_of(&self, at: u32) -> Option<u16> {
        self.table.get(at).filter(|connection| connection.decided).map(|connection| connection.instance)
    }

    fn routable(&self, bytes: &[u8]) -> Option<(Option<u16>, Why)> {
        self.setup.routable(bytes)
    }

    fn by_path(&self, path: &Path) -> Option<(Option<u16>, Why)> {
        let instance = self.instance_of(self.table.find_path(path)?)?;
        Some((Some(instance), Why::KnownPath))
    }

    fn by_hash(&self, destination: &[u8]) -> (Option<u16>, Why) {
        self.setup.by_hash(destination)
    }
}

/// Whether a client may begin a connection with this datagram to this id.
pub(super) fn looks_first(datagram: &[u8], destination: &[u8]) -> bool {
    destination.len() >= SHORTEST_DESTINATION && datagram.len() >= SHORTEST_FIRST
}

/// Keys of a secret.
pub(super) fn make(version: Version, line: &KeyLogLine) -> Result<Arc<Direction>, HandedOver> {
    Direction::new(version, &line.secret).map(Arc::new).map_err(|_| HandedOver::Invalid)
}

/// The stream of the first frame in a packet that is about one.
pub(super) fn stream_of(keys: &Direction, datagram: &[u8], id_len: usize, scratch: &mut Scratch) -> Option<Why> {
    let len = keys.open(datagram, id_len, scratch)?;
    QuicFrames::new(&scratch.payload[..len]).flatten().find_map(|frame| match frame {
        QuicFrame::Stream { id, .. } | QuicFrame::AboutStream(id) => Some(Why::Stream(id)),
        _ => None,
    })
}
