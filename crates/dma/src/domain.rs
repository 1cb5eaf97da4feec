//! The address space of one owner, and the card's way through it.
//!
//! The table of a domain is immutable; a change puts a new one in its place (read-copy-update). An [`Iotlb`] pins the
//! table it last saw, and with it every entry in it, and looks for a newer one only in [`Iotlb::sync`], once per burst.
//! An entry that no table holds any more cannot be reached by any worker: that is what [`Domain::unmap`] waits for, and
//! the count of references is the whole protocol.
//!
//! The table of [`Domain::own_process`] is a cache of what the system says is mapped: an address that is not in it is
//! looked up before it is a fault.

use crate::table::{Entry, Place, Table};
use crate::{Iova, Span, SpanMut, Window};
use core::cell::{Cell, OnceCell};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// What a card may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Load only: memory from which packets are sent.
    Read,
    /// Load and store.
    ReadWrite,
}

/// An access that the domain does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no mapping allows {access:?} of {len} bytes at IOVA {iova}")]
pub struct Fault {
    /// First address of the access.
    pub iova: Iova,
    /// Its length in bytes.
    pub len: usize,
    /// What the card wanted to do.
    pub access: Access,
}

/// Why a mapping was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The range is empty or passes the end of the address space.
    #[error("{len} bytes at IOVA {iova} are no range that can be mapped")]
    Range {
        /// First address.
        iova: Iova,
        /// Length in bytes.
        len: usize,
    },
    /// Part of the range is mapped already.
    #[error("{len} bytes at IOVA {iova} overlap a mapping that exists; unmap it first or choose another address")]
    Overlap {
        /// First address.
        iova: Iova,
        /// Length in bytes.
        len: usize,
    },
    /// The memory is mapped read-only in this process, so that the card could not write it either.
    #[error("the memory is read-only here, so the card cannot be allowed to write it")]
    ReadOnly,
    /// The addresses of the domain are those of the process.
    #[error("in a domain that is the process's own address space everything has its address already")]
    OwnProcess,
}

/// Why a mapping could not be taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnmapError {
    /// No mapping begins there.
    #[error("no mapping begins at IOVA {0}")]
    NotMapped(Iova),
    /// A ring of a running queue lies in it.
    #[error("a running queue has a ring in the mapping at IOVA {0}; stop the queue first")]
    InUse(Iova),
    /// A worker did not come round in time.
    #[error("the card did not let go of the mapping at IOVA {0} in time")]
    Timeout(Iova),
}

/// Finds memory that nobody has mapped into a domain: what holds the addresses from the first to the last (inclusive)
/// and allows the access, and where it begins.
pub(crate) type Lookup = fn(u64, u64, Access) -> Option<(u64, Window)>;

/// The IOVA space of one owner.
pub struct Domain {
    table: Mutex<Table>,
    // Counts changes of the table. Release in `replace` pairs with Acquire in `Iotlb::sync`.
    generation: AtomicU64,
    faults: AtomicU64,
    lookup: Option<Lookup>,
}

/// Where [`Domain::map`] puts what may lie anywhere: above 4 GiB, so that 32-bit mistakes show.
const FIRST_FREE: u64 = 1 << 32;
/// Distance kept between mappings, so that running over the end of one is a fault.
const GUARD: u64 = 1 << 16;

impl Default for Domain {
    fn default() -> Self {
        Self::new()
    }
}

impl Domain {
    /// An address space with nothing in it.
    pub fn new() -> Self {
        Self { table: Mutex::default(), generation: AtomicU64::new(0), faults: AtomicU64::new(0), lookup: None }
    }

    /// An address space that is filled by looking things up: its table is a cache.
    #[cfg_attr(loom, expect(dead_code, reason = "model memory has no addresses of its own"))]
    pub(crate) fn with_lookup(lookup: Lookup) -> Self {
        Self { lookup: Some(lookup), ..Self::new() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // A table is replaced as a whole, so a panic elsewhere cannot have left it half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps a window at the address wanted, or at a free one, and returns the address.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map(&self, window: Window, access: Access, at: Option<Iova>) -> Result<Iova, MapError> {
        if self.lookup.is_some() {
            return Err(MapError::OwnProcess);
        }
        if access == Access::ReadWrite && !window.is_writable() {
            return Err(MapError::ReadOnly);
        }
        let window = if access == Access::Read { window.read_only() } else { window };
        let len = window.len();
        let mut table = self.table();
        let first = match at {
            Some(iova) => iova.get(),
            None => table.last().map_or(FIRST_FREE, |entry| {
                (entry.last.max(FIRST_FREE)).saturating_add(GUARD).checked_next_multiple_of(GUARD).unwrap_or(u64::MAX)
            }),
        };
        let range = MapError::Range { iova: Iova::new(first), len };
        let last = (len as u64).checked_sub(1).and_then(|rest| first.checked_add(rest)).ok_or(range)?;
        if table.get(table.place_of(first)).is_some_and(|entry| entry.first <= last) {
            return Err(MapError::Overlap { iova: Iova::new(first), len });
        }
        let next = table.with(Arc::new(Entry { first, last, window, pins: Arc::new(()) }));
        self.replace(&mut table, next);
        Ok(Iova::new(first))
    }

    fn replace(&self, table: &mut MutexGuard<'_, Table>, next: Table) {
        **table = next;
        // Release: an IOTLB that sees the new generation (Acquire in `sync`) also finds the new table.
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Makes sure that the table holds this memory, if need be by looking it up. `None`: nobody has mapped it.
    #[cold]
    fn find(&self, table: &mut MutexGuard<'_, Table>, iova: Iova, len: usize, access: Access) -> Option<()> {
        if search(table, iova.get(), len, access).is_some() {
            return Some(());
        }
        let last = iova.get().checked_add(len.max(1) as u64 - 1)?;
        let (first, window) = (self.lookup?)(iova.get(), last, access)?;
        let last = first + (window.len() as u64 - 1);
        // What was found before and overlaps was something else, or less.
        let others = table.iter().filter(|entry| entry.last < first || entry.first > last);
        let others: Table = others.cloned().collect();
        let next = others.with(Arc::new(Entry { first, last, window, pins: Arc::new(()) }));
        self.replace(table, next);
        Some(())
    }

    /// Takes the mapping that begins at `iova` away and returns when no worker can reach its memory any more.
    /// `nudge` is called while waiting: it must make sleeping workers come round.
    ///
    /// # Errors
    /// [`UnmapError`]. After [`UnmapError::Timeout`] the mapping is gone for new translations all the same.
    pub fn unmap(&self, iova: Iova, patience: Duration, mut nudge: impl FnMut()) -> Result<(), UnmapError> {
        let mut entry = {
            let mut table = self.table();
            let place = table.place_of(iova.get());
            let entry = table.get(place).filter(|entry| entry.first == iova.get());
            let entry = entry.cloned().ok_or(UnmapError::NotMapped(iova))?;
            if Arc::strong_count(&entry.pins) > 1 {
                return Err(UnmapError::InUse(iova));
            }
            let next = table.without(place);
            self.replace(&mut table, next);
            entry
        };
        let deadline = Instant::now() + patience;
        // Every table that holds the entry goes when the last IOTLB that pins it has come to its next `sync`; the newest
        // one is not enough to wait for, an IOTLB may have slept through several. `get_mut` succeeds, with Acquire, when
        // ours is the last reference: all accesses made through the others have happened before.
        while Arc::get_mut(&mut entry).is_none() {
            if Instant::now() > deadline {
                return Err(UnmapError::Timeout(iova));
            }
            nudge();
            std::thread::yield_now();
        }
        Ok(())
    }

    /// The mapping that holds `len` bytes at `iova`, for a ring that stays in use: it cannot be unmapped before the
    /// result is dropped.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn resolve(&self, iova: Iova, len: usize, access: Access) -> Result<Pinned, Fault> {
        let fault = Fault { iova, len, access };
        // Under the lock until the mapping is pinned: `unmap` either finds the pin, or has taken the mapping away before.
        let mut table = self.table();
        self.find(&mut table, iova, len, access).ok_or(fault)?;
        let entry = search(&table, iova.get(), len, access).map(|(_, entry)| entry).ok_or(fault)?;
        let window = entry.window.part((iova.get() - entry.first) as usize, len).map_err(|_| fault)?;
        Ok(Pinned { window, _pin: entry.pins.clone() })
    }

    /// Translations that failed, over all IOTLBs of this domain.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Number of mappings.
    pub fn mappings(&self) -> usize {
        self.table().len()
    }
}

/// A window of a domain that cannot be unmapped while this exists.
pub struct Pinned {
    window: Window,
    _pin: Arc<()>,
}

impl Pinned {
    /// The memory.
    pub fn window(&self) -> &Window {
        &self.window
    }
}

fn search(table: &Table, first: u64, len: usize, access: Access) -> Option<(Place, &Entry)> {
    let place = table.place_of(first);
    let entry = table.get(place)?;
    holds(entry, first, len, access).then_some((place, entry))
}

#[inline(always)]
fn holds(entry: &Entry, first: u64, len: usize, access: Access) -> bool {
    let inside = first >= entry.first && first <= entry.last && len as u64 <= (entry.last - first).saturating_add(1);
    inside && (access == Access::Read || entry.window.is_writable())
}

/// A queue's translation cache: the table of its domain as last seen, and the mapping used last.
///
/// One queue mostly works in one mapping, so that a hit is two comparisons. A search is a binary search of the table.
pub struct Iotlb {
    domain: Arc<Domain>,
    table: Table,
    generation: u64,
    last: Cell<Place>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    found: Found,
}

/// Tables that came by looking up while spans of older ones may have been alive; [`Iotlb::sync`] takes over the newest.
/// The last cell is empty.
#[derive(Default)]
struct Found(OnceCell<Box<(Table, Found)>>);

impl Found {
    /// The table that was found last, and the cell for the next.
    fn newest(&self) -> (Option<&Table>, &Found) {
        let (mut table, mut end) = (None, self);
        while let Some(found) = end.0.get() {
            (table, end) = (Some(&found.0), &found.1);
        }
        (table, end)
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        // One after the other: they can be more than a stack could hold nested.
        let mut next = self.0.take();
        while let Some(mut found) = next {
            next = found.1.0.take();
        }
    }
}

impl Iotlb {
    /// A cache in front of `domain`.
    pub fn new(domain: Arc<Domain>) -> Self {
        let generation = domain.generation.load(Ordering::Acquire);
        let table = domain.table().clone();
        let (last, hits, misses) = (Cell::default(), Cell::new(0), Cell::new(0));
        Self { domain, table, generation, last, hits, misses, found: Found::default() }
    }

    /// Whether this is a cache in front of `domain`.
    #[inline(always)]
    pub fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    /// Takes over changes of the domain. To be called between bursts: no span of an older table can be alive, because
    /// they borrow this cache.
    ///
    /// Never waits: while somebody changes the domain, the table seen last stays good until the next call. What it does not
    /// hold is looked for in the newest one.
    #[inline]
    pub fn sync(&mut self) {
        // Acquire pairs with Release in `Domain::replace`.
        if self.domain.generation.load(Ordering::Acquire) != self.generation {
            self.reload();
        }
    }

    #[cold]
    fn reload(&mut self) {
        let table = match self.domain.table.try_lock() {
            Ok(table) => table,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        // Only changed under the lock, so that it belongs to this table.
        self.generation = self.domain.generation.load(Ordering::Relaxed);
        let seen = core::mem::replace(&mut self.table, table.clone());
        drop(table);
        drop(seen);
        self.last.set(Place::default());
        self.found = Found::default();
    }

    /// Translations answered by the mapping used last, and translations that had to search the table.
    #[inline(always)]
    pub fn counts(&self) -> (u64, u64) {
        (self.hits.get(), self.misses.get())
    }

    #[inline(always)]
    fn entry(&self, iova: Iova, len: usize, access: Access) -> Result<&Entry, Fault> {
        if let Some(entry) = self.table.get(self.last.get())
            && holds(entry, iova.get(), len, access)
        {
            self.hits.set(self.hits.get() + 1);
            return Ok(entry);
        }
        self.miss(iova, len, access)
    }

    #[cold]
    fn miss(&self, iova: Iova, len: usize, access: Access) -> Result<&Entry, Fault> {
        if let Some((place, entry)) = search(&self.table, iova.get(), len, access) {
            self.misses.set(self.misses.get() + 1);
            self.last.set(place);
            return Ok(entry);
        }
        if let Some(entry) = self.look_up(iova, len, access) {
            self.misses.set(self.misses.get() + 1);
            return Ok(entry);
        }
        self.domain.faults.fetch_add(1, Ordering::Relaxed);
        Err(Fault { iova, len, access })
    }

    /// The newest table of the domain, if it holds this memory.
    fn newest_with(&self, iova: Iova, len: usize, access: Access) -> Option<Table> {
        // A table that is as new as the domain's and is not filled by looking up says what there is to say.
        // Acquire pairs with Release in `Domain::replace`.
        if self.domain.lookup.is_none() && self.domain.generation.load(Ordering::Acquire) == self.generation {
            return None;
        }
        let mut table = self.domain.table();
        self.domain.find(&mut table, iova, len, access)?;
        Some(table.clone())
    }

    /// As [`Iotlb::miss`], beyond the table of this cache.
    fn look_up(&self, iova: Iova, len: usize, access: Access) -> Option<&Entry> {
        let (newest, end) = self.found.newest();
        let known = newest.and_then(|table| search(table, iova.get(), len, access));
        if let Some((_, entry)) = known {
            return Some(entry);
        }
        let table = self.newest_with(iova, len, access)?;
        let (table, _) = &**end.0.get_or_init(|| Box::new((table, Found::default())));
        search(table, iova.get(), len, access).map(|(_, entry)| entry)
    }

    /// `len` bytes at `iova`, to be read.
    ///
    /// # Errors
    /// [`Fault`].
    #[inline(always)]
    pub fn read(&self, iova: Iova, len: usize) -> Result<Span<'_>, Fault> {
        let entry = self.entry(iova, len, Access::Read)?;
        entry.window.span((iova.get() - entry.first) as usize, len).ok_or(Fault { iova, len, access: Access::Read })
    }

    /// `len` bytes at `iova`, to be written.
    ///
    /// # Errors
    /// [`Fault`].
    #[inline(always)]
    pub fn write(&self, iova: Iova, len: usize) -> Result<SpanMut<'_>, Fault> {
        let access = Access::ReadWrite;
        let entry = self.entry(iova, len, access)?;
        entry.window.span_mut((iova.get() - entry.first) as usize, len).ok_or(Fault { iova, len, access })
    }

    /// The mapping that holds `len` bytes at `iova`, for a run of accesses that mostly stay in it.
    ///
    /// # Errors
    /// [`Fault`].
    #[inline(always)]
    pub fn reach(&self, iova: Iova, len: usize, access: Access) -> Result<Reach<'_>, Fault> {
        let entry = self.entry(iova, len, access)?;
        Ok(Reach { first: entry.first, window: &entry.window })
    }

    /// As [`Iotlb::reach`], for a hint: counts nothing, and finds only the mapping used last.
    #[inline(always)]
    pub fn peek(&self, iova: Iova, len: usize, access: Access) -> Option<Reach<'_>> {
        let entry = self.table.get(self.last.get())?;
        holds(entry, iova.get(), len, access).then_some(Reach { first: entry.first, window: &entry.window })
    }

    /// Counts accesses that were made through a [`Reach`] without asking again.
    #[inline(always)]
    pub fn count_hits(&self, hits: u64) {
        self.hits.set(self.hits.get() + hits);
    }

    /// The 64-bit word at `iova`, read once.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn read_u64(&self, iova: Iova) -> Result<u64, Fault> {
        let fault = Fault { iova, len: 8, access: Access::Read };
        let entry = self.entry(iova, 8, Access::Read)?;
        let word = entry.window.word64((iova.get() - entry.first) as usize).map_err(|_| fault)?;
        Ok(u64::from_le(word.load(Ordering::Relaxed)))
    }
}

/// One mapping of a domain, borrowed from the [`Iotlb`] that found it.
#[derive(Clone, Copy)]
pub struct Reach<'a> {
    first: u64,
    window: &'a Window,
}

impl<'a> Reach<'a> {
    /// `len` bytes at `iova`, to be read; `None` outside this mapping.
    #[inline(always)]
    pub fn span(&self, iova: Iova, len: usize) -> Option<Span<'a>> {
        // An address before the mapping becomes a huge offset, which no window holds.
        self.window.span(iova.get().wrapping_sub(self.first) as usize, len)
    }

    /// `len` bytes at `iova`, to be written; `None` outside this mapping or if it is read-only.
    #[inline(always)]
    pub fn span_mut(&self, iova: Iova, len: usize) -> Option<SpanMut<'a>> {
        self.window.span_mut(iova.get().wrapping_sub(self.first) as usize, len)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Region;

    fn mapped(len: usize) -> (Arc<Domain>, Region, Iova) {
        let domain = Arc::new(Domain::new());
        let region = Region::heap(len);
        let iova = domain.map(region.window().clone(), Access::ReadWrite, None).unwrap();
        (domain, region, iova)
    }

    #[test]
    fn translates_inside_and_faults_outside() {
        let (domain, region, iova) = mapped(4096);
        let iotlb = Iotlb::new(domain.clone());
        iotlb.write(iova.plus(4000), 5).unwrap().write_from(b"bytes");
        assert_eq!(region.window().slice(4000, 5).unwrap(), b"bytes");
        assert!(iotlb.read(iova.plus(4092), 4).is_ok());
        for (at, len) in [(4092, 5), (4096, 1), (u64::MAX - iova.get(), 2)] {
            let fault = iotlb.read(iova.plus(at), len).err().unwrap();
            assert_eq!(fault, Fault { iova: iova.plus(at), len, access: Access::Read });
        }
        assert!(iotlb.read(Iova::new(0), 1).is_err());
        assert_eq!((iotlb.counts(), domain.faults()), ((2, 0), 4));
    }

    #[test]
    fn mappings_do_not_overlap_and_keep_a_distance() {
        let (domain, region, iova) = mapped(4096);
        let again = domain.map(region.window().clone(), Access::Read, None).unwrap();
        assert!(again.get() >= iova.get() + 4096 + 4096);
        let at = Some(iova.plus(1));
        assert!(matches!(domain.map(region.window().clone(), Access::Read, at), Err(MapError::Overlap { .. })));
        let at = Some(Iova::new(u64::MAX - 4094));
        assert!(matches!(domain.map(region.window().clone(), Access::Read, at), Err(MapError::Range { .. })));
        let at = Some(Iova::new(u64::MAX - 4095));
        domain.map(region.window().clone(), Access::Read, at).unwrap();
        assert!(Iotlb::new(domain.clone()).read(Iova::new(u64::MAX), 1).is_ok(), "the very last byte");
        assert!(domain.map(region.window().clone(), Access::Read, None).is_err(), "no room behind it");
    }

    #[test]
    fn a_read_only_mapping_cannot_be_written_by_the_card() {
        let domain = Arc::new(Domain::new());
        let region = Region::heap(64);
        let iova = domain.map(region.window().clone(), Access::Read, None).unwrap();
        let iotlb = Iotlb::new(domain);
        assert!(iotlb.read(iova, 64).is_ok());
        assert!(iotlb.write(iova, 1).is_err());
    }

    #[test]
    fn unmap_waits_for_every_iotlb() {
        let (domain, _region, iova) = mapped(64);
        let mut iotlb = Iotlb::new(domain.clone());
        let patience = Duration::from_millis(20);
        assert_eq!(domain.unmap(iova, patience, || ()), Err(UnmapError::Timeout(iova)));
        assert!(iotlb.read(iova, 1).is_ok(), "still pinned: nobody may free the memory yet");
        let (domain, _region, iova) = {
            iotlb.sync();
            assert!(iotlb.read(iova, 1).is_err());
            mapped(64)
        };
        let mut iotlb = Iotlb::new(domain.clone());
        assert_eq!(domain.unmap(iova, Duration::from_secs(10), || iotlb.sync()), Ok(()));
        assert_eq!(domain.unmap(iova, patience, || ()), Err(UnmapError::NotMapped(iova)));
    }

    #[test]
    fn unmap_waits_for_an_iotlb_that_slept_through_other_changes() {
        let (domain, region, iova) = mapped(64);
        let mut iotlb = Iotlb::new(domain.clone());
        domain.map(region.window().clone(), Access::Read, None).unwrap();
        assert_eq!(domain.unmap(iova, Duration::from_millis(20), || ()), Err(UnmapError::Timeout(iova)));
        assert!(iotlb.read(iova, 1).is_ok(), "it still works with the table before the second mapping");
        iotlb.sync();
        assert!(iotlb.read(iova, 1).is_err());
    }

    #[test]
    fn a_ring_in_use_cannot_be_unmapped() {
        let (domain, _region, iova) = mapped(64);
        let pinned = domain.resolve(iova.plus(8), 16, Access::ReadWrite).unwrap();
        assert_eq!(pinned.window().len(), 16);
        assert_eq!(domain.unmap(iova, Duration::ZERO, || ()), Err(UnmapError::InUse(iova)));
        drop(pinned);
        assert_eq!(domain.unmap(iova, Duration::ZERO, || ()), Ok(()));
        assert!(domain.resolve(iova, 1, Access::Read).is_err());
    }

    #[test]
    fn a_worker_does_not_wait_for_whoever_changes_the_domain() {
        let (domain, region, iova) = mapped(64);
        let mut iotlb = Iotlb::new(domain.clone());
        let later = domain.map(region.window().clone(), Access::Read, None).unwrap();
        let changing = domain.table();
        let (tell, told) = std::sync::mpsc::channel();
        let worker = std::thread::spawn(move || {
            iotlb.sync();
            tell.send(iotlb.read(iova, 64).is_ok()).unwrap();
            iotlb
        });
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(true), "what was mapped before can be reached");
        drop(changing);
        let mut iotlb = worker.join().unwrap();
        assert!(iotlb.read(later, 64).is_ok(), "what was mapped meanwhile is no fault");
        iotlb.sync();
        assert!(iotlb.read(later, 64).is_ok());
        assert_eq!(domain.faults(), 0);
        assert_eq!(domain.unmap(later, Duration::from_secs(60), || iotlb.sync()), Ok(()));
    }

    #[test]
    fn what_is_pinned_is_mapped() {
        let (domain, region, iova) = mapped(64);
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let pinner = std::thread::spawn({
            let (domain, stop) = (domain.clone(), stop.clone());
            move || {
                let (mut pinned, mut lost) = (0u32, 0u32);
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(_pinned) = domain.resolve(iova, 64, Access::Read) {
                        std::thread::yield_now();
                        (pinned, lost) = (pinned + 1, lost + u32::from(domain.mappings() == 0));
                    }
                }
                (pinned, lost)
            }
        });
        let (mut unmapped, begin) = (0, std::time::Instant::now());
        for turn in 0.. {
            if turn >= 20_000 {
                // Whoever pins it may have lost its core with the pin, and wait for it all the time.
                if unmapped > 0 || begin.elapsed() > Duration::from_secs(60) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let outcome = domain.unmap(iova, Duration::from_secs(60), || ());
            // Also where it is pinned: on a busy machine, whoever pins it may wait for a core all the time otherwise.
            std::thread::yield_now();
            if outcome.is_ok() {
                domain.map(region.window().clone(), Access::ReadWrite, Some(iova)).unwrap();
                unmapped += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
        let (pinned, lost) = pinner.join().unwrap();
        assert_eq!(lost, 0, "of {pinned}, unmapped {unmapped} times");
        assert!(unmapped > 0);
    }

    #[test]
    fn unmap_is_safe_under_a_running_reader() {
        let (domain, region, iova) = mapped(4096);
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let reader = std::thread::spawn({
            let (domain, stop) = (domain.clone(), stop.clone());
            move || {
                let mut iotlb = Iotlb::new(domain);
                let mut seen = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    iotlb.sync();
                    // 0xff marks memory that was unmapped and is being used for something else.
                    if let Ok(span) = iotlb.read(iova, 64) {
                        let mut bytes = [0; 64];
                        span.read_into(&mut bytes);
                        assert!(bytes.iter().all(|&byte| byte != 0xff), "read after unmap had returned");
                        seen += 1;
                    }
                }
                seen
            }
        });
        for _ in 0..200 {
            domain.unmap(iova, Duration::from_secs(10), || ()).unwrap();
            region.window().span_mut(0, 4096).unwrap().write_from(&[0xff; 4096]);
            region.window().span_mut(0, 4096).unwrap().write_from(&[0; 4096]);
            domain.map(region.window().clone(), Access::ReadWrite, Some(iova)).unwrap();
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    }
}
