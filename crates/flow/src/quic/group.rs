//! Steering that several workers share: what established connections need is read without a lock.
//!
//! ```text
//! packet to a known id, nothing to learn  ----------->  directory            no lock
//! QUIC-LB, unknown ids, what is over a budget  ------>  directory, hash      no lock
//! new connections, moves, what instances send  ------>  decrypted outside    lock, for about a microsecond
//! ```
//!
//! A worker that finds the lock taken tries again for [`PATIENCE`] rounds, and then does without the table: the packet goes where the
//! directory says, and `busy` is counted. Nobody sleeps for the lock, so to let it go is no system call. Under it nothing is
//! decrypted that a sender alone can make others decrypt, and every loop has a bound.

use super::answer::{Answer, Counters, Why};
use super::config::Config;
use super::connection::{ConnectionId, Learned, Path};
use super::cost;
use super::directory::{Directory, Known, path_tag};
use super::initial::{self, Opened, long_packets};
use super::keylog::{HandedOver, KeyLogLine};
use super::keyring;
use super::keys::{Side, Version};
use super::limiter::Limiter;
use super::one_rtt::Direction;
use super::protection::Scratch;
use super::spec::{GroupSpec, Other, SpecError};
use super::steering::{Found, Setup, Steering, looks_first, make, stream_of};
use super::stripes::{Count, Stripes};
use super::table::SHORTEST_ROAMING;
use millrace_packet::parse::{QuicBody, QuicLong, QuicShort, QuicType};
use std::cell::RefCell;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

/// How often a worker looks whether the lock is free: some ten microseconds. Others hold it for about one.
const PATIENCE: usize = 128;
/// What instances send is not sent again for our sake, so it is worth more.
const PATIENCE_SENT: usize = 512;
/// How often it spins between two looks.
const SPINS: usize = 8;
/// How often [`Group::expire`] forgets some connections.
const EXPIRED_AT_ONCE: usize = 64;
/// First bit of a long header (RFC 8999 §5.1).
pub(super) const LONG: u8 = 0x80;

thread_local! {
    /// Where a worker decrypts, so that it does not do so under the lock.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// The same for packets behind the handshake.
    static SEALED: RefCell<Scratch> = RefCell::default();
}

/// What connections are known, and what it may cost to know more.
#[derive(Debug)]
pub(super) struct State {
    table: Mutex<Steering>,
    pub(super) directory: Arc<Directory>,
    decryptions: Arc<Limiter>,
    arrivals: Limiter,
    lessons: Limiter,
    // Packets with keys, of which a single connection may have any number: what they use up is not missing to others.
    sealed: Limiter,
    stripes: Stripes,
}

/// Steers the QUIC of a group of instances, for any number of threads. [`Steering`] says how; the answers are the same but
/// where budgets are used up. Times are nanoseconds of one clock that does not go back.
#[derive(Debug)]
pub struct Group {
    spec: GroupSpec,
    pub(super) setup: Arc<Setup>,
    // Its memory is there from the first use on, or from when the group is published: not for a group that is only tried.
    state: Arc<OnceLock<State>>,
}

impl State {
    fn new(setup: &Arc<Setup>) -> Self {
        let limits = setup.config.limits;
        let directory = Arc::new(Directory::new(limits.connections));
        let decryptions = Arc::new(Limiter::new(limits.decryptions));
        let table = Steering::shared(Arc::clone(setup), Arc::clone(&directory), Arc::clone(&decryptions));
        Self {
            table: Mutex::new(table),
            directory,
            decryptions,
            arrivals: Limiter::new(limits.arrivals),
            lessons: Limiter::new(limits.lessons),
            sealed: Limiter::new(limits.lessons),
            stripes: Stripes::default(),
        }
    }
}

impl Group {
    /// With no connections.
    ///
    /// # Errors
    /// The group cannot be.
    pub fn new(spec: &GroupSpec) -> Result<Self, SpecError> {
        Self::with(spec.clone(), spec.config()?)
    }

    /// A group with a configuration that need not come from a specification.
    #[cfg(test)]
    pub(crate) fn of(config: Config) -> Self {
        Self::with(GroupSpec::over(config.queues.clone()), config).unwrap()
    }

    fn with(spec: GroupSpec, config: Config) -> Result<Self, SpecError> {
        Ok(Self { spec, setup: Arc::new(Setup::new(config)?), state: Arc::default() })
    }

    /// Has the memory for its connections, so that no worker waits for that.
    pub(crate) fn prepare(&self) {
        self.state();
    }

    #[inline(always)]
    pub(super) fn state(&self) -> &State {
        self.state.get_or_init(|| State::new(&self.setup))
    }

    /// This group as the successor of another one: with the same queues, limits and `one_way` it goes on with the connections of
    /// `old`, which both know from then on. Otherwise it stays what it is.
    #[must_use]
    pub fn succeeding(&self, old: &Self) -> Self {
        let (one, other) = (&self.setup.config, &old.setup.config);
        let fits = (&one.queues, one.limits, one.one_way) == (&other.queues, other.limits, other.one_way);
        // New connections go on to be shared out as before.
        let config = Config { hasher: other.hasher.clone(), ..one.clone() };
        match Setup::new(config) {
            Ok(setup) if fits => {
                Self { spec: self.spec.clone(), setup: Arc::new(setup), state: Arc::clone(&old.state) }
            }
            _ => Self { spec: self.spec.clone(), setup: Arc::clone(&self.setup), state: Arc::clone(&self.state) },
        }
    }

    /// What was asked for.
    pub fn spec(&self) -> &GroupSpec {
        &self.spec
    }

    /// The instance that sends from this TX queue.
    #[inline]
    pub fn instance_of(&self, queue: u16) -> Option<u16> {
        let at = self.setup.config.queues.iter().position(|other| *other == queue)?;
        Some(at as u16)
    }

    /// The queue of a datagram, and why it is that one; without a queue nobody gets it.
    #[inline]
    pub fn queue(&self, now_ns: u64, path: &Path, datagram: &[u8]) -> (Option<u16>, Why) {
        let answer = self.steer(now_ns, path, datagram);
        (self.queue_of(path, &answer), answer.why)
    }

    /// The queue of an answer.
    #[inline]
    pub(super) fn queue_of(&self, path: &Path, answer: &Answer) -> Option<u16> {
        answer.target.map(|target| target.queue).or_else(|| self.other(path, answer.why))
    }

    /// The queue of what nothing known tells apart. A ClientHello that is not whole is decided as soon as it is; until then the
    /// client sends it again.
    fn other(&self, path: &Path, why: Why) -> Option<u16> {
        if self.spec.other == Other::Drop || why == Why::HelloIncomplete {
            return None;
        }
        let config = &self.setup.config;
        let at = (u128::from(config.hasher.hash_one(path)) * config.queues.len() as u128) >> 64;
        config.queues.get(at as usize).copied()
    }

    /// Where a datagram goes that came from the wire: the payload of UDP, and the path on which it came.
    #[inline]
    pub fn steer(&self, now_ns: u64, path: &Path, datagram: &[u8]) -> Answer {
        match datagram.first() {
            Some(first) if first & LONG != 0 => self.steer_long(now_ns, path, datagram),
            Some(_) => self.steer_short(now_ns, path, datagram),
            None => self.say((None, Why::NotQuic)),
        }
    }

    /// Learns from a datagram that `instance` sends: the payload of UDP, and the path on which it leaves.
    pub fn sent(&self, now_ns: u64, instance: u16, path: &Path, datagram: &[u8]) {
        let Some(first) = datagram.first() else { return };
        if usize::from(instance) >= self.setup.config.queues.len() {
            return;
        }
        let directory = &self.state().directory;
        let on_path = || directory.find_seen(directory.path(path), now_ns);
        let nothing_new = if first & LONG == 0 {
            !on_path().is_some_and(Known::has_keys)
        } else {
            // Keys may open a packet behind those with long headers.
            !self.setup.config.keys && self.has_named(now_ns, instance, path, datagram)
        };
        if nothing_new {
            return;
        }
        let limiter = if first & LONG == 0 { &self.state().sealed } else { &self.state().lessons };
        if !limiter.admit(now_ns) {
            self.state().stripes.count(Count::NotLearned);
            return;
        }
        let sealed = self.ask(PATIENCE_SENT, |table| table.sent_in_clear(now_ns, instance, path, datagram));
        if let Some(sealed) = sealed.flatten() {
            cost::spend(cost::SEALED);
            let issued = SEALED.with_borrow_mut(|scratch| sealed.open(datagram, scratch));
            if !issued.is_empty() {
                self.ask(PATIENCE_SENT, |table| table.issued(&sealed, issued));
            }
        }
    }

    /// Takes a secret that an application hands over, as `owner`'s. Not for workers.
    pub fn hand_over(&self, owner: u64, line: &KeyLogLine) -> HandedOver {
        // In a statement of its own, so that nobody has the table while keys are made.
        let version = self.wait().version_of(owner, &line.random);
        let direction = version.and_then(|version| make(version, line));
        self.wait().put_keys(owner, line, direction)
    }

    /// How many connections have keys that `owner` has handed over. Not for workers.
    pub fn keys_of(&self, owner: u64) -> usize {
        self.wait().table.keys_of(owner)
    }

    /// Forgets the keys that `owner` has handed over. Not for workers, which meanwhile find the lock free between some of them.
    pub fn forget_keys(&self, owner: u64) {
        while self.wait().forget_some_keys(owner) {}
    }

    /// Forgets connections whose time is over, some of them: workers do the same when they ask the table. Not for workers.
    pub fn expire(&self, now_ns: u64) {
        let mut before = usize::MAX;
        // As long as there are some, with the lock free between them.
        for _ in 0..EXPIRED_AT_ONCE {
            let mut table = self.wait();
            table.table.expire(now_ns);
            table.table.publish();
            if std::mem::replace(&mut before, table.table.len()) == table.table.len() {
                return;
            }
        }
    }

    /// Whether both know the same connections.
    pub fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Forgets all connections of an instance that has ended. It still gets new ones. Not for workers, which meanwhile find
    /// the lock free between each few connections.
    pub fn forget_instance(&self, instance: u16) {
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.wait().forget_some(instance, from);
        }
    }

    /// What was counted, by all workers. Not for workers.
    pub fn counters(&self) -> Counters {
        let mut counters = *self.wait().counters();
        self.state().stripes.add_to(&mut counters);
        counters
    }

    /// How many connections are known, handshakes included. Not for workers.
    pub fn connections(&self) -> usize {
        self.wait().connections()
    }

    /// Looks whether what is kept fits together, while no worker steers; for tests and fuzzers.
    ///
    /// # Panics
    /// It is not so.
    pub fn check(&self) {
        self.wait().check();
    }

    fn steer_short(&self, now_ns: u64, path: &Path, datagram: &[u8]) -> Answer {
        let Ok(header) = QuicShort::parse(datagram) else { return self.say((None, Why::NotQuic)) };
        let (directory, rest) = (&self.state().directory, header.rest());
        let lengths = directory.lengths();
        let roaming = u32::MAX << SHORTEST_ROAMING;
        if let Some((known, id)) = self.find_short(now_ns, lengths & roaming, rest) {
            return self.known_short(now_ns, path, datagram, known, id);
        }
        let on_path = directory.find_seen(directory.path(path), now_ns);
        if on_path.is_some()
            && let Some((known, id)) = self.find_short(now_ns, lengths & !roaming & !1, rest)
        {
            return self.known_short(now_ns, path, datagram, known, id);
        }
        if let Some(found) = self.setup.routable(rest) {
            return self.say(found);
        }
        let by_directory = match on_path.and_then(Known::instance) {
            Some(instance) => (Some(instance), Why::KnownPath),
            None => (None, Why::Unknown),
        };
        let asks = match on_path {
            Some(known) => known.asks() || self.steers_streams(known),
            None => directory.left_out() > 0,
        };
        if !asks {
            return self.say(by_directory);
        }
        let is_admitted = match on_path {
            Some(known) if known.has_keys() => self.state().sealed.admit(now_ns),
            _ => self.arrives(now_ns),
        };
        self.ask_if(is_admitted, now_ns, path, datagram, Opened::No).unwrap_or_else(|| self.say(by_directory))
    }

    /// The id of one of these lengths, the longest first, that a packet with a short header begins with.
    #[inline]
    fn find_short(&self, now_ns: u64, mut lengths: u32, rest: &[u8]) -> Option<(Known, ConnectionId)> {
        let directory = &self.state().directory;
        // At most as many rounds as an id can be long.
        while lengths != 0 {
            let len = lengths.ilog2();
            lengths &= !(1 << len);
            let Some(id) = rest.get(..len as usize) else { continue };
            // The client's choice is for long headers.
            if let Some(known) = directory.find_seen(directory.id(id), now_ns)
                && known.learned() != Learned::FirstDestination
            {
                return Some((known, ConnectionId::new(id)?));
            }
        }
        None
    }

    #[inline]
    fn known_short(&self, now_ns: u64, path: &Path, datagram: &[u8], known: Known, id: ConnectionId) -> Answer {
        let learned = known.learned();
        let streams = self.steers_streams(known);
        let has_moved = learned != Learned::OnPath && !known.is_on(path_tag(path));
        let answer = (known.instance(), Why::KnownId(id, learned));
        if !(streams || has_moved || known.asks()) {
            return self.say(answer);
        }
        let learns = (has_moved || known.asks()) && self.teaches(now_ns);
        let tag = self.state().directory.id(id.as_slice());
        if !learns && !streams {
            return self.say(answer);
        }
        if !learns && let Some(keys) = keyring::find(tag) {
            return self.say_by_stream(answer, &keys, datagram, id.as_slice().len());
        }
        let found = self.ask(PATIENCE, |table| table.find(now_ns, path, datagram, Opened::No));
        match found {
            Some(Found { instance, why, keys: Some((keys, id_len)) }) => {
                keyring::remember(tag, &keys);
                self.say_by_stream((instance, why), &keys, datagram, id_len)
            }
            Some(Found { instance, why, keys: None }) => self.say((instance, why)),
            None => self.say(answer),
        }
    }

    /// The answer for a packet with these keys: by its stream, or as it is without.
    fn say_by_stream(
        &self,
        (instance, why): (Option<u16>, Why),
        keys: &Direction,
        datagram: &[u8],
        id_len: usize,
    ) -> Answer {
        cost::spend(cost::SEALED);
        let stream = SEALED.with_borrow_mut(|scratch| stream_of(keys, datagram, id_len, scratch));
        self.say((instance, stream.unwrap_or(why)))
    }

    #[inline]
    fn steers_streams(&self, known: Known) -> bool {
        known.has_keys() && !self.setup.config.streams.is_empty()
    }

    fn steer_long(&self, now_ns: u64, path: &Path, datagram: &[u8]) -> Answer {
        let Ok(header) = QuicLong::parse(datagram) else { return self.say((None, Why::NotQuic)) };
        let destination = header.destination();
        let directory = &self.state().directory;
        if let Some(id) = ConnectionId::new(destination).filter(|_| !destination.is_empty())
            && let Some(known) = directory.find_seen(directory.id(destination), now_ns)
        {
            return self.known_long(now_ns, path, datagram, known, id);
        }
        let hash = || self.setup.by_hash(destination);
        let Some(_) = Version::of(header.version()) else {
            return self.say(self.setup.routable(destination).unwrap_or_else(hash));
        };
        let Some(packet) = long_packets(datagram).next() else { return self.say((None, Why::NotQuic)) };
        let config = &self.setup.config;
        // Whoever writes on such a path may go on with an id that is not known yet.
        let on_path = || directory.find_seen(directory.path(path), now_ns);
        let may_go_on = || config.one_way || directory.left_out() > 0 || on_path().is_some();
        let (without, asks) = match header.kind() {
            Some(QuicType::Initial) => {
                let has_token = matches!(packet.body, QuicBody::Initial { token: [_, ..], .. });
                let is_first = looks_first(datagram, destination);
                let routable =
                    self.setup.routable(destination).filter(|_| has_token || !is_first || config.names.is_empty());
                (routable.unwrap_or_else(hash), is_first || may_go_on())
            }
            Some(QuicType::ZeroRtt) if !config.names.is_empty() => {
                ((None, Why::HelloIncomplete), directory.left_out() > 0)
            }
            Some(QuicType::ZeroRtt) => {
                (self.setup.routable(destination).unwrap_or_else(hash), directory.left_out() > 0)
            }
            _ => {
                let by_path = || Some((Some(on_path()?.instance()?), Why::KnownPath));
                let found = self.setup.routable(destination).or_else(by_path).unwrap_or((None, Why::Unknown));
                (found, may_go_on())
            }
        };
        if !asks || !self.arrives(now_ns) {
            return self.say(without);
        }
        let is_initial = header.kind() == Some(QuicType::Initial) && looks_first(datagram, destination);
        let tells = (config.one_way || header.source().is_empty()) && on_path().is_some();
        let opens = is_initial && (config.reads_hellos() || tells);
        self.open_and_ask(opens, now_ns, path, datagram, destination).unwrap_or_else(|| self.say(without))
    }

    fn known_long(&self, now_ns: u64, path: &Path, datagram: &[u8], known: Known, id: ConnectionId) -> Answer {
        let learned = known.learned();
        let is_first = learned == Learned::FirstDestination;
        let answer = match known.instance() {
            Some(instance) => (Some(instance), Why::KnownId(id, learned)),
            None => (None, Why::HelloIncomplete),
        };
        // What goes to the client's own choice repeats what was said.
        if is_first && !known.asks() && known.is_on(path_tag(path)) {
            return self.say(answer);
        }
        if !self.teaches(now_ns) {
            return self.say(answer);
        }
        let opens = is_first && known.asks();
        self.open_and_ask(opens, now_ns, path, datagram, id.as_slice()).unwrap_or_else(|| self.say(answer))
    }

    /// Asks the table, having decrypted what is in the datagram if that is of use and there is a budget for it.
    fn open_and_ask(
        &self,
        opens: bool,
        now_ns: u64,
        path: &Path,
        datagram: &[u8],
        destination: &[u8],
    ) -> Option<Answer> {
        if !opens {
            return self.ask_if(true, now_ns, path, datagram, Opened::No);
        }
        if !self.state().decryptions.admit(now_ns) {
            return self.ask_if(true, now_ns, path, datagram, Opened::Refused);
        }
        cost::spend(cost::INITIALS);
        SCRATCH.with_borrow_mut(|scratch| {
            let opened = initial::open(datagram, destination, Side::Client, scratch);
            self.ask_if(true, now_ns, path, datagram, opened)
        })
    }

    /// Whether what an instance sends names nothing that is not known: the same id on the same path, or none where it has none.
    fn has_named(&self, now_ns: u64, instance: u16, path: &Path, datagram: &[u8]) -> bool {
        let Ok(header) = QuicLong::parse(datagram) else { return true };
        let directory = &self.state().directory;
        let is_its = |known: Known| known.instance() == Some(instance);
        if header.source().is_empty() {
            let known = directory.find_seen(directory.path(path), now_ns);
            return known.is_some_and(|known| is_its(known) && known.is_without_id());
        }
        let known = directory.find_seen(directory.id(header.source()), now_ns);
        let is_named = |known: Known| known.learned() == Learned::Handshake && known.is_on(path_tag(path));
        known.is_some_and(|known| is_its(known) && is_named(known))
    }

    /// Whether the table may be asked about what is not known.
    fn arrives(&self, now_ns: u64) -> bool {
        let is_admitted = self.state().arrivals.admit(now_ns);
        if !is_admitted {
            self.state().stripes.count(Count::NotEntered);
        }
        is_admitted
    }

    /// Whether the table may learn more about what is known.
    fn teaches(&self, now_ns: u64) -> bool {
        let is_admitted = self.state().lessons.admit(now_ns);
        if !is_admitted {
            self.state().stripes.count(Count::NotLearned);
        }
        is_admitted
    }

    /// Asks the table. `None`: it was not admitted, or others held it for too long.
    fn ask_if(
        &self,
        is_admitted: bool,
        now_ns: u64,
        path: &Path,
        datagram: &[u8],
        opened: Opened<'_>,
    ) -> Option<Answer> {
        if !is_admitted {
            return None;
        }
        let Found { instance, why, keys } = self.ask(PATIENCE, |table| table.find(now_ns, path, datagram, opened))?;
        Some(match keys {
            Some((keys, id_len)) => self.say_by_stream((instance, why), &keys, datagram, id_len),
            None => self.say((instance, why)),
        })
    }

    fn ask<R>(&self, patience: usize, ask: impl FnOnce(&mut Steering) -> R) -> Option<R> {
        for round in 0..patience {
            if let Some(mut table) = self.try_lock() {
                // A round of waiting takes about as long as a frame.
                cost::spend(cost::ASK + round as u32);
                return Some(ask(&mut table));
            }
            (0..SPINS).for_each(|_| std::hint::spin_loop());
        }
        cost::spend(patience as u32);
        self.state().stripes.count(Count::Busy);
        None
    }

    /// The table, with this group's configuration.
    fn try_lock(&self) -> Option<MutexGuard<'_, Steering>> {
        let mut table = match self.state().table.try_lock() {
            Ok(table) => table,
            // What a panic has left behind is as good as any table: answers are checked against what is there.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if !Arc::ptr_eq(&table.setup, &self.setup) {
            table.setup = Arc::clone(&self.setup);
        }
        Some(table)
    }

    /// The table, for those who have time. They do not sleep at the lock either: whoever lets it go would have to wake them.
    fn wait(&self) -> MutexGuard<'_, Steering> {
        loop {
            match self.try_lock() {
                Some(table) => return table,
                None => std::thread::sleep(Duration::from_micros(20)),
            }
        }
    }

    /// Counts an answer.
    #[inline]
    fn say(&self, (instance, why): (Option<u16>, Why)) -> Answer {
        self.state().stripes.count_why(why);
        self.setup.answer(&self.setup.config.queues, instance, why)
    }
}
