//! What is shared of this process's memory, by address.

use super::Piece;
use super::file::SharedFile;
use crate::{Cover, Taken};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Addresses up to `end`, whose bytes are those of a file.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) end: u64,
    pub(super) file: Arc<SharedFile>,
    pub(super) offset: u64,
    /// Keeps it watched. Several entries share it when one was cut.
    pub(super) cover: Option<Arc<Cover>>,
}

/// A part that is not known to be mapped any more.
#[derive(Clone)]
pub(super) struct Orphan {
    pub(super) file: Arc<SharedFile>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Entries by their first address; they do not overlap.
#[derive(Default)]
pub(super) struct Index {
    entries: BTreeMap<u64, Entry>,
}

impl Index {
    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// First addresses of what overlaps a range.
    fn overlapping(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let before = self.entries.range(..first).next_back().filter(|(_, entry)| entry.end > first);
        let inside = self.entries.range(first..end.max(first));
        before.into_iter().chain(inside).map(|(first, entry)| (*first, entry))
    }

    /// The pieces of a range, neighbours joined; and whether they are all of it.
    pub(super) fn pieces(&self, first: u64, end: u64) -> (Vec<Piece>, bool) {
        let (mut pieces, mut at, mut whole) = (Vec::<Piece>::new(), first, true);
        for (start, entry) in self.overlapping(first, end) {
            let (from, to) = (start.max(first), entry.end.min(end));
            whole &= from == at;
            at = to;
            let offset = entry.offset + (from - start);
            let joined = |last: &&mut Piece| {
                last.first + last.len == from
                    && last.offset + last.len == offset
                    && Arc::ptr_eq(&last.file, &entry.file)
            };
            match pieces.last_mut().filter(joined) {
                Some(last) => last.len += to - from,
                None => pieces.push(Piece { first: from, len: to - from, file: entry.file.clone(), offset }),
            }
        }
        (pieces, whole && at == end)
    }

    /// Remembers a range; what was known of its addresses is returned.
    pub(super) fn insert(&mut self, first: u64, entry: Entry) -> Vec<Orphan> {
        let orphans = self.take(&[Taken { first, end: entry.end }]);
        self.entries.insert(first, entry);
        orphans
    }

    /// Joins the entries of a range that came one after another, and keeps them watched by one cover.
    pub(super) fn join(&mut self, first: u64, end: u64, cover: &Arc<Cover>) {
        let inside: Vec<u64> = self.overlapping(first, end).map(|(first, _)| first).collect();
        let mut last: Option<(u64, Entry)> = None;
        for start in inside {
            let Some(mut entry) = self.entries.remove(&start) else { continue };
            entry.cover = Some(cover.clone());
            match &mut last {
                Some((from, before))
                    if before.end == start
                        && before.offset + (start - *from) == entry.offset
                        && Arc::ptr_eq(&before.file, &entry.file) =>
                {
                    before.end = entry.end;
                }
                _ => self.entries.extend(last.replace((start, entry))),
            }
        }
        self.entries.extend(last);
    }

    /// Forgets ranges; what was known of them is returned.
    pub(super) fn take(&mut self, ranges: &[Taken]) -> Vec<Orphan> {
        let mut orphans = Vec::new();
        for taken in ranges {
            let hit: Vec<u64> = self.overlapping(taken.first, taken.end).map(|(first, _)| first).collect();
            for first in hit {
                if let Some(entry) = self.entries.remove(&first) {
                    orphans.push(self.cut(first, entry, *taken));
                }
            }
        }
        orphans
    }

    /// Puts back what a cut leaves of an entry, and returns what it takes.
    fn cut(&mut self, first: u64, entry: Entry, taken: Taken) -> Orphan {
        let (from, to) = (first.max(taken.first), entry.end.min(taken.end));
        let orphan = Orphan { file: entry.file.clone(), offset: entry.offset + (from - first), len: to - from };
        if to < entry.end {
            self.entries.insert(to, Entry { offset: entry.offset + (to - first), ..entry.clone() });
        }
        if first < from {
            self.entries.insert(first, Entry { end: from, ..entry });
        }
        orphan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(end: u64, file: &Arc<SharedFile>, offset: u64) -> Entry {
        Entry { end, file: file.clone(), offset, cover: None }
    }

    #[test]
    fn neighbours_are_one_piece_and_gaps_are_seen() {
        let file = Arc::new(SharedFile::new().unwrap());
        let mut index = Index::default();
        index.insert(10, entry(20, &file, 100));
        index.insert(20, entry(30, &file, 110));
        index.insert(40, entry(50, &file, 500));
        let (pieces, whole) = index.pieces(12, 28);
        assert_eq!((pieces.len(), pieces[0].first, pieces[0].len, pieces[0].offset, whole), (1, 12, 16, 102, true));
        let (pieces, whole) = index.pieces(12, 45);
        assert_eq!((pieces.len(), pieces[1].first, pieces[1].len, whole), (2, 40, 5, false));
        assert!(!index.pieces(30, 40).1 && !index.pieces(0, 11).1);
    }

    /// Against a list of single addresses.
    #[test]
    fn any_sequence_of_insertions_and_cuts_is_remembered() {
        let file = Arc::new(SharedFile::new().unwrap());
        let steps = proptest::collection::vec((any::<bool>(), 0_u64..60, 1_u64..30), 1..40);
        let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(steps in steps)| {
            let (mut index, mut model, mut next) = (Index::default(), [None; 100], 1000);
            for (insert, first, len) in steps {
                let end = first + len;
                let known = model[first as usize..end as usize].iter().flatten().count() as u64;
                let orphans = match insert {
                    true => index.insert(first, entry(end, &file, next)),
                    false => index.take(&[Taken { first, end }]),
                };
                prop_assert_eq!(orphans.iter().map(|orphan| orphan.len).sum::<u64>(), known);
                for at in first..end {
                    model[at as usize] = insert.then_some(next + (at - first));
                }
                next += 1000;
                let (pieces, whole) = index.pieces(0, 100);
                let mut seen = [None; 100];
                for piece in &pieces {
                    (0..piece.len).for_each(|at| seen[(piece.first + at) as usize] = Some(piece.offset + at));
                }
                prop_assert_eq!(seen, model);
                prop_assert_eq!(whole, model.iter().all(Option::is_some));
            }
        });
    }
}
