//! Ids and paths that are known, as all workers read them: without a lock, while one of them changes it.
//!
//! The table of connections ([`super::table`]) is behind a lock, and whoever changes it writes here what others need: whose an
//! id is, and whether a packet to it has anything to teach. So a packet of an established connection costs a hash and
//! two cache lines, whatever others do.
//!
//! An entry is a tag, which is a keyed hash (SipHash) of the id or path, and a word. Nobody can choose ids that meet in a bucket or
//! have one tag, as the keys are not known outside. Readers load tag, word, tag: a word goes with the tag if both loads agree and
//! the word carries the tag's check bits.

use super::connection::{Learned, Path};
use crate::table::mix;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Entries of a bucket: with 20 bytes each they have two cache lines.
const ENTRIES: usize = 6;
/// Times are kept in units of 2^28 ns, about a quarter of a second.
const TICK_BITS: u32 = 28;

/// What the table says of an id or a path, in one word: instance, flags, a number of 24 bits, and check bits of the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known(u64);

/// The connection is established: its entry does not give way to one that is not.
const CONFIRMED: u64 = 1 << 16;
/// The table has to be asked: it learns from the packet, or decrypts it.
const ASK: u64 = 1 << 17;
/// Nobody's: a ClientHello is not whole, or a path has connections of several instances.
const NOBODY: u64 = 1 << 18;
/// A path whose instance has ids of length 0.
const WITHOUT_ID: u64 = 1 << 19;
/// An application has handed over keys of the connection.
const KEYED: u64 = 1 << 20;
/// Where [`Learned`] stands.
const LEARNED_AT: u32 = 21;
const NUMBER_AT: u32 = 24;
const CHECK: u64 = 0xffff << 48;

const LEARNED: [Learned; 5] =
    [Learned::FirstDestination, Learned::Handshake, Learned::OtherSide, Learned::NewConnectionId, Learned::OnPath];

impl Known {
    /// An instance's, with nothing else said.
    pub fn of(instance: u16) -> Self {
        Self(instance.into())
    }

    /// With a flag if it is so.
    fn with(self, flag: u64, is: bool) -> Self {
        Self(if is { self.0 | flag } else { self.0 })
    }

    pub fn with_confirmed(self, is: bool) -> Self {
        self.with(CONFIRMED, is)
    }

    pub fn with_ask(self, is: bool) -> Self {
        self.with(ASK, is)
    }

    pub fn with_nobody(self, is: bool) -> Self {
        self.with(NOBODY, is)
    }

    pub fn with_without_id(self, is: bool) -> Self {
        self.with(WITHOUT_ID, is)
    }

    pub fn with_keys(self, is: bool) -> Self {
        self.with(KEYED, is)
    }

    pub fn with_learned(self, learned: Learned) -> Self {
        Self(self.0 | (learned as u64) << LEARNED_AT)
    }

    /// With the tag of the path on which the connection is, of which 24 bits are kept.
    pub fn with_path(self, tag: u32) -> Self {
        Self(self.0 | u64::from(tag & 0xff_ffff) << NUMBER_AT)
    }

    /// Whose it is; `None` if it is nobody's.
    pub fn instance(self) -> Option<u16> {
        (self.0 & NOBODY == 0).then_some(self.0 as u16)
    }

    pub fn is_confirmed(self) -> bool {
        self.0 & CONFIRMED != 0
    }

    pub fn asks(self) -> bool {
        self.0 & ASK != 0
    }

    pub fn has_keys(self) -> bool {
        self.0 & KEYED != 0
    }

    pub fn is_without_id(self) -> bool {
        self.0 & WITHOUT_ID != 0
    }

    pub fn learned(self) -> Learned {
        LEARNED.get((self.0 >> LEARNED_AT & 7) as usize).copied().unwrap_or(Learned::OnPath)
    }

    /// Whether the connection is on the path with this tag.
    pub fn is_on(self, tag: u32) -> bool {
        (self.0 >> NUMBER_AT) as u32 & 0xff_ffff == tag & 0xff_ffff
    }

    fn checked(self, tag: u64) -> u64 {
        self.0 & !CHECK | check(tag)
    }
}

/// The check bits of a tag: others than those that choose the bucket.
fn check(tag: u64) -> u64 {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16 ^ tag) & CHECK
}

/// Whoever holds the lock of the table writes `tags` and `words`; everybody writes `ticks`.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Bucket {
    /// 0: no entry.
    tags: [AtomicU64; ENTRIES],
    words: [AtomicU64; ENTRIES],
    /// When a packet was seen last.
    ticks: [AtomicU32; ENTRIES],
}

/// Ids and paths by their hashes.
#[derive(Debug)]
pub struct Directory {
    buckets: Box<[Bucket]>,
    ids: RandomState,
    paths: RandomState,
    /// Bit n: there are ids of n bytes.
    lengths: AtomicU32,
    left_out: AtomicU64,
}

/// An id's or path's place among the tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u64);

impl Tag {
    /// A number that nobody can choose.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl Directory {
    /// For so many connections: there is room for three times as many ids and paths as they usually have.
    pub fn new(connections: usize) -> Self {
        let len = connections.saturating_mul(2).next_power_of_two().max(16);
        Self {
            buckets: (0..len).map(|_| Bucket::default()).collect(),
            ids: RandomState::new(),
            paths: RandomState::new(),
            lengths: AtomicU32::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    #[inline]
    pub fn id(&self, id: &[u8]) -> Tag {
        let mut hasher = self.ids.build_hasher();
        hasher.write(id);
        Tag(hasher.finish().max(1))
    }

    #[inline]
    pub fn path(&self, path: &Path) -> Tag {
        let mut hasher = self.paths.build_hasher();
        for (address, port) in [path.remote, path.local] {
            match address {
                IpAddr::V4(address) => hasher.write(&address.octets()),
                IpAddr::V6(address) => hasher.write(&address.octets()),
            }
            hasher.write_u16(port);
        }
        Tag(hasher.finish().max(1))
    }

    /// What is known under a tag.
    #[inline]
    pub fn find(&self, tag: Tag) -> Option<Known> {
        self.place(tag).map(|(_, known)| known)
    }

    /// What is known under a tag, of which a packet was seen.
    #[inline]
    pub fn find_seen(&self, tag: Tag, now_ns: u64) -> Option<Known> {
        let (at, known) = self.place(tag)?;
        let tick = (now_ns >> TICK_BITS) as u32;
        let place = &self.bucket(tag).ticks[at];
        // The line stays with all who read it, but for a write each tick.
        if place.load(Relaxed) != tick {
            place.store(tick, Relaxed);
        }
        Some(known)
    }

    /// When a packet was seen last under this tag, in nanoseconds rounded down to a tick.
    pub fn seen_ns(&self, tag: Tag) -> u64 {
        let tick = self.place(tag).map_or(0, |(at, _)| self.bucket(tag).ticks[at].load(Relaxed));
        u64::from(tick) << TICK_BITS
    }

    /// Lengths that ids in short headers can have, as bits.
    #[inline]
    pub fn lengths(&self) -> u32 {
        self.lengths.load(Relaxed)
    }

    /// How often there was no room for an entry: from then on, what is not found here may be in the table.
    #[inline]
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Relaxed)
    }

    #[inline]
    fn bucket(&self, tag: Tag) -> &Bucket {
        &self.buckets[tag.0 as usize & (self.buckets.len() - 1)]
    }

    #[inline]
    fn place(&self, tag: Tag) -> Option<(usize, Known)> {
        let bucket = self.bucket(tag);
        // Acquire: pairs with the release of the tag in `put`, which comes after that of the word.
        let at = bucket.tags.iter().position(|other| other.load(Acquire) == tag.0)?;
        // Acquire: the second look at the tag is not made before this.
        let word = bucket.words[at].load(Acquire);
        let is_whole = bucket.tags[at].load(Relaxed) == tag.0 && word & CHECK == check(tag.0);
        is_whole.then_some((at, Known(word & !CHECK)))
    }

    /// Enters what is known, or changes it. Only whoever holds the lock of the table.
    pub fn put(&self, tag: Tag, known: Known, now_ns: u64) {
        let bucket = self.bucket(tag);
        let tag_at = |wanted: u64| bucket.tags.iter().position(|other| other.load(Relaxed) == wanted);
        if let Some(at) = tag_at(tag.0) {
            bucket.words[at].store(known.checked(tag.0), Release);
            return;
        }
        let gives_way = |at: &usize| bucket.words[*at].load(Relaxed) & CONFIRMED == 0;
        let free = tag_at(0);
        // Who may be an attacker's invention makes room for who is not.
        let at = free.or_else(|| (0..ENTRIES).find(gives_way).filter(|_| known.is_confirmed()));
        if free.is_none() {
            self.left_out.fetch_add(1, Relaxed);
        }
        let Some(at) = at else { return };
        bucket.tags[at].store(0, Release);
        bucket.words[at].store(known.checked(tag.0), Release);
        bucket.ticks[at].store((now_ns >> TICK_BITS) as u32, Relaxed);
        bucket.tags[at].store(tag.0, Release);
    }

    /// Forgets an id or a path. Only whoever holds the lock of the table.
    pub fn remove(&self, tag: Tag) {
        let bucket = self.bucket(tag);
        if let Some(at) = bucket.tags.iter().position(|other| other.load(Relaxed) == tag.0) {
            bucket.tags[at].store(0, Release);
        }
    }

    pub fn set_lengths(&self, lengths: u32) {
        self.lengths.store(lengths, Relaxed);
    }

    /// How many entries there are; for tests.
    pub fn len(&self) -> usize {
        self.buckets.iter().flat_map(|bucket| &bucket.tags).filter(|tag| tag.load(Relaxed) != 0).count()
    }
}

/// A number that tells paths of one connection apart. Another path may have the same: then a move is not noticed, which costs
/// nothing but that the table knows of an older path.
#[inline]
pub fn path_tag(path: &Path) -> u32 {
    let half = |(address, port): (IpAddr, u16)| match address {
        IpAddr::V4(address) => u64::from(address.to_bits()) << 16 | u64::from(port),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            mix((bits >> 64) as u64 ^ 0xa076_1d64_78bd_642f, bits as u64 ^ 0xe703_7ed1_a0b4_28db) ^ u64::from(port)
        }
    };
    let mixed = mix(half(path.remote) ^ 0x8ebc_6af0_9c88_c6e3, half(path.local) ^ 0x5899_65cc_7537_4cc3);
    (mixed >> 20) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn what_a_word_says() {
        let known = Known::of(0xfffe).with_confirmed(true).with_learned(Learned::OnPath).with_path(0x12ab_cdef);
        assert_eq!((known.instance(), known.learned()), (Some(0xfffe), Learned::OnPath));
        assert!(known.is_confirmed() && !known.asks() && known.is_on(0xab_cdef) && !known.is_on(0xab_cdee));
        assert_eq!(Known::of(3).with_nobody(true).instance(), None);
        for learned in LEARNED {
            assert_eq!(Known::of(0).with_learned(learned).learned(), learned);
        }
    }

    #[test]
    fn entered_changed_forgotten() {
        let directory = Directory::new(1);
        let tag = directory.id(&[1, 2, 3, 4]);
        assert_eq!(directory.find(tag), None);
        directory.put(tag, Known::of(1), 0);
        directory.put(tag, Known::of(2), 0);
        assert_eq!((directory.find(tag), directory.len()), (Some(Known::of(2)), 1));
        let later = 5 << TICK_BITS;
        assert_eq!(directory.find_seen(tag, later + 7), Some(Known::of(2)));
        assert_eq!(directory.seen_ns(tag), later);
        directory.remove(tag);
        assert_eq!((directory.find(tag), directory.len()), (None, 0));
    }

    /// Handshakes fill every bucket; what is established stays, and displaces them where it has to.
    #[test]
    fn handshakes_give_way_to_what_is_established() {
        let directory = Directory::new(8);
        let tags = |from: u32, count| (from..from + count).map(|at: u32| directory.id(&at.to_be_bytes()));
        let (first, flood, last) = (tags(0, 8), tags(1000, 1000), tags(5000, 8));
        first.clone().for_each(|tag| directory.put(tag, Known::of(1).with_confirmed(true), 0));
        flood.for_each(|tag| directory.put(tag, Known::of(2), 0));
        last.clone().for_each(|tag| directory.put(tag, Known::of(3).with_confirmed(true), 0));
        assert!(directory.left_out() > 800);
        for (tags, instance) in [(first, 1), (last, 3)] {
            for tag in tags {
                assert_eq!(directory.find(tag).and_then(Known::instance), Some(instance));
            }
        }
    }

    /// A reader beside a writer that exchanges entries all the time never sees the word of another.
    #[test]
    fn a_word_goes_with_its_tag() {
        let directory = Directory::new(1);
        let tags: Vec<Tag> = (0u32..64).map(|at| directory.id(&at.to_be_bytes())).collect();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut found = 0u64;
                while !ended.load(Relaxed) {
                    for (at, tag) in tags.iter().enumerate() {
                        if let Some(known) = directory.find(*tag) {
                            assert_eq!(known.instance(), Some(at as u16));
                            found += 1;
                        }
                    }
                }
                found
            });
            for round in 0..20_000usize {
                let at = round * 7 % tags.len();
                directory.put(tags[at], Known::of(at as u16), 0);
                directory.remove(tags[(at + 21) % tags.len()]);
            }
            tags.iter().enumerate().for_each(|(at, tag)| directory.put(*tag, Known::of(at as u16), 0));
            ended.store(true, Relaxed);
            reader.join().unwrap();
        });
    }
}
