//! Memory of all programs of a card. A protection domain belongs to one program, so that every request says by its domain in
//! whose memory it is; a key opens nothing in another's.

use super::suspects::Suspects;
use super::waits::{Wait, Watcher};
use crate::local::{Connected, Far, Outcome};
use crate::memory::{Asker, Binding, Kept, KeptTo, Memory, ProtectionDomain, Refused, Regions};
use crate::number::{Gid, Key, Qpn};
use crate::work::{Access, Data, Operation, Piece};
use rustc_hash::FxHashMap;
use slab::Slab;

/// Most bytes of a request that are copied at once: longer ones are packets, so that others get their turns.
pub(super) const AT_ONCE: u32 = 1 << 20;

/// Bytes of a copy within one program at a time.
const PART: usize = 4096;

/// So many requests of a connection may ask for what they have no access to, each of them for something else. One is what an honest program
/// has: its packet ends the connection. Whoever goes on sends packets that do not.
const MOST_GUESSES: u8 = 4;

/// A queue pair that is connected with another one of the same card.
#[derive(Clone, Copy)]
struct Shown {
    domain: ProtectionDomain,
    remote: Qpn,
    access: Access,
    guesses: Guesses,
}

/// What the other end of a connection has asked for in vain.
#[derive(Clone, Copy, Default)]
struct Guesses {
    count: u8,
    /// The last time. A request may be looked at more than once.
    last: (Key, u64, u32),
}

/// All of it.
pub(super) struct Reach {
    pub regions: Slab<Regions>,
    /// By number of the engine's: whose it is, and its number there.
    domains: Vec<Option<(usize, ProtectionDomain)>>,
    pairs: FxHashMap<Qpn, Shown>,
    own: Vec<Gid>,
    /// Changes whenever a domain gets another owner, or a queue pair another peer: with it, where requests go.
    version: u64,
    /// Bytes copied from one program to another, without packets.
    pub copied: u64,
    /// Whose memory was used.
    pub suspects: Suspects,
    /// Looks whether that made the engine wait.
    pub watcher: Option<Box<dyn Watcher>>,
    /// Whose did, of those whose uses are looked at one by one.
    pub waits: Vec<(usize, Wait)>,
    /// Queue pairs whose other ends have guessed too often: they are to fail.
    pub guessed: Vec<Qpn>,
}

/// A request between two programs that can be done at once.
struct Way {
    from: (usize, Asker),
    to: (usize, Asker),
    address: u64,
    rkey: Key,
    access: Access,
}

impl Reach {
    pub fn new(own: &[Gid]) -> Self {
        let (domains, pairs, suspects, waits) = Default::default();
        let (regions, own, guessed) = (Slab::new(), own.to_vec(), Vec::new());
        Self { regions, domains, pairs, own, version: 0, copied: 0, suspects, watcher: None, waits, guessed }
    }

    /// A domain of the engine is that one of an owner from now on; or (`None`) of nobody.
    pub fn join(&mut self, domain: ProtectionDomain, owner: Option<(usize, ProtectionDomain)>) {
        let at = domain.0 as usize;
        if self.domains.len() <= at {
            self.domains.resize(at + 1, None);
        }
        self.domains[at] = owner;
        self.version += 1;
    }

    /// Whose a domain is, and its number there.
    pub fn domain(&self, domain: ProtectionDomain) -> Option<(usize, ProtectionDomain)> {
        self.domains.get(domain.0 as usize).copied().flatten()
    }

    fn asker(&self, asker: Asker) -> Option<(usize, Asker)> {
        let (owner, domain) = self.domain(asker.domain)?;
        Some((owner, Asker { domain, ..asker }))
    }

    /// Uses memory of the program to which the domain belongs.
    #[inline]
    fn with<R>(
        &mut self,
        asker: Asker,
        does: impl FnOnce(&mut Regions, Asker) -> Result<R, Refused>,
    ) -> Result<R, Refused> {
        let (owner, asker) = self.asker(asker).ok_or(Refused::Key)?;
        self.used(owner, |regions| does(regions, asker)).ok_or(Refused::Key)?
    }

    /// Uses memory of that program, and looks whether that makes the engine wait, if it is one of those.
    #[inline]
    fn used<R>(&mut self, owner: usize, does: impl FnOnce(&mut Regions) -> R) -> Option<R> {
        let regions = self.regions.get_mut(owner)?;
        self.suspects.note(owner);
        let watcher = self.watcher.as_mut().filter(|_| self.suspects.is_watched(owner));
        let Some(watcher) = watcher else { return Some(does(regions)) };
        // Whoever has it wait in each page is not served before he is put out.
        if self.waits.iter().any(|(other, wait)| *other == owner && wait.is_too_long()) {
            return None;
        }
        watcher.begin();
        let done = does(regions);
        let waited = watcher.end();
        self.waits.extend(waited.map(|wait| (owner, wait)));
        Some(done)
    }

    /// How a request goes that the other program has no part in; `None`: as packets.
    fn way(&self, far: &Far<'_>, operation: Operation, len: u32) -> Option<Way> {
        let (address, rkey, access) = match operation {
            Operation::Write { address, rkey, immediate: None } => (address, rkey, Access::REMOTE_WRITE),
            Operation::Read { address, rkey } => (address, rkey, Access::REMOTE_READ),
            _ => return None,
        };
        let shown = self.pairs.get(&far.remote)?;
        let is_ours = self.own.contains(&far.path.destination) && shown.remote == far.asker.qpn;
        let is_open = shown.guesses.count < MOST_GUESSES && shown.access.allows(access);
        if !is_ours || !is_open || len == 0 || len > AT_ONCE {
            return None;
        }
        let (from, to) = (self.asker(far.asker)?, self.asker(Asker { domain: shown.domain, qpn: far.remote })?);
        Some(Way { from, to, address, rkey, access })
    }

    fn both(&mut self, way: &Way) -> Option<(&mut Regions, &mut Regions)> {
        let is_there = self.regions.contains(way.from.0) && self.regions.contains(way.to.0);
        if is_there { self.regions.get2_mut(way.from.0, way.to.0) } else { None }
    }

    fn may(&mut self, way: &Way, len: u32) -> Result<(), Refused> {
        let to = self.regions.get_mut(way.to.0).ok_or(Refused::Gone)?;
        to.with_reached(way.to.1, way.rkey, way.address, len, way.access, |_, _| ())
    }

    /// A request that was refused goes as a packet, which is refused once more, and ends the connection. Unless it has a number that is not
    /// expected: then nobody looks at its key, and the one who sends it has learned from the way that it went.
    #[cold]
    fn count_guess(&mut self, way: &Way, len: u32, refused: Refused) {
        let qpn = way.to.1.qpn;
        let Some(Shown { guesses, .. }) = self.pairs.get_mut(&qpn).filter(|_| refused != Refused::Gone) else { return };
        let wanted = (way.rkey, way.address, len);
        if guesses.count > 0 && guesses.last == wanted {
            return;
        }
        (guesses.count, guesses.last) = (guesses.count.saturating_add(1), wanted);
        if guesses.count == MOST_GUESSES {
            self.guessed.push(qpn);
        }
    }

    /// Bytes given with a request.
    fn put(&mut self, way: &Way, parts: &[&[u8]]) -> Option<()> {
        let mut address = way.address;
        self.used(way.to.0, |to| {
            for part in parts.iter().filter(|part| !part.is_empty()) {
                let write = to.with_reached(way.to.1, way.rkey, address, part.len() as u32, way.access, |place, at| {
                    place.write(at, part, false)
                });
                write.ok()?.ok()?;
                address = address.wrapping_add(part.len() as u64);
            }
            Some(())
        })?
    }

    /// From one program to the other, or back. What stops in the middle goes as packets from the beginning: the same bytes to
    /// the same places.
    fn copy(&mut self, way: &Way, pieces: &[Piece], writes: bool) -> Option<()> {
        let ends = [way.from.0, way.to.0];
        if way.from.0 == way.to.0 || ends.iter().any(|end| self.suspects.is_watched(*end)) {
            return self.copy_by_parts(way, pieces, writes);
        }
        ends.iter().for_each(|end| self.suspects.note(*end));
        let right = if writes { Access::default() } else { Access::LOCAL_WRITE };
        let (from, to) = self.both(way)?;
        let (asker, other) = (way.from.1, way.to.1);
        let mut is_own =
            |piece: &Piece| from.with_own(asker, piece.lkey, piece.address, piece.len, right, |_, _| ()).is_ok();
        if !pieces.iter().filter(|piece| piece.len > 0).all(&mut is_own) {
            return None;
        }
        let mut address = way.address;
        for piece in pieces.iter().filter(|piece| piece.len > 0) {
            let len = piece.len as usize;
            let copied = from.with_own(asker, piece.lkey, piece.address, piece.len, right, |own, at| {
                to.with_reached(other, way.rkey, address, piece.len, way.access, |far, there| match writes {
                    true => own.copy_to(at, far, there, len, false),
                    false => far.copy_to(there, own, at, len, false),
                })
            });
            copied.ok()?.ok()?.ok()?;
            address = address.wrapping_add(piece.len.into());
        }
        Some(())
    }

    /// The same by a buffer between, so that memory of one program is used at a time: within one program, because its regions are one table,
    /// and where it is looked at whose memory makes the engine wait.
    fn copy_by_parts(&mut self, way: &Way, pieces: &[Piece], writes: bool) -> Option<()> {
        let ((from, asker), (to, other)) = (way.from, way.to);
        let (mut address, mut part) = (way.address, [0; PART]);
        for piece in pieces {
            for at in (0..piece.len).step_by(PART) {
                let part = &mut part[..PART.min((piece.len - at) as usize)];
                let own = piece.address.checked_add(at.into())?;
                if writes {
                    self.used(from, |regions| regions.gather(asker, piece.lkey, own, part))?.ok()?;
                    self.used(to, |regions| regions.write(other, way.rkey, address, part))?.ok()?;
                } else {
                    self.used(to, |regions| regions.read(other, way.rkey, address, part))?.ok()?;
                    self.used(from, |regions| regions.scatter(asker, piece.lkey, own, part))?.ok()?;
                }
                address = address.wrapping_add(part.len() as u64);
            }
        }
        Some(())
    }
}

impl Memory for Reach {
    fn gather(&mut self, asker: Asker, lkey: Key, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        self.with(asker, |regions, asker| regions.gather(asker, lkey, address, to))
    }

    fn scatter(&mut self, asker: Asker, lkey: Key, address: u64, from: &[u8]) -> Result<(), Refused> {
        self.with(asker, |regions, asker| regions.scatter(asker, lkey, address, from))
    }

    fn allows(&mut self, asker: Asker, rkey: Key, address: u64, len: u64, wanted: Access) -> Result<(), Refused> {
        self.with(asker, |regions, asker| regions.allows(asker, rkey, address, len, wanted))
    }

    fn read(&mut self, asker: Asker, rkey: Key, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        self.with(asker, |regions, asker| regions.read(asker, rkey, address, to))
    }

    fn write(&mut self, asker: Asker, rkey: Key, address: u64, from: &[u8]) -> Result<(), Refused> {
        self.with(asker, |regions, asker| regions.write(asker, rkey, address, from))
    }

    fn compare_swap(&mut self, asker: Asker, rkey: Key, address: u64, compare: u64, swap: u64) -> Result<u64, Refused> {
        self.with(asker, |regions, asker| regions.compare_swap(asker, rkey, address, compare, swap))
    }

    fn fetch_add(&mut self, asker: Asker, rkey: Key, address: u64, add: u64) -> Result<u64, Refused> {
        self.with(asker, |regions, asker| regions.fetch_add(asker, rkey, address, add))
    }

    fn invalidate(&mut self, asker: Asker, key: Key, remote: bool) -> Result<(), Refused> {
        self.with(asker, |regions, asker| regions.invalidate(asker, key, remote))
    }

    fn bind(&mut self, asker: Asker, window: Binding) -> Result<(), Refused> {
        self.with(asker, |regions, asker| regions.bind(asker, window))
    }

    fn reach(&mut self, far: &Far<'_>, operation: Operation, data: Data<'_>, len: u32) -> Outcome {
        let Some(way) = self.way(far, operation, len) else { return Outcome::No };
        // All of it has to fit, before the first byte is moved.
        if let Err(refused) = self.may(&way, len) {
            self.count_guess(&way, len, refused);
            return Outcome::No;
        }
        let done = match (operation, data) {
            (Operation::Write { .. }, Data::Inline(parts)) => self.put(&way, parts),
            (Operation::Write { .. }, Data::Pieces(pieces)) => self.copy(&way, pieces, true),
            (Operation::Read { .. }, Data::Pieces(pieces)) => self.copy(&way, pieces, false),
            _ => None,
        };
        if done.is_none() {
            return Outcome::No;
        }
        self.copied += u64::from(len);
        Outcome::Done
    }

    fn may_reach(&mut self, far: &Far<'_>, operation: Operation, len: u32) -> bool {
        // What its key opens is looked at when its turn has come, and then it counts: all that can be wrong with it now is a mistake.
        self.way(far, operation, len).is_some()
    }

    fn keep(&mut self, far: &Far<'_>, rkey: Key, address: u64) -> Option<Kept> {
        let way = self.way(far, Operation::Write { address, rkey, immediate: None }, 1)?;
        let (owner, asker) = way.to;
        Some(Kept { rkey, to: KeptTo::Program { owner, asker, version: self.version } })
    }

    #[inline(always)]
    fn write_again(&mut self, kept: &Kept, address: u64, bytes: &[u8]) -> bool {
        let KeptTo::Program { owner, asker, version } = kept.to else { return false };
        if version != self.version || self.suspects.is_watched(owner) {
            return false;
        }
        self.suspects.note(owner);
        let Some(to) = self.regions.get_mut(owner) else { return false };
        let len = bytes.len() as u32;
        let done = to.with_reached(asker, kept.rkey, address, len, Access::REMOTE_WRITE, |place, at| {
            place.write(at, bytes, false).is_ok()
        });
        let is_done = done == Ok(true);
        self.copied += if is_done { u64::from(len) } else { 0 };
        is_done
    }

    fn show(&mut self, asker: Asker, connected: Option<&Connected<'_>>) {
        self.version += 1;
        match connected.filter(|connected| self.own.contains(&connected.path.destination)) {
            Some(&Connected { remote, access, .. }) => {
                let guesses = Guesses::default();
                self.pairs.insert(asker.qpn, Shown { domain: asker.domain, remote, access, guesses });
            }
            None => {
                self.pairs.remove(&asker.qpn);
            }
        }
    }
}
