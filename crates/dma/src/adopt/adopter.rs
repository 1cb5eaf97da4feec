//! The adopter of this process, and what it knows.

use super::error::AdoptError;
use super::file::{EXTENT, SharedFile};
use super::index::{Index, Orphan};
use super::request::{self, Request};
use super::{Adoption, Piece, Scope, fork, sys};
use crate::{Entered, Gate, Pages, Region, Taken, Watch};
use core::sync::atomic::{AtomicPtr, Ordering};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Room for one chunk, wherever it begins within one.
const ASIDE: u64 = 2 * request::CHUNK;

/// Who turns memory of this process into shared memory. There is one in each process.
pub struct Adopter {
    state: Mutex<State>,
    requests: Mutex<Sender<Request>>,
    pub(super) watch: &'static Watch,
    pub(super) faults: OwnedFd,
    /// `/proc`, which a child needs even where its program can open nothing any more.
    pub(super) proc: OwnedFd,
    pub(super) file: Arc<SharedFile>,
    /// Addresses of our own to which pages are moved.
    pub(super) aside: u64,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdoptCounters {
    /// Bytes adopted.
    pub adopted: u64,
    /// Bytes asked for that stayed as they were.
    pub left: u64,
    /// Requests that were answered from memory.
    pub known: u64,
    /// Times that pages were in use by the kernel and tried again.
    pub retries: u64,
    /// Bytes that the program has unmapped since, and whose memory was freed.
    pub freed: u64,
}

/// What changes.
pub(super) struct State {
    pub(super) index: Index,
    pub(super) orphans: Vec<Orphan>,
    gate: Gate,
    next: u64,
    /// Where in the file memory of `malloc` is, by the upper bits of its addresses.
    heaps: BTreeMap<u64, u64>,
    pub(super) counters: AdoptCounters,
}

/// The adopter that was made last. A child that is forked makes its own.
static CURRENT: AtomicPtr<Adopter> = AtomicPtr::new(core::ptr::null_mut());
/// Held while one is made, and while a child is forked.
static MAKING: Mutex<()> = Mutex::new(());
/// `/dev/userfaultfd`, as somebody with the right to open it has handed it over.
static DEVICE: Mutex<Option<OwnedFd>> = Mutex::new(None);

impl Adopter {
    /// The adopter of this process, made at the first call. Never ends.
    ///
    /// # Errors
    /// [`AdoptError`]: then memory stays private. It can be asked again, after [`Adopter::hand_over`] for instance.
    pub fn of_process() -> Result<&'static Self, AdoptError> {
        if let Some(adopter) = Self::current() {
            return Ok(adopter);
        }
        let _making = making();
        if let Some(adopter) = Self::current() {
            return Ok(adopter);
        }
        fork::install()?;
        let adopter = Self::make()?;
        // Release pairs with the Acquire in `current`: it is found when it is whole.
        CURRENT.store(core::ptr::from_ref(adopter).cast_mut(), Ordering::Release);
        Ok(adopter)
    }

    /// A descriptor of `/dev/userfaultfd` from somebody who may open it. With it this process needs no right of its own.
    pub fn hand_over(device: OwnedFd) {
        *DEVICE.lock().unwrap_or_else(PoisonError::into_inner) = Some(device);
    }

    pub(super) fn current() -> Option<&'static Self> {
        // Acquire pairs with the Release in `of_process`.
        sys::leaked(CURRENT.load(Ordering::Acquire)).filter(|adopter| adopter.watch.is_alive())
    }

    fn make() -> Result<&'static Self, AdoptError> {
        let faults = sys::userfaultfd(DEVICE.lock().unwrap_or_else(PoisonError::into_inner).as_ref())?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = open(c"/proc", flags, Mode::empty()).map_err(|error| AdoptError::Maps(error.into()))?;
        let watch = Watch::of_process()?;
        check_watch(watch)?;
        let file = Arc::new(SharedFile::new().map_err(AdoptError::File)?);
        let base = sys::reserve((ASIDE + request::CHUNK) as usize).map_err(AdoptError::File)?;
        let (index, orphans, heaps, counters) = Default::default();
        let state = Mutex::new(State { index, orphans, gate: watch.gate()?, next: 1, heaps, counters });
        let (sender, receiver) = channel();
        let aside = base.next_multiple_of(request::CHUNK);
        let adopter = Box::new(Self { state, requests: Mutex::new(sender), watch, faults, proc, file, aside });
        let adopter: &'static Self = Box::leak(adopter);
        let thread = std::thread::Builder::new().name("millrace-adopt".into()).stack_size(256 << 10);
        thread.spawn(move || request::run(adopter, &receiver)).map_err(AdoptError::Thread)?;
        Ok(adopter)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done by a panic: each change of the index is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the whole pages of `len` bytes at `first` shared memory, where that is safe and in `scope`, and says which are.
    /// What is shared already is told too. The second time it takes no system call.
    ///
    /// The range has to stay mapped until it returns, as with every registration. Memory that the program
    /// unmaps, moves or gives back (`madvise`) later is forgotten, and adopted or found anew when it is asked for again.
    ///
    /// # Errors
    /// [`AdoptError::Range`], [`AdoptError::Maps`], [`AdoptError::Ended`].
    pub fn adopt(&self, first: u64, len: u64, scope: Scope) -> Result<Adoption, AdoptError> {
        let Some((first, end)) = whole_pages(first, len)? else { return Ok(Adoption::default()) };
        {
            let mut state = self.state();
            state.sync().ok_or(AdoptError::Ended)?;
            let (pieces, whole) = state.index.pieces(first, end);
            if whole {
                state.counters.known += 1;
                return Ok(Adoption { pieces, left: Vec::new() });
            }
        }
        let (answer, answered) = sync_channel(1);
        let request = Request { first, end, scope, answer };
        let sent = self.requests.lock().unwrap_or_else(PoisonError::into_inner).send(request);
        sent.map_err(|_| AdoptError::Ended)?;
        let left = answered.recv().map_err(|_| AdoptError::Ended)??;
        Ok(Adoption { pieces: self.pieces(first, end - first)?, left })
    }

    /// What is shared of `len` bytes at `first`, and known to be; nothing is adopted.
    ///
    /// # Errors
    /// [`AdoptError::Range`], [`AdoptError::Ended`].
    pub fn pieces(&self, first: u64, len: u64) -> Result<Vec<Piece>, AdoptError> {
        let Some((first, end)) = whole_pages(first, len)? else { return Ok(Vec::new()) };
        let mut state = self.state();
        state.sync().ok_or(AdoptError::Ended)?;
        Ok(state.index.pieces(first, end).0)
    }

    /// The file of all that is adopted. Its first TiB is never used for that.
    pub fn file(&self) -> &Arc<SharedFile> {
        &self.file
    }

    /// What was done so far.
    pub fn counters(&self) -> AdoptCounters {
        self.state().counters
    }
}

/// Keeps others from making an adopter.
pub(super) fn making() -> MutexGuard<'static, ()> {
    MAKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The whole pages of a range, if there are any.
fn whole_pages(first: u64, len: u64) -> Result<Option<(u64, u64)>, AdoptError> {
    let range = || AdoptError::Range { first, len };
    let end = first.checked_add(len).filter(|end| *end <= isize::MAX as u64).ok_or_else(range)?;
    let page = rustix::param::page_size() as u64;
    let (first, end) = (first.next_multiple_of(page), end & !(page - 1));
    Ok((first < end).then_some((first, end)))
}

/// Whether the watch works for shared memory, too.
fn check_watch(watch: &'static Watch) -> Result<(), AdoptError> {
    let page = Region::allocate(rustix::param::page_size(), Pages::Ordinary).map_err(crate::WatchError::Memory)?;
    let at = crate::Place::window(page.window()).first() as u64;
    watch.cover(at, 1).map(drop).map_err(AdoptError::Watch)
}

impl State {
    /// Takes over what was taken away meanwhile; whether anything was. `None` in a child that was forked.
    pub(super) fn sync(&mut self) -> Option<bool> {
        let entered = self.gate.enter();
        if entered == Entered::Forked {
            return None;
        }
        self.gate.leave();
        match entered {
            Entered::Changed => self.orphans.extend(self.index.take(self.gate.taken())),
            Entered::Lost => self.orphans.extend(self.index.take(&[Taken { first: 0, end: u64::MAX }])),
            _ => {}
        }
        Some(entered != Entered::Same)
    }

    /// Where in the file memory at an address goes that `malloc` hands out again and again: always to the same place, so that neighbours lie together
    /// whenever they were adopted, and a block that reaches over several of them is one piece. Nobody moves that by `mremap`, so that it needs no room behind it.
    pub(super) fn place_in_heap(&mut self, first: u64) -> Option<u64> {
        let (part, within) = (first / EXTENT, first % EXTENT);
        let extent = *self.heaps.entry(part).or_insert_with(|| {
            // The last one may reach into the next part.
            self.next += 2;
            self.next - 2
        });
        (self.next < 1 << 21).then_some(extent * EXTENT + within)
    }

    /// Where in the file one more adoption begins. Each has room of its own behind it.
    pub(super) fn extent(&mut self, first: u64, len: u64) -> Option<u64> {
        let extent = self.next;
        self.next += 1 + len / EXTENT;
        // At the same place within a huge page as the addresses.
        let offset = extent * EXTENT + first % request::CHUNK;
        (self.next < 1 << 21).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_partly_inside_are_not_taken() {
        let page = rustix::param::page_size() as u64;
        let whole = |first, len| whole_pages(first, len).unwrap();
        assert_eq!(whole(page, page), Some((page, 2 * page)));
        assert_eq!(whole(page + 1, 2 * page), Some((2 * page, 3 * page)));
        assert_eq!(whole(page + 1, page), None);
        assert_eq!(whole(0, 0), None);
        for (first, len) in [(u64::MAX, 1), (1 << 62, 1 << 63), (u64::MAX - 5000, 4000)] {
            assert!(matches!(whole_pages(first, len), Err(AdoptError::Range { .. })));
        }
    }
}
