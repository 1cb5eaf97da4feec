//! Where bytes lie that others reach: a window of shared memory, or memory of this very process. May use `unsafe`.

use crate::careful::{self, Vanished};
use crate::mapping::Mapping;
use crate::{OutOfRange, Window};
use std::sync::Arc;

/// Addresses whose bytes are copied and changed on behalf of others.
///
/// A window keeps its memory mapped. Nothing keeps the memory of the program itself: it may unmap it at any moment, and
/// an access is then [`Vanished`], not the end of the process. Which memory of its own a program hands over is its own
/// matter, as with DMA: bytes of a Rust value that somebody else writes meanwhile are not for the compiler to protect
/// (`docs/decisions/0016-native-queues.md`).
pub struct Place {
    at: usize,
    len: usize,
    window: Option<Arc<Mapping>>,
    writable: bool,
    by_system: bool,
}

/// Why memory of the program cannot be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The range passes the end of the address space.
    #[error("{len} bytes at {first:#x} pass the end of the address space")]
    Range {
        /// First address.
        first: u64,
        /// Bytes.
        len: u64,
    },
    /// Not every page of the range is mapped, or its ends have not the rights.
    #[error("{len} bytes at {first:#x} are not all mapped with the rights that were asked for")]
    NotMapped {
        /// First address.
        first: u64,
        /// Bytes.
        len: u64,
    },
}

impl Place {
    /// All of a window.
    pub fn window(window: &Window) -> Self {
        let (at, writable, mapping) = window.parts();
        Self { at, len: window.len(), window: Some(mapping), writable, by_system: false }
    }

    /// Memory of this process: `len` bytes at address `first`, which must be mapped.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn own(first: u64, len: u64, writable: bool) -> Result<Self, PlaceError> {
        let range = PlaceError::Range { first, len };
        let end = first.checked_add(len).filter(|end| *end <= isize::MAX as u64).ok_or(range)?;
        let (at, len) = (first as usize, (end - first) as usize);
        let place = Self { at, len, window: None, writable, by_system: !careful::can_fail() };
        if place.is_there() { Ok(place) } else { Err(PlaceError::NotMapped { first, len: len as u64 }) }
    }

    /// The same, moved by system calls: for programs that handle SIGSEGV themselves.
    #[must_use]
    pub fn by_system(mut self) -> Self {
        self.by_system = self.window.is_none();
        self
    }

    /// Whether every page is mapped, and the first and the last byte have the rights.
    fn is_there(&self) -> bool {
        let ends = || [0, self.len - 1].into_iter().all(|at| self.has_rights(at));
        self.len == 0 || (careful::is_mapped(self.at, self.len) && ends())
    }

    fn has_rights(&self, at: usize) -> bool {
        let mut byte = [0];
        if self.read(at, &mut byte) != Ok(()) {
            return false;
        }
        // Nothing is changed: the word that holds the byte gets nothing added.
        let word = core::ptr::with_exposed_provenance_mut((self.at + at) & !7);
        // SAFETY: mapped as far as the byte is, since a page holds whole words; else it comes back as a fault.
        !self.writable || self.by_system || unsafe { careful::fetch_add(word, 0) }.is_ok()
    }

    /// `len` bytes of it, from `offset` on.
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn part(&self, offset: usize, len: usize) -> Result<Self, OutOfRange> {
        let at = self.inside(offset, len).ok_or(OutOfRange { offset, len, window: self.len })?;
        Ok(Self { at, len, window: self.window.clone(), ..*self })
    }

    /// First address in this process.
    pub fn first(&self) -> usize {
        self.at
    }

    /// Length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is a window, which cannot vanish.
    pub fn is_window(&self) -> bool {
        self.window.is_some()
    }

    /// Whether it is of files that have huge pages only.
    pub fn is_huge(&self) -> bool {
        self.window.as_ref().is_some_and(|mapping| mapping.is_huge)
    }

    /// Whether it can be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether a system call moves its bytes, which has no atomic operations.
    pub fn is_by_system(&self) -> bool {
        self.by_system
    }

    /// The address of `offset`; `None` when `len` bytes there are not inside.
    #[inline(always)]
    fn inside(&self, offset: usize, len: usize) -> Option<usize> {
        (offset.checked_add(len)? <= self.len).then(|| self.at + offset)
    }

    /// Copies bytes from here.
    ///
    /// # Errors
    /// [`Vanished`]; also for what is outside.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), Vanished> {
        let at = self.inside(offset, to.len()).ok_or(Vanished)?;
        // SAFETY: inside the range; shared memory, or memory that its owner has handed over; `to` is exclusively ours.
        unsafe {
            match self.by_system {
                false => careful::copy(core::ptr::with_exposed_provenance(at), to.as_mut_ptr(), to.len()),
                true => careful::system_read(at, to),
            }
        }
    }

    /// Copies bytes to here, the last byte last. `around`: bytes of a large copy need not stay in the caches.
    ///
    /// # Errors
    /// [`Vanished`]; also for what is outside, or may not be written.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8], around: bool) -> Result<(), Vanished> {
        let at = self.inside(offset, from.len()).filter(|_| self.writable).ok_or(Vanished)?;
        // SAFETY: as `read`; a slice of Rust is read.
        unsafe {
            match self.by_system {
                false => {
                    let to = core::ptr::with_exposed_provenance_mut(at);
                    careful::copy_last_last(from.as_ptr(), to, from.len(), around)
                }
                true => careful::system_write(from, at),
            }
        }
    }

    /// Copies `len` bytes from here to another place, the last byte last. The two do not overlap. `around`: as
    /// [`Place::write`].
    ///
    /// # Errors
    /// [`Vanished`]; also for what is outside, or may not be written.
    #[inline]
    pub fn copy_to(
        &self,
        offset: usize,
        to: &Place,
        to_offset: usize,
        len: usize,
        around: bool,
    ) -> Result<(), Vanished> {
        let from = self.inside(offset, len).ok_or(Vanished)?;
        let at = to.inside(to_offset, len).filter(|_| to.writable).ok_or(Vanished)?;
        if self.by_system || to.by_system {
            return self.copy_by_system(offset, to, to_offset, len);
        }
        let (from, at) = (core::ptr::with_exposed_provenance(from), core::ptr::with_exposed_provenance_mut(at));
        // SAFETY: both ranges are inside; shared memory, or memory that its owner has handed over.
        unsafe { careful::copy_last_last(from, at, len, around) }
    }

    fn copy_by_system(&self, offset: usize, to: &Place, to_offset: usize, len: usize) -> Result<(), Vanished> {
        let mut some = [0; 4096];
        let mut done = 0;
        while done < len {
            let part = &mut some[..(len - done).min(4096)];
            self.read(offset + done, part)?;
            to.write(to_offset + done, part, false)?;
            done += part.len();
        }
        Ok(())
    }

    /// Where `len` bytes at `offset` are, for a system call that checks addresses itself.
    pub(crate) fn at(&self, offset: usize, len: usize, writes: bool) -> Result<usize, Vanished> {
        self.inside(offset, len).filter(|_| self.writable || !writes).ok_or(Vanished)
    }

    /// Where an atomic operation may take place.
    fn word(&self, offset: usize) -> Result<*mut u64, Vanished> {
        let at = self.inside(offset, 8).filter(|at| at.is_multiple_of(8)).ok_or(Vanished)?;
        if self.writable && !self.by_system { Ok(core::ptr::with_exposed_provenance_mut(at)) } else { Err(Vanished) }
    }

    /// Whether the word at `offset` can be changed in one step.
    ///
    /// # Errors
    /// [`OutOfRange`] when it is outside, or not at a multiple of eight.
    pub fn check_word(&self, offset: usize) -> Result<(), OutOfRange> {
        self.word(offset).map(drop).map_err(|_| OutOfRange { offset, len: 8, window: self.len })
    }

    /// Puts `swap` where `compare` is, in one step for all threads and processes; what was there.
    ///
    /// # Errors
    /// [`Vanished`]; also for what [`Place::check_word`] refuses.
    pub fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, Vanished> {
        // SAFETY: as `write`, and aligned.
        unsafe { careful::compare_swap(self.word(offset)?, compare, swap) }
    }

    /// Adds modulo 2^64, in one step for all threads and processes; what was there.
    ///
    /// # Errors
    /// As [`Place::compare_swap`].
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, Vanished> {
        // SAFETY: as `compare_swap`.
        unsafe { careful::fetch_add(self.word(offset)?, add) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pages, Region};

    fn exact(place: &Place, around: bool, lens: impl Iterator<Item = usize>) {
        for len in lens {
            let pattern: Vec<u8> = (0..len).map(|i| (i * 31 + i / 251 + len) as u8).collect();
            let all = vec![0xee; place.len()];
            place.write(0, &all, false).unwrap();
            place.write(13, &pattern, around).unwrap();
            let mut back = vec![0; place.len()];
            place.read(0, &mut back).unwrap();
            assert!(back[13..13 + len] == pattern[..], "length {len}");
            assert!(back[..13].iter().chain(&back[13 + len..]).all(|&byte| byte == 0xee), "outside at {len}");
        }
    }

    #[test]
    fn copies_of_every_length_are_exact() {
        let region = Region::heap(4096);
        exact(&Place::window(region.window()), false, 0..600);
    }

    #[test]
    fn large_copies_around_the_caches_are_exact() {
        let region = Region::heap((1 << 20) + 4096);
        let place = Place::window(region.window());
        exact(&place, true, (0..260).step_by(7).map(|more| (1 << 20) + more).chain(4096..4400));
    }

    #[test]
    fn what_is_outside_or_read_only_is_not_touched() {
        let region = Region::heap(64);
        let place = Place::window(region.window());
        assert_eq!(place.read(60, &mut [0; 5]), Err(Vanished));
        assert_eq!(place.read(usize::MAX, &mut [0; 5]), Err(Vanished));
        assert_eq!(place.write(64, &[1], false), Err(Vanished));
        assert_eq!(place.fetch_add(60, 1), Err(Vanished));
        assert_eq!(place.fetch_add(57, 1), Err(Vanished));
        let place = Place::window(&region.window().clone().read_only());
        assert_eq!(place.write(0, &[1], false), Err(Vanished));
        assert_eq!(place.compare_swap(0, 0, 1), Err(Vanished));
        assert!(region.window().slice(0, 64).unwrap().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn bytes_go_from_place_to_place() {
        let (one, other) = (Region::heap(9000), Region::heap(9000));
        let (from, to) = (Place::window(one.window()), Place::window(other.window()));
        let pattern: Vec<u8> = (0..9000).map(|i| (i * 7 + i / 256) as u8).collect();
        from.write(0, &pattern, false).unwrap();
        for (at, to_at, len) in [(0, 0, 9000), (3, 5, 8), (8, 16, 8), (1, 2, 5000), (9000, 9000, 0)] {
            let mut back = vec![0; len];
            from.copy_to(at, &to, to_at, len, false).unwrap();
            to.read(to_at, &mut back).unwrap();
            assert!(back[..] == pattern[at..at + len], "{at} {to_at} {len}");
        }
        assert_eq!(from.copy_to(8999, &to, 0, 2, false), Err(Vanished));
        assert_eq!(from.copy_to(0, &to, 8999, 2, false), Err(Vanished));
        let read_only = Place::window(&other.window().clone().read_only());
        assert_eq!(from.copy_to(0, &read_only, 0, 1, false), Err(Vanished));
    }

    #[test]
    fn words_are_changed_in_one_step() {
        let region = Region::allocate(4096, Pages::Ordinary).unwrap();
        let place = Place::window(region.window());
        let word = region.window().word64(8).unwrap();
        assert_eq!(place.fetch_add(8, 5), Ok(0));
        assert_eq!(place.compare_swap(8, 4, 9), Ok(5), "not what is compared");
        assert_eq!(place.compare_swap(8, 5, u64::MAX), Ok(5));
        assert_eq!(place.fetch_add(8, 2), Ok(u64::MAX));
        assert_eq!(word.load(crate::Ordering::Relaxed), 1);
        std::thread::scope(|scope| {
            let add = || (0..20_000).for_each(|_| assert!(place.fetch_add(16, 1).is_ok()));
            (0..2).for_each(|_| drop(scope.spawn(add)));
            let swap = || {
                let mut now = 0;
                for _ in 0..20_000 {
                    while let Ok(seen) = place.compare_swap(16, now, now.wrapping_add(1)) {
                        let done = seen == now;
                        now = if done { now.wrapping_add(1) } else { seen };
                        if done {
                            break;
                        }
                    }
                }
            };
            scope.spawn(swap);
        });
        assert_eq!(region.window().word64(16).unwrap().load(crate::Ordering::Relaxed), 60_000);
    }

    #[test]
    fn what_is_not_mapped_cannot_be_handed_over() {
        let none = PlaceError::NotMapped { first: 4096, len: 8 };
        assert_eq!(Place::own(4096, 8, false).err(), Some(none));
        for (first, len) in [(u64::MAX, 2), (1 << 63, 1), (1, u64::MAX), (8, 1 << 63)] {
            assert_eq!(Place::own(first, len, false).err(), Some(PlaceError::Range { first, len }));
        }
        assert!(Place::own((1 << 47) - 8, 8, false).is_err());
    }
}
