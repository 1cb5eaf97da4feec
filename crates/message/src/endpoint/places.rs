//! Memory of messages that others can map: ordinary memory that is sent again and again becomes shared memory in place (`Config::adopt`,
//! decision 58), so that the receiver copies each byte once.

use crate::buffer::Buffer;
use millrace_dma::{Adopter, Scope, SharedFile};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

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

/// What is known of memory that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It was sent.
    Sent,
    /// It does not become shared memory.
    Left,
}

/// Finds memory of messages that is shared, and makes it so.
pub struct Places {
    adopter: &'static Adopter,
    scope: Scope,
    sent: Mutex<VecDeque<(u64, u64, Known)>>,
}

impl Places {
    /// `None`: this process may not do that (`AdoptError`).
    pub fn new(scope: Scope) -> Option<Self> {
        Some(Self { adopter: Adopter::of_process().ok()?, scope, sent: Mutex::default() })
    }

    /// Where the bytes of a message are, if others can map them. What is sent for the second time is adopted, which takes about as long as
    /// sending it twice.
    pub fn find<B: Buffer>(&self, buffer: &B) -> Option<Place> {
        let bytes = buffer.whole().filter(|bytes| bytes.len() >= LEAST)?;
        let (first, len) = (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64);
        self.shared(first, len).or_else(|| {
            if !self.is_sent_again(first, len) {
                return None;
            }
            let (pages, pages_len) = pages(first, len);
            let _ = self.adopter.adopt(pages, pages_len, self.scope);
            let found = self.shared(first, len);
            if found.is_none() {
                self.remember((first, len, Known::Left));
            }
            found
        })
    }

    /// Whether it was sent before, and is worth a try.
    fn is_sent_again(&self, first: u64, len: u64) -> bool {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sent.iter().position(|one| (one.0, one.1) == (first, len));
        match known.and_then(|at| sent.remove(at)) {
            Some((_, _, Known::Sent)) => true,
            Some(left) => {
                sent.push_back(left);
                false
            }
            None => {
                drop(sent);
                self.remember((first, len, Known::Sent));
                false
            }
        }
    }

    fn remember(&self, one: (u64, u64, Known)) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() >= REMEMBERED {
            sent.pop_front();
        }
        sent.push_back(one);
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

    #[test]
    fn memory_is_adopted_when_it_is_sent_again() {
        let Some(places) = Places::new(Scope::Mappings) else {
            eprintln!("skipped: this process may not adopt memory");
            return;
        };
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
        assert!(places.sent.lock().unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_shared_is_not_tried_again() {
        let Some(places) = Places::new(Scope::Mappings) else { return };
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
        for _ in 0..4 {
            assert!(places.find(&Fixed).is_none());
        }
        assert_eq!(places.sent.lock().unwrap()[0].2, Known::Left);
        for len in LEAST..LEAST + 2 * REMEMBERED {
            places.find(&vec![0_u8; len]);
        }
        assert!(places.sent.lock().unwrap().len() <= REMEMBERED);
    }
}
