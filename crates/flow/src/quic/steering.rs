//! Where a datagram goes that comes from the wire.

use super::answer::{Answer, Counters, Target, Why};
use super::config::{Config, ConfigError};
use super::connection::{Connection, ConnectionId, Learned, OwnId, Path};
use super::hello::{Hello, Progress};
use super::initial::{self, LongPacket, long_packets};
use super::keylog::KeyLogLine;
use super::keys::{Side, Version};
use super::protection::Scratch;
use super::routable::RoutableIds;
use super::table::Table;
use millrace_packet::parse::{QuicBody, QuicFrame, QuicFrames, QuicLong, QuicShort, QuicType};
use std::hash::BuildHasher;

/// Shortest datagram in which a client may begin a connection, in bytes (RFC 9000 §14.1).
const SHORTEST_FIRST: usize = 1200;
/// Shortest id that a client may choose for its first packets, in bytes (RFC 9000 §7.2).
const SHORTEST_DESTINATION: usize = 8;

/// Steers the QUIC of one port. It belongs to one thread, asks the system for nothing, and keeps no more than [`Limits`]
/// say. Times are nanoseconds of any clock that does not go back.
///
/// [`Limits`]: super::Limits
#[derive(Debug)]
pub struct Steering {
    pub(super) config: Config,
    pub(super) routable: RoutableIds,
    pub(super) table: Table,
    pub(super) scratch: Scratch,
}

impl Steering {
    /// With no connections.
    ///
    /// # Errors
    /// The configuration names what is not there.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let routable = RoutableIds::new(&config.routable)?;
        let table = Table::new(config.limits);
        Ok(Self { config, routable, table, scratch: Scratch::default() })
    }

    /// Where a datagram goes that came from the wire: the payload of UDP, and the path on which it came.
    pub fn steer(&mut self, now_ns: u64, path: &Path, datagram: &[u8]) -> Answer {
        self.table.expire(now_ns);
        let (instance, why) = match datagram.first() {
            Some(first) if first & 0x80 != 0 => self.steer_long(now_ns, path, datagram),
            Some(_) => self.steer_short(now_ns, path, datagram),
            None => (None, Why::NotQuic),
        };
        self.table.counters.count(why);
        let queue = match (instance, why) {
            (_, Why::Stream(id)) => {
                let count = self.config.streams.len().max(1) as u64;
                self.config.streams.get((id / 4 % count) as usize)
            }
            (Some(instance), _) => self.config.queues.get(usize::from(instance)),
            (None, _) => None,
        };
        let target = instance.zip(queue).map(|(instance, queue)| Target { instance, queue: *queue });
        Answer { target, why }
    }

    /// Takes a secret that an application hands over. Returns whether its connection is known.
    pub fn hand_over(&mut self, line: &KeyLogLine) -> bool {
        let known = self.table.find_random(&line.random).filter(|_| self.config.keys);
        let taken = known.and_then(|at| {
            let connection = self.table.get(at)?;
            let version = connection.version?;
            if connection.keys.is_none() && !self.table.has_room_for_keys() {
                return None;
            }
            self.table.set_keys(at)?.put(version, line.side, &line.secret).ok()
        });
        self.table.counters.secrets_refused += u64::from(taken.is_none());
        taken.is_some()
    }

    /// The queue of an instance is another one from now on. Returns whether there is such an instance.
    pub fn set_queue(&mut self, instance: u16, queue: u16) -> bool {
        match self.config.queues.get_mut(usize::from(instance)) {
            Some(place) => {
                *place = queue;
                true
            }
            None => false,
        }
    }

    /// Forgets all connections of an instance that has ended. It still gets new ones.
    pub fn forget_instance(&mut self, instance: u16) {
        self.table.remove_instance(instance);
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

    fn steer_long(&mut self, now_ns: u64, path: &Path, datagram: &[u8]) -> (Option<u16>, Why) {
        let Ok(header) = QuicLong::parse(datagram) else { return (None, Why::NotQuic) };
        if let Some((at, own)) = self.table.find(header.destination()) {
            return self.known_long(now_ns, path, datagram, &header, at, own);
        }
        // Versions that are not known keep their ids in the same place (RFC 8999 §5.1).
        let Some(version) = Version::of(header.version()) else {
            return self.routable(header.destination()).unwrap_or_else(|| self.by_hash(header.destination()));
        };
        let Some(packet) = long_packets(datagram).next() else { return (None, Why::NotQuic) };
        match header.kind() {
            Some(QuicType::Initial) => self.initial(now_ns, path, datagram, version, &packet),
            // It came before its Initial. With rules of names nobody can say yet.
            Some(QuicType::ZeroRtt) if !self.config.names.is_empty() => (None, Why::HelloIncomplete),
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
        at: u32,
        own: OwnId,
    ) -> (Option<u16>, Why) {
        self.seen(now_ns, path, at, own.learned);
        // An instance that is a client learns here whom it writes to.
        if let Some(peer) = ConnectionId::new(header.source())
            && matches!(header.kind(), Some(QuicType::Initial | QuicType::Handshake | QuicType::Retry))
        {
            self.table.set_peer(at, peer);
        }
        let why = self.read_hello(now_ns, at, datagram).unwrap_or(Why::KnownId(own.id, own.learned));
        (self.instance_of(at), why)
    }

    /// An Initial packet to an id that is not known: a new connection, or one that the table does not know.
    fn initial(
        &mut self,
        now_ns: u64,
        path: &Path,
        datagram: &[u8],
        version: Version,
        packet: &LongPacket<'_>,
    ) -> (Option<u16>, Why) {
        let destination = packet.header.destination();
        let known = self.table.find_peer(path, packet.header.source());
        let looks_first = destination.len() >= SHORTEST_DESTINATION && datagram.len() >= SHORTEST_FIRST;
        // Its keys follow from the id that the client chose, so they say whether it is that id.
        let must_open = self.config.reads_hellos() || known.is_some() && self.config.one_way;
        let is_first = looks_first
            && (!must_open || initial::open(packet, destination, Side::Client, &mut self.scratch).is_some());
        let routable = self.routable(destination);
        if !is_first {
            let learned = known.and_then(|at| self.learn_from_other_side(now_ns, path, at, destination));
            return learned.or(routable).unwrap_or_else(|| self.by_hash(destination));
        }
        let has_token = matches!(packet.body, QuicBody::Initial { token: [_, ..], .. });
        // Behind a Retry the client writes to an id of the server; otherwise ids only look routable by chance.
        let routable = routable.filter(|_| has_token || self.config.names.is_empty());
        let (instance, why) = routable.unwrap_or_else(|| self.by_hash(destination));
        let decided = routable.is_some() || self.config.names.is_empty();
        self.open(now_ns, path, datagram, version, packet, (instance, why), decided)
    }

    /// Enters a new connection.
    #[expect(clippy::too_many_arguments, reason = "they are what its one caller knows")]
    fn open(
        &mut self,
        now_ns: u64,
        path: &Path,
        datagram: &[u8],
        version: Version,
        packet: &LongPacket<'_>,
        (instance, why): (Option<u16>, Why),
        decided: bool,
    ) -> (Option<u16>, Why) {
        let reads = self.config.reads_hellos() && self.table.has_room_for_hello();
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
        let why = self.read_hello(now_ns, at, datagram).unwrap_or(why);
        (self.instance_of(at), why)
    }

    /// Reads on in the ClientHello of a connection. Returns why it goes where it goes, if that was decided here, or that it
    /// cannot be decided yet.
    fn read_hello(&mut self, now_ns: u64, at: u32, datagram: &[u8]) -> Option<Why> {
        let connection = self.table.get_mut(at)?;
        let mut hello = connection.hello.take()?;
        let (first, decided) = (connection.first_destination, connection.decided);
        let late = now_ns.saturating_sub(connection.opened_ns) > self.config.limits.hello_ns;
        let mut progress = Progress::Partial;
        for packet in long_packets(datagram) {
            if progress == Progress::Partial
                && let Some(len) = initial::open(&packet, first.as_slice(), Side::Client, &mut self.scratch)
            {
                progress = hello.add(&self.scratch.payload[..len]);
            }
        }
        if progress == Progress::Partial && !late {
            self.table.get_mut(at)?.hello = Some(hello);
            return (!decided).then_some(Why::HelloIncomplete);
        }
        self.table.hello_is_out();
        let read = hello.get();
        if let Some(read) = read
            && self.config.keys
        {
            self.table.set_random(at, *read.random());
        }
        if decided {
            return None;
        }
        let rule = read.and_then(|read| self.config.names.iter().position(|rule| rule.matches(&read)));
        let (instances, why) = match rule {
            Some(rule) => (&self.config.names[rule].instances, Why::Name(rule)),
            None => (&self.config.instances, Why::Hash),
        };
        match self.pick(instances, first.as_slice()) {
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

    /// What the other side writes to in its handshake is an id of the instance, if what that sends is not seen.
    fn learn_from_other_side(
        &mut self,
        now_ns: u64,
        path: &Path,
        at: u32,
        destination: &[u8],
    ) -> Option<(Option<u16>, Why)> {
        let id = ConnectionId::new(destination).filter(|_| self.config.one_way)?;
        let instance = self.instance_of(at)?;
        if destination.is_empty() {
            self.table.set_without_id(at, path);
        }
        self.table.add_id(at, OwnId { id, learned: Learned::OtherSide, sequence: None });
        self.seen(now_ns, path, at, Learned::OtherSide);
        Some((Some(instance), Why::KnownId(id, Learned::OtherSide)))
    }

    fn steer_short(&mut self, now_ns: u64, path: &Path, datagram: &[u8]) -> (Option<u16>, Why) {
        let Ok(header) = QuicShort::parse(datagram) else { return (None, Why::NotQuic) };
        if let Some((at, own)) = self.table.find_short(header.rest(), path) {
            self.seen(now_ns, path, at, own.learned);
            let why = self.stream(at, datagram, own.id.as_slice().len());
            return (self.instance_of(at), why.unwrap_or(Why::KnownId(own.id, own.learned)));
        }
        if let Some(found) = self.routable(header.rest()) {
            return found;
        }
        let Some(at) = self.table.find_path(path) else { return (None, Why::Unknown) };
        let Some(connection) = self.table.get(at).filter(|connection| connection.decided) else {
            return (None, Why::Unknown);
        };
        let len = connection.short_len();
        let confirmed = connection.confirmed;
        // A connection without ids has nothing else to show that the handshake is over.
        self.table.touch(at, now_ns, len == 0);
        // Most ids of a connection have one length. If this one moves to another path later, it is known there.
        if let Some(id) = header.destination(len).and_then(ConnectionId::new)
            && confirmed
        {
            self.table.add_id(at, OwnId { id, learned: Learned::OnPath, sequence: None });
        }
        (self.instance_of(at), self.stream(at, datagram, len).unwrap_or(Why::KnownPath))
    }

    /// The stream of the first STREAM frame in a packet, if streams are steered and its keys are known.
    fn stream(&mut self, at: u32, datagram: &[u8], id_len: usize) -> Option<Why> {
        if self.config.streams.is_empty() || self.table.keyed() == 0 {
            return None;
        }
        let keys = self.table.get_mut(at)?.keys.as_mut()?;
        let len = keys.open(Side::Client, datagram, id_len, &mut self.scratch)?;
        QuicFrames::new(&self.scratch.payload[..len]).flatten().find_map(|frame| match frame {
            QuicFrame::Stream { id, .. } | QuicFrame::AboutStream(id) => Some(Why::Stream(id)),
            _ => None,
        })
    }

    /// A packet of a known connection came on this path.
    fn seen(&mut self, now_ns: u64, path: &Path, at: u32, learned: Learned) {
        // Who writes to what the instance chose has got its answer.
        let confirms = matches!(learned, Learned::Handshake | Learned::OtherSide | Learned::NewConnectionId);
        self.table.touch(at, now_ns, confirms);
        if learned != Learned::OnPath {
            self.table.move_to(at, path);
        }
    }

    fn instance_of(&self, at: u32) -> Option<u16> {
        self.table.get(at).filter(|connection| connection.decided).map(|connection| connection.instance)
    }

    fn routable(&self, bytes: &[u8]) -> Option<(Option<u16>, Why)> {
        self.routable.find(bytes).map(|(configuration, instance)| (Some(instance), Why::Routable(configuration)))
    }

    fn by_path(&self, path: &Path) -> Option<(Option<u16>, Why)> {
        let instance = self.instance_of(self.table.find_path(path)?)?;
        Some((Some(instance), Why::KnownPath))
    }

    fn by_hash(&self, destination: &[u8]) -> (Option<u16>, Why) {
        (self.pick(&self.config.instances, destination), Why::Hash)
    }

    fn pick(&self, instances: &[u16], destination: &[u8]) -> Option<u16> {
        let hash = self.config.hasher.hash_one(destination);
        // The upper half of the product is spread evenly over 0..len.
        let at = (u128::from(hash) * instances.len() as u128) >> 64;
        instances.get(at as usize).copied()
    }
}
