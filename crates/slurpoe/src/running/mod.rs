//! What moves: the engine, its link, and what has not ended. `connections`: what ends agree on.

mod connections;

use crate::address::Address;
use crate::config::{Config, Wire};
use crate::connect::QKEY;
use crate::error::Error;
use crate::transfer::{Completion, Failed, Kind, Notify, Told, Transfer};
use millrace_dma::{Pages, Window};
use millrace_link::{Frames, Link, LinkError, Maker, Wanted};
use millrace_rdma::engine::{Engine, Options};
use millrace_rdma::memory::{Limits, ProtectionDomain, Regions, Source};
use millrace_rdma::number::{Key, Moment, Psn, Qpn};
use millrace_rdma::transport::{Attributes, Capabilities, Init, Origin, State};
use millrace_rdma::wire::{Counters as Reasons, Format, Service, parse};
use millrace_rdma::work::{Access, Completion as Line, Data, Ended, Flags, Piece, Request};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use slab::Slab;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Frames that are looked at, and packets that are sent, at one call.
const BURST: usize = 64;
/// Room for ends that nobody has taken yet. Half of it is given out: what was flushed behind a failure comes besides.
const LINES: u32 = 1 << 17;
/// Buffers for messages of other ends, at most.
const BUFFERS: u32 = 4096;
/// Transfers to one other end at most: their number in a list has to fit into what a request is called.
const MOST_DEPTH: u32 = 8192;
/// Buffers for what ends agree on, and bytes of each.
const SLOTS: usize = 64;
const SLOT: usize = 320;
/// What others have told and nobody has taken, at most.
const MOST_TOLD: usize = 64;
/// All ends of a wire.
const EVERYBODY: [u8; 6] = [0xff; 6];
/// The other end is a thread that may have to wait for a core.
const MIN_TIMEOUT: Duration = Duration::from_millis(250);
/// Bytes of payload in a packet over a port, if nothing else is said.
const PORT_MTU: u16 = 1024;
const ETHERNET: usize = 14;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Asking,
    Ready,
    /// The other end does not want it.
    Refused,
}

/// Another end.
struct Peer {
    stage: Stage,
    qpn: Qpn,
    psn: Psn,
    count: u32,
    /// The other's: opening, queue pair, which connection.
    opening: u64,
    remote: Qpn,
    remote_count: u32,
    ask_at: u64,
    /// A transfer has failed: there will be no more.
    is_over: bool,
    in_flight: u32,
    /// The number of its first packet.
    remote_psn: Psn,
    /// This end has asked for it, or has sent something to it.
    is_ours: bool,
}

/// What has not ended: a transfer, or a list of which one end is told.
struct Pending {
    token: u64,
    kind: Kind,
    notify: Notify,
    other: Address,
    qpn: Qpn,
    generation: u16,
    /// The index at which it has ended, and how many there are.
    last: u16,
    count: u32,
}

/// Functions that are to be called without the lock.
pub(crate) type Calls = Vec<(std::sync::Arc<dyn Fn(&Completion) + Send + Sync>, Completion)>;

pub(crate) struct Running {
    pub engine: Engine<Regions>,
    link: Link,
    maker: Maker,
    pub address: Address,
    wire: Wire,
    mtu: u16,
    depth: u32,
    most_peers: u32,
    accepts: bool,
    opening: u64,
    counter: u32,
    pub domain: ProtectionDomain,
    lines: u32,
    general_lines: u32,
    buffers: u32,
    general: Qpn,
    inbox: Window,
    inbox_key: Key,
    peers: HashMap<Address, Peer>,
    pairs: HashMap<Qpn, Address>,
    pending: Slab<Pending>,
    generation: u16,
    /// Lines that may come, and ends that nobody has taken.
    outstanding: u32,
    ready: VecDeque<Completion>,
    /// What others have told, and how much of it nobody has taken in time.
    told: VecDeque<Told>,
    told_dropped: u64,
    watches: bool,
    /// The descriptor is to become readable by the next thing that there is to take.
    is_armed: bool,
    pub descriptor: OwnedFd,
    pub calls: Calls,
    /// Memory of the program, by first address: bytes and key.
    pub own: BTreeMap<u64, Vec<(u64, Key)>>,
    reasons: Reasons,
    foreign: u64,
    malformed: u64,
    /// Connections that made room for others.
    replaced: u64,
    pub broken: Option<String>,
    /// Nobody is to be told of anything any more.
    pub is_closed: bool,
    /// The helper thread sleeps until something comes by the link.
    is_dozing: bool,
    scratch: Vec<Line>,
}

impl Running {
    pub fn open(config: &Config) -> Result<Self, Error> {
        check(config)?;
        let wanted = Wanted { card: config.card.clone(), port: config.port.clone(), tx: config.tx, rx: config.rx };
        let link = Link::open(&wanted)?;
        let (mtu, maker) = (mtu(config, &link)?, Maker::new(link.longest()));
        let seed = RandomState::new().hash_one(std::process::id());
        let options = Options { seed, datagram_mtu: 256, min_timeout: MIN_TIMEOUT, ..Options::default() };
        let mut regions = Regions::new(Limits::default())?;
        let domain = regions.allocate_domain()?;
        let inbox = allocate(SLOTS * SLOT)?;
        let access = Access::LOCAL_WRITE.with(Access::ZERO_BASED);
        let inbox_key = regions.register(domain, Source::Window(inbox.clone()), None, access)?.lkey;
        let mut engine = Engine::new(options, regions);
        // The numbers of domains of both begin at different numbers.
        while engine.create_domain()?.0 < domain.0 {}
        let (lines, general_lines) = (engine.create_cq(LINES)?, engine.create_cq(4 * SLOTS as u32)?);
        let buffers = engine.create_srq(domain, BUFFERS, 1)?;
        let general = general(&mut engine, domain, general_lines)?;
        for slot in 0..SLOTS {
            post_slot(&mut engine, general, inbox_key, slot)?;
        }
        let descriptor = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(LinkError::Descriptor)?;
        let (peers, pairs, ready, calls, own) = Default::default();
        Ok(Self {
            engine,
            link,
            maker,
            address: config.address.unwrap_or_else(Address::random),
            wire: config.wire,
            mtu,
            depth: config.depth,
            most_peers: config.peers,
            accepts: config.accept,
            opening: RandomState::new().hash_one(seed) | 1,
            counter: 0,
            domain,
            lines,
            general_lines,
            buffers,
            general,
            inbox,
            inbox_key,
            peers,
            pairs,
            pending: Slab::new(),
            generation: 0,
            outstanding: 0,
            ready,
            told: VecDeque::new(),
            told_dropped: 0,
            watches: config.watch,
            is_armed: false,
            descriptor,
            calls,
            own,
            reasons: Reasons::default(),
            foreign: 0,
            malformed: 0,
            replaced: 0,
            broken: None,
            is_closed: false,
            is_dozing: false,
            scratch: vec![Line::default(); BURST],
        })
    }

    /// Takes what has come, sends what is to be sent. Whether there was anything.
    #[inline]
    pub fn progress(&mut self, now: Moment) -> bool {
        if self.broken.is_some() || self.is_closed {
            self.collect();
            return false;
        }
        if core::mem::take(&mut self.is_dozing) {
            self.link.awake();
        }
        self.engine.memory().sync_if_behind();
        let came = self.receive(now);
        if self.engine.has_completions(self.general_lines) {
            self.agree(now);
        }
        self.ask_again(now);
        let sent = self.send(now);
        self.collect();
        while self.engine.take_event().is_some() {}
        came + sent > 0
    }

    /// Nobody looks from now on: by what whoever sleeps is woken when something comes, and when something is due. `None`: something has come,
    /// waits to be sent, or nobody wakes.
    pub fn doze(&mut self, now: Moment) -> Option<(OwnedFd, Option<Moment>)> {
        if self.broken.is_some() || self.is_closed || !self.engine.is_quiet() {
            return None;
        }
        let fd = self.link.prepare_sleep();
        self.is_dozing = true;
        if self.receive(now) > 0 || fd.is_none() {
            self.progress(now);
            return None;
        }
        fd.map(|fd| (fd, self.engine.next_deadline()))
    }

    #[inline]
    fn receive(&mut self, now: Moment) -> usize {
        let Self { link, engine, reasons, foreign, address, wire, broken, .. } = self;
        let format = format(*wire);
        let came = link.receive(BURST, |frame| match parse(frame) {
            // Of what is for everybody only datagrams pass the parser.
            Ok((packet, from))
                if [address.0, EVERYBODY].contains(&from.back.source_mac) && from.back.format == format =>
            {
                let origin = Origin::of(&packet, &from);
                engine.receive(now, &packet, &origin);
            }
            Ok(_) => *foreign += 1,
            Err(reason) => reasons.count(reason),
        });
        came.unwrap_or_else(|error| {
            *broken = Some(error);
            0
        })
    }

    #[inline]
    pub fn send(&mut self, now: Moment) -> usize {
        let Self { link, engine, maker, broken, .. } = self;
        let sent = engine.transmit(now, BURST, &mut Frames::new(link, maker));
        if sent > 0
            && let Err(error) = self.link.flush()
        {
            *broken = Some(error);
        }
        sent
    }

    /// What ends.
    #[inline]
    pub fn collect(&mut self) {
        if self.is_closed {
            return;
        }
        if self.broken.is_some() {
            self.fail_all(|_| true, Failed::Unreachable);
            let all: Vec<Address> = self.peers.keys().copied().collect();
            all.into_iter().for_each(|other| self.is_over(other));
        }
        let mut lines = core::mem::take(&mut self.scratch);
        while let Ok(count @ 1..) = self.engine.poll(self.lines, &mut lines) {
            lines[..count].iter().for_each(|line| self.end(line));
        }
        self.scratch = lines;
    }

    #[inline]
    fn end(&mut self, line: &Line) {
        let (slot, index, generation) = (line.id as u32 as usize, (line.id >> 32) as u16, (line.id >> 48) as u16);
        let failed = Failed::of(line.status);
        if failed.is_some()
            && line.ended != Ended::Receive
            && let Some(other) = self.pairs.get(&line.qpn).copied()
        {
            self.is_over(other);
        }
        // What was flushed behind the failure of a list says nothing new.
        let Some(pending) = self.pending.get_mut(slot).filter(|pending| pending.generation == generation) else {
            return;
        };
        if failed.is_none() && index != pending.last {
            return;
        }
        if pending.kind == Kind::Receive {
            pending.other = self.pairs.get(&line.qpn).copied().unwrap_or_default();
        }
        let kind = match line.ended {
            Ended::Read => Kind::Read,
            Ended::Send => Kind::Send,
            Ended::Receive => Kind::Receive,
            _ => Kind::Write,
        };
        self.finish(slot, Completion { kind, failed, index, len: line.len, ..Completion::default() });
    }

    fn finish(&mut self, slot: usize, found: Completion) {
        let pending = self.pending.remove(slot);
        self.outstanding -= pending.count;
        if let Some(peer) = self.peers.get_mut(&pending.other).filter(|peer| peer.qpn == pending.qpn) {
            peer.in_flight -= pending.count;
        }
        let completion = Completion { token: pending.token, other: pending.other, ..found };
        match pending.notify {
            Notify::Callback(function) => self.calls.push((function, completion)),
            notify => {
                self.outstanding += 1;
                self.ready.push_back(completion);
                self.signal(matches!(notify, Notify::Descriptor));
            }
        }
    }

    /// There is something to take. `is_wanted`: the descriptor says so in any case.
    #[inline]
    fn signal(&mut self, is_wanted: bool) {
        if core::mem::take(&mut self.is_armed) || is_wanted {
            // It is full only if it is readable.
            let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }

    /// The descriptor becomes readable when there is something to take. False: there is something.
    pub fn arm(&mut self) -> bool {
        self.is_armed = self.ready.is_empty() && self.told.is_empty();
        self.is_armed
    }

    /// Nothing comes any more from another end, and nothing goes to it.
    fn is_over(&mut self, other: Address) {
        let Some(peer) = self.peers.get_mut(&other) else { return };
        if !core::mem::replace(&mut peer.is_over, true) && peer.stage == Stage::Ready {
            self.tell_over(other);
        }
    }

    fn tell_over(&mut self, other: Address) {
        if self.watches {
            self.outstanding += 1;
            self.ready.push_back(Completion { kind: Kind::Over, other, ..Completion::default() });
            self.signal(false);
        }
    }

    /// What others have told, the oldest first.
    pub fn take_told(&mut self) -> Option<Told> {
        self.told.pop_front()
    }

    /// Ends everything of these other ends that has not ended.
    fn fail_all(&mut self, of: impl Fn(&Pending) -> bool, failed: Failed) {
        let slots: Vec<usize> = self.pending.iter().filter(|(_, pending)| of(pending)).map(|(slot, _)| slot).collect();
        for slot in slots {
            let kind = self.pending[slot].kind;
            self.finish(slot, Completion { kind, failed: Some(failed), ..Completion::default() });
        }
    }

    /// Takes ends that are there.
    #[inline]
    pub fn take(&mut self, to: &mut [Completion]) -> usize {
        let count = self.ready.len().min(to.len());
        for (to, from) in to.iter_mut().zip(self.ready.drain(..count)) {
            *to = from;
        }
        self.outstanding -= count as u32;
        count
    }

    /// Posts transfers: one end for all of them, or one for each.
    pub fn post(
        &mut self,
        other: Address,
        list: &[Transfer],
        token: u64,
        notify: &Notify,
        each: bool,
    ) -> Result<(), Error> {
        if let Some(why) = &self.broken {
            return Err(Error::Lost(why.clone()));
        }
        let depth = self.depth;
        let peer = self.peers.get_mut(&other).filter(|peer| peer.stage == Stage::Ready && !peer.is_over);
        let peer = peer.ok_or(Error::NotConnected(other))?;
        let count = u32::try_from(list.len()).map_err(|_| Error::Full)?;
        let Some(last) = count.checked_sub(1) else { return Err(Error::Range("a list has at least one transfer")) };
        if count > depth {
            return Err(Error::Range("a list is longer than the depth of the endpoint"));
        }
        if peer.in_flight + count > depth || self.outstanding + count > LINES / 2 {
            return Err(Error::Full);
        }
        if list.iter().any(|transfer| u64::from(transfer.local.len) > 1 << 30) {
            return Err(Error::Range("a transfer has at most 1 GiB"));
        }
        peer.in_flight += count;
        peer.is_ours = true;
        self.outstanding += count;
        let (qpn, before) = (peer.qpn, self.generation);
        let mut slot = 0;
        for (index, transfer) in (0..=last).zip(list) {
            if each || index == 0 {
                self.generation = self.generation.wrapping_add(1);
                slot = self.pending.insert(Pending {
                    token: if each { token.wrapping_add(index.into()) } else { token },
                    kind: transfer.kind(),
                    notify: notify.clone(),
                    other,
                    qpn,
                    generation: self.generation,
                    last: if each { index as u16 } else { last as u16 },
                    count: if each { 1 } else { count },
                });
            }
            let id = u64::from(self.generation) << 48 | u64::from(index) << 32 | slot as u64;
            let part = transfer.local;
            let piece = [Piece { address: part.offset, len: part.len, lkey: part.key }];
            let flags = Flags { signaled: each || index == last, ..Flags::default() };
            let request =
                Request { id, operation: transfer.operation, data: Data::Pieces(&piece), flags, target: None };
            if let Err(error) = self.engine.post_send(qpn, &request) {
                // Nothing says how many of the list are on their way: the connection ends. The caller is told now, and not again
                // when they end.
                let first = before.wrapping_add(1);
                let posted = self.generation.wrapping_sub(first);
                self.pending.retain(|_, one| one.qpn != qpn || one.generation.wrapping_sub(first) > posted);
                self.outstanding -= count;
                if let Some(peer) = self.peers.get_mut(&other) {
                    peer.in_flight -= count;
                }
                self.give_up(other);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Posts a buffer for a message of anybody.
    pub fn post_buffer(&mut self, part: crate::region::Part, token: u64, notify: Notify) -> Result<(), Error> {
        if self.outstanding >= LINES / 2 {
            return Err(Error::Full);
        }
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let (other, qpn) = (Address::default(), Qpn::default());
        let entry = Pending { token, kind: Kind::Receive, notify, other, qpn, generation, last: 0, count: 1 };
        let slot = self.pending.insert(entry);
        let piece = [Piece { address: part.offset, len: part.len, lkey: part.key }];
        let id = u64::from(generation) << 48 | slot as u64;
        if let Err(error) = self.engine.post_srq_receive(self.buffers, id, &piece) {
            self.pending.remove(slot);
            return Err(if error == millrace_rdma::engine::Error::Full { Error::Full } else { error.into() });
        }
        self.outstanding += 1;
        Ok(())
    }

    /// What has happened, by name.
    pub fn counters(&mut self) -> Vec<(String, u64)> {
        let refused = self.engine.memory().counters();
        let engine = *self.engine.counters();
        let mut all: Vec<(String, u64)> = [
            ("sent", engine.sent),
            ("received", engine.received),
            ("repeated", engine.repeated),
            ("refused-key", refused.refused_key),
            ("refused-bounds", refused.refused_bounds),
            ("refused-permission", refused.refused_permission),
            ("refused-gone", refused.refused_gone),
            ("foreign", self.foreign),
            ("malformed", self.malformed),
            ("replaced", self.replaced),
            ("told-dropped", self.told_dropped),
            ("unbuildable", self.maker.unbuildable),
        ]
        .map(|(name, count)| (name.to_owned(), count))
        .into();
        all.extend(self.reasons.pairs().map(|(name, count)| (format!("frame-{name}"), count)));
        all.extend(self.link.counters().into_iter().map(|(name, count)| (format!("port-{name}"), count)));
        all
    }

    /// The counts of what was refused: key, bounds, permission.
    pub fn refused(&mut self) -> [u64; 3] {
        let counters = self.engine.memory().counters();
        [counters.refused_key, counters.refused_bounds, counters.refused_permission]
    }

    /// Whether nothing waits to be sent.
    pub fn is_quiet(&self) -> bool {
        self.engine.is_quiet()
    }

    pub fn mtu(&self) -> u16 {
        self.mtu
    }
}

/// Memory of its own.
pub(crate) fn allocate(len: usize) -> Result<Window, Error> {
    let region = millrace_dma::Region::allocate(len, Pages::HugeIfAny);
    let region = region.map_err(|error| Error::Allocate(len, error.to_string()))?;
    region.part(0, len).map_err(|error| Error::Allocate(len, error.to_string()))
}

fn format(wire: Wire) -> Format {
    match wire {
        Wire::Slurpoe => Format::Slurpoe,
        Wire::RoceV2 => Format::RoceV2,
    }
}

fn check(config: &Config) -> Result<(), Error> {
    if !(1..=MOST_DEPTH).contains(&config.depth) {
        return Err(Error::Range("the depth is 1 to 8192"));
    }
    if !(1..=4096).contains(&config.peers) {
        return Err(Error::Range("an endpoint has 1 to 4096 peers"));
    }
    if config.address.is_some_and(|address| !address.is_single()) {
        return Err(Error::Range("the address of an endpoint is that of one end"));
    }
    Ok(())
}

fn mtu(config: &Config, link: &Link) -> Result<u16, Error> {
    let format = format(config.wire);
    let longest = link.longest();
    let most = format.path_mtu(longest.saturating_sub(ETHERNET)).unwrap_or(0) as u16;
    let mtu = match config.mtu {
        None => link.usual_mtu().map_or(most, |_| PORT_MTU.min(most)),
        Some(mtu @ (256 | 512 | 1024 | 2048 | 4096 | 8192)) if usize::from(mtu) <= format.most_payload() => mtu,
        Some(_) => return Err(Error::Range("the mtu is 256, 512, 1024, 2048, 4096, or in frames of SLURPoE 8192")),
    };
    if mtu == 0 || mtu > most { Err(LinkError::ShortFrames { longest, mtu }.into()) } else { Ok(mtu) }
}

/// The queue pair by which ends agree.
fn general(engine: &mut Engine<Regions>, domain: ProtectionDomain, lines: u32) -> Result<Qpn, Error> {
    let slots = SLOTS as u32;
    let capabilities =
        Capabilities { send_requests: 256, receive_requests: slots, send_pieces: 1, receive_pieces: 1, inline: 256 };
    let init = Init {
        service: Service::UnreliableDatagram,
        general: true,
        domain,
        send_queue: lines,
        receive_queue: lines,
        shared_receive_queue: None,
        capabilities,
        signal_all: false,
        context: 0,
    };
    let (qpn, _) = engine.create_qp(&init)?;
    let begin = Attributes { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..Attributes::state(State::Init) };
    engine.modify_qp(qpn, &begin)?;
    engine.modify_qp(qpn, &Attributes::state(State::ReadyToReceive))?;
    engine.modify_qp(qpn, &Attributes { send_psn: Some(Psn::new(0)), ..Attributes::state(State::ReadyToSend) })?;
    Ok(qpn)
}

fn post_slot(engine: &mut Engine<Regions>, general: Qpn, lkey: Key, slot: usize) -> Result<(), Error> {
    let piece = [Piece { address: (slot * SLOT) as u64, len: SLOT as u32, lkey }];
    Ok(engine.post_receive(general, slot as u64, &piece)?)
}
