//! Files behind regions: asked for by whoever reaches such a region, mapped there, and from then on stored to directly.

use super::LocalError;
use super::message::Message;
use crate::place::Running;
use millrace_dma::{Identity, Piece, Region};
use millrace_rdma::local::Shared;
use millrace_rdma::number::Key;
use rustix::fd::OwnedFd;
use std::collections::HashMap;

/// Parts of files that others may map. They are never given back, because others keep their mappings: a program that registers more
/// different ranges than that is reached by system calls there (`Shares::refused`).
const MOST: usize = 4096;
/// What is asked for by one process at a look.
const MOST_ASKED: usize = 16;

/// Parts of files of this process, by the numbers that others know.
#[derive(Default)]
pub struct Shares {
    parts: Vec<Piece>,
    numbers: HashMap<(Identity, u64, u64), u32>,
    /// Regions that are reached by system calls, because there are as many parts as there may be.
    pub refused: u64,
}

impl Shares {
    /// The number of a part. A region that is registered again has that of before.
    fn number(&mut self, piece: &Piece) -> Option<u32> {
        let part = (piece.file.identity(), piece.offset, piece.len);
        if let Some(number) = self.numbers.get(&part) {
            return Some(*number);
        }
        if self.parts.len() >= MOST {
            self.refused += 1;
            return None;
        }
        let number = self.parts.len() as u32;
        self.parts.push(piece.clone());
        self.numbers.insert(part, number);
        Some(number)
    }

    fn get(&self, number: u32) -> Option<&Piece> {
        self.parts.get(number as usize)
    }
}

/// Lets others map the whole pages of a region, if they are all one piece of shared memory.
pub fn share(running: &mut Running, lkey: Key) {
    let memory = running.engine.memory();
    if memory.regions.directory().is_none() {
        return;
    }
    let Ok(reached) = memory.regions.reached(lkey) else { return };
    // What can lose its pages under those who map it is left to system calls, and so is what lies in several pieces.
    let [piece] = &reached.pieces[..] else { return };
    if piece.file.can_shrink() || !reached.left.is_empty() {
        return;
    }
    let before = memory.shares.parts.len();
    let Some(number) = memory.shares.number(piece) else { return };
    // Taken away meanwhile: then it is shared by nobody.
    let _ = memory.regions.share(lkey, Shared { file: number, offset: 0, pages: true });
    if number as usize == before {
        (0..running.sessions.len()).for_each(|place| offer(running, place, before));
    }
}

/// Hands parts, from the one with the number `from` on, to the process of a session before it asks.
pub fn offer(running: &mut Running, place: usize, from: usize) {
    let Some((link, _)) = running.sessions.link(place) else { return };
    let shares = &running.engine.memory().shares;
    for (number, part) in shares.parts.iter().enumerate().skip(from).take(MOST_ASKED) {
        if Message::File(number as u32, part.offset, part.len).send(&*link, &[part.file.fd()]).is_err() {
            // It can ask.
            return;
        }
    }
}

/// Asks for what requests have met lately.
pub fn ask(running: &mut Running) {
    for place in 0..running.sessions.len() {
        let Some((link, peer)) = running.sessions.link(place) else { continue };
        let Some(peer) = running.engine.memory().peers.get(peer) else { continue };
        if let Some(number) = peer.take_wanted()
            && Message::Want(number).send(&*link, &[]).is_err()
        {
            // It does not read: system calls go on.
            peer.add_file(number, None);
        }
    }
}

/// Answers what the process of a session asks for, and takes its answers.
pub fn answer(running: &mut Running, place: usize) {
    for _ in 0..MOST_ASKED {
        let Some((link, peer)) = running.sessions.link(place) else { return };
        let Ok(Some((message, fds))) = Message::receive(&*link) else { return };
        let memory = running.engine.memory();
        match message {
            Message::Want(number) => {
                let part = memory.shares.get(number);
                let fd = part.map(|part| part.file.fd());
                let (offset, len) = part.map_or((0, 0), |part| (part.offset, part.len));
                // Who does not read asks in vain.
                let _ = Message::File(number, offset, len).send(&*link, fd.as_slice());
            }
            Message::File(number, offset, len) => {
                let may_map = memory.peers.may_map(peer, len);
                let Some(peer) = memory.peers.get(peer).filter(|peer| !peer.knows_file(number)) else {
                    running.sessions.malformed += 1;
                    continue;
                };
                let region = if may_map { map(fds, offset, len).ok() } else { None };
                peer.add_file(number, region.as_ref().map(Region::window));
            }
            Message::Hello(_) | Message::Welcome(_) | Message::Tell | Message::Capture => {
                running.sessions.malformed += 1
            }
        }
    }
}

fn map(fds: Vec<OwnedFd>, offset: u64, len: u64) -> Result<Region, LocalError> {
    let [fd] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| LocalError::Greeting)?;
    let len = usize::try_from(len).map_err(|_| LocalError::Greeting)?;
    Region::map_part(fd, offset, len).map_err(|error| LocalError::Peer(error.into()))
}
