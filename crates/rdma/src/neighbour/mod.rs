//! Neighbours: which MAC address leads to a GID (ARP, RFC 826; neighbour discovery, RFC 4861), and what is said to those
//! who ask for the addresses of this end.
//!
//! ```text
//!            find                  answer                  30 s
//! (nothing) -------> asked for ------------> reachable ----------> asked again (the old address serves)
//!                       |  5 requests            ^                     |   |  3 requests
//!                       v                        +------- answer ------+   v
//!                 unreachable, 3 s --------------------------------> (nothing)
//! ```
//!
//! Nothing here talks to anybody: it is given the frames that came and the time, and gives frames away. Only this end
//! makes entries, by asking; others can change the MAC address of an entry, as everywhere with ARP, but make none.

mod frames;
#[cfg(test)]
mod tests;

use crate::number::{Gid, Moment};
use core::time::Duration;
use frames::Heard;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A MAC address.
pub type Mac = [u8; 6];

/// Most neighbours at once. One more takes the place of the one that is due next, and of none that is being asked for.
pub const MOST_NEIGHBOURS: usize = 1024;
/// Most frames that wait to be sent.
pub const MOST_WAITING: usize = 256;
/// Places of these that answers do not take: whoever asks a lot does not keep this end from asking.
const FOR_REQUESTS: usize = 64;

/// Pauses behind requests.
const PAUSES: [Duration; 5] =
    [Duration::from_millis(250), Duration::from_millis(500), SECOND, Duration::from_millis(1500), TWO_SECONDS];
const SECOND: Duration = Duration::from_secs(1);
const TWO_SECONDS: Duration = Duration::from_secs(2);
/// How long an answer holds (RFC 4861, 10: REACHABLE_TIME).
const REACHABLE: Duration = Duration::from_secs(30);
/// Requests to a neighbour that was known, each a second after the other, before it is forgotten.
const PROBES: usize = 3;
/// How long a wire may bring back what this end has announced. Who has the same address, and hence often the same MAC address, says the
/// same later.
const ECHOES: Duration = SECOND;
/// An address is not defended more often than that (RFC 5227, 2.4: DEFEND_INTERVAL).
const DEFENCES: Duration = Duration::from_secs(10);
/// How long nobody is asked again who has not answered.
const UNREACHABLE: Duration = Duration::from_secs(3);

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its MAC address.
    Known(Mac),
    /// It is being asked for; [`Neighbours::take_change`] says when there is more.
    Asked,
    /// It has not answered, and is not asked again for three seconds.
    Unreachable,
    /// This end has no address of its kind to ask from.
    NoSource,
    /// There are [`MOST_NEIGHBOURS`], and all are being asked for.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asking { requests: usize },
    Reachable { mac: Mac, is_used: bool },
    Probing { mac: Mac, requests: usize },
    Unreachable,
}

impl State {
    fn mac(self) -> Option<Mac> {
        match self {
            Self::Reachable { mac, .. } | Self::Probing { mac, .. } => Some(mac),
            Self::Asking { .. } | Self::Unreachable => None,
        }
    }

    /// The same, and somebody makes use of it: it is asked again before it is forgotten.
    fn use_mac(&mut self) -> Option<Mac> {
        if let Self::Reachable { is_used, .. } = self {
            *is_used = true;
        }
        self.mac()
    }
}

/// Counts of what was heard and done. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were sent.
    pub requests: u64,
    /// Requests for an address of this end for which an answer was made.
    pub answers: u64,
    /// Messages that name a neighbour which nobody has asked for.
    pub unasked: u64,
    /// Advertisements with another MAC address that do not override.
    pub not_overriding: u64,
    /// Messages that name an address of this end as somebody else's.
    pub conflicts: u64,
    /// Frames of ARP or neighbour discovery that are malformed, or about something else.
    pub ignored: u64,
    /// Frames that were not sent because [`MOST_WAITING`] were waiting.
    pub dropped: u64,
    /// Neighbours that had to give way to others.
    pub evicted: u64,
}

/// The neighbours of one MAC address with its GIDs.
#[derive(Debug)]
pub struct Neighbours {
    mac: Mac,
    own: Vec<Gid>,
    entries: BTreeMap<[u8; 16], (State, Moment)>,
    due: BTreeSet<(Moment, [u8; 16])>,
    changed: BTreeSet<[u8; 16]>,
    out: VecDeque<Vec<u8>>,
    counts: Counts,
    /// Since when announcements are heard, from the first look at the wire on.
    since: Option<Moment>,
    /// When an address of this end was defended last.
    defended: Option<Moment>,
    /// Somebody else has an address of this end, and it is not said yet.
    conflict: Option<(Gid, Mac)>,
    /// It was said.
    is_said: bool,
}

impl Neighbours {
    /// Nobody is known. `own` are the GIDs that this end answers for and asks from.
    pub fn new(mac: Mac, own: Vec<Gid>) -> Self {
        let (entries, due, changed) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let (out, counts) = (VecDeque::new(), Counts::default());
        let (since, defended, conflict, is_said) = Default::default();
        Self { mac, own, entries, due, changed, out, counts, since, defended, conflict, is_said }
    }

    /// Says to everybody where the addresses of this end are. To be called when they are new.
    pub fn announce(&mut self) {
        for gid in self.own.clone() {
            self.push(frames::announcement((self.mac, gid)), MOST_WAITING);
        }
    }

    /// The MAC address that leads to a GID on this wire; who is not known is asked for.
    pub fn find(&mut self, now: Moment, gid: Gid) -> Found {
        if let Some((state, _)) = self.entries.get_mut(&gid.0) {
            return match (*state, state.use_mac()) {
                (_, Some(mac)) => Found::Known(mac),
                (State::Unreachable, None) => Found::Unreachable,
                (_, None) => Found::Asked,
            };
        }
        if gid.is_group() || self.source_for(gid).is_none() {
            return Found::NoSource;
        }
        if self.entries.len() >= MOST_NEIGHBOURS && !self.evict() {
            return Found::Full;
        }
        self.ask(gid, None);
        self.set(gid.0, State::Asking { requests: 1 }, now + PAUSES[0]);
        Found::Asked
    }

    /// The MAC address that leads to a GID, if it is known: nobody is asked, and no entry is made.
    pub fn known(&mut self, gid: Gid) -> Option<Mac> {
        self.entries.get_mut(&gid.0).and_then(|(state, _)| state.use_mac())
    }

    /// Whether somebody is being asked for who was not known.
    pub fn is_asked(&self, gid: Gid) -> bool {
        matches!(self.entries.get(&gid.0), Some((State::Asking { .. }, _)))
    }

    /// Takes a frame that came; returns whether it is ARP or neighbour discovery, which is for nobody else.
    pub fn hear(&mut self, now: Moment, frame: &[u8]) -> bool {
        if !is_about_neighbours(frame) {
            return false;
        }
        match frames::hear(frame) {
            Some(Heard::Asked { mac, by, of }) => self.asked(now, mac, by, of),
            Some(Heard::Told { who, mac, announces, .. }) if self.own.contains(&who) => {
                let since = *self.since.get_or_insert(now);
                if !announces || mac != self.mac || now >= since + ECHOES {
                    self.dispute(now, who, mac);
                }
            }
            Some(Heard::Told { who, mac, overrides, .. }) => self.told(now, who, mac, overrides),
            None => self.counts.ignored += 1,
        }
        true
    }

    /// Does what is due: asks again, and forgets.
    pub fn tick(&mut self, now: Moment) {
        self.since.get_or_insert(now);
        // Each is due once, and then later than now.
        for _ in 0..self.due.len() {
            let Some(&(moment, gid)) = self.due.first().filter(|first| first.0 <= now) else { return };
            self.due.remove(&(moment, gid));
            let Some(&(state, _)) = self.entries.get(&gid) else { continue };
            self.expire(now, gid, state);
        }
    }

    /// When [`Neighbours::tick`] has something to do.
    pub fn next_due(&self) -> Option<Moment> {
        self.due.first().map(|first| first.0)
    }

    /// The next frame to be sent, without FCS.
    pub fn take_frame(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// A neighbour whose MAC address has changed, and which it has now; `None` as address: it has not answered.
    pub fn take_change(&mut self) -> Option<(Gid, Option<Mac>)> {
        let gid = self.changed.pop_first()?;
        Some((Gid(gid), self.entries.get(&gid).and_then(|entry| entry.0.mac())))
    }

    /// An address of this end that somebody else has too, and his MAC address. Told once.
    pub fn take_conflict(&mut self) -> Option<(Gid, Mac)> {
        self.conflict.take()
    }

    /// What was heard and done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The address of this end from which a neighbour is asked: a link-local one for link-local ones.
    fn source_for(&self, gid: Gid) -> Option<Gid> {
        let is_link_local = |gid: Gid| gid.0[0] == 0xfe && gid.0[1] & 0xc0 == 0x80;
        let same_kind = || self.own.iter().copied().filter(|own| own.is_ipv4() == gid.is_ipv4());
        same_kind().find(|own| is_link_local(*own) == is_link_local(gid)).or_else(|| same_kind().next())
    }

    fn ask(&mut self, gid: Gid, last: Option<Mac>) {
        let request = self.source_for(gid).and_then(|own| frames::request((self.mac, own), gid, last));
        if let Some(frame) = request {
            self.counts.requests += u64::from(self.push(frame, MOST_WAITING));
        }
    }

    /// Whether there is room for one more among so many.
    fn push(&mut self, frame: Vec<u8>, most: usize) -> bool {
        let has_room = self.out.len() < most;
        if has_room {
            self.out.push_back(frame);
        } else {
            self.counts.dropped += 1;
        }
        has_room
    }

    fn asked(&mut self, now: Moment, mac: Mac, by: Gid, of: Gid) {
        if self.own.contains(&by) {
            // With the MAC address of this end it may be its own question that has come back.
            if mac == self.mac {
                self.counts.conflicts += 1;
            } else {
                self.dispute(now, by, mac);
            }
            return;
        }
        if !self.own.contains(&of) {
            self.counts.ignored += 1;
            return;
        }
        let is_pushed = self.push(frames::answer((self.mac, of), (mac, by)), MOST_WAITING - FOR_REQUESTS);
        self.counts.answers += u64::from(is_pushed);
        // Who asks says where he is (RFC 826, merge flag; RFC 4861, 7.2.3), if that is of interest here.
        if self.entries.contains_key(&by.0) {
            self.told(now, by, mac, true);
        }
    }

    fn told(&mut self, now: Moment, who: Gid, mac: Mac, overrides: bool) {
        let Some((state, _)) = self.entries.get(&who.0) else {
            self.counts.unasked += 1;
            return;
        };
        let before = state.mac();
        if before.is_some_and(|before| before != mac) && !overrides {
            self.counts.not_overriding += 1;
            return;
        }
        let is_used = matches!(state, State::Reachable { is_used: true, .. } | State::Asking { .. });
        if before != Some(mac) {
            self.changed.insert(who.0);
        }
        self.set(who.0, State::Reachable { mac, is_used }, now + REACHABLE);
    }

    /// Somebody else has an address of this end, too.
    fn dispute(&mut self, now: Moment, gid: Gid, mac: Mac) {
        self.counts.conflicts += 1;
        if !core::mem::replace(&mut self.is_said, true) {
            self.conflict = Some((gid, mac));
        }
        if self.defended.is_none_or(|last| now >= last + DEFENCES) {
            self.defended = Some(now);
            self.push(frames::defence((self.mac, gid)), MOST_WAITING);
        }
    }

    fn expire(&mut self, now: Moment, gid: [u8; 16], state: State) {
        match state {
            State::Asking { requests } => match PAUSES.get(requests) {
                Some(pause) => {
                    self.ask(Gid(gid), None);
                    self.set(gid, State::Asking { requests: requests + 1 }, now + *pause);
                }
                None => {
                    self.changed.insert(gid);
                    self.set(gid, State::Unreachable, now + UNREACHABLE);
                }
            },
            State::Reachable { mac, is_used: true } => self.probe(now, gid, mac, 1),
            State::Probing { mac, requests } if requests < PROBES => self.probe(now, gid, mac, requests + 1),
            State::Probing { .. } => {
                self.changed.insert(gid);
                self.set(gid, State::Unreachable, now + UNREACHABLE);
            }
            // Nobody has looked for it since.
            State::Reachable { .. } | State::Unreachable => self.forget(gid),
        }
    }

    fn probe(&mut self, now: Moment, gid: [u8; 16], mac: Mac, requests: usize) {
        self.ask(Gid(gid), Some(mac));
        self.set(gid, State::Probing { mac, requests }, now + SECOND);
    }

    fn set(&mut self, gid: [u8; 16], state: State, due: Moment) {
        if let Some((_, before)) = self.entries.insert(gid, (state, due)) {
            self.due.remove(&(before, gid));
        }
        self.due.insert((due, gid));
    }

    fn forget(&mut self, gid: [u8; 16]) {
        if let Some((_, due)) = self.entries.remove(&gid) {
            self.due.remove(&(due, gid));
        }
        self.changed.remove(&gid);
    }

    /// Makes room; `false`: all are being asked for.
    fn evict(&mut self) -> bool {
        let can_go = |gid: &[u8; 16]| !matches!(self.entries.get(gid), Some((State::Asking { .. }, _)) | None);
        let Some(gid) = self.due.iter().map(|entry| entry.1).find(can_go) else { return false };
        self.counts.evicted += 1;
        self.forget(gid);
        true
    }
}

/// Whether a frame is ARP, or a solicitation or advertisement of neighbour discovery without extension headers.
#[inline]
fn is_about_neighbours(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([0x08, 0x06]) => true,
        Some([0x86, 0xdd]) => frame.get(20) == Some(&58) && matches!(frame.get(54), Some(135 | 136)),
        _ => false,
    }
}
