//! All processes that can be reached without packets, and what of a request can be done so.

use super::directory::Directory;
use super::peer::{Counts, Job, Mapped, Peer};
use super::view::{Answer, Pair, Target, fold};
use crate::memory::{Asker, Refused, Regions};
use crate::number::{Gid, Key, Qpn};
use crate::wire::Path;
use crate::work::{Access, Data, Operation, Piece, Status};

/// Most processes.
const MOST: usize = millrace_dma::SEATS;
/// Copied between two looks at whether the memory is still there.
const PART: u32 = 256 << 10;

/// Where a request is to be done: the other end of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Far<'a> {
    /// The queue pair here.
    pub asker: Asker,
    /// The way between the two.
    pub path: &'a Path,
    /// The queue pair there.
    pub remote: Qpn,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing that counts: it goes as packets.
    No,
    /// It is done.
    Done,
    /// It was done there, and cannot end well here.
    Failed(Status),
}

struct Known {
    gids: Vec<u64>,
    peer: Peer,
}

/// Where in another process WRITEs behind a key go: found out once, and looked at whether it still holds by each of them.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    place: usize,
    generation: u64,
    answer: Answer,
}

/// All of them.
#[derive(Default)]
pub struct Peers {
    known: Vec<Option<Known>>,
    /// The one that was asked for last, and its GID.
    last: (u64, usize),
    /// Changes with every one that comes or goes.
    generation: u64,
    /// Of those that are gone.
    before: Counts,
}

impl Peers {
    /// One more, with all of its GIDs. `None` when there are as many as there may be.
    pub fn add(&mut self, gids: &[Gid], peer: Peer) -> Option<usize> {
        let place = match self.known.iter().position(Option::is_none) {
            Some(place) => place,
            None if self.known.len() < MOST => {
                self.known.push(None);
                self.known.len() - 1
            }
            None => return None,
        };
        self.known[place] = Some(Known { gids: gids.iter().map(fold).collect(), peer });
        self.last = (0, usize::MAX);
        self.generation += 1;
        Some(place)
    }

    /// One fewer.
    pub fn remove(&mut self, place: usize) -> Option<Peer> {
        self.last = (0, usize::MAX);
        self.generation += 1;
        let peer = self.known.get_mut(place)?.take().map(|known| known.peer)?;
        self.before = self.before.and(peer.counts());
        Some(peer)
    }

    /// How often memory of all of them was reached, also of those that are gone.
    pub fn counts(&self) -> Counts {
        self.known.iter().flatten().fold(self.before, |all, known| all.and(known.peer.counts()))
    }

    /// One of them.
    pub fn get(&mut self, place: usize) -> Option<&mut Peer> {
        self.known.get_mut(place)?.as_mut().map(|known| &mut known.peer)
    }

    /// Whether the one at that place may make this process map so many bytes more.
    pub fn may_map(&self, place: usize, bytes: u64) -> bool {
        let all = self.known.iter().flatten().fold(Mapped::default(), |all, known| all.and(known.peer.mapped()));
        let own = self.known.get(place).and_then(Option::as_ref).map(|known| known.peer.mapped());
        own.is_some_and(|own| own.may_have(all, bytes))
    }

    #[inline(always)]
    fn of_gid(&mut self, gid: u64) -> Option<&mut Peer> {
        if self.last.0 != gid || self.last.1 == usize::MAX {
            let has = |known: &Option<Known>| known.as_ref().is_some_and(|known| known.gids.contains(&gid));
            self.last = (gid, self.known.iter().position(has)?);
        }
        self.known.get_mut(self.last.1)?.as_mut().map(|known| &mut known.peer)
    }

    /// Who a request goes to, and what it wants there; `None` for requests that the other end has a part in.
    #[inline(always)]
    fn find(&mut self, far: &Far<'_>, operation: Operation, len: u32) -> Option<(&mut Peer, Target)> {
        let (address, key, access) = match operation {
            Operation::Write { address, rkey, immediate: None } => (address, rkey, Access::REMOTE_WRITE),
            Operation::Read { address, rkey } => (address, rkey, Access::REMOTE_READ),
            Operation::CompareSwap { address, rkey, .. } | Operation::FetchAdd { address, rkey, .. } => {
                (address, rkey, Access::REMOTE_ATOMIC)
            }
            _ => return None,
        };
        let (own, other) = (fold(&far.path.source), fold(&far.path.destination));
        let (qpn, remote) = (far.remote, far.asker.qpn);
        let target = Target { qpn, remote, own, far: other, key, address, len: len.into(), access };
        self.of_gid(other).map(|peer| (peer, target))
    }

    /// Whether a request would be done, as far as the other end says.
    pub fn may_reach(&mut self, far: &Far<'_>, operation: Operation, len: u32) -> bool {
        let is_atomic = operation.asks() && !matches!(operation, Operation::Read { .. });
        if self.known.is_empty() || len == 0 {
            return false;
        }
        self.find(far, operation, len).is_some_and(|(peer, target)| peer.may_reach(&target, is_atomic))
    }

    /// Where WRITEs go that are as this one, which was just done, if others may map it.
    pub fn keep(&mut self, far: &Far<'_>, rkey: Key, address: u64) -> Option<Kept> {
        let generation = self.generation;
        let (peer, target) = self.find(far, Operation::Write { address, rkey, immediate: None }, 1)?;
        let answer = peer.keep(&target)?;
        Some(Kept { place: self.last.1, generation, answer })
    }

    /// Does such a WRITE. False: nothing was done, and it has to be found out anew where it goes.
    #[inline(always)]
    pub fn write_again(&mut self, kept: &Kept, address: u64, bytes: &[u8]) -> bool {
        match self.known.get_mut(kept.place) {
            Some(Some(known)) if kept.generation == self.generation => {
                known.peer.write_again(&kept.answer, address, bytes)
            }
            _ => false,
        }
    }

    /// Does a request of `len` bytes at the other end, if that end can be reached. All that was asked before it must have
    /// ended.
    #[inline]
    pub fn reach(
        &mut self,
        regions: &mut Regions,
        far: &Far<'_>,
        operation: Operation,
        data: Data<'_>,
        len: u32,
    ) -> Outcome {
        if self.known.is_empty() || len == 0 {
            return Outcome::No;
        }
        let Some((peer, target)) = self.find(far, operation, len) else { return Outcome::No };
        match (operation, data) {
            (Operation::Write { .. }, Data::Inline([bytes])) => {
                no_or_done(peer.reach(&target, &Job::WriteBytes(bytes)))
            }
            (Operation::Write { .. }, Data::Inline(parts)) => write_parts(peer, target, parts),
            (Operation::Write { .. }, Data::Pieces(pieces)) => copy(peer, regions, far.asker, target, pieces, true),
            (Operation::Read { .. }, Data::Pieces(pieces)) => copy(peer, regions, far.asker, target, pieces, false),
            (Operation::CompareSwap { compare, swap, .. }, Data::Pieces(pieces)) => {
                change(peer, regions, far.asker, &target, &Job::CompareSwap { compare, swap }, pieces)
            }
            (Operation::FetchAdd { add, .. }, Data::Pieces(pieces)) => {
                change(peer, regions, far.asker, &target, &Job::FetchAdd(add), pieces)
            }
            _ => Outcome::No,
        }
    }
}

fn no_or_done(done: Option<u64>) -> Outcome {
    if done.is_some() { Outcome::Done } else { Outcome::No }
}

/// Each part is written where it belongs, if it fits with all that follow.
fn write_parts(peer: &mut Peer, target: Target, parts: &[&[u8]]) -> Outcome {
    let mut at = target;
    for bytes in parts.iter().filter(|bytes| !bytes.is_empty()) {
        if peer.reach(&at, &Job::WriteBytes(bytes)).is_none() {
            return Outcome::No;
        }
        let len = bytes.len() as u64;
        (at.address, at.len) = (at.address.wrapping_add(len), at.len.saturating_sub(len));
    }
    Outcome::Done
}

/// Copies between pieces of our own and what is there, part by part. What stops in the middle goes as packets, from the
/// beginning: the same bytes to the same places.
#[inline]
fn copy(
    peer: &mut Peer,
    regions: &mut Regions,
    asker: Asker,
    target: Target,
    pieces: &[Piece],
    writes: bool,
) -> Outcome {
    let (mut at, mut rest) = (target, target.len);
    let right = if writes { Access::default() } else { Access::LOCAL_WRITE };
    let around = target.len >= regions.around_from() as u64;
    // Nothing is moved of what cannot all be moved; one piece is looked at when it is copied.
    let is_own =
        |piece: &Piece| regions.with_own(asker, piece.lkey, piece.address, piece.len, right, |_, _| ()).is_ok();
    if pieces.len() > 1 && !pieces.iter().filter(|piece| piece.len > 0).all(is_own) {
        return Outcome::No;
    }
    for piece in pieces {
        let mut done = 0;
        while done < piece.len {
            let len = (piece.len - done).min(PART);
            // All that is left has to fit: nothing is moved of what does not.
            at.len = rest;
            let Some(address) = piece.address.checked_add(done.into()) else { return Outcome::No };
            let count = len as usize;
            let moved = regions.with_own(asker, piece.lkey, address, len, right, |place, offset| {
                let job = match writes {
                    true => Job::Write { from: place, at: offset, len: count, around },
                    false => Job::Read { to: place, at: offset, len: count, around },
                };
                peer.reach(&at, &job).is_some()
            });
            if moved != Ok(true) {
                return Outcome::No;
            }
            at.address = at.address.wrapping_add(len.into());
            (done, rest) = (done + len, rest - u64::from(len));
        }
    }
    if rest == 0 { Outcome::Done } else { Outcome::No }
}

/// An atomic operation; what was there comes to the first eight bytes of the pieces.
fn change(
    peer: &mut Peer,
    regions: &mut Regions,
    asker: Asker,
    target: &Target,
    job: &Job<'_>,
    pieces: &[Piece],
) -> Outcome {
    // It cannot be taken back: where its answer goes is looked at first. Answers in several pieces are rare.
    let [piece] = pieces else { return Outcome::No };
    if !target.address.is_multiple_of(8) || piece.len < 8 {
        return Outcome::No;
    }
    let right = Access::LOCAL_WRITE;
    let done = regions.with_own(asker, piece.lkey, piece.address, 8, right, |place, offset| {
        let mut before = [0; 8];
        place.read(offset, &mut before).map_err(|_| Refused::Gone)?;
        let Some(original) = peer.reach(target, job) else { return Ok(false) };
        let stored = place.write(offset, &original.to_ne_bytes(), false);
        stored.map(|()| true).map_err(|_| Refused::Gone)
    });
    match done {
        Ok(Ok(true)) => Outcome::Done,
        Ok(Ok(false)) | Err(_) => Outcome::No,
        Ok(Err(_)) => Outcome::Failed(Status::LocalProtection),
    }
}

/// A connection, as others are to see it.
#[derive(Clone, Copy, Debug)]
pub struct Connected<'a> {
    /// The way to the other end.
    pub path: &'a Path,
    /// The queue pair there.
    pub remote: Qpn,
    /// What it may do here.
    pub access: Access,
}

impl Directory {
    /// A queue pair is connected, or (`None`) is not any more: then nobody comes by it when this returns.
    pub fn show(&self, asker: Asker, connected: Option<&Connected<'_>>) {
        let pair = connected.map(|connected| Pair {
            remote: connected.remote,
            own: fold(&connected.path.source),
            far: fold(&connected.path.destination),
            access: connected.access,
            domain: asker.domain,
        });
        self.show_pair(asker.qpn, pair.as_ref());
    }
}
