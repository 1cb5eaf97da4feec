//! What becomes of each neighbour: asked for while frames wait, known, asked again when its time is over, forgotten.
//!
//! ```text
//!            frame                 answer                  90 s
//! (nothing) -------> asked for ------------> reachable ----------> asked again (the old address serves)
//!                       |  5 requests            ^                     |   |  3 requests
//!                       v                        +------- answer ------+   v
//!                 unreachable, 3 s --------------------------------> (nothing)
//! ```

use super::wire::{self, Heard};
use super::{
    Known, MOST_LEARNED, MOST_NEIGHBOURS, MOST_OF_USERS, MOST_WAITING, MOST_WAITING_BYTES, Own, Table, at_port, mac_of,
};
use millrace_packet::parse::{Layers, MacAddress};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

const MS: u64 = 1_000_000;
/// Pauses behind requests: about 5 s together, each twice the one before.
const PAUSES: [u64; 5] = [250 * MS, 500 * MS, 1000 * MS, 1500 * MS, 2000 * MS];
/// How long an answer holds.
const REACHABLE: u64 = 90_000 * MS;
/// Requests to a neighbour that was known, each a second after the other, before it is forgotten.
const PROBES: u32 = 3;
const PROBE_PAUSE: u64 = 1000 * MS;
/// How long nobody is asked again who has not answered; frames to him are dropped at once.
const UNREACHABLE: u64 = 3000 * MS;

/// A frame to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The port, and its port queue.
    pub port: (u16, u16),
    /// Its bytes, without FCS.
    pub frame: Vec<u8>,
}

/// How far it is with a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Somebody has said so, for ever.
    Static,
    /// It has answered.
    Reachable,
    /// It is asked whether it is still there.
    Probing,
    /// It is asked for the first time.
    Asking,
    /// It has not answered.
    Unreachable,
}

/// What is known of a neighbour, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The next hop.
    pub address: IpAddr,
    /// Its MAC address, if it is known.
    pub mac: Option<MacAddress>,
    /// The port where it is, if that is known.
    pub port: Option<u32>,
    /// How far it is.
    pub state: State,
    /// How long it is so, in nanoseconds.
    pub age_ns: u64,
    /// Frames that wait for it.
    pub waiting: usize,
}

struct Entry {
    state: State,
    since: u64,
    known: Option<Arc<Known>>,
    /// Where it was heard, or is asked for.
    port: Option<(u16, u16)>,
    /// The card's address for it.
    own: Option<IpAddr>,
    requests: u32,
    /// When something is due.
    due: u64,
    waiting: Vec<Outgoing>,
    /// Workers drop what is for it.
    is_closed: bool,
    /// The user who has said it, if it is static; `None`: one who may do everything.
    owner: Option<u32>,
}

/// Why a neighbour stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are too many.
    Full,
    /// Somebody else has said where it is.
    Foreign,
}

/// Finds neighbours. Times are nanoseconds of one clock.
pub struct Resolver {
    /// The card's address at port 0; the last byte counts on with ports.
    base: MacAddress,
    entries: HashMap<IpAddr, Entry>,
    due: BTreeSet<(u64, IpAddr)>,
    /// Addresses of the card: those that rules say, and behind them those whose ports were learned.
    own: Vec<Own>,
    said: usize,
    waiting_bytes: usize,
    dropped: u64,
    changed: bool,
    out: Vec<Outgoing>,
}

impl Resolver {
    /// `base` is the card's MAC address at port 0.
    pub fn new(base: MacAddress) -> Self {
        Self {
            base,
            entries: HashMap::new(),
            due: BTreeSet::new(),
            own: Vec::new(),
            said: 0,
            waiting_bytes: 0,
            dropped: 0,
            changed: false,
            out: Vec::new(),
        }
    }

    /// Which addresses the card has now. Those that are new are announced.
    pub fn set_own(&mut self, mut own: Vec<Own>) {
        let is_unknown = |learned: &Own| own.contains(&Own { port: None, ..*learned });
        let learned: Vec<Own> = self.own.drain(self.said..).filter(is_unknown).collect();
        for new in own.iter().filter(|new| !self.own.contains(new)) {
            if let Some(port) = new.port.and_then(|port| u16::try_from(port).ok()) {
                let frame = wire::announcement((self.own_mac(Some(new), port), new.address));
                self.out.push(Outgoing { port: (port, 0), frame });
            }
        }
        self.said = own.len();
        own.extend(learned);
        self.own = own;
        self.changed = true;
    }

    /// Frames from an address of which no rule says where it is leave at this port: it is there.
    fn learn_own(&mut self, address: IpAddr, port: u16) {
        let mut unknown = self.own.iter().filter(|own| own.address == address && own.port.is_none()).copied();
        let Some(own) = unknown.next().map(|own| Own { port: Some(port.into()), ..own }) else { return };
        if !self.own.contains(&own) && self.own.len() - self.said < MOST_LEARNED {
            self.own.push(own);
            self.changed = true;
        }
    }

    /// A frame within a tunnel whose MAC addresses are to be filled in, and the port where it is to leave.
    pub fn send(&mut self, now: u64, port: (u16, u16), frame: Vec<u8>) {
        let Some((source, next_hop)) = addresses(&frame) else {
            self.dropped += 1;
            return;
        };
        // Whose source is somebody else's was not put into a tunnel here, and says nothing of whom to ask.
        if !self.own.iter().any(|own| own.address == source) {
            self.dropped += 1;
            return;
        }
        self.learn_own(source, port.0);
        let known = self.entries.get(&next_hop).and_then(|entry| entry.known.clone());
        if let Some(known) = known {
            known.touch();
            self.out.push(filled(Outgoing { port, frame }, &known));
            return;
        }
        if !self.entries.contains_key(&next_hop) && self.entries.len() >= MOST_NEIGHBOURS {
            self.dropped += 1;
            return;
        }
        let is_new = !self.entries.contains_key(&next_hop);
        let entry = self.entries.entry(next_hop).or_insert_with(|| Entry {
            state: State::Asking,
            since: now,
            known: None,
            port: Some(port),
            own: Some(source),
            requests: 0,
            due: 0,
            waiting: Vec::new(),
            is_closed: false,
            owner: None,
        });
        let has_room = self.waiting_bytes + frame.len() <= MOST_WAITING_BYTES;
        if entry.state != State::Asking || entry.waiting.len() >= MOST_WAITING || !has_room {
            self.dropped += 1;
            self.changed |= !std::mem::replace(&mut entry.is_closed, true);
        } else {
            self.waiting_bytes += frame.len();
            entry.waiting.push(Outgoing { port, frame });
        }
        if is_new {
            self.ask(now, next_hop);
        }
    }

    /// A frame from a port that [`concerns`](super::concerns) the card.
    pub fn hear(&mut self, now: u64, port: (u16, u16), frame: &[u8]) {
        match wire::hear(frame) {
            Some(Heard::Asked { by, of }) => {
                let is_known = || {
                    let known = self.entries.get(&by.1).and_then(|entry| entry.known.as_ref());
                    known.is_some_and(|known| known.port == port.0)
                };
                let is_here = |own: &&Own| own.is_at(of, port.0, is_known);
                let Some(own) = self.own.iter().find(is_here).copied() else { return };
                let frame = wire::answer((self.own_mac(Some(&own), port.0), of), by);
                self.out.push(Outgoing { port, frame });
                self.learn(now, port, by.1, by.0);
            }
            Some(Heard::Told { who, mac }) => self.learn(now, port, who, mac),
            None => {}
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: u64) {
        while let Some((due, address)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, address));
            let Some(entry) = self.entries.get_mut(&address) else { continue };
            match entry.state {
                State::Asking if entry.requests as usize >= PAUSES.len() => self.give_up(now, address),
                State::Asking => self.ask(now, address),
                State::Reachable if !entry.known.as_ref().is_some_and(|known| known.take_used()) => {
                    self.forget(address)
                }
                State::Reachable => {
                    (entry.state, entry.since, entry.requests) = (State::Probing, now, 0);
                    self.ask(now, address);
                }
                State::Probing if entry.requests < PROBES => self.ask(now, address),
                State::Probing | State::Unreachable => self.forget(address),
                State::Static => {}
            }
        }
    }

    /// When [`Resolver::tick`] has something to do.
    pub fn next_due(&self) -> Option<u64> {
        self.due.first().map(|(due, _)| *due)
    }

    /// What is to be sent.
    pub fn take_out(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.out)
    }

    /// A new table, if anything in it has changed.
    pub fn take_table(&mut self) -> Option<Table> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let known = self.entries.iter().filter_map(|(address, entry)| Some((*address, entry.known.clone()?)));
        let closed = self.entries.iter().filter(|(_, entry)| entry.is_closed).map(|(address, _)| *address);
        Some(Table { known: known.collect(), closed: closed.collect(), own: self.own.clone(), base: self.base })
    }

    /// Frames that were dropped since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Says where a neighbour is, for ever. `by` is the user who says so; `None`: one who may do everything.
    ///
    /// # Errors
    /// Why not.
    pub fn add(
        &mut self,
        now: u64,
        address: IpAddr,
        mac: MacAddress,
        port: u16,
        by: Option<u32>,
    ) -> Result<(), Refused> {
        self.may_change(address, by)?;
        let of_users = || self.entries.iter().filter(|(at, entry)| **at != address && entry.owner.is_some()).count();
        let is_full = !self.entries.contains_key(&address) && self.entries.len() >= MOST_NEIGHBOURS;
        if is_full || by.is_some() && of_users() >= MOST_OF_USERS {
            return Err(Refused::Full);
        }
        let waiting = self.remove(address).map_or_else(Vec::new, |entry| entry.waiting);
        let known = Arc::new(Known::new(mac, self.mac_towards(None, port), port));
        let entry = Entry {
            state: State::Static,
            since: now,
            known: Some(known.clone()),
            port: Some((port, 0)),
            own: None,
            requests: 0,
            due: u64::MAX,
            waiting: Vec::new(),
            is_closed: false,
            owner: by,
        };
        self.entries.insert(address, entry);
        self.changed = true;
        self.release(waiting, &known);
        Ok(())
    }

    /// Forgets a neighbour, static or not. `false`: there is none. `by` is as with [`Resolver::add`].
    ///
    /// # Errors
    /// Why not.
    pub fn delete(&mut self, address: IpAddr, by: Option<u32>) -> Result<bool, Refused> {
        self.may_change(address, by)?;
        let is_there = self.entries.contains_key(&address);
        self.forget(address);
        Ok(is_there)
    }

    /// What one user has said, no other takes back.
    fn may_change(&self, address: IpAddr, by: Option<u32>) -> Result<(), Refused> {
        let is_foreign = |entry: &Entry| entry.state == State::Static && by.is_some() && entry.owner != by;
        if self.entries.get(&address).is_some_and(is_foreign) { Err(Refused::Foreign) } else { Ok(()) }
    }

    /// All neighbours, in order.
    pub fn list(&self, now: u64) -> Vec<Neighbour> {
        let one = |(address, entry): (&IpAddr, &Entry)| Neighbour {
            address: *address,
            mac: entry.known.as_ref().map(|known| known.mac),
            port: entry.port.map(|(port, _)| port.into()),
            state: entry.state,
            age_ns: now.saturating_sub(entry.since),
            waiting: entry.waiting.len(),
        };
        let mut all: Vec<Neighbour> = self.entries.iter().map(one).collect();
        all.sort_by_key(|neighbour| neighbour.address);
        all
    }

    /// Takes over what a neighbour says that is known, or asked for. Nobody else is believed: the table is for those to whom
    /// frames go.
    fn learn(&mut self, now: u64, port: (u16, u16), address: IpAddr, mac: MacAddress) {
        let Some(entry) = self.entries.get(&address) else { return };
        // One that is at another port than it was asked for at is another.
        if entry.state == State::Static || entry.port.is_some_and(|(at, _)| at != port.0) {
            return;
        }
        let own = self.mac_towards(entry.own, port.0);
        let Some(mut entry) = self.remove(address) else { return };
        let known = match entry.known.take().filter(|known| known.mac == mac && known.own == own) {
            Some(known) => known,
            None => {
                self.changed = true;
                Arc::new(Known::new(mac, own, port.0))
            }
        };
        if entry.state != State::Reachable {
            (entry.state, entry.since) = (State::Reachable, now);
        }
        let waiting = std::mem::take(&mut entry.waiting);
        entry.known = Some(known.clone());
        entry.is_closed = false;
        entry.due = now + REACHABLE;
        self.due.insert((entry.due, address));
        self.entries.insert(address, entry);
        // Whoever waited uses it.
        if !waiting.is_empty() {
            known.touch();
        }
        self.release(waiting, &known);
    }

    /// Sends what has waited; its bytes do not count any more.
    fn release(&mut self, waiting: Vec<Outgoing>, known: &Known) {
        self.out.extend(waiting.into_iter().map(|frame| filled(frame, known)));
    }

    fn ask(&mut self, now: u64, address: IpAddr) {
        let Some(entry) = self.entries.get_mut(&address) else { return };
        let pause = match entry.state {
            State::Probing => PROBE_PAUSE,
            _ => PAUSES[(entry.requests as usize).min(PAUSES.len() - 1)],
        };
        entry.requests += 1;
        entry.due = now + pause;
        self.due.insert((entry.due, address));
        let (Some(port), Some(own)) = (entry.port, entry.own) else { return };
        let last = entry.known.as_ref().map(|known| known.mac);
        let frame = wire::request((self.mac_towards(Some(own), port.0), own), address, last);
        self.out.push(Outgoing { port, frame });
    }

    fn give_up(&mut self, now: u64, address: IpAddr) {
        let Some(mut entry) = self.remove(address) else { return };
        self.dropped += entry.waiting.len() as u64;
        entry.waiting = Vec::new();
        self.changed |= !std::mem::replace(&mut entry.is_closed, true);
        (entry.state, entry.since, entry.due) = (State::Unreachable, now, now + UNREACHABLE);
        self.due.insert((entry.due, address));
        self.entries.insert(address, entry);
    }

    fn forget(&mut self, address: IpAddr) {
        if let Some(entry) = self.remove(address) {
            self.dropped += entry.waiting.len() as u64;
            self.changed |= entry.known.is_some() || entry.is_closed;
        }
    }

    /// Takes an entry out; what waits in it does not count any more.
    fn remove(&mut self, address: IpAddr) -> Option<Entry> {
        let entry = self.entries.remove(&address)?;
        self.due.remove(&(entry.due, address));
        self.waiting_bytes -= entry.waiting.iter().map(|waiting| waiting.frame.len()).sum::<usize>();
        Some(entry)
    }

    fn mac_towards(&self, own: Option<IpAddr>, port: u16) -> MacAddress {
        let is_it = |candidate: &&Own| Some(candidate.address) == own && candidate.mac.is_some();
        self.own_mac(self.own.iter().find(is_it), port)
    }

    fn own_mac(&self, own: Option<&Own>, port: u16) -> MacAddress {
        own.and_then(|own| own.mac).map_or_else(|| at_port(self.base, port), mac_of)
    }
}

/// Source and destination of the outer packet.
pub(super) fn addresses(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let layers = Layers::parse(frame);
    let v4 = layers.ipv4(frame).map(|header| (header.source().into(), header.destination().into()));
    v4.or_else(|| layers.ipv6(frame).map(|header| (header.source().into(), header.destination().into())))
}

/// With the addresses of the neighbour, and the card's where the rule has not named one.
fn filled(mut outgoing: Outgoing, known: &Known) -> Outgoing {
    if let Some([destination, source]) = outgoing
        .frame
        .first_chunk_mut::<12>()
        .map(|macs| macs.as_chunks_mut::<6>().0)
        .and_then(|macs| macs.first_chunk_mut::<2>())
    {
        *destination = known.mac.0;
        if *source == [0; 6] {
            *source = known.own.0;
        }
    }
    outgoing
}
