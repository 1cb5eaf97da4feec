//! Memory of messages that others can map: ordinary memory that is sent again and again becomes shared memory in place (`Config::adopt`,
//! decision 58), so that the receiver copies each byte once.

use crate::buffer::Buffer;
use millrace_dma::{AdoptError, Adopter, Scope, SharedFile};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shorter messages go by buffers: what is said of them costs more than the second copy.
const LEAST: usize = 64 << 10;
/// Memory that is remembered because it was sent.
const REMEMBERED: usize = 64;

/// Where the bytes of a message are, for whoever has the file.
pub struct Place {
    /// The file.
    pub file: Arc<SharedFile>,
    /// Where in it.
    pub offset: u64,
}

/// Memory that was sent, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    first: u64,
    len: u64,
    times: u32,
}

/// What has become of memory that was sent again ([`Config::adopt`](super::Config::adopt)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Messages that the receiver could read where they were.
    pub found: u64,
    /// How often memory that was sent again did not become shared memory: its messages are copied twice.
    pub refused: u64,
    /// Why not, the last time.
    pub why: Option<String>,
}

#[derive(Default)]
struct Memory {
    sent: VecDeque<Sent>,
    told: Adopted,
}

/// Finds memory of messages that is shared, and makes it so.
pub struct Places {
    adopter: &'static Adopter,
    scope: Scope,
    memory: Mutex<Memory>,
}

impl Places {
    /// In that memory.
    ///
    /// # Errors
    /// This process may not do that.
    pub fn new(scope: Scope) -> Result<Self, AdoptError> {
        Ok(Self { adopter: Adopter::of_process()?, scope, memory: Mutex::default() })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has become of it.
    pub fn adopted(&self) -> Adopted {
        self.memory().told.clone()
    }

    /// Where the bytes of a message are, if others can map them. What is sent for the second time is adopted, which takes about as long as
    /// sending it twice. If that is refused, it is tried again at the 4th time, the 8th and so on: what was in the way may be gone.
    pub fn find<B: Buffer>(&self, buffer: &B) -> Option<Place> {
        let bytes = buffer.whole().filter(|bytes| bytes.len() >= LEAST)?;
        let (first, len) = (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64);
        let found =
            self.shared(first, len).or_else(|| self.adopt(first, len).unwrap_or_else(|why| self.refuse(why)))?;
        self.memory().told.found += 1;
        Some(found)
    }

    /// Makes it shared memory, if it was sent often enough. Errors are sentences.
    fn adopt(&self, first: u64, len: u64) -> Result<Option<Place>, String> {
        if !self.is_to_be_tried(first, len) {
            return Ok(None);
        }
        let (pages, pages_len) = pages(first, len);
        let adoption = self.adopter.adopt(pages, pages_len, self.scope).map_err(|error| error.to_string())?;
        if let Some(left) = adoption.left.first() {
            return Err(format!("{} of {pages_len} bytes at {:#x}: {}", left.len, left.first, left.why));
        }
        let found = self.shared(first, len);
        if found.is_some() {
            // What is unmapped, and mapped at the same place again, is sent for the first time then.
            self.memory().sent.retain(|one| (one.first, one.len) != (first, len));
        }
        found.map(Some).ok_or_else(|| "its pages lie apart, in several files or in several places of one".to_owned())
    }

    #[cold]
    fn refuse(&self, why: String) -> Option<Place> {
        let told = &mut self.memory().told;
        (told.refused, told.why) = (told.refused + 1, Some(why));
        None
    }

    /// It is sent once more: whether for the second time, the 4th, the 8th and so on.
    fn is_to_be_tried(&self, first: u64, len: u64) -> bool {
        let sent = &mut self.memory().sent;
        let known = sent.iter().position(|one| (one.first, one.len) == (first, len));
        let times = known.and_then(|at| sent.remove(at)).map_or(1, |one| one.times.saturating_add(1));
        if sent.len() >= REMEMBERED {
            sent.pop_front();
        }
        sent.push_back(Sent { first, len, times });
        times > 1 && times.is_power_of_two()
    }

    /// Where bytes are that are shared already, and lie together.
    fn shared(&self, first: u64, len: u64) -> Option<Place> {
        let (pages, pages_len) = pages(first, len);
        let mut pieces = self.adopter.pieces(pages, pages_len).ok()?.into_iter();
        let piece = pieces.next().filter(|piece| piece.first <= pages)?;
        let mut behind = (piece.first + piece.len, piece.offset + piece.len);
        for next in pieces {
            if next.file.identity() != piece.file.identity() || (next.first, next.offset) != behind {
                return None;
            }
            behind = (next.first + next.len, next.offset + next.len);
        }
        let is_all = behind.0 >= pages + pages_len && !piece.file.can_shrink();
        is_all.then(|| Place { offset: piece.offset + (first - piece.first), file: piece.file })
    }
}

/// All pages in which there are bytes of a range.
fn pages(first: u64, len: u64) -> (u64, u64) {
    let page = rustix::param::page_size() as u64;
    let begin = first & !(page - 1);
    (begin, (first + len).next_multiple_of(page) - begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(scope: Scope) -> Option<Places> {
        let places = Places::new(scope);
        if let Err(why) = &places {
            eprintln!("skipped: {why}");
        }
        places.ok()
    }

    /// Of whatever size and wherever it lies in what was adopted before, whoever had it, with the threshold from which on `malloc` maps blocks wherever it
    /// has gone: memory that is sent twice is shared, whole.
    #[test]
    fn memory_of_the_heap_is_adopted_across_what_was_adopted_before() {
        let Some(places) = places(Scope::Heap) else { return };
        let run = |seed: usize| {
            let mut random = seed;
            let mut next = |most: usize| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % most
            };
            // The first page of an arena is never shared.
            let _head = vec![0_u8; 8192];
            let mut kept: VecDeque<Vec<u8>> = VecDeque::new();
            for _ in 0..60 {
                let buffer = vec![next(250) as u8; LEAST + next(5 << 20)];
                let pattern = buffer[0];
                assert!(places.find(&buffer).is_some() | places.find(&buffer).is_some(), "{:?}", places.adopted());
                assert!(buffer.iter().all(|byte| *byte == pattern));
                kept.push_back(buffer);
                // What is freed is next to what is not.
                let at = next(kept.len());
                if next(3) > 0 {
                    kept.remove(at);
                }
                kept.truncate(8);
            }
            assert!(kept.iter().all(|buffer| buffer.iter().all(|byte| *byte == buffer[0])));
        };
        // And in the arenas of other threads.
        run(1);
        std::thread::scope(|scope| (2..5).for_each(|seed| drop(scope.spawn(move || run(seed)))));
        run(9);
        let last = vec![7_u8; 16 << 20];
        assert!(places.find(&last).is_some() | places.find(&last).is_some());
        assert_eq!(places.adopted().refused, 0, "{:?}", places.adopted());
    }

    #[test]
    fn memory_is_adopted_when_it_is_sent_again() {
        let Some(places) = places(Scope::Mappings) else { return };
        let bytes: Vec<u8> = (0..4_u32 << 20).map(|at| (at * 13) as u8).collect();
        let before = bytes.clone();
        assert!(places.find(&bytes).is_none());
        let place = places.find(&bytes).unwrap();
        assert_eq!(bytes, before);
        let mut found = vec![0; 4096];
        rustix::io::pread(place.file.fd(), &mut found, place.offset + 4321).unwrap();
        assert_eq!(found, before[4321..4321 + 4096]);
        // From now on it is known.
        assert_eq!(places.find(&bytes).unwrap().offset, place.offset);
        assert!(places.find(&vec![0_u8; LEAST - 1]).is_none());
        assert_eq!(places.adopted(), Adopted { found: 2, refused: 0, why: None });
    }

    /// A block of this size is mapped by itself, and the next one lies where the last one was.
    #[test]
    fn memory_that_is_mapped_again_at_the_same_place_is_adopted_as_soon_as_ever() {
        let Some(places) = places(Scope::Mappings) else { return };
        for life in 0..6 {
            let bytes = vec![life; (32 << 20) + (8 << 10)];
            let found = [places.find(&bytes), places.find(&bytes)].map(|place| place.is_some());
            assert_eq!(found, [false, true], "life {life} at {:p}: {:?}", bytes.as_ptr(), places.adopted());
        }
    }

    #[test]
    fn what_cannot_be_shared_is_tried_ever_less_often_and_told() {
        let Some(places) = places(Scope::Mappings) else { return };
        static CONSTANT: [u8; LEAST] = [1; LEAST];
        struct Fixed;
        impl Buffer for Fixed {
            fn len(&self) -> usize {
                LEAST
            }
            fn piece(&self, offset: usize, most: usize) -> &[u8] {
                &CONSTANT[offset..LEAST.min(offset + most)]
            }
            fn piece_mut(&mut self, _: usize, _: usize) -> &mut [u8] {
                &mut []
            }
            fn shorten(&mut self, _: usize) {}
        }
        let mut refused = Vec::new();
        for _ in 0..9 {
            assert!(places.find(&Fixed).is_none());
            refused.push(places.adopted().refused);
        }
        assert_eq!(refused, [0, 1, 1, 2, 2, 2, 2, 3, 3]);
        let why = places.adopted().why.unwrap();
        assert!(why.contains("private mapping of a file") || why.contains("cannot be written"), "{why}");
        for len in LEAST..LEAST + 2 * REMEMBERED {
            places.find(&vec![0_u8; len]);
        }
        assert!(places.memory().sent.len() <= REMEMBERED);
    }
}
