//! What a worker has: the cache in front of the tables, its verdicts, and what it has counted.

use super::cache::{Cache, Meta, Spot};
use super::verdicts::Verdicts;
use super::{Tables, Verdict};
use crate::key::Key;
use crate::rule::Hits;
use crate::version::Published;
use std::sync::Arc;

/// Most keys that are looked up together.
pub const BURST: usize = 128;
/// So many verdicts are kept; then the cache and all of them are forgotten, and those in use are found again.
const MAX_VERDICTS: usize = 1 << 17;
/// Actions and rules of all verdicts together, some 40 MiB; as above.
const MAX_WEIGHT: usize = 1 << 19;
const _: () = assert!(MAX_VERDICTS + BURST <= Meta::VERDICTS);

/// A verdict, until the next lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerdictId(u32);

/// How lookups went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheStats {
    /// Found, and nothing had changed.
    pub hits: u64,
    /// Found, and checked against what had changed since.
    pub confirmed: u64,
    /// Not found, or changed.
    pub misses: u64,
    /// How often the cache was emptied.
    pub flushes: u64,
    /// Frames that were counted and met no rule, or none in a table to which a rule had sent them; as of the last
    /// [flush](Classifier::flush).
    pub unmatched: u64,
}

/// The side of the tables that a worker has. Only the worker touches it.
///
/// A lookup takes no lock and waits for nobody. It allocates when it meets a way through the rules for the first time.
#[derive(Debug)]
pub struct Classifier {
    published: Arc<Published>,
    /// The version in use; none while [released](Self::release).
    tables: Option<Arc<Tables>>,
    version: u64,
    cache: Cache,
    verdicts: Verdicts,
    worker: usize,
    stats: CacheStats,
}

impl Classifier {
    /// For the worker with that number, with room for about `entries` flows.
    pub(crate) fn new(published: Arc<Published>, worker: usize, entries: usize) -> Self {
        Self {
            published,
            tables: None,
            version: 0,
            cache: Cache::new(entries),
            verdicts: Verdicts::default(),
            worker,
            stats: CacheStats::default(),
        }
    }

    /// The tables of the last lookup, for groups and meters.
    pub fn tables(&self) -> Option<&Arc<Tables>> {
        self.tables.as_ref()
    }

    /// Whether there is anything to look up.
    #[inline(always)]
    pub fn has_rules(&self) -> bool {
        self.published.has_rules()
    }

    /// Whether some rule is for what programs of the host send; otherwise their frames need no lookup.
    #[inline(always)]
    pub fn looks_at_local(&self) -> bool {
        self.published.has_local()
    }

    /// Whether what programs send is to be told to QUIC groups.
    #[inline(always)]
    pub fn wants_sent(&self) -> bool {
        self.published.wants_sent()
    }

    /// The number of the newest version.
    #[inline(always)]
    pub fn newest_version(&self) -> u64 {
        self.published.version()
    }

    /// The newest tables, for what is no lookup.
    pub fn newest(&mut self) -> &Arc<Tables> {
        let tables = self.refresh();
        self.tables.insert(tables)
    }

    /// How lookups went.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    /// What a verdict says.
    #[inline(always)]
    pub fn verdict(&self, verdict: VerdictId) -> &Verdict {
        self.verdicts.get(verdict.0)
    }

    /// Counts frames for the rules of a verdict of the last lookup. Others see it after [`flush`](Self::flush).
    #[inline]
    pub fn count(&mut self, verdict: VerdictId, packets: u64, bytes: u64, now_ns: u64) {
        if packets > 0 {
            self.verdicts.count(verdict.0, Hits { packets, bytes, last_ns: now_ns });
        }
    }

    /// So many frames of a verdict of the last lookup did not get where it says.
    #[cold]
    pub fn lose(&mut self, verdict: VerdictId, packets: u64) {
        let rules = self.verdicts.find(verdict.0).map_or(&[][..], |verdict| &verdict.rules[..]);
        rules.iter().for_each(|rule| rule.counters.lose(self.worker, packets));
    }

    /// Shows others what was counted.
    pub fn flush(&mut self) {
        self.stats.unmatched += self.verdicts.flush(self.worker);
    }

    /// Lets go of the tables, for a worker that is about to sleep: their memory can serve the next version. The next
    /// lookup takes the newest one.
    pub fn release(&mut self) {
        self.flush();
        self.tables = None;
    }

    /// Takes the newest version, if it is not the one in use.
    #[inline]
    fn refresh(&mut self) -> Arc<Tables> {
        // The tables of one lookup are those of one version, whatever is published meanwhile. They are taken out for as long, so
        // that nobody counts references, which all workers would write.
        match self.tables.take() {
            Some(tables) if self.published.version() == self.version => tables,
            _ => self.take_newest(),
        }
    }

    #[cold]
    fn take_newest(&mut self) -> Arc<Tables> {
        let tables = self.published.load();
        let era = Meta::era(tables.version) != Meta::era(self.version);
        if tables.union() != self.cache.mask() || era {
            self.stats.flushes += 1;
            self.cache.reset(tables.union());
        }
        self.version = tables.version;
        tables
    }

    /// Takes the newest version, for [`lookup_again`](Self::lookup_again) to stay with. Whether some rule of it looks at what is in QUIC packets;
    /// if not, keys need not have it.
    pub fn begin(&mut self) -> bool {
        let tables = self.refresh();
        self.tables.insert(tables).looks_at_quic()
    }

    /// Looks keys up from table `table` on: 0, or that of [`Again`](super::Again). As many as fit both slices, at most [`BURST`];
    /// returned is how many. The ids are good until the next lookup.
    pub fn lookup(&mut self, table: u8, keys: &[Key], verdicts: &mut [VerdictId]) -> usize {
        let tables = self.refresh();
        self.look_up(tables, table, keys, verdicts)
    }

    /// The same in the version of the last lookup, for frames of it that go on with new headers.
    pub fn lookup_again(&mut self, table: u8, keys: &[Key], verdicts: &mut [VerdictId]) -> usize {
        match self.tables.take() {
            Some(tables) => self.look_up(tables, table, keys, verdicts),
            None => self.lookup(table, keys, verdicts),
        }
    }

    #[inline(always)]
    fn look_up(&mut self, tables: Arc<Tables>, table: u8, keys: &[Key], verdicts: &mut [VerdictId]) -> usize {
        if self.verdicts.len() >= MAX_VERDICTS || self.verdicts.weight() >= MAX_WEIGHT {
            self.flush();
            self.verdicts.clear();
            self.cache.clear();
            self.stats.flushes += 1;
        }
        let len = keys.len().min(verdicts.len()).min(BURST);
        let (keys, verdicts) = (&keys[..len], &mut verdicts[..len]);
        // In phases, so that the loads of all keys are under way at once: buckets, then entries, then comparison.
        let mut spots = [Spot::default(); BURST];
        for (spot, key) in spots.iter_mut().zip(keys) {
            *spot = self.cache.spot(key);
        }
        let mut candidates = [0; BURST];
        let mut seen = 0;
        for (candidates, spot) in candidates.iter_mut().zip(&spots[..len]) {
            *candidates = self.cache.candidates(*spot);
            seen ^= self.cache.touch(*spot, *candidates);
        }
        // The loads are what counts, not their values; without a use the compiler would leave them out.
        std::hint::black_box(seen);
        let current = Meta::low(tables.version);
        for (at, (verdict, key)) in verdicts.iter_mut().zip(keys).enumerate() {
            *verdict = match self.cache.find(key, table, spots[at], candidates[at]) {
                Some((_, meta)) if meta.version() == current => {
                    self.stats.hits += 1;
                    VerdictId(meta.verdict())
                }
                found => self.decide(&tables, table, key, spots[at], found),
            };
        }
        self.tables = Some(tables);
        len
    }

    /// The verdict on a key whose entry is older than the tables, or that has none.
    #[cold]
    #[inline(never)]
    fn decide(
        &mut self,
        tables: &Tables,
        table: u8,
        key: &Key,
        spot: Spot,
        found: Option<(super::cache::Place, Meta)>,
    ) -> VerdictId {
        if let Some((place, meta)) = found
            && self.holds(tables, key, meta)
        {
            self.stats.confirmed += 1;
            self.cache.confirm(place, Meta::new(meta.verdict(), table, tables.version));
            return VerdictId(meta.verdict());
        }
        self.stats.misses += 1;
        let verdict = self.verdicts.decide(tables, table, key);
        // An earlier frame of the burst may have entered the same key.
        let again = || self.cache.find(key, table, spot, self.cache.candidates(spot));
        let instead = found.or_else(again).map(|(place, _)| place);
        self.cache.insert(key, spot, Meta::new(verdict, table, tables.version), instead);
        VerdictId(verdict)
    }

    /// Whether nothing that has changed since concerns a key.
    fn holds(&self, tables: &Tables, key: &Key, meta: Meta) -> bool {
        let verdict = self.verdicts.get(meta.verdict());
        let since = tables.version - Meta::low(tables.version) + meta.version();
        let Some(mut changes) = tables.changes_since(since) else { return false };
        !changes.any(|rule| verdict.depends_on(rule, key))
    }
}
