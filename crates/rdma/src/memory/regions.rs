//! Regions of one owner: protection domains, registration, and what is known about each region.

use super::reached::Attempt;
use super::table::{Entry, Kind, Table};
use super::{ProtectionDomain, Refused};
use crate::local::{Directory, Shared};
use crate::number::{Key, Qpn};
use crate::work::Access;
use millrace_dma::{Cover, Entered, Gate, Place, PlaceError, Scope, Taken, Watch, WatchCounters, WatchError, Window};
use std::collections::HashMap;

/// How much one owner may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Protection domains.
    pub domains: usize,
    /// Regions at a time. Regions and windows together at most [`MOST_SLOTS`](super::MOST_SLOTS).
    pub regions: usize,
    /// Windows at a time.
    pub windows: usize,
    /// Bytes registered, all regions together.
    pub bytes: u64,
    /// Whether memory may be registered that cannot be watched ([`Way::Unwatched`]).
    pub unwatched: bool,
    /// Writes of at least as many bytes are stored around the caches (decision 55 has the measurements).
    pub around_from: usize,
    /// Whether memory of the program becomes shared memory when it is registered, so that other processes of this host can
    /// store straight into it ([`Way::Adopted`]), and which memory. It is for good: decision 58 says what changes for the
    /// program.
    pub adopt: Option<Scope>,
}

impl Default for Limits {
    fn default() -> Self {
        let around_from = 8 << 20;
        Self { domains: 1024, regions: 8192, windows: 8192, bytes: 1 << 40, unwatched: true, around_from, adopt: None }
    }
}

/// How a region reaches its bytes, and what happens when the program takes its memory away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Shared memory with a mapping of our own: nothing that the program does to its own mapping matters.
    Shared,
    /// Memory of the program, watched: when a call that takes it away returns, the region is gone.
    Watched,
    /// The same, and its whole pages, or some of them, were turned into shared memory ([`Regions::reached`]).
    Adopted,
    /// Memory of the program that cannot be watched. An access where nothing is mapped is refused. But if something else
    /// was mapped there since, that is what is reached: the program has to deregister first, as everywhere.
    Unwatched,
}

/// The bytes that a region is made of.
pub enum Source {
    /// Memory of this process, at an address.
    Own {
        /// First address.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// Memory shared by fd, mapped here.
    Window(Window),
}

/// The keys of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// For requests of its own.
    pub lkey: Key,
    /// For others; the same number, of use to them only with remote access.
    pub rkey: Key,
    /// How its bytes are reached.
    pub way: Way,
}

/// Why something cannot be registered, changed or given back.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// There is no such protection domain.
    #[error("there is no protection domain {}; allocate it first", .0.0)]
    Domain(ProtectionDomain),
    /// There is no such region or window.
    #[error("there is no region or window with key {:#010x}", .0.value())]
    Key(Key),
    /// Others may write only what the owner may write, too (volume 1, 10.6.3.1).
    #[error("remote write and remote atomic access need local write access")]
    Access,
    /// Bits that mean nothing.
    #[error("access flags {:#x} are not known", .0.0)]
    Flags(Access),
    /// Addresses as requests count pass 2^64.
    #[error("{len} bytes from address {base:#x} on pass the end of all addresses")]
    Range {
        /// First address.
        base: u64,
        /// Bytes.
        len: u64,
    },
    /// The memory is not there.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The memory is mapped read-only in this process.
    #[error("the memory is read-only here; register it without write access")]
    ReadOnly,
    /// A handler of the program stands before ours, so that system calls move the bytes, which have no atomic operations.
    #[error(
        "remote atomic access needs our handler of SIGSEGV to be the first; register before installing another one"
    )]
    Atomic,
    /// It cannot be watched, and the limits ask for that.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// Too many at a time.
    #[error("the limit of {limit} {what} is reached; give some back, or raise it")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: u64,
    },
    /// Windows are bound to the region, or something is left in the protection domain.
    #[error("it is in use: {0} windows or regions depend on it; give them back first")]
    Busy(usize),
    /// A window cannot be bound so.
    #[error("the window cannot be bound: {0}")]
    Bind(Refused),
}

/// What a registration changes (`ibv_rereg_mr`). What is `None` stays as it is.
#[derive(Default)]
pub struct Change {
    /// Other bytes, counted from this address (their own, if `None`).
    pub translation: Option<(Source, Option<u64>)>,
    /// Another protection domain.
    pub domain: Option<ProtectionDomain>,
    /// Other rights.
    pub access: Option<Access>,
}

/// What is left of a region whose keys open nothing any more: its mapping, which is unmapped when this is dropped, unless somebody else has it.
pub struct Remains {
    _place: Option<Place>,
    _held: Option<Held>,
}

/// A region, as `millrace rdma regions` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its key.
    pub key: Key,
    /// Its protection domain.
    pub domain: ProtectionDomain,
    /// Where requests begin to count.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub access: Access,
    /// How its bytes are reached.
    pub way: Way,
    /// Whether system calls move them.
    pub by_system: bool,
    /// Bytes that other processes of this host can map, as of the registration ([`Regions::reached`]).
    pub shared: u64,
    /// Whether its memory was taken away.
    pub gone: bool,
    /// Windows bound to it.
    pub windows: usize,
    /// Whether all of it stands on huge pages of a hugetlbfs.
    pub huge: bool,
}

/// What was refused, and what was taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// [`Refused::Key`].
    pub refused_key: u64,
    /// [`Refused::Bounds`].
    pub refused_bounds: u64,
    /// [`Refused::Permission`].
    pub refused_permission: u64,
    /// [`Refused::Alignment`].
    pub refused_alignment: u64,
    /// [`Refused::Gone`].
    pub refused_gone: u64,
    /// Regions and windows whose memory was taken away.
    pub gone: u64,
    /// Registrations that asked for adoption where nothing can be adopted at all.
    pub not_adopted: u64,
    /// Times that more was taken away than is remembered, so that everything of the program's own was given up.
    pub lost: u64,
    /// Bytes copied between regions and packets.
    pub copied: u64,
    /// How often a key opened what was wanted: the rest is above.
    pub hits: u64,
}

/// What is rarely looked at of a region.
pub(super) struct Held {
    pub(super) way: Way,
    huge: bool,
    windows: usize,
    _cover: Option<Cover>,
    pub(super) attempt: Attempt,
}

impl Held {
    fn new(place: &Place, cover: Option<Cover>, attempt: Attempt) -> Self {
        let way = match cover {
            _ if place.is_window() => Way::Shared,
            Some(_) if attempt.shared() > 0 => Way::Adopted,
            Some(_) => Way::Watched,
            None => Way::Unwatched,
        };
        let huge = place.is_huge() || attempt.is_huge();
        Self { way, huge, windows: 0, _cover: cover, attempt }
    }
}

/// Protection domains, regions and windows of one owner.
///
/// An owner is a process; an engine that serves many has one of these for each. A child that is forked gets
/// [`Refused::Gone`] from its copy for everything.
pub struct Regions {
    pub(super) table: Table,
    pub(super) limits: Limits,
    pub(super) windows: HashMap<usize, super::windows::Window>,
    held: HashMap<usize, Held>,
    domains: HashMap<ProtectionDomain, usize>,
    next_domain: u32,
    bytes: u64,
    /// How many of them are huge.
    huge: usize,
    gate: Gate,
    watch: &'static Watch,
    pub(super) counters: Counters,
}

const KNOWN: Access = Access(63);
const WRITES: [Access; 2] = [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];

impl Regions {
    /// Nothing registered yet.
    ///
    /// # Errors
    /// [`RegisterError::Watch`], [`RegisterError::Limit`] when the limits have more slots than keys have.
    pub fn new(limits: Limits) -> Result<Self, RegisterError> {
        let slots = limits.regions.saturating_add(limits.windows);
        if slots > super::MOST_SLOTS {
            return Err(RegisterError::Limit {
                what: "slots for regions and windows",
                limit: super::MOST_SLOTS as u64,
            });
        }
        let watch = Watch::of_process()?;
        let (held, domains, windows, counters) = Default::default();
        let (table, gate) = (Table::new(limits.regions, limits.windows), watch.gate()?);
        Ok(Self { table, limits, windows, held, domains, next_domain: 1, bytes: 0, huge: 0, gate, watch, counters })
    }

    /// A new protection domain. Numbers do not come again.
    ///
    /// # Errors
    /// [`RegisterError::Limit`].
    pub fn allocate_domain(&mut self) -> Result<ProtectionDomain, RegisterError> {
        let next = self.next_domain.checked_add(1).filter(|_| self.domains.len() < self.limits.domains);
        let next =
            next.ok_or(RegisterError::Limit { what: "protection domains", limit: self.limits.domains as u64 })?;
        let domain = ProtectionDomain(core::mem::replace(&mut self.next_domain, next));
        self.domains.insert(domain, 0);
        Ok(domain)
    }

    /// Gives a protection domain back.
    ///
    /// # Errors
    /// [`RegisterError::Domain`]; [`RegisterError::Busy`] while it has regions or windows.
    pub fn free_domain(&mut self, domain: ProtectionDomain) -> Result<(), RegisterError> {
        match *self.users(domain)? {
            0 => self.domains.remove(&domain).map(drop).ok_or(RegisterError::Domain(domain)),
            users => Err(RegisterError::Busy(users)),
        }
    }

    /// Whether a protection domain has regions or windows.
    pub fn has_users(&mut self, domain: ProtectionDomain) -> bool {
        self.users(domain).is_ok_and(|count| *count > 0)
    }

    /// How many regions and windows a domain has.
    pub(crate) fn users(&mut self, domain: ProtectionDomain) -> Result<&mut usize, RegisterError> {
        self.domains.get_mut(&domain).ok_or(RegisterError::Domain(domain))
    }

    /// Registers memory. Requests count its addresses from `base` on; if `None`, from its own first address, and with
    /// [`Access::ZERO_BASED`] from 0.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(
        &mut self,
        domain: ProtectionDomain,
        source: Source,
        base: Option<u64>,
        access: Access,
    ) -> Result<Registered, RegisterError> {
        self.users(domain)?;
        let (place, held) = self.place(source, access, 0)?;
        let base = checked_base(&place, base, access)?;
        let limit = RegisterError::Limit { what: "regions", limit: self.limits.regions as u64 };
        let slot = self.table.take_region().ok_or(limit)?;
        *self.users(domain)? += 1;
        let way = held.way;
        self.bytes += place.len() as u64;
        self.hold(slot, held);
        Ok(self.put(slot, domain, access, base, place, way))
    }

    /// Remembers what is rarely looked at of a region, instead of what was there.
    fn hold(&mut self, slot: usize, held: Held) -> Option<Held> {
        self.huge += usize::from(held.huge);
        let old = self.held.insert(slot, held);
        self.huge -= usize::from(old.as_ref().is_some_and(|held| held.huge));
        old
    }

    fn put(
        &mut self,
        slot: usize,
        domain: ProtectionDomain,
        access: Access,
        base: u64,
        place: Place,
        way: Way,
    ) -> Registered {
        let key = self.table.next_key(slot, 0);
        // Closed first: nobody is shown the old bytes by another way for a moment.
        self.table.set(slot, None);
        self.table.share(slot, None);
        let (kind, qpn, gone) = (Kind::Region, Qpn::default(), false);
        self.table.set(slot, Some(Entry { key, domain, qpn, access, base, place, kind, gone }));
        Registered { lkey: key, rkey: key, way }
    }

    /// The bytes of a source, watched if they are the program's own. `instead`: bytes of the region that they replace.
    fn place(&mut self, source: Source, access: Access, instead: u64) -> Result<(Place, Held), RegisterError> {
        check_access(access)?;
        let writes = access.allows(Access::LOCAL_WRITE);
        let (len, own) = match &source {
            Source::Own { len, .. } => (*len, true),
            Source::Window(window) => (window.len() as u64, false),
        };
        if (self.bytes - instead).checked_add(len).is_none_or(|all| all > self.limits.bytes) {
            return Err(RegisterError::Limit { what: "bytes", limit: self.limits.bytes });
        }
        // What was taken away until now is not what is registered now.
        if own {
            self.sync();
        }
        let (place, cover, attempt) = match source {
            Source::Window(window) => {
                let place = Place::window(&window);
                let attempt = self.adopt(place.first() as u64, len);
                (place, None, attempt)
            }
            Source::Own { address, len } => {
                // Adopted before it is watched: what others need watched as it is, is not exchanged.
                let attempt = self.adopt(address, len);
                // Watched first and looked at then: nothing can come between.
                let cover = self.cover(address, len)?;
                (Place::own(address, len, writes)?, cover, attempt)
            }
        };
        if writes && !place.is_writable() {
            return Err(RegisterError::ReadOnly);
        }
        if place.is_by_system() && access.allows(Access::REMOTE_ATOMIC) {
            return Err(RegisterError::Atomic);
        }
        let held = Held::new(&place, cover, attempt);
        Ok((place, held))
    }

    /// Makes memory shared memory, if the limits say so.
    fn adopt(&mut self, first: u64, len: u64) -> Attempt {
        let attempt = self.limits.adopt.map_or_else(Attempt::default, |scope| Attempt::at(first, len, scope));
        self.counters.not_adopted += u64::from(attempt.has_failed());
        attempt
    }

    fn cover(&self, address: u64, len: u64) -> Result<Option<Cover>, RegisterError> {
        match self.watch.cover(address, len) {
            Ok(cover) => Ok(Some(cover)),
            Err(_) if self.limits.unwatched => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What is rarely looked at of the region in a slot.
    pub(super) fn held(&self, slot: usize) -> Option<&Held> {
        self.held.get(&slot)
    }

    /// The slot of a region.
    pub(super) fn region(&self, key: Key) -> Result<usize, RegisterError> {
        let found = self.table.find(key).filter(|(_, entry)| entry.kind == Kind::Region);
        found.map(|(slot, _)| slot).ok_or(RegisterError::Key(key))
    }

    /// Counts the windows of a region, one more or one fewer.
    pub(super) fn count_windows(&mut self, slot: usize, change: impl FnOnce(&mut usize)) {
        if let Some(held) = self.held.get_mut(&slot) {
            change(&mut held.windows);
        }
    }

    fn idle_region(&self, key: Key) -> Result<usize, RegisterError> {
        let slot = self.region(key)?;
        match self.held.get(&slot).map_or(0, |held| held.windows) {
            0 => Ok(slot),
            windows => Err(RegisterError::Busy(windows)),
        }
    }

    /// Gives a region back: its keys open nothing from now on.
    ///
    /// # Errors
    /// [`RegisterError::Key`]; [`RegisterError::Busy`] while windows are bound to it.
    pub fn deregister(&mut self, lkey: Key) -> Result<(), RegisterError> {
        self.take_back(lkey).map(drop)
    }

    /// The same. To drop what is left of it can take as long as there is memory to be unmapped: that need not be here and now.
    ///
    /// # Errors
    /// As [`Regions::deregister`].
    pub fn take_back(&mut self, lkey: Key) -> Result<Remains, RegisterError> {
        let slot = self.idle_region(lkey)?;
        let place = self.remains_of(slot);
        if let Some(entry) = self.table.at(slot) {
            let (domain, len) = (entry.domain, entry.place.len() as u64);
            self.bytes -= len;
            *self.users(domain)? -= 1;
        }
        self.table.give_back(slot);
        self.table.share(slot, None);
        let held = self.held.remove(&slot);
        self.huge -= usize::from(held.as_ref().is_some_and(|held| held.huge));
        Ok(Remains { _place: place, _held: held })
    }

    /// Its bytes, so that they stay mapped.
    fn remains_of(&self, slot: usize) -> Option<Place> {
        self.table.at(slot).and_then(|entry| entry.place.part(0, entry.place.len()).ok())
    }

    /// Changes a region, which gets new keys; the old ones open nothing from now on. After an error it is as it was.
    ///
    /// # Errors
    /// As [`Regions::register`] and [`Regions::deregister`].
    pub fn reregister(&mut self, lkey: Key, change: Change) -> Result<Registered, RegisterError> {
        self.exchange(lkey, change).map(|(made, _)| made)
    }

    /// The same, with what is left of it as it was, as with [`Regions::take_back`].
    ///
    /// # Errors
    /// As [`Regions::reregister`].
    pub fn exchange(&mut self, lkey: Key, change: Change) -> Result<(Registered, Remains), RegisterError> {
        let slot = self.idle_region(lkey)?;
        let entry = self.table.at(slot).ok_or(RegisterError::Key(lkey))?;
        let (domain, access) = (change.domain.unwrap_or(entry.domain), change.access.unwrap_or(entry.access));
        let (old_domain, old_base, old_len) = (entry.domain, entry.base, entry.place.len() as u64);
        // Rights were looked at when it was registered, so that other rights are looked at anew.
        let (address, shared) = (entry.place.first() as u64, entry.place.is_window());
        let old = || entry.place.part(0, entry.place.len()).map_err(|_| RegisterError::Key(lkey));
        self.domains.get(&domain).ok_or(RegisterError::Domain(domain))?;
        let replaced = match change.translation {
            Some((source, base)) => {
                let (place, held) = self.place(source, access, old_len)?;
                Some((checked_base(&place, base, access)?, place, held))
            }
            None if shared => {
                check_access(access)?;
                let place = old()?;
                if access.allows(Access::LOCAL_WRITE) && !place.is_writable() {
                    return Err(RegisterError::ReadOnly);
                }
                let attempt = self.held(slot).map(|held| held.attempt.clone()).unwrap_or_default();
                let held = Held::new(&place, None, attempt);
                Some((old_base, place, held))
            }
            None if entry.gone => {
                return Err(RegisterError::Place(PlaceError::NotMapped { first: address, len: old_len }));
            }
            None => {
                let (place, held) = self.place(Source::Own { address, len: old_len }, access, old_len)?;
                Some((old_base, place, held))
            }
        };
        let (base, place, held) = replaced.ok_or(RegisterError::Key(lkey))?;
        *self.users(old_domain)? -= 1;
        *self.users(domain)? += 1;
        self.bytes = self.bytes - old_len + place.len() as u64;
        let way = held.way;
        // The old bytes are watched until nobody reaches them by the old keys.
        let old_place = self.remains_of(slot);
        let old = self.hold(slot, held);
        let put = self.put(slot, domain, access, base, place, way);
        Ok((put, Remains { _place: old_place, _held: old }))
    }

    /// Takes over what was taken away meanwhile. Every access does so; an engine that is idle may call it now and then, so
    /// that not more is taken away than is remembered.
    pub fn sync(&mut self) {
        // There is nothing to be done without memory to be reached.
        let _ = self.inside(|_| ());
    }

    /// Does something while no call that takes watched memory away returns to the program.
    #[inline(always)]
    pub(super) fn inside<R>(&mut self, act: impl FnOnce(&mut Table) -> R) -> Result<R, Refused> {
        match self.gate.enter() {
            Entered::Same => {}
            Entered::Forked => return Err(Refused::Gone),
            entered => self.take_away(entered),
        }
        let outcome = act(&mut self.table);
        self.gate.leave();
        Ok(outcome)
    }

    #[cold]
    fn take_away(&mut self, entered: Entered) {
        let everything = [Taken { first: 0, end: u64::MAX }];
        let lost = entered == Entered::Lost;
        self.counters.lost += u64::from(lost);
        let ranges = if lost { &everything[..] } else { self.gate.taken() };
        self.counters.gone += self.table.take_away(ranges);
        if let Some(directory) = &self.table.directory {
            directory.answer(self.gate.seen());
        }
    }

    /// Other processes find all keys in `directory` from now on, and may reach what they open by themselves.
    pub fn show_in(&mut self, directory: Directory) {
        self.sync();
        self.gate.let_in(directory.outside().clone());
        self.table.show_in(directory);
        // What was taken away between the two is taken over by this.
        self.sync();
    }

    /// What other processes find.
    pub fn directory(&self) -> Option<&Directory> {
        self.table.directory.as_ref()
    }

    /// The bytes of a region lie in a file that other processes may map.
    ///
    /// # Errors
    /// [`RegisterError::Key`].
    pub fn share(&mut self, lkey: Key, shared: Shared) -> Result<(), RegisterError> {
        let slot = self.region(lkey)?;
        self.table.share(slot, Some(shared));
        Ok(())
    }

    /// As [`Regions::sync`], if something was taken away: other processes do not come in before.
    #[inline]
    pub fn sync_if_behind(&mut self) {
        if self.gate.is_behind() {
            self.sync();
        }
    }

    /// Writes of at least as many bytes are stored around the caches.
    pub(crate) fn around_from(&self) -> usize {
        self.limits.around_from
    }

    /// How many regions there are.
    pub fn count(&self) -> usize {
        self.held.len()
    }

    /// How many of them stand on huge pages of a hugetlbfs.
    pub fn huge(&self) -> usize {
        self.huge
    }

    /// All of them, as they are now.
    pub fn list(&mut self) -> Vec<Info> {
        self.some(usize::MAX)
    }

    /// At most so many of them.
    pub fn some(&mut self, most: usize) -> Vec<Info> {
        self.sync();
        let held = self.held.iter().take(most);
        let mut list: Vec<Info> = held.filter_map(|(slot, held)| self.info(*slot, held)).collect();
        list.sort_by_key(|info| (info.domain.0, info.base));
        list
    }

    fn info(&self, slot: usize, held: &Held) -> Option<Info> {
        let Entry { key, domain, access, base, place, gone, .. } = self.table.at(slot)?;
        let (way, windows) = (held.way, held.windows);
        let (len, by_system) = (place.len() as u64, place.is_by_system());
        Some(Info {
            key: *key,
            domain: *domain,
            base: *base,
            len,
            access: *access,
            way,
            by_system,
            shared: held.attempt.shared(),
            gone: *gone,
            windows,
            huge: held.huge,
        })
    }

    /// What was refused so far, and what was not.
    pub fn counters(&self) -> Counters {
        Counters { hits: self.table.hits(), ..self.counters }
    }

    /// For how many registrations in the same slot no key of a region comes again, and for how many bindings none of a window.
    /// Slots are used in turn.
    pub fn key_lifetimes(&self) -> (u64, u64) {
        (1 << self.table.keys.region_bits(), 1 << self.table.keys.window_bits())
    }

    /// What the watch over the memory of this process has seen.
    pub fn watched(&self) -> WatchCounters {
        self.watch.counters()
    }

    /// How much there may be.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Bytes registered.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn check_access(access: Access) -> Result<(), RegisterError> {
    if !KNOWN.allows(access) {
        return Err(RegisterError::Flags(access));
    }
    let by_others = WRITES.into_iter().any(|write| access.allows(write));
    if by_others && !access.allows(Access::LOCAL_WRITE) { Err(RegisterError::Access) } else { Ok(()) }
}

/// Where requests begin to count, if they end before 2^64.
fn checked_base(place: &Place, base: Option<u64>, access: Access) -> Result<u64, RegisterError> {
    let own = if access.allows(Access::ZERO_BASED) { 0 } else { place.first() as u64 };
    let (base, len) = (base.unwrap_or(own), place.len() as u64);
    base.checked_add(len).map(|_| base).ok_or(RegisterError::Range { base, len })
}
