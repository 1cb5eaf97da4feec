//! The fast way, beside the tunnel interface and raw sockets: frames that the router's program in the kernel gives to user space, with a note in front of
//! each. What is to be encrypted has been changed by its rule already; what was decrypted is carried by the rule of what came out. Whatever is not known
//! takes the usual way: into the tunnel interface, or by a raw socket, from where Linux shows what it does with it.
//!
//! How a packet of an association leaves is learned from Linux, too: one of them each second, and the first after any change, goes by the raw socket, and is
//! looked at when it leaves. Those that follow get the same in front of them.

use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_ipsec::database::{Database, Handle};
use millrace_ipsec::policy::Direction;
use millrace_port::af_xdp::direct::{Counts, Frame, Sockets};
use millrace_port::spec::InterfaceName;
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fd::BorrowedFd;

use super::drops::{Drop, Drops};
use super::outward::{Not, Outward, With};
use super::own::Own;
use crate::engine::user::{NOTE, Note, Outer, QUEUES, Work};
use crate::engine::{Carrier, Engine, EngineError};

/// Frames of one socket before the others have their turn.
const BURST: usize = 64;

/// Frames of the memory.
const FRAMES: usize = 16_384;

/// Frames that are lost with sockets before everything begins anew.
const MOST_LOST: usize = FRAMES / 4;

/// How often a packet of an association goes Linux's way, so that it is seen whether that is still the same, and neighbours are kept.
const PROVED: Duration = Duration::from_secs(1);

/// How old the kernel's clock may be.
const CLOCK: Duration = Duration::from_millis(2);

/// Associations whose way is known; more take Linux's.
const MOST_WAYS: usize = 4096;

/// Bytes of a protected packet up to its sequence number, at most.
const HEADERS: usize = 64;

/// What an XDP program answers for a frame that it sends on.
const REDIRECT: u32 = 4;

/// An interface that the engine in the kernel is attached to.
struct Place {
    interface: u32,
    slot: u16,
    sockets: Vec<usize>,
}

/// How packets of an association leave.
struct Way {
    /// The engine's changes when this was asked.
    changes: u32,
    asked: Instant,
    id: (IpAddr, u32),
    /// A packet that was given to Linux: its sequence number, and the header of IP.
    shown: Option<(u32, Vec<u8>)>,
    /// Socket, and what comes in front of IP.
    front: Option<(usize, Vec<u8>)>,
}

/// All of it.
pub(super) struct Fast {
    engine: Arc<Engine>,
    carrier: Carrier,
    sockets: Sockets,
    places: Vec<Place>,
    /// The tunnel interface.
    tunnel: u32,
    ways: FxHashMap<Handle, Way>,
    /// Associations that the program in the kernel was told of, and the database's changes then.
    told: FxHashSet<(IpAddr, u32)>,
    told_at: Option<u64>,
    jiffies: u32,
    jiffies_at: Instant,
    /// Packets to be sent by Linux in this turn: the frames, and where in the memory.
    by_linux: Vec<(Frame, Range<usize>, Handle)>,
    /// Interfaces that cannot be served, which has been said.
    refused: FxHashSet<u32>,
    counted: Counts,
    /// Packets that were decrypted and encrypted here, and left without Linux.
    pub(super) opened: u64,
    pub(super) sealed: u64,
}

impl Fast {
    pub(super) fn new(engine: Arc<Engine>, tunnel: u32) -> Result<Self, EngineError> {
        let carrier = engine.carrier()?;
        let jiffies = engine.jiffies()?;
        Ok(Self {
            carrier,
            sockets: Sockets::new(FRAMES)?,
            places: Vec::new(),
            tunnel,
            ways: FxHashMap::default(),
            told: FxHashSet::default(),
            told_at: None,
            jiffies,
            jiffies_at: Instant::now(),
            by_linux: Vec::new(),
            refused: FxHashSet::default(),
            counted: Counts::default(),
            opened: 0,
            sealed: 0,
            engine,
        })
    }

    /// To wait for frames.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.fds()
    }

    /// Follows what has changed: interfaces of the engine, and associations. Once a second, and when associations have changed.
    pub(super) fn follow(&mut self, database: &Database, own: &Own, drops: &mut Drops) {
        self.follow_interfaces();
        self.follow_associations(database, own);
        let now = self.sockets.counts();
        drops.add(Drop::RingFull, now.no_room.saturating_sub(self.counted.no_room));
        drops.add(Drop::LongFrame, now.too_long.saturating_sub(self.counted.too_long));
        drops.add(Drop::SendFailed, now.not_sent.saturating_sub(self.counted.not_sent));
        self.counted = now;
    }

    fn follow_interfaces(&mut self) {
        let there = self.engine.xdp_interfaces();
        let is_there = |place: &Place| there.contains(&(place.interface, place.slot));
        for place in self.places.extract_if(.., |place| !is_there(place)).collect::<Vec<_>>() {
            // The kernel takes a socket that is closed out of the program's map.
            place.sockets.into_iter().for_each(|number| self.sockets.close(number));
            self.ways.clear();
        }
        if self.sockets.lost() > MOST_LOST
            && let Ok(fresh) = Sockets::new(FRAMES)
        {
            self.places.clear();
            self.ways.clear();
            self.sockets = fresh;
        }
        for (interface, slot) in there {
            if self.places.iter().all(|place| place.interface != interface) {
                match self.open_interface(interface, slot) {
                    Ok(place) => {
                        self.refused.remove(&interface);
                        self.places.push(place);
                    }
                    Err(_) if !self.refused.insert(interface) => {}
                    Err(error) => tracing::warn!("interface {interface}: IPsec goes by Linux there: {error}"),
                }
            }
        }
    }

    fn open_interface(&mut self, interface: u32, slot: u16) -> Result<Place, String> {
        let name = name_of(interface).ok_or("it is gone")?;
        let mut place = Place { interface, slot, sockets: Vec::new() };
        for queue in 0..Sockets::queues(&name).min(QUEUES) {
            let opened =
                self.sockets.open(&name, interface, queue).map_err(|error| error.to_string()).and_then(|number| {
                    place.sockets.push(number);
                    let fd = self.sockets.fd(number).ok_or("it is gone")?;
                    self.engine.set_socket(slot, queue, fd).map_err(|error| error.to_string())
                });
            if let Err(error) = opened {
                place.sockets.into_iter().for_each(|number| self.sockets.close(number));
                return Err(error);
            }
        }
        Ok(place)
    }

    fn follow_associations(&mut self, database: &Database, own: &Own) {
        if self.told_at == Some(database.changes()) {
            return;
        }
        self.told_at = Some(database.changes());
        let ids = database.associations().map(|one| one.parameters().id);
        let wanted: FxHashSet<_> = ids.map(|id| (id.destination, id.spi)).filter(|(to, _)| own.has(*to)).collect();
        for (destination, spi) in self.told.difference(&wanted).copied().collect::<Vec<_>>() {
            report(self.engine.remove_sa(destination, spi));
        }
        for (destination, spi) in wanted.difference(&self.told) {
            report(self.engine.set_sa(*destination, *spi));
        }
        self.told = wanted;
        let gone = |handle: &Handle| database.association(*handle).is_none();
        for (_, way) in self.ways.extract_if(|handle, _| gone(handle)) {
            self.engine.forget_outer(way.id.0, way.id.1);
        }
    }

    /// Takes what has come, at most a burst of each socket; whether there may be more.
    pub(super) fn turn(&mut self, outward: &mut Outward, own: &Own, with: &mut With<'_>) -> io::Result<bool> {
        if self.told_at != Some(with.database.changes()) {
            self.follow_associations(with.database, own);
        }
        if self.jiffies_at.elapsed() > CLOCK
            && let Ok(jiffies) = self.engine.jiffies()
        {
            (self.jiffies, self.jiffies_at) = (jiffies, Instant::now());
            self.engine.look_at_outers(jiffies.wrapping_add(2 * self.engine.hz()));
        }
        outward.follow(with.database);
        let changes = self.engine.changes();
        let mut is_busy = false;
        for number in self.places.iter().flat_map(|place| place.sockets.clone()).collect::<Vec<_>>() {
            for taken in 0..BURST {
                let Some(frame) = self.sockets.receive(number) else { break };
                is_busy |= taken + 1 == BURST;
                let noted = self.note(&frame);
                match noted {
                    Some(note) if note.work == Work::Open => self.open(frame, note, own, with),
                    Some(note) => self.seal(frame, note, changes, outward, with),
                    None => {
                        with.drops.count(Drop::NoIp);
                        self.sockets.give_back(frame);
                    }
                }
            }
        }
        with.drops.add(Drop::SendFailed, self.sockets.flush());
        if !self.by_linux.is_empty() {
            self.send_by_linux(with);
        }
        Ok(is_busy)
    }

    /// What the program in the kernel has written in front of a frame.
    fn note(&mut self, frame: &Frame) -> Option<Note> {
        let range = frame.range();
        let bytes = self.sockets.memory().get(range.start.checked_sub(NOTE)?..)?.first_chunk::<NOTE>()?;
        Note::from_bytes(bytes).filter(|note| note.l3 + note.size <= range.len())
    }

    fn open(&mut self, frame: Frame, note: Note, own: &Own, with: &mut With<'_>) {
        let at = frame.range().start;
        let (base, place) = self.sockets.place(&frame);
        let packet = at - base + note.l3..at - base + note.l3 + note.size;
        // The database has counted what it refuses.
        let Ok(Some((opened, handle))) = with.database.open(place, packet, 0, with.now) else {
            return self.sockets.give_back(frame);
        };
        let is_ours = own.has(opened.flow.destination);
        let direction = if is_ours { Direction::In } else { Direction::Forward };
        if with.database.check(direction, &opened.flow, Some(handle)).is_err() {
            return self.sockets.give_back(frame);
        }
        if !is_ours
            && let Some(sent) = carry(&self.engine, &self.carrier, self.tunnel, self.jiffies, place, &opened.packet)
        {
            let range = base + sent.range.start..base + sent.range.end;
            match self.places.iter().find(|place| place.interface == sent.out).and_then(|place| place.sockets.first()) {
                Some(number) => match self.sockets.send(*number, frame, range) {
                    Ok(()) => self.opened += 1,
                    Err(frame) => {
                        with.drops.count(Drop::NoRoom);
                        self.sockets.give_back(frame);
                    }
                },
                // The rule will be made anew when the interface is gone.
                None => {
                    with.drops.count(Drop::InterfaceDown);
                    self.sockets.give_back(frame);
                }
            }
            return;
        }
        if with.tun.send(&place[opened.packet]).is_err() {
            with.drops.count(Drop::InterfaceDown);
        }
        self.sockets.give_back(frame);
    }

    fn seal(&mut self, frame: Frame, note: Note, changes: u32, outward: &mut Outward, with: &mut With<'_>) {
        let at = frame.range().start;
        let (base, place) = self.sockets.place(&frame);
        let packet = at - base + note.l3..at - base + note.l3 + note.size;
        let (sealed, handle) = match outward.seal(place, packet, with) {
            Ok(sealed) => sealed,
            Err(not) => {
                if let Not::Dropped(reason) = not {
                    with.drops.count(reason);
                }
                return self.sockets.give_back(frame);
            }
        };
        let way = self.ways.get_mut(&handle).filter(|way| way.changes == changes && way.asked.elapsed() < PROVED);
        if let Some((number, front)) = way.and_then(|way| way.front.as_ref())
            && let Some(start) = sealed.start.checked_sub(front.len())
        {
            place[start..sealed.start].copy_from_slice(front);
            match self.sockets.send(*number, frame, base + start..base + sealed.end) {
                Ok(()) => self.sealed += 1,
                Err(frame) => {
                    with.drops.count(Drop::NoRoom);
                    self.sockets.give_back(frame);
                }
            }
            return;
        }
        let head: Vec<u8> = place[sealed.clone()].iter().take(HEADERS).copied().collect();
        self.show(handle, &head, changes, with.database);
        self.by_linux.push((frame, base + sealed.start..base + sealed.end, handle));
    }

    /// Notes that a packet goes Linux's way, to be looked at when it leaves. What follows in this turn takes the same, so that nothing overtakes it.
    fn show(&mut self, handle: Handle, packet: &[u8], changes: u32, database: &Database) {
        let Some(id) = database.association(handle).map(|one| one.parameters().id) else { return };
        let id = (id.destination, id.spi);
        let is_new = !self.ways.contains_key(&handle);
        if is_new && (self.ways.len() >= MOST_WAYS || self.engine.watch_outer(id.0, id.1).is_err()) {
            return;
        }
        let shown = sequence_of(packet);
        self.ways.insert(handle, Way { changes, asked: Instant::now(), id, shown, front: None });
    }

    /// Sends by Linux, and looks how Linux has sent them.
    fn send_by_linux(&mut self, with: &mut With<'_>) {
        let packets = std::mem::take(&mut self.by_linux);
        let memory = self.sockets.memory();
        with.sender.send(packets.iter().map(|(_, range, _)| &memory[range.clone()]), with.drops);
        let handles: FxHashSet<Handle> = packets.iter().map(|(_, _, handle)| *handle).collect();
        packets.into_iter().for_each(|(frame, _, _)| self.sockets.give_back(frame));
        for handle in handles {
            let Some(way) = self.ways.get_mut(&handle) else { continue };
            let Some((sequence, head)) = &way.shown else { continue };
            // Linux may not have sent it yet, because it waits for a neighbour.
            let Some(outer) = self.engine.outer(way.id.0, way.id.1).filter(|outer| outer.sequence == *sequence) else {
                continue;
            };
            if !is_same(head, &outer) {
                with.drops.count(Drop::Changed);
                continue;
            }
            let place = self.places.iter().find(|place| place.interface == outer.out);
            way.front = place.and_then(|place| place.sockets.first()).map(|number| (*number, outer.front));
        }
    }
}

/// A packet that was carried: where it lies, with all in front of it, and where it goes.
struct Sent {
    range: Range<usize>,
    out: u32,
}

/// Does what the rule of a decrypted packet says; `None`: Linux is to do it.
fn carry(
    engine: &Engine,
    carrier: &Carrier,
    tunnel: u32,
    jiffies: u32,
    place: &mut [u8],
    packet: &Range<usize>,
) -> Option<Sent> {
    const ETHERNET: usize = 14;
    let front = match carrier.carry(tunnel, &mut place[packet.clone()], jiffies) {
        Some(front) => front,
        None => {
            // The program makes a rule of it, or ends one, or keeps conntrack's entry alive: as if it had come by an interface.
            let start = packet.start.checked_sub(ETHERNET)?;
            place[start..start + 12].fill(0);
            let ethertype: u16 = if place[packet.start] >> 4 == 6 { 0x86dd } else { 0x0800 };
            place[start + 12..packet.start].copy_from_slice(&ethertype.to_be_bytes());
            let outcome = engine.try_frame(tunnel, &place[start..packet.end]).ok()?;
            if outcome.verdict != REDIRECT {
                return None;
            }
            carrier.carry(tunnel, &mut place[packet.clone()], jiffies)?
        }
    };
    let start = packet.start.checked_sub(front.bytes().len())?;
    place[start..packet.start].copy_from_slice(front.bytes());
    Some(Sent { range: start..packet.start + front.size, out: front.out })
}

/// The sequence number of a packet of ESP, by itself or in UDP, and its header of IP.
fn sequence_of(packet: &[u8]) -> Option<(u32, Vec<u8>)> {
    const UDP: u8 = 17;
    let (len, protocol) = match packet.first()? >> 4 {
        4 => (20, *packet.get(9)?),
        _ => (40, *packet.get(6)?),
    };
    let at = len + if protocol == UDP { 8 } else { 0 } + 4;
    let sequence = u32::from_be_bytes(*packet.get(at..)?.first_chunk()?);
    Some((sequence, packet.get(..len)?.to_vec()))
}

/// Whether Linux has sent the header of IP as it was, number and checksum of IPv4 aside.
fn is_same(head: &[u8], outer: &Outer) -> bool {
    let Some(sent) = outer.head.get(..head.len()) else { return false };
    match head.len() {
        20 => head[..4] == sent[..4] && head[6..10] == sent[6..10] && head[12..] == sent[12..],
        _ => head == sent,
    }
}

fn name_of(interface: u32) -> Option<InterfaceName> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    netdevice::index_to_name(&socket, interface).ok()?.parse().ok()
}

fn report(result: Result<(), EngineError>) {
    if let Err(error) = result {
        tracing::warn!("{error}");
    }
}
