//! What a process lets others reach: a line for each queue pair that is connected, and one for each key. The process alone
//! writes here; others have it read-only.
//!
//! The first word of a line is its version: even, and there is nothing; odd, and the other words are what they are until the
//! version changes. A line is closed in three steps: the version becomes even, those who are inside are waited for, and only then
//! its words are other ones.

use super::layout::{
    ANSWERED, CHANGED, DIRECTORY_LEN, KEY_BITS, KEYS, KEYS_AT, KIND, LINE, MAGIC, PAGE, PAIRS, PAIRS_AT, way,
};
use super::view::Pair;
use crate::memory::ProtectionDomain;
use crate::number::{Key, Qpn};
use crate::work::Access;
use millrace_dma::{Ordering, OutOfRange, Outside, Pages, Region, RegionError, Slots64, Word64};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Why there is no directory.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Its memory could not be had.
    #[error("no memory that others may read: {0}")]
    Memory(#[from] RegionError),
    /// It does not fit.
    #[error(transparent)]
    Range(#[from] OutOfRange),
}

/// Where the bytes of a region lie that others may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Which file, by the number that the owner has given it.
    pub file: u32,
    /// Where in the file: the region's first byte; with `pages` its first whole page.
    pub offset: u64,
    /// Only the whole pages of the region lie there.
    pub pages: bool,
}

/// What a key opens, as others see it.
pub(crate) struct Opened {
    pub key: Key,
    pub domain: ProtectionDomain,
    pub access: Access,
    /// Windows of type 2: for this queue pair only.
    pub qpn: Option<Qpn>,
    pub base: u64,
    pub len: u64,
    /// First address in this process.
    pub first: u64,
}

/// The directory of this process.
pub struct Directory {
    region: Region,
    pairs: Slots64,
    keys: Slots64,
    changed: Word64,
    answered: Word64,
    outside: Arc<Outside>,
    shared: HashMap<usize, Shared>,
}

impl Directory {
    /// Without anything.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn new() -> Result<Self, DirectoryError> {
        let region = Region::allocate(DIRECTORY_LEN, Pages::Ordinary)?;
        let window = region.window();
        window.word64(KIND)?.store(MAGIC, Ordering::Relaxed);
        let (pairs, keys) = (window.slots64(PAIRS_AT, PAIRS * LINE)?, window.slots64(KEYS_AT, KEYS * LINE)?);
        let (changed, answered) = (window.word64(CHANGED)?, window.word64(ANSWERED)?);
        let outside = Arc::new(Outside::new(changed.clone()));
        // Whoever gets the file from now on maps it read-only.
        region.seal_future_writes()?;
        Ok(Self { pairs, keys, changed, answered, outside, shared: HashMap::new(), region })
    }

    /// What others get.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.region.fd()
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Who may come in.
    pub fn outside(&self) -> &Arc<Outside> {
        &self.outside
    }

    pub(crate) fn set_key_bits(&self, bits: u32) {
        if let Ok(word) = self.region.window().word64(KEY_BITS) {
            word.store(bits.into(), Ordering::Relaxed);
        }
    }

    /// All that was taken away up to `seen` has been closed.
    pub(crate) fn answer(&self, seen: u64) {
        let changed = self.changed.load(Ordering::Relaxed);
        if changed <= seen {
            // Release pairs with the Acquire in `View::find`: the lines were closed before.
            self.answered.store(changed, Ordering::Release);
        }
    }

    /// A key opens nothing any more; when it returns, nobody is there.
    pub(crate) fn close_key(&self, slot: usize) {
        if self.begin_close_key(slot) {
            self.outside.wait();
        }
    }

    /// The first half of it, for many keys: whether [`Directory::end_close`] has to be called after them.
    #[must_use]
    pub(crate) fn begin_close_key(&self, slot: usize) -> bool {
        begin_close(&self.keys, slot as u32)
    }

    /// When it returns, nobody is there by a key that was closed. Who stays inside is waited for once, not for each key.
    pub(crate) fn end_close(&self) {
        self.outside.wait();
    }

    /// The bytes of a slot can be mapped, from the next time on that it is opened; or cannot any more.
    pub(crate) fn set_shared(&mut self, slot: usize, shared: Option<Shared>) {
        match shared {
            Some(shared) => self.shared.insert(slot, shared),
            None => self.shared.remove(&slot),
        };
    }

    /// A key opens something, after its slot was closed.
    pub(crate) fn open_key(&self, slot: usize, opened: &Opened) {
        let (way, offset) = match self.shared.get(&slot) {
            // Without a whole page in it there is nothing to map.
            Some(Shared { pages: true, .. }) if whole_pages(opened.first, opened.len) == 0 => (way::SYSTEM, 0),
            Some(&Shared { file, offset, pages }) => {
                (if pages { way::PAGES } else { way::FILE } | u64::from(file) << 32, offset)
            }
            None => (way::SYSTEM, 0),
        };
        let qpn = opened.qpn.map_or(0, |qpn| qpn.value());
        self.open(
            &self.keys,
            slot as u32,
            [
                u64::from(opened.key.value()) | u64::from(opened.domain.0) << 32,
                opened.base,
                opened.len,
                u64::from(opened.access.0) | u64::from(qpn) << 32,
                way,
                opened.first,
                offset,
            ],
        );
    }

    /// A queue pair is connected, or (`None`) is not any more; when it returns, nobody comes by the old connection.
    pub(crate) fn show_pair(&self, number: Qpn, pair: Option<&Pair>) {
        if begin_close(&self.pairs, number.value()) {
            self.outside.wait();
        }
        if let Some(pair) = pair {
            self.open(&self.pairs, number.value(), pair.words(number));
        }
    }

    fn open(&self, lines: &Slots64, line: u32, words: [u64; 7]) {
        let at = line.wrapping_mul(LINE);
        for (place, word) in (1..).zip(words) {
            lines.store(at + place, word);
        }
        // Release pairs with the Acquire in `View::line`.
        lines.store_release(at, lines.load(at) | 1);
    }
}

/// Nobody comes in by that line any more, after the fence in `Outside::wait`. Whether it was open.
fn begin_close(lines: &Slots64, line: u32) -> bool {
    let at = line.wrapping_mul(LINE);
    let version = lines.load(at);
    let was_open = version & 1 == 1;
    if was_open {
        lines.store(at, version.wrapping_add(1));
    }
    was_open
}

/// Bytes in whole pages of a range.
fn whole_pages(first: u64, len: u64) -> u64 {
    let end = first.saturating_add(len) & !(PAGE - 1);
    end.saturating_sub(first.next_multiple_of(PAGE))
}
