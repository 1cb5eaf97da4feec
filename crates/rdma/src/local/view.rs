//! What another process lets this one reach: its directory, read word by word and checked.

use super::layout::{
    ANSWERED, CHANGED, DIRECTORY_LEN, KEY_BITS, KEYS, KEYS_AT, KIND, LINE, MAGIC, PAGE, PAIRS, PAIRS_AT, way,
};
use super::peer::PeerError;
use crate::memory::ProtectionDomain;
use crate::number::{Gid, Key, Qpn};
use crate::work::Access;
use millrace_dma::{Ordering, Protection, Region, Slots64, Word64, fence};
use std::os::fd::OwnedFd;

/// A queue pair that is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The one at the other end.
    pub remote: Qpn,
    /// Who it is, and who its other end is: the last eight bytes of the GIDs, which tell ends of one wire apart, mixed with the
    /// first.
    pub own: u64,
    pub far: u64,
    pub access: Access,
    pub domain: ProtectionDomain,
}

/// A GID as one word.
#[inline(always)]
pub(crate) fn fold(gid: &Gid) -> u64 {
    let both = u128::from_le_bytes(gid.0);
    (both as u64).rotate_left(32) ^ (both >> 64) as u64
}

impl Pair {
    pub fn words(&self, number: Qpn) -> [u64; 7] {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [two(number.value(), self.remote.value()), self.own, self.far, two(self.access.0, self.domain.0), 0, 0, 0]
    }
}

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// The queue pair there.
    pub qpn: Qpn,
    /// The one here.
    pub remote: Qpn,
    /// The GIDs of both, as words.
    pub own: u64,
    pub far: u64,
    pub key: Key,
    pub address: u64,
    pub len: u64,
    pub access: Access,
}

/// Where bytes of the other process are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// At an address of its own.
    System(u64),
    /// In a file of its own.
    File { file: u32, offset: u64, address: u64 },
}

/// Where a WRITE behind a key goes, kept for the next one: what was found in two lines holds for as long as these are the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// The lines of the queue pair and of the key, and their versions.
    lines: [(u32, u64); 2],
    /// First address as requests count, and bytes that lie behind one another from there on.
    base: u64,
    len: u64,
    /// The file, and where the first of these bytes is in it.
    pub file: u32,
    offset: u64,
}

impl Answer {
    /// Where in the file `len` bytes at `address` are.
    #[inline(always)]
    pub fn place(&self, address: u64, len: u64) -> Option<u64> {
        // Addresses below the base wrap to offsets beyond any length.
        let offset = address.wrapping_sub(self.base);
        (self.len.checked_sub(offset)? >= len).then(|| self.offset.wrapping_add(offset))
    }
}

/// The directory of another process.
pub(super) struct View {
    pairs: Slots64,
    keys: Slots64,
    changed: Word64,
    answered: Word64,
    key_bits: u32,
}

impl View {
    pub fn new(fd: OwnedFd) -> Result<Self, PeerError> {
        let region = Region::map_guarded(fd, DIRECTORY_LEN, Protection::Read)?;
        let window = region.window();
        let key_bits = window.word64(KEY_BITS)?.load(Ordering::Relaxed);
        if window.word64(KIND)?.load(Ordering::Relaxed) != MAGIC || !(16..=24).contains(&key_bits) {
            return Err(PeerError::Kind);
        }
        Ok(Self {
            pairs: window.slots64(PAIRS_AT, PAIRS * LINE)?,
            keys: window.slots64(KEYS_AT, KEYS * LINE)?,
            changed: window.word64(CHANGED)?,
            answered: window.word64(ANSWERED)?,
            key_bits: key_bits as u32,
        })
    }

    /// Whether the other process has closed all that it knows to be gone. Otherwise nothing of it is touched.
    #[inline(always)]
    fn is_answered(&self) -> bool {
        // Acquire pairs with the Release in `Directory::answer`.
        self.answered.load(Ordering::Acquire) == self.changed.load(Ordering::Relaxed)
    }

    /// What [`View::find`] says of a WRITE of one byte that it has just allowed, for the next one; only of bytes that can be mapped. The caller
    /// is inside.
    pub fn keep(&self, target: &Target) -> Option<Answer> {
        let at = [target.qpn.value(), target.key.value() >> self.key_bits];
        let versions = [version(&self.pairs, at[0]), version(&self.keys, at[1])];
        let Some(Where::File { file, offset, address }) = self.find(target) else { return None };
        let [_, base, len, _, kind, first, _] = line(&self.keys, at[1])?;
        // The first byte that is in the file, and one behind the last.
        let (from, end) = match kind & 0xffff_ffff {
            way::FILE => (first, first.checked_add(len)?),
            _ => (first.checked_next_multiple_of(PAGE)?, first.checked_add(len)? & !(PAGE - 1)),
        };
        let answer = Answer {
            lines: [(at[0], versions[0]), (at[1], versions[1])],
            base: base.wrapping_add(from.wrapping_sub(first)),
            len: end.checked_sub(from)?,
            file,
            offset: offset.checked_sub(address.checked_sub(from)?)?,
        };
        self.holds(&answer).then_some(answer)
    }

    /// Whether an answer still is one. As [`View::find`]: the caller is inside, and stays there for as long as it uses it.
    #[inline(always)]
    pub fn holds(&self, answer: &Answer) -> bool {
        let [(pair, pair_version), (key, key_version)] = answer.lines;
        self.is_answered() && version(&self.pairs, pair) == pair_version && version(&self.keys, key) == key_version
    }

    /// Where the bytes are, if the other process lets us reach them. The caller has come in (`Presence`), and stays inside
    /// for as long as it uses the answer.
    #[inline(always)]
    pub fn find(&self, target: &Target) -> Option<Where> {
        if !self.is_answered() {
            return None;
        }
        let pair = line(&self.pairs, target.qpn.value())?;
        let is_connected = pair[0] == u64::from(target.qpn.value()) | u64::from(target.remote.value()) << 32;
        let (may, domain) = (Access(pair[3] as u32), pair[3] >> 32);
        if !is_connected || pair[1] != target.far || pair[2] != target.own || !may.allows(target.access) {
            return None;
        }
        let key = line(&self.keys, target.key.value() >> self.key_bits)?;
        let is_open = key[0] == u64::from(target.key.value()) | domain << 32;
        let (access, only) = (Access(key[3] as u32), (key[3] >> 32) as u32);
        if !is_open || !access.allows(target.access) || only != 0 && only != target.qpn.value() {
            return None;
        }
        let offset = target.address.wrapping_sub(key[1]);
        if key[2].checked_sub(offset)? < target.len {
            return None;
        }
        let address = key[5].checked_add(offset)?;
        let (kind, file) = (key[4] & 0xffff_ffff, (key[4] >> 32) as u32);
        match kind {
            way::FILE => Some(Where::File { file, offset: key[6].checked_add(offset)?, address }),
            way::PAGES => {
                let (first, end) = (key[5].checked_next_multiple_of(PAGE)?, key[5].checked_add(key[2])? & !(PAGE - 1));
                let is_inside = address >= first && address.checked_add(target.len)? <= end;
                if !is_inside {
                    return Some(Where::System(address));
                }
                Some(Where::File { file, offset: key[6].checked_add(address - first)?, address })
            }
            way::SYSTEM => Some(Where::System(address)),
            // Packets only, or nothing that this version knows.
            _ => None,
        }
    }
}

/// The version of a line: odd, and never again the same, while it says the same.
#[inline(always)]
fn version(lines: &Slots64, line: u32) -> u64 {
    // Acquire pairs with the Release in `Directory::open`.
    lines.load_acquire(line.wrapping_mul(LINE))
}

/// The words of a line, all of one version; `None` when there is nothing.
#[inline(always)]
fn line(lines: &Slots64, line: u32) -> Option<[u64; 7]> {
    let at = line.wrapping_mul(LINE);
    // Acquire pairs with the Release in `Directory::open`.
    let version = lines.load_acquire(at);
    let word = |place: u32| lines.load(at + place);
    let words = [word(1), word(2), word(3), word(4), word(5), word(6), word(7)];
    // The words are loaded before the version is looked at again.
    fence(Ordering::Acquire);
    (version & 1 == 1 && lines.load(at) == version).then_some(words)
}
