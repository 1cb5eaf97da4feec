//! The backend's side.

use super::front::hear;
use super::store::Store;
use super::{PLACE, device, sys};
use crate::notices::Why;
use crate::page::{BACKEND_LIVES, VERSION};
use crate::transport::{Arrived, Counts, Door, Event, Maps};
use crate::{Address, Error, PAGE};
use millrace_dma::Window;
use millrace_rdma::served::Account;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

/// Programs of one domain.
const MOST_OF_DOMAIN: usize = 8;
/// Programs that are looked at at a time, of all domains and of one, and how long a domain is not looked at again then: each of them takes questions to
/// XenStore, for which all guests wait, and a domain can make as many changes as it likes.
const LOOKED_AT: usize = 8;
const OF_ONE: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);
/// Changes that are read at a time. A domain with more of them is not listened to for so long.
const READ: usize = 256;
const LATER: Duration = Duration::from_secs(1);
/// Characters of what a program says that are shown.
const SHOWN: usize = 64;
/// What all domains have, and where it is told that some have come and gone.
const DOMAINS: &str = "/local/domain";
const INTRODUCED: &str = "@introduceDomain";
const RELEASED: &str = "@releaseDomain";

/// A program: its domain, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Id {
    domain: u16,
    number: u16,
}

impl Id {
    fn place(self) -> u64 {
        u64::from(self.domain) << 16 | u64::from(self.number)
    }

    fn entry(self) -> String {
        format!("{DOMAINS}/{}/{PLACE}/{}", self.domain, self.number)
    }

    /// Of the path of an entry, as [`Id::entry`] makes it.
    fn of(path: &str) -> Option<Self> {
        let (domain, rest) = path.strip_prefix(DOMAINS)?.strip_prefix('/')?.split_once('/')?;
        let number = rest.strip_prefix(PLACE)?.strip_prefix('/')?;
        let id = Self { domain: domain.parse().ok()?, number: number.parse().ok()? };
        // In no other way, such as with a sign.
        (id.entry() == path).then_some(id)
    }
}

/// What a program says of itself: the reference of its control page, and its port. `None`: it is another version, or none.
fn read_entry(says: &str) -> Option<(u32, u32)> {
    let mut numbers = says.split(' ').map(|number| number.parse::<u32>().ok());
    let (reference, port, version) = (numbers.next()??, numbers.next()??, numbers.next()??);
    (version == VERSION && numbers.next().is_none()).then_some((reference, port))
}

/// How a door reaches what is outside of it.
struct Ways {
    store: Box<dyn Fn() -> Result<Store, Error> + Send>,
    /// A program, the reference of its control page, and its port.
    meet: Box<dyn Fn(Id, u32, u32) -> Result<Arrived, Error> + Send>,
}

/// A domain, whose changes come by a connection of their own: however many it makes, those of others do not wait behind them.
struct Watched {
    domain: u16,
    /// None: it was not opened yet, or the domain made more changes than are read. What waited was forgotten with it.
    store: Option<Store>,
    /// Numbers of entries that have changed.
    changed: BTreeSet<u16>,
    /// All of them may have.
    must_list: bool,
    /// Nobody looks before.
    next: Instant,
}

impl Watched {
    fn new(domain: u16) -> Self {
        Self { domain, store: None, changed: BTreeSet::new(), must_list: true, next: Instant::now() }
    }

    fn root(&self) -> String {
        format!("{DOMAINS}/{}/{PLACE}", self.domain)
    }

    /// Whether there is something to do that no descriptor tells of.
    fn has_more(&self) -> bool {
        self.store.is_none() || self.must_list || !self.changed.is_empty()
    }

    /// Reads what has changed. Whether there was something; `Err`: there is more than it may be, or no connection.
    fn read(&mut self, ways: &Ways) -> Result<bool, String> {
        let root = self.root();
        let store = match &mut self.store {
            Some(store) => store,
            None => {
                let mut store = (ways.store)().map_err(|error| error.to_string())?;
                store.watch(&root).map_err(|error| format!("XenStore: {error}"))?;
                self.must_list = true;
                self.store.insert(store)
            }
        };
        for count in 0..READ {
            let Some(path) = store.take_event() else {
                self.must_list |= store.take_lost();
                return Ok(count > 0);
            };
            self.must_list |= path == root;
            self.changed.extend(Id::of(&path).filter(|id| id.domain == self.domain).map(|id| id.number));
        }
        self.store = None;
        Err("it makes more changes in XenStore than are read".to_owned())
    }
}

/// Finds programs of other domains, by XenStore.
pub struct XenDoor {
    ways: Ways,
    /// For questions: nothing is watched by it, so that no answer waits behind changes.
    asks: Store,
    /// Tells of domains that have come and gone.
    births: Store,
    /// Nobody looks at it before.
    next: Instant,
    domains: Vec<Watched>,
    /// Whose turn is first.
    first: usize,
    known: HashSet<Id>,
    /// Always readable: watched when there is something to do that no connection tells of.
    more: OwnedFd,
}

impl XenDoor {
    /// In domain 0.
    ///
    /// # Errors
    /// This is no domain of Xen, or XenStore does not run.
    pub fn open() -> Result<Self, Error> {
        // These fail at once if they are not there, and not when a guest comes.
        device("gntdev", OFlags::empty()).and(device("evtchn", OFlags::NONBLOCK))?;
        Self::with(Ways { store: Box::new(Store::open), meet: Box::new(XenMaps::meet) })
    }

    fn with(ways: Ways) -> Result<Self, Error> {
        let (asks, mut births) = ((ways.store)()?, (ways.store)()?);
        for path in [INTRODUCED, RELEASED] {
            births.watch(path).map_err(Error::system(format!("cannot watch {path} in XenStore (domain 0 may)")))?;
        }
        let more = eventfd(1, EventfdFlags::CLOEXEC).map_err(Error::system("an eventfd"))?;
        let (domains, known) = Default::default();
        let mut door = Self { ways, asks, births, next: Instant::now(), domains, first: 0, known, more };
        door.watch_all();
        Ok(door)
    }

    /// Domains that have come are watched.
    fn watch_all(&mut self) {
        for domain in self.asks.list(DOMAINS).unwrap_or_default() {
            let Some(domain) = domain.parse::<u16>().ok().filter(|domain| *domain != 0) else { continue };
            if !self.domains.iter().any(|watched| watched.domain == domain) {
                self.domains.push(Watched::new(domain));
            }
        }
    }

    /// Guests whose domains are there no more.
    fn gone(&mut self) -> Vec<Event> {
        let Self { asks, domains, known, .. } = self;
        domains.retain(|watched| asks.has_domain(watched.domain));
        let is_there = |id: &&Id| !domains.iter().any(|watched| watched.domain == id.domain);
        known.iter().filter(is_there).map(|id| Event::Went(id.place())).collect()
    }

    fn hear_of_domains(&mut self) -> Vec<Event> {
        let (mut has_come, mut has_gone) = (false, false);
        for _ in 0..READ {
            let Some(path) = self.births.take_event() else { break };
            has_come |= path == INTRODUCED;
            has_gone |= path == RELEASED;
        }
        if has_come || has_gone {
            self.next = Instant::now() + PAUSE;
        }
        if has_come {
            self.watch_all();
        }
        if has_gone { self.gone() } else { Vec::new() }
    }

    /// What has changed in a domain, of which so many entries may be looked at now; and how many questions that took, for each of which all guests
    /// wait.
    fn hear_of(&mut self, at: usize, most: usize) -> (Vec<Event>, usize) {
        let Self { ways, asks, domains, .. } = self;
        let watched = &mut domains[at];
        let now = Instant::now();
        let (mut events, mut asked) = (Vec::new(), 0);
        match watched.read(ways) {
            Ok(has_read) if has_read || watched.has_more() => watched.next = now + PAUSE,
            Ok(_) => return (events, asked),
            Err(why) => {
                watched.next = now + LATER;
                let (domain, later) = (watched.domain, LATER.as_secs());
                events.push(Event::Noted(format!("domain {domain} is not listened to for {later} s: {why}")));
            }
        }
        if core::mem::take(&mut watched.must_list) {
            asked += 1;
            let root = watched.root();
            let entries = asks.list(&root).unwrap_or_default();
            let ids = entries.iter().filter_map(|number| Id::of(&format!("{root}/{number}")));
            watched.changed.extend(ids.map(|id| id.number));
        }
        let domain = watched.domain;
        let numbers: Vec<u16> = std::iter::from_fn(|| watched.changed.pop_first()).take(most).collect();
        asked += numbers.len();
        events.extend(numbers.into_iter().filter_map(|number| self.arrive(Id { domain, number })));
        (events, asked)
    }

    fn arrive(&mut self, id: Id) -> Option<Event> {
        if self.known.contains(&id) {
            return None;
        }
        // It may have been removed, by us among others.
        let says = self.asks.read(&id.entry()).ok()?;
        let of_domain = self.known.iter().filter(|known| known.domain == id.domain).count();
        let refused = match read_entry(&says) {
            Some(_) if of_domain >= MOST_OF_DOMAIN => {
                (Why::Crowded, "its domain has as many programs as it may have".to_owned())
            }
            Some((reference, port)) => match (self.ways.meet)(id, reference, port) {
                Ok(arrived) => {
                    self.known.insert(id);
                    return Some(Event::Came(arrived));
                }
                Err(error) => (Why::Memory, error.to_string()),
            },
            None => {
                let says: String = says.chars().take(SHOWN).collect();
                (
                    Why::Greeting,
                    format!("what it says is not understood: use the same release on both sides ({says:?})"),
                )
            }
        };
        let _ = self.asks.remove(&id.entry());
        let (Id { domain, number }, (why, text)) = (id, refused);
        Some(Event::TurnedAway(why, format!("program {number} of domain {domain} was turned away: {text}")))
    }
}

impl Door for XenDoor {
    fn fds(&mut self) -> Vec<BorrowedFd<'_>> {
        let now = Instant::now();
        let births = (now >= self.next).then(|| self.births.fd());
        let due = || self.domains.iter().filter(|watched| now >= watched.next);
        let more = due().any(Watched::has_more).then(|| self.more.as_fd());
        let domains = due().filter_map(|watched| watched.store.as_ref().map(Store::fd));
        births.into_iter().chain(more).chain(domains).collect()
    }

    fn look(&mut self) -> Vec<Event> {
        let mut events = if Instant::now() >= self.next { self.hear_of_domains() } else { Vec::new() };
        let (now, count) = (Instant::now(), self.domains.len());
        let (mut left, first) = (LOOKED_AT, self.first);
        for at in (0..count).map(|turn| (first + turn) % count) {
            if now < self.domains[at].next {
                continue;
            }
            let (heard, asked) = self.hear_of(at, left.min(OF_ONE));
            left = left.saturating_sub(asked);
            events.extend(heard);
            if left == 0 {
                self.first = at + 1;
                break;
            }
        }
        events
    }

    fn leave(&mut self, place: u64) {
        let Some(id) = self.known.iter().find(|id| id.place() == place).copied() else { return };
        self.known.remove(&id);
        // With its domain it has gone already.
        let _ = self.asks.remove(&id.entry());
    }
}

struct XenMaps {
    id: Id,
    name: String,
    gntdev: OwnedFd,
    evtchn: OwnedFd,
    port: u32,
    counts: Counts,
}

impl XenMaps {
    fn meet(id: Id, reference: u32, port: u32) -> Result<Arrived, Error> {
        let gntdev = device("gntdev", OFlags::empty())?;
        let evtchn = device("evtchn", OFlags::NONBLOCK)?;
        let port = sys::bind_interdomain(&evtchn, id.domain, port).map_err(Error::system("its event channel"))?;
        let name = format!("program {} of domain {}", id.number, id.domain);
        let counts = Counts { system_calls: 3, hypercalls: 1, ..Counts::default() };
        let mut maps = Self { id, name, gntdev, evtchn, port, counts };
        let notify = |gntdev: &OwnedFd, at| sys::notify_of_unmap(gntdev, at + BACKEND_LIVES as u64, port);
        let control = maps.map_with(&[reference.into()], notify)?;
        Ok(Arrived { maps: Box::new(maps), control })
    }

    fn map_with(
        &mut self,
        references: &[u64],
        with: impl FnOnce(&OwnedFd, u64) -> Result<(), rustix::io::Errno>,
    ) -> Result<Window, Error> {
        let grants: Option<Vec<u32>> = references.iter().map(|reference| u32::try_from(*reference).ok()).collect();
        let grants = grants.ok_or_else(|| Error::system("its grants")(Errno::INVAL))?;
        let at = sys::map(&self.gntdev, self.id.domain, &grants).map_err(Error::system("its grants"))?;
        let mapped = Window::of_device(&self.gntdev, at, references.len() * PAGE);
        let done = with(&self.gntdev, at);
        // The mapping has them from now on, and gives them back when it ends; the file would keep them as long as it is open.
        let _ = sys::unmap(&self.gntdev, at, references.len() as u32);
        self.counts.system_calls += 3;
        self.counts.hypercalls += 1;
        let window = mapped?;
        done.map_err(Error::system("cannot have it told of the end of this backend"))?;
        self.counts.pages += references.len() as u64;
        Ok(window)
    }
}

impl Maps for XenMaps {
    fn map(&mut self, references: &[u64]) -> Result<Window, Error> {
        self.map_with(references, |_, _| Ok(()))
    }

    fn mappings(&self, _: &[u64]) -> u64 {
        1
    }

    fn ring(&mut self) {
        let _ = sys::notify(&self.evtchn, self.port);
        self.counts.system_calls += 1;
        self.counts.hypercalls += 1;
        self.counts.rung += 1;
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.evtchn.as_fd()
    }

    fn hear(&mut self) {
        self.counts.system_calls += hear(&self.evtchn);
        self.counts.heard += 1;
    }

    fn life(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn has_ended(&mut self) -> bool {
        false
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn account(&self) -> Account {
        // Each domain is a user of its own, beyond those that Linux has by default.
        Account { uid: 1 << 31 | u32::from(self.id.domain), is_owner: false }
    }

    fn place(&self) -> u64 {
        self.id.place()
    }

    fn address(&self) -> Address {
        let [a, b] = self.id.domain.to_be_bytes();
        let [c, d] = self.id.number.to_be_bytes();
        Address([0x02, b'X', a, b, c, d])
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::super::sim::Sim;
    use super::*;
    use millrace_dma::Region;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn only_entries_of_programs_are_programs() {
        let id = Id { domain: 3, number: 77 };
        assert_eq!(id.entry(), "/local/domain/3/data/millrace/77");
        assert_eq!(Id::of(&id.entry()), Some(id));
        for other in [
            "/local/domain/3/data/millrace",
            "/local/domain/3/data/millrace/77/x",
            "/local/domain/3/data/millrace/+77",
            "/local/domain/70000/data/millrace/1",
            "@releaseDomain",
            "",
        ] {
            assert_eq!(Id::of(other), None, "{other}");
        }
        assert_eq!(read_entry(&format!("8 9 {VERSION}")), Some((8, 9)));
        for other in ["8 9", "8 9 1", "8 9 3 1", "-8 9 3", "99999999999 9 3", ""] {
            assert_eq!(read_entry(other), None, "{other}");
        }
    }

    /// A door whose XenStore is `sim`, and whose programs have nothing.
    fn door(sim: &Sim) -> XenDoor {
        let (store, meets) = (sim.clone(), sim.clone());
        let meet = move |id: Id, reference: u32, port| {
            if reference == 0 {
                return Err(Error::Version);
            }
            let file = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            let name = format!("program {} of domain {}", id.number, id.domain);
            let maps = XenMaps { id, name, gntdev: file(), evtchn: file(), port, counts: Counts::default() };
            meets.count_meeting();
            Ok(Arrived { maps: Box::new(maps), control: Region::heap(PAGE).window().clone() })
        };
        XenDoor::with(Ways { store: Box::new(move || Ok(store.connect())), meet: Box::new(meet) }).unwrap()
    }

    /// Looks as a backend does, until that is found.
    fn look_until(door: &mut XenDoor, what: &str, mut is_it: impl FnMut(&Event) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let fds = door.fds();
            let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            let soon = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let is_ready = matches!(poll(&mut fds, Some(&soon)), Ok(1..));
            drop(fds);
            if is_ready && door.look().iter().any(&mut is_it) {
                return;
            }
        }
        panic!("{what}");
    }

    fn has_come(event: &Event, domain: u16) -> bool {
        matches!(event, Event::Came(arrived) if arrived.maps.place() >> 16 == u64::from(domain))
    }

    #[test]
    fn a_domain_that_changes_without_end_keeps_nobody_else() {
        let sim = Sim::start();
        let says = format!("8 9 {VERSION}");
        [5, 6].into_iter().for_each(|domain| sim.introduce(domain));
        sim.set(&Id { domain: 5, number: 1 }.entry(), &says);
        let mut door = door(&sim);
        look_until(&mut door, "one that is there", |event| has_come(event, 5));
        let flood = sim.flood("/local/domain/5/data/millrace/x");
        look_until(&mut door, "the flood", |event| matches!(event, Event::Noted(_)));
        sim.set(&Id { domain: 6, number: 77 }.entry(), &says);
        look_until(&mut door, "another domain", |event| has_come(event, 6));
        sim.introduce(7);
        sim.set(&Id { domain: 7, number: 1 }.entry(), "8 9 0");
        look_until(&mut door, "what is no program", |event| matches!(event, Event::TurnedAway(Why::Greeting, _)));
        assert!(sim.is_gone(&Id { domain: 7, number: 1 }.entry()), "it is removed");
        sim.release(6);
        let place = Id { domain: 6, number: 77 }.place();
        look_until(&mut door, "its end", |event| matches!(event, Event::Went(gone) if *gone == place));
        door.leave(place);
        sim.calm();
        drop(door);
        flood.join().unwrap();
    }

    #[test]
    fn a_domain_has_its_programs_and_no_more_at_a_look() {
        let sim = Sim::start();
        sim.introduce(3);
        (0..100).for_each(|number| sim.set(&Id { domain: 3, number }.entry(), &format!("1 2 {VERSION}")));
        let mut door = door(&sim);
        let mut turned_away = 0;
        look_until(&mut door, "all of them", |event| {
            turned_away += usize::from(matches!(event, Event::TurnedAway(Why::Crowded, _)));
            turned_away == 100 - MOST_OF_DOMAIN
        });
        assert_eq!(sim.meetings(), MOST_OF_DOMAIN);
        sim.set(&Id { domain: 3, number: 200 }.entry(), &format!("0 2 {VERSION}"));
        door.leave(Id { domain: 3, number: 0 }.place());
        look_until(&mut door, "a page that is not granted", |event| matches!(event, Event::TurnedAway(Why::Memory, _)));
        sim.set(&Id { domain: 3, number: 201 }.entry(), &format!("1 2 {VERSION}"));
        look_until(&mut door, "one in its place", |event| has_come(event, 3));
    }
}
