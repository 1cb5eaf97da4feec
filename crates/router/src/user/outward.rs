//! From the tunnel interface to the network: each packet's policy, its association, and what is put around it.

use std::io;
use std::ops::Range;

use millrace_ipsec::association::Mode;
use millrace_ipsec::database::{Database, Handle};
use millrace_ipsec::ip::{Header, protocol};
use millrace_ipsec::refusal::{Refusal, Way};
use millrace_ipsec::selector::Flow;
use millrace_port::tun::Tun;
use rustc_hash::FxHashSet;
use std::collections::{HashMap, VecDeque};

use super::batch::{BEFORE, Batch, LONGEST, MOST};
use super::drops::{Drop, Drops};
use super::paths::Paths;
use super::sockets::Sender;
use super::{pieces, told};

/// Flows whose association is remembered; all are forgotten when there are more.
const MOST_FLOWS: usize = 16 << 10;

/// Associations whose path is looked at in one go.
const MOST_PATHS: usize = 64;

/// What is remembered of flows.
pub(super) struct Outward {
    /// Others choose these: the hash has a key.
    flows: HashMap<Flow, Handle>,
    /// How often the database had changed when they were asked for.
    changes: u64,
    in_use: FxHashSet<Handle>,
    /// Those in the order in which their paths are looked at.
    in_turn: VecDeque<Handle>,
    interface: u32,
    batch: Batch,
}

/// What a turn works with.
pub(super) struct With<'a> {
    pub(super) tun: &'a Tun,
    pub(super) database: &'a mut Database,
    pub(super) sender: &'a mut Sender,
    pub(super) paths: &'a mut Paths,
    pub(super) drops: &'a mut Drops,
    /// Seconds since 1970.
    pub(super) now: u64,
}

/// Why a packet is not sent.
pub(super) enum Not {
    Dropped(Drop),
    /// It was counted elsewhere: the database has refused it, or its pieces were sent.
    Counted,
}

impl From<Refusal> for Not {
    fn from(_: Refusal) -> Self {
        Self::Counted
    }
}

impl Outward {
    /// For the tunnel interface of that number.
    pub(super) fn new(interface: u32) -> Self {
        Self {
            flows: HashMap::new(),
            changes: 0,
            in_use: FxHashSet::default(),
            in_turn: VecDeque::new(),
            interface,
            batch: Batch::new(),
        }
    }

    /// Forgets what was made of associations and policies that have changed.
    pub(super) fn follow(&mut self, database: &Database) {
        if self.changes != database.changes() {
            self.flows.clear();
            self.changes = database.changes();
        }
    }

    /// Takes what Linux has for the tunnel, at most one batch, and sends it; whether there may be more.
    pub(super) fn turn(&mut self, with: &mut With<'_>) -> io::Result<bool> {
        self.follow(with.database);
        let mut batch = std::mem::replace(&mut self.batch, Batch::none());
        batch.empty();
        let mut came = 0;
        let result = loop {
            if came == MOST {
                break Ok(true);
            }
            let place = batch.place(came);
            match with.tun.receive(&mut place[BEFORE..BEFORE + LONGEST]) {
                Ok(Some(len)) => {
                    match self.seal(place, BEFORE..BEFORE + len, with) {
                        Ok((packet, _)) => batch.keep(came, packet),
                        Err(Not::Dropped(reason)) => with.drops.count(reason),
                        Err(Not::Counted) => {}
                    }
                    came += 1;
                }
                Ok(None) => break Ok(false),
                Err(error) => break Err(error),
            }
        };
        if !batch.is_empty() {
            with.sender.send(batch.packets(), with.drops);
        }
        self.batch = batch;
        result
    }

    /// Looks again how long packets may be: once a second, at some in turn.
    pub(super) fn look_at_paths(&mut self, database: &mut Database, paths: &mut Paths) {
        for _ in 0..MOST_PATHS.min(self.in_turn.len()) {
            let Some(handle) = self.in_turn.pop_front() else { return };
            if self.set_path(handle, database, paths) {
                self.in_turn.push_back(handle);
            } else {
                self.in_use.remove(&handle);
            }
        }
    }

    fn set_path(&self, handle: Handle, database: &mut Database, paths: &mut Paths) -> bool {
        let Some(association) = database.association_mut(handle) else { return false };
        // Without a route, sending says so.
        if let Some(path) = paths.to(association.parameters().id.destination) {
            association.set_mtu(path.mtu);
        }
        true
    }

    fn association(&mut self, flow: &Flow, with: &mut With<'_>) -> Result<Handle, Not> {
        if let Some(handle) = self.flows.get(flow) {
            return Ok(*handle);
        }
        let handle = with.database.find_leaving(flow, with.now)?.ok_or(Not::Dropped(Drop::Unprotected))?;
        if self.in_use.insert(handle) {
            self.in_turn.push_back(handle);
            self.set_path(handle, with.database, with.paths);
        }
        if self.flows.len() >= MOST_FLOWS {
            self.flows.clear();
        }
        self.flows.insert(*flow, handle);
        Ok(handle)
    }

    /// Encrypts a packet of the tunnel interface; where it lies then, and by which association.
    pub(super) fn seal(
        &mut self,
        place: &mut [u8],
        packet: Range<usize>,
        with: &mut With<'_>,
    ) -> Result<(Range<usize>, Handle), Not> {
        let bytes = &place[packet.clone()];
        let header = Header::parse(bytes).map_err(|_| Not::Dropped(Drop::NoIp))?;
        if header.protocol == protocol::ESP {
            return Err(Not::Dropped(Drop::Loop));
        }
        let mut flow = Flow::of(bytes).map_err(|_| Not::Dropped(Drop::NoIp))?;
        flow.interface = self.interface;
        let handle = self.association(&flow, with)?;
        if with.database.association(handle).is_some_and(|association| header.total > association.inner_mtu()) {
            return Err(Self::shorten(bytes, &header, handle, with));
        }
        match with.database.seal(handle, place, packet.clone(), with.now) {
            Ok(packet) => Ok((packet, handle)),
            Err(refusal @ (Refusal::Expired | Refusal::SequenceOver)) => {
                // There may be a younger one.
                self.flows.remove(&flow);
                Err(refusal.into())
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Tells the sender that a packet is too long, or sends it in pieces.
    fn shorten(packet: &[u8], header: &Header, handle: Handle, with: &mut With<'_>) -> Not {
        let Some(association) = with.database.association(handle) else { return Not::Counted };
        let (parameters, mtu) = (association.parameters(), association.inner_mtu());
        if header.is_whole && (parameters.headers.df || !header.source.is_ipv4()) {
            if let Some(answer) = told::too_big(packet, mtu) {
                // Who is not told tries again.
                let _ = with.tun.send(&answer);
            }
            return Not::Dropped(Drop::TooBig);
        }
        // Fragments have no place in transport mode (RFC 4303 §3.1.1).
        let is_tunnel = parameters.mode == Mode::Tunnel;
        let pieces = if is_tunnel { pieces::cut(packet, mtu) } else { None };
        pieces.map_or(Not::Dropped(Drop::Pieces), |pieces| {
            // What is refused is counted.
            let _ = send_pieces(pieces, handle, with);
            Not::Counted
        })
    }

    /// Counters of the way out.
    pub(super) fn packets(database: &Database) -> (u64, u64) {
        (database.counters().packets(Way::Out), database.counters().bytes(Way::Out))
    }
}

fn send_pieces(pieces: Vec<Vec<u8>>, handle: Handle, with: &mut With<'_>) -> Result<(), Refusal> {
    let mut sealed = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let mut place = vec![0; BEFORE];
        place.extend_from_slice(&piece);
        place.resize(place.len() + BEFORE, 0);
        let packet = with.database.seal(handle, &mut place, BEFORE..BEFORE + piece.len(), with.now)?;
        sealed.push(place[packet].to_vec());
    }
    with.sender.send(sealed.iter().map(Vec::as_slice), with.drops);
    Ok(())
}
