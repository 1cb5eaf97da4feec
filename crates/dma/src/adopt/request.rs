//! What the thread of an adopter does: adopts ranges, and frees what was unmapped.
//!
//! It is a thread of its own because pages of whoever asks may be taken aside: its stack, and what it holds in
//! registers, must not be among them.

use super::adopter::{Adopter, State};
use super::error::{AdoptError, Refusal};
use super::exchange::{self, Exchange};
use super::file::{self, EXTENT, Identity};
use super::index::{Entry, Orphan};
use super::maps::{self, Kind, Mapped};
use super::sort::{ARENA, Part, What, leave, sort};
use super::{Left, Scope, sys, threads};
use crate::Place;
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

/// Most bytes exchanged at once; others wait for them meanwhile. A huge page, so that it can be moved as one.
pub(super) const CHUNK: u64 = 2 << 20;
/// How often it is looked for what was unmapped.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before pages that the kernel uses are tried again.
const RETRY_INTERVAL: Duration = Duration::from_micros(200);
/// Most ranges that are remembered: each is a mapping of its own.
const ENTRIES: usize = 16_384;
/// Times that is done for one request.
const RETRIES: u32 = 250;

/// A range to be adopted, in whole pages.
pub(super) struct Request {
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) scope: Scope,
    pub(super) answer: SyncSender<Result<Vec<Left>, AdoptError>>,
}

/// Serves requests for ever.
pub(super) fn run(adopter: &'static Adopter, requests: &Receiver<Request>) {
    sys::block_signals();
    exchange::warm_up();
    loop {
        match requests.recv_timeout(TIDY_INTERVAL) {
            Ok(request) => {
                let mut work = Work { adopter, left: Vec::new(), retries: RETRIES };
                let outcome = work.serve(&request).map(|()| work.left);
                // Who asked waits; if it has ended meanwhile, nobody needs the answer.
                let _ = request.answer.send(outcome);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        tidy(&mut adopter.state(), adopter);
    }
}

/// One request.
struct Work {
    adopter: &'static Adopter,
    left: Vec<Left>,
    retries: u32,
}

impl Work {
    fn serve(&mut self, request: &Request) -> Result<(), AdoptError> {
        let Request { first, end, scope, .. } = *request;
        let (maps, blocks) = (maps::read()?, threads::blocks().map_err(AdoptError::Maps)?);
        let page = rustix::param::page_size() as u64;
        for part in sort(&maps, &blocks, first, end, page, scope, |at| arena_of(at, page)) {
            match part.what {
                What::Leave(why) => self.leave(part.first, part.end, why),
                What::Shared(identity, offset) => self.share(&maps, part, identity, offset)?,
                What::Adopt => self.adopt(part.first, part.end, is_heap(&maps, part.first, page))?,
            }
        }
        Ok(())
    }

    fn leave(&mut self, first: u64, end: u64, why: Refusal) {
        self.adopter.state().counters.left += end - first;
        match self.left.last_mut() {
            Some(last) if last.why == why && last.first + last.len == first => last.len += end - first,
            _ => self.left.push(Left { first, len: end - first, why }),
        }
    }

    /// Remembers memory that is shared already, if its file can be had.
    fn share(&mut self, maps: &[Mapped], part: Part, identity: Identity, offset: u64) -> Result<(), AdoptError> {
        let Part { first, end, .. } = part;
        let mapping = maps.iter().find(|mapped| mapped.first <= first && first < mapped.end);
        let (from, to) = mapping.map_or((first, end), |mapped| (mapped.first, mapped.end));
        let file = match identity == self.adopter.file.identity() {
            true => Some(self.adopter.file.clone()),
            false => file::find(identity, from, to).map(Arc::new),
        };
        let Some(file) = file else {
            self.leave(first, end, Refusal::NoDescriptor);
            return Ok(());
        };
        let cover = Arc::new(self.adopter.watch.cover(first, end - first)?);
        let mut state = self.adopter.state();
        let orphans = state.index.insert(first, Entry { end, file, offset, cover: Some(cover) });
        state.orphans.extend(orphans);
        Ok(())
    }

    /// Adopts private memory of one mapping. `is_heap`: it is handed out by `malloc` again and again.
    fn adopt(&mut self, first: u64, end: u64, is_heap: bool) -> Result<(), AdoptError> {
        let page = rustix::param::page_size() as u64;
        let base = match &mut *self.adopter.state() {
            state if state.index.len() >= ENTRIES => Err(Refusal::Mappings),
            state if is_heap => state.place_in_heap(first).ok_or(Refusal::System(Errno::NOSPC)),
            state => state.extent(first, end - first).ok_or(Refusal::System(Errno::NOSPC)),
        };
        let base = match base {
            Ok(base) => base,
            Err(why) => {
                self.leave(first, end, why);
                return Ok(());
            }
        };
        let mut at = first;
        while at < end {
            let until = end.min((at + 1).next_multiple_of(CHUNK));
            let (done, stopped) = self.chunk(at, until, base + (at - first));
            at += done;
            let Some(why) = stopped else { continue };
            if why == Refusal::Busy && self.retries > 0 {
                self.retries -= 1;
                self.adopter.state().counters.retries += 1;
                std::thread::sleep(RETRY_INTERVAL);
                continue;
            }
            let skipped = match why {
                Refusal::Busy => at + page,
                Refusal::Watched => until.min(self.needed_until(at, until)),
                _ => end,
            };
            self.leave(at, skipped, why);
            at = skipped;
        }
        self.watch_all(first, end)
    }

    /// Where what somebody needs watched at `at` ends.
    fn needed_until(&self, at: u64, until: u64) -> u64 {
        let needed = self.adopter.watch.pause().needed(at, at + 1);
        needed.iter().map(|(_, end)| *end).max().unwrap_or(until)
    }

    /// One cover over all that was adopted between two addresses.
    fn watch_all(&self, first: u64, end: u64) -> Result<(), AdoptError> {
        let pieces = self.adopter.state().index.pieces(first, end).0;
        for piece in pieces {
            let cover = Arc::new(self.adopter.watch.cover(piece.first, piece.len)?);
            self.adopter.state().index.join(piece.first, piece.first + piece.len, &cover);
        }
        Ok(())
    }

    /// Adopts from the first address on as much as can be at once: how many bytes, and why it stopped before the end.
    fn chunk(&mut self, first: u64, end: u64, offset: u64) -> (u64, Option<Refusal>) {
        let file = &self.adopter.file;
        let ready = file.reserve(offset, end - first).and_then(|()| sys::populate(first, end - first));
        if let Err(error) = ready {
            return (0, Some(if error == Errno::AGAIN { Refusal::Busy } else { Refusal::System(error) }));
        }
        let mut state = self.adopter.state();
        let pause = self.adopter.watch.pause();
        let wanted = vec![Part { first, end, what: What::Adopt }];
        let needed = pause.needed(first, end);
        let parts = needed.iter().fold(wanted, |parts, part| leave(parts, part.0, part.1, Refusal::Watched));
        let part = parts[0];
        if let What::Leave(why) = part.what {
            return (0, Some(why));
        }
        let len = part.end - part.first;
        // What nobody needs any more may still be watched; it fails where something else watches, which is told below.
        let _ = pause.forget(first, len);
        let (faults, aside) = (self.adopter.faults.as_raw_fd(), self.adopter.aside + first % CHUNK);
        let job = Exchange { faults, first, len, aside, file: file.fd().as_raw_fd(), offset };
        let outcome = exchange::exchange(job);
        sys::discard(aside, len);
        if outcome.len > 0 {
            let entry = Entry { end: first + outcome.len, file: file.clone(), offset, cover: None };
            let orphans = state.index.insert(first, entry);
            state.orphans.extend(orphans);
            state.counters.adopted += outcome.len;
            // If that fails, so does the cover over all of it.
            let _ = pause.watch(first, outcome.len);
        }
        drop((pause, state));
        if outcome.len > 0 {
            // Touched once here, and not page by page by the program. Without it, it only takes longer.
            let _ = sys::populate(first, outcome.len);
        }
        (outcome.len, outcome.stopped)
    }
}

/// Whether private memory at an address is what `malloc` hands out again and again.
fn is_heap(maps: &[Mapped], at: u64, page: u64) -> bool {
    let mapped = |at: u64| maps.iter().find(|mapped| mapped.first <= at && at < mapped.end);
    let start = at & !(ARENA - 1);
    mapped(at).is_some_and(|mapped| mapped.kind == Kind::Heap)
        || mapped(start).is_some_and(|mapped| mapped.writable)
            && arena_of(start, page).is_some()
            && has_room(maps, start)
}

/// Whether what begins at `start` has room behind it that cannot be written and ends where a part of an arena does: so says the system. Words in memory may be
/// anybody's, such as whoever sends to a buffer that lies there. A part that is full counts as none.
fn has_room(maps: &[Mapped], start: u64) -> bool {
    let end = start + ARENA;
    maps.iter().any(|mapped| mapped.first > start && mapped.end == end && !mapped.writable)
}

/// Whose part begins at `at`, where parts of arenas of `malloc` do: each begins with the address of its arena, which is
/// behind the head of the first part.
fn arena_of(at: u64, page: u64) -> Option<u64> {
    let word = |at| {
        let mut word = [0; 8];
        let read = Place::own(at, 8, false).is_ok_and(|place| place.read(0, &mut word).is_ok());
        read.then(|| u64::from_ne_bytes(word))
    };
    let arena = word(at)?;
    let first = arena & !(ARENA - 1);
    let is_head = arena > first && arena < first + page && word(first) == Some(arena);
    is_head.then_some(first)
}

/// Frees what was unmapped, and remembers anew what is still mapped, perhaps elsewhere.
pub(super) fn tidy(state: &mut State, adopter: &'static Adopter) {
    if state.sync().is_none() || state.orphans.is_empty() {
        return;
    }
    let ours = adopter.file.identity();
    let lines =
        || maps::read().ok().map(|maps| maps.into_iter().filter_map(|mapped| Line::of(&mapped, ours)).collect());
    // Twice, because a mapping that moves while the system lists them may be in neither place.
    let (Some(before), Some(lines)): (Option<Vec<Line>>, Option<Vec<Line>>) = (lines(), lines()) else { return };
    if before != lines || state.sync() != Some(false) {
        return;
    }
    let orphans = core::mem::take(&mut state.orphans);
    for orphan in orphans.iter().filter(|orphan| Arc::ptr_eq(&orphan.file, &adopter.file)) {
        for line in lines.iter().filter(|line| line.offset < orphan.offset + orphan.len && line.last() >= orphan.offset)
        {
            remember(state, adopter, line);
        }
        for (offset, len) in unmapped(&lines, orphan) {
            if adopter.file.free(offset, len).is_ok() {
                state.counters.freed += len.min(orphan.len);
            }
        }
    }
}

fn remember(state: &mut State, adopter: &'static Adopter, line: &Line) {
    let end = line.first + line.len;
    if state.index.pieces(line.first, end).1 {
        return;
    }
    let cover = adopter.watch.cover(line.first, line.len).ok().map(Arc::new);
    let entry = Entry { end, file: adopter.file.clone(), offset: line.offset, cover };
    // What was there before is what is there now.
    drop(state.index.insert(line.first, entry));
}

/// A mapping of our file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    first: u64,
    len: u64,
    offset: u64,
}

impl Line {
    fn of(mapped: &Mapped, ours: Identity) -> Option<Self> {
        match mapped.kind {
            Kind::Shared(identity, offset) if identity == ours => {
                Some(Self { first: mapped.first, len: mapped.end - mapped.first, offset })
            }
            _ => None,
        }
    }

    fn last(&self) -> u64 {
        self.offset + self.len - 1
    }
}

/// What of an orphan is mapped nowhere, with the room behind it: offsets and lengths.
fn unmapped(lines: &[Line], orphan: &Orphan) -> Vec<(u64, u64)> {
    // A mapping may have grown into the room, and nothing else ever begins there.
    let limit = (orphan.offset / EXTENT + 1 + (orphan.len - 1) / EXTENT) * EXTENT;
    let end = orphan.offset + orphan.len;
    let mut mapped: Vec<_> = lines.iter().filter(|line| line.last() >= orphan.offset && line.offset < limit).collect();
    mapped.sort_by_key(|line| line.offset);
    let (mut gaps, mut at) = (Vec::new(), orphan.offset);
    for line in mapped {
        if at < end && line.offset > at {
            gaps.push((at, line.offset - at));
        }
        at = at.max(line.last() + 1);
    }
    if at < end {
        gaps.push((at, limit - at));
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::super::file::SharedFile;
    use super::*;

    /// A block that `malloc` maps by itself, and may move, whose bytes somebody else has chosen.
    #[test]
    fn a_block_that_looks_like_an_arena_is_none() {
        let page = rustix::param::page_size() as u64;
        let mut block = vec![0_u8; 3 * ARENA as usize];
        let first = block.as_ptr().expose_provenance() as u64;
        let start = first.next_multiple_of(ARENA);
        let words = [start + 48, 0, ARENA, ARENA];
        let at = (start - first) as usize;
        block[at..at + 32].copy_from_slice(words.map(u64::to_ne_bytes).as_flattened());
        assert_eq!(arena_of(start, page), Some(start));
        assert!(!is_heap(&maps::read().unwrap(), start + 5 * page, page));
        drop(block);
        // Those of threads are, unless they are full.
        std::thread::spawn(move || {
            let blocks: Vec<Vec<u8>> = (0..8).map(|_| vec![1; 100 << 10]).collect();
            let at = blocks[7].as_ptr().expose_provenance() as u64;
            let is_of_thread = arena_of(at & !(ARENA - 1), page).is_some();
            assert!(is_heap(&maps::read().unwrap(), at, page) || !is_of_thread);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_is_mapped_nowhere_is_found_with_the_room_behind_it() {
        let file = Arc::new(SharedFile::new().unwrap());
        let orphan = Orphan { file, offset: EXTENT + 100, len: 50 };
        let line = |offset, len| Line { first: 7, len, offset: EXTENT + offset };
        let gaps = |lines: &[Line]| {
            let gaps = unmapped(lines, &orphan);
            gaps.into_iter().map(|(offset, len)| (offset - EXTENT, len)).collect::<Vec<_>>()
        };
        assert_eq!(gaps(&[]), [(100, EXTENT - 100)]);
        assert_eq!(gaps(&[line(100, 50)]), []);
        assert_eq!(gaps(&[line(90, 20), line(130, 10)]), [(110, 20), (140, EXTENT - 140)]);
        assert_eq!(gaps(&[line(90, 20), line(150, 10)]), [(110, 40)], "another one grew or was cut behind it");
        assert_eq!(gaps(&[line(0, 100)]), [(100, EXTENT - 100)], "in front of it");
        assert_eq!(gaps(&[line(200, 10)]), [(100, 100)]);
    }
}
