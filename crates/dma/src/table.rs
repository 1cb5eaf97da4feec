//! The table of a domain: mappings in the order of their addresses.
//!
//! A table is immutable. It is cut into chunks that an older and a newer table share, so that a change copies one chunk and
//! the list of chunks: a domain with the memory of thousands of queues is built up in a time and a memory that do not grow
//! with the square of their number, although every IOTLB may hold on to a table of its own.

use crate::Window;
use std::sync::Arc;

/// One mapping.
pub(crate) struct Entry {
    pub first: u64,
    /// Last address, inclusive: a range may end at the end of the address space.
    pub last: u64,
    pub window: Window,
    /// One reference here, one for each ring that was resolved in this mapping.
    pub pins: Arc<()>,
}

/// Most mappings of a chunk.
const CHUNK: usize = 64;

/// Never empty.
type Chunk = Arc<[Arc<Entry>]>;

/// All mappings. A clone is the same table.
#[derive(Clone, Default)]
pub(crate) struct Table(Arc<[Chunk]>);

/// Where a mapping is in a table, or would be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    chunk: u32,
    at: u32,
}

impl Table {
    /// The mapping at a place.
    #[inline(always)]
    pub fn get(&self, place: Place) -> Option<&Arc<Entry>> {
        self.0.get(place.chunk as usize)?.get(place.at as usize)
    }

    /// The place of the first mapping that ends at this address or behind it; behind the last one if there is none.
    pub fn place_of(&self, address: u64) -> Place {
        let chunk = self.0.partition_point(|chunk| chunk.last().is_none_or(|entry| entry.last < address));
        let at = self.0.get(chunk).map_or(0, |chunk| chunk.partition_point(|entry| entry.last < address));
        Place { chunk: chunk as u32, at: at as u32 }
    }

    /// The mapping with the highest addresses.
    pub fn last(&self) -> Option<&Arc<Entry>> {
        self.0.last()?.last()
    }

    /// Number of mappings.
    pub fn len(&self) -> usize {
        self.0.iter().map(|chunk| chunk.len()).sum()
    }

    /// All mappings, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.0.iter().flat_map(|chunk| chunk.iter())
    }

    /// This table with one more mapping, which overlaps none.
    pub fn with(&self, entry: Arc<Entry>) -> Self {
        let Place { chunk, at } = self.place_of(entry.first);
        // Behind everything: there the last chunk grows, and a new one begins when it is full.
        let behind = chunk as usize == self.0.len();
        let chunk = if behind { self.0.len().saturating_sub(1) } else { chunk as usize };
        let mut entries = self.0.get(chunk).map_or_else(Vec::new, |chunk| chunk.to_vec());
        let at = if behind { entries.len() } else { at as usize };
        entries.insert(at, entry);
        let cut = match entries.len() {
            ..=CHUNK => entries.len(),
            _ if behind => CHUNK,
            all => all / 2,
        };
        let second = entries.split_off(cut);
        self.replaced(chunk, [entries, second])
    }

    /// This table without the mapping at a place.
    pub fn without(&self, place: Place) -> Self {
        let chunk = place.chunk as usize;
        let mut entries = self.0.get(chunk).map_or_else(Vec::new, |chunk| chunk.to_vec());
        if (place.at as usize) < entries.len() {
            entries.remove(place.at as usize);
        }
        self.replaced(chunk, [entries, Vec::new()])
    }

    /// This table with others in the place of a chunk; empty ones are left out.
    fn replaced(&self, chunk: usize, others: [Vec<Arc<Entry>>; 2]) -> Self {
        let new = others.into_iter().filter(|entries| !entries.is_empty()).map(Chunk::from);
        let before = self.0.iter().take(chunk).cloned();
        Self(before.chain(new).chain(self.0.iter().skip(chunk + 1).cloned()).collect())
    }
}

impl FromIterator<Arc<Entry>> for Table {
    /// Mappings in the order of their addresses.
    fn from_iter<I: IntoIterator<Item = Arc<Entry>>>(entries: I) -> Self {
        let entries: Vec<_> = entries.into_iter().collect();
        Self(entries.chunks(CHUNK).map(Chunk::from).collect())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Region;
    use std::collections::BTreeMap;

    fn entry(first: u64) -> Arc<Entry> {
        let window = Region::heap(8).window().clone();
        Arc::new(Entry { first, last: first + 9, window, pins: Arc::new(()) })
    }

    /// A table and a map of the standard library go through the same changes and say the same.
    #[test]
    fn a_table_is_a_map_of_ranges() {
        let (mut table, mut map) = (Table::default(), BTreeMap::new());
        let mut random = 1u64;
        for step in 0..4000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Behind everything at first, as drivers do, then anywhere.
            let first = if step < 300 { step * 10 } else { (random >> 33) % 600 * 10 };
            let place = table.place_of(first);
            let found = table.get(place).filter(|entry| entry.first == first).map(|entry| entry.last);
            assert_eq!(found, map.get(&first).copied(), "{first}");
            if found.is_some() {
                table = table.without(place);
                map.remove(&first);
            } else {
                table = table.with(entry(first));
                map.insert(first, first + 9);
            }
            assert_eq!(table.len(), map.len());
            let address = (random >> 20) % 7000;
            let next = table.get(table.place_of(address)).map(|entry| entry.first);
            assert_eq!(next, map.iter().find(|(_, last)| **last >= address).map(|(first, _)| *first), "{address}");
        }
        assert!(table.iter().map(|entry| entry.first).eq(map.keys().copied()));
        assert_eq!(table.last().map(|entry| entry.first), map.keys().next_back().copied());
        assert!(table.0.iter().all(|chunk| (1..=CHUNK).contains(&chunk.len())));
        let again: Table = table.iter().cloned().collect();
        assert!(again.iter().map(|entry| entry.first).eq(map.keys().copied()));
    }

    #[test]
    fn tables_share_what_has_not_changed() {
        let table: Table = (0..1000).map(|number| entry(number * 10)).collect();
        let next = table.with(entry(20_000)).without(Place { chunk: 3, at: 5 });
        let shared = table.0.iter().filter(|chunk| next.0.iter().any(|other| Arc::ptr_eq(chunk, other))).count();
        assert_eq!((table.0.len(), shared), (16, 14));
    }
}
