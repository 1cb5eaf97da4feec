//! The table behind keys: a cache line for each region and each bound window, found by the key's slot.

use super::key::Keys;
use super::{Asker, ProtectionDomain, Refused};
use crate::local::{Directory, Opened};
use crate::number::{Key, Qpn};
use crate::work::Access;
use core::cell::Cell;
use millrace_dma::{Place, Taken};
use std::collections::VecDeque;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Memory that was registered.
    Region,
    /// A part of a region, for every queue pair of the protection domain.
    Window1,
    /// A part of a region, for one queue pair.
    Window2,
}

/// Which key a request has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The `lkey` of a request of its own.
    Local,
    /// The `rkey` that the other end was given.
    Remote,
}

/// What a key opens.
#[repr(align(64))]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) domain: ProtectionDomain,
    /// Of [`Kind::Window2`].
    pub(super) qpn: Qpn,
    pub(super) access: Access,
    /// The address of the first byte as requests count.
    pub(super) base: u64,
    pub(super) place: Place,
    pub(super) kind: Kind,
    /// The memory was taken away.
    pub(super) gone: bool,
}

const _: () = assert!(size_of::<Option<Entry>>() == 64, "one cache line");

/// Slots: those of regions first, those of windows behind them.
pub(super) struct Table {
    pub(super) keys: Keys,
    entries: Vec<Option<Entry>>,
    counts: Vec<u32>,
    /// The one that has been free longest comes first.
    free_regions: VecDeque<usize>,
    free_windows: VecDeque<usize>,
    regions: usize,
    /// What other processes see of it.
    pub(super) directory: Option<Directory>,
    /// How often a key opened what was wanted.
    hits: Cell<u64>,
}

impl Table {
    pub(super) fn new(regions: usize, windows: usize) -> Self {
        let slots = regions + windows;
        let (free_regions, free_windows) = ((0..regions).collect(), (regions..slots).collect());
        let entries = (0..slots).map(|_| None).collect();
        Self {
            keys: Keys::new(slots),
            entries,
            counts: vec![0; slots],
            free_regions,
            free_windows,
            regions,
            directory: None,
            hits: Cell::new(0),
        }
    }

    /// How often a key opened what was wanted. What others of this host do straight in memory is not looked up here.
    pub(super) fn hits(&self) -> u64 {
        self.hits.get()
    }

    /// A free slot for a region.
    pub(super) fn take_region(&mut self) -> Option<usize> {
        self.free_regions.pop_front()
    }

    /// A free slot for a window.
    pub(super) fn take_window(&mut self) -> Option<usize> {
        self.free_windows.pop_front()
    }

    /// The slot is free again, and its key opens nothing.
    pub(super) fn give_back(&mut self, slot: usize) {
        self.set(slot, None);
        if slot < self.regions { self.free_regions.push_back(slot) } else { self.free_windows.push_back(slot) }
    }

    /// The next key of a slot. 0 is none: programs take it for "no key".
    pub(super) fn next_key(&mut self, slot: usize, tag: u8) -> Key {
        loop {
            let count = self.counts[slot];
            self.counts[slot] = count.wrapping_add(1);
            let key = match slot < self.regions {
                true => self.keys.of_region(slot, count),
                false => self.keys.of_window(slot, count, tag),
            };
            if key != Key::default() {
                return key;
            }
        }
    }

    /// What is in a slot.
    pub(super) fn at(&self, slot: usize) -> Option<&Entry> {
        self.entries.get(slot)?.as_ref()
    }

    /// Puts something into a slot, or takes it out.
    pub(super) fn set(&mut self, slot: usize, entry: Option<Entry>) {
        self.close(slot);
        self.entries[slot] = entry;
        self.show(slot);
    }

    /// Other processes do not reach it any more.
    fn close(&self, slot: usize) {
        if let Some(directory) = &self.directory {
            directory.close_key(slot);
        }
    }

    /// Other processes reach what is in the slot.
    pub(super) fn show(&self, slot: usize) {
        let (Some(directory), Some(entry)) = (&self.directory, self.at(slot)) else { return };
        if entry.gone {
            return;
        }
        directory.open_key(
            slot,
            &Opened {
                key: entry.key,
                domain: entry.domain,
                access: entry.access,
                qpn: (entry.kind == Kind::Window2).then_some(entry.qpn),
                base: entry.base,
                len: entry.place.len() as u64,
                first: entry.place.first() as u64,
            },
        );
    }

    /// Other processes see all of it from now on.
    pub(super) fn show_in(&mut self, directory: Directory) {
        directory.set_key_bits(self.keys.bits());
        self.directory = Some(directory);
        (0..self.entries.len()).for_each(|slot| self.show(slot));
    }

    /// The bytes in a slot lie in a file that others may map; or (`None`) they do not any more.
    pub(super) fn share(&mut self, slot: usize, shared: Option<crate::local::Shared>) {
        self.close(slot);
        if let Some(directory) = &mut self.directory {
            directory.set_shared(slot, shared);
        }
        self.show(slot);
    }

    /// What a key opens.
    #[inline(always)]
    pub(super) fn find(&self, key: Key) -> Option<(usize, &Entry)> {
        let slot = self.keys.slot(key);
        let entry = self.entries.get(slot)?.as_ref()?;
        (entry.key == key).then_some((slot, entry))
    }

    /// Where `len` bytes at `address` are in what the key opens, if all of it is allowed.
    #[inline(always)]
    pub(super) fn check(&self, asker: Asker, side: Side, wanted: Wanted) -> Result<(&Entry, usize), Refused> {
        let (_, entry) = self.find(wanted.key).ok_or(Refused::Key)?;
        let is_open = match entry.kind {
            Kind::Region => true,
            Kind::Window1 => side == Side::Remote,
            Kind::Window2 => side == Side::Remote && entry.qpn == asker.qpn,
        };
        if !is_open || entry.domain != asker.domain {
            return Err(Refused::Key);
        }
        if !entry.access.allows(wanted.access) {
            return Err(Refused::Permission);
        }
        // Addresses below the base wrap to offsets beyond any length.
        let offset = wanted.address.wrapping_sub(entry.base);
        let room = (entry.place.len() as u64).checked_sub(offset).ok_or(Refused::Bounds)?;
        if wanted.len > room {
            return Err(Refused::Bounds);
        }
        if entry.gone {
            return Err(Refused::Gone);
        }
        self.hits.set(self.hits.get() + 1);
        Ok((entry, offset as usize))
    }

    /// Notes that memory of the program was taken away. What is not the program's own mapping cannot be.
    pub(super) fn take_away(&mut self, ranges: &[Taken]) -> u64 {
        let (mut gone, mut was_open) = (0, false);
        for (slot, entry) in self.entries.iter_mut().enumerate() {
            let Some(entry) = entry.as_mut().filter(|entry| !entry.gone && !entry.place.is_window()) else { continue };
            let first = entry.place.first() as u64;
            let end = first + entry.place.len() as u64;
            entry.gone = ranges.iter().any(|taken| taken.first < end && taken.end > first);
            gone += u64::from(entry.gone);
            if let Some(directory) = self.directory.as_ref().filter(|_| entry.gone) {
                was_open |= directory.begin_close_key(slot);
            }
        }
        if let Some(directory) = self.directory.as_ref().filter(|_| was_open) {
            directory.end_close();
        }
        gone
    }
}

/// Bytes that somebody wants to reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) key: Key,
    pub(super) address: u64,
    pub(super) len: u64,
    pub(super) access: Access,
}
