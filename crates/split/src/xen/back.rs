//! The backend's side.

use super::front::hear;
use super::store::Store;
use super::{PLACE, device, sys};
use crate::page::{BACKEND_LIVES, VERSION};
use crate::transport::{Arrived, Counts, Door, Event, Maps};
use crate::{Address, Error, PAGE};
use millrace_dma::Window;
use millrace_rdma::served::Account;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Programs of one domain.
const MOST_OF_DOMAIN: usize = 8;
/// Changes in XenStore that are looked at at a time, and how long it is not looked at again then: each of them takes questions to XenStore,
/// for which all guests wait, and one guest can make as many changes as it likes.
const LOOKED_AT: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);
/// What all domains have, and where it is told that some have gone.
const DOMAINS: &str = "/local/domain";
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

/// Finds programs of other domains, by XenStore.
pub struct XenDoor {
    store: Store,
    known: HashSet<Id>,
    /// Nobody looks before.
    next: Instant,
}

impl XenDoor {
    /// In domain 0.
    ///
    /// # Errors
    /// This is no domain of Xen, or XenStore does not run.
    pub fn open() -> Result<Self, Error> {
        let mut store = Store::open()?;
        for path in [DOMAINS, RELEASED] {
            store.watch(path).map_err(Error::system(format!("cannot watch {path} in XenStore (domain 0 may)")))?;
        }
        // These fail at once if they are not there, and not when a guest comes.
        device("gntdev", OFlags::empty()).and(device("evtchn", OFlags::NONBLOCK))?;
        Ok(Self { store, known: HashSet::new(), next: Instant::now() })
    }

    fn arrive(&mut self, id: Id) -> Option<Arrived> {
        if id.domain == 0 || self.known.contains(&id) {
            return None;
        }
        // It may have been removed, by us among others.
        let says = self.store.read(&id.entry()).ok()?;
        let of_domain = self.known.iter().filter(|known| known.domain == id.domain).count();
        let arrived = match read_entry(&says) {
            Some(_) if of_domain >= MOST_OF_DOMAIN => Err("its domain has as many programs as it may have".to_owned()),
            Some((reference, port)) => XenMaps::meet(id, reference, port).map_err(|error| error.to_string()),
            None => Err(format!("what it says is not understood: use the same release on both sides ({says:?})")),
        };
        match arrived {
            Ok(arrived) => {
                self.known.insert(id);
                Some(arrived)
            }
            Err(why) => {
                tracing::warn!(domain = id.domain, number = id.number, why, "a program was turned away");
                let _ = self.store.remove(&id.entry());
                None
            }
        }
    }

    /// All entries that there are, when the watch begins.
    fn arrive_all(&mut self) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        for domain in self.store.list(DOMAINS).unwrap_or_default() {
            for number in self.store.list(&format!("{DOMAINS}/{domain}/{PLACE}")).unwrap_or_default() {
                let id = Id::of(&format!("{DOMAINS}/{domain}/{PLACE}/{number}"));
                arrived.extend(id.and_then(|id| self.arrive(id)));
            }
        }
        arrived
    }
}

impl XenDoor {
    /// Guests whose domains are there no more.
    fn gone(&mut self) -> Vec<Event> {
        let domains: HashSet<u16> = self.known.iter().map(|id| id.domain).collect();
        let gone: Vec<u16> = domains.into_iter().filter(|domain| !self.store.has_domain(*domain)).collect();
        let gone = self.known.iter().filter(|id| gone.contains(&id.domain));
        gone.map(|id| Event::Went(id.place())).collect()
    }
}

impl Door for XenDoor {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        if Instant::now() >= self.next { vec![self.store.fd()] } else { Vec::new() }
    }

    fn look(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..LOOKED_AT {
            let Some(path) = self.store.take_event() else { break };
            self.next = Instant::now() + PAUSE;
            if path == DOMAINS {
                events.extend(self.arrive_all().into_iter().map(Event::Came));
            } else if path == RELEASED {
                events.extend(self.gone());
            } else if let Some(id) = Id::of(&path) {
                events.extend(self.arrive(id).map(Event::Came));
            }
        }
        if self.store.take_lost() {
            events.extend(self.arrive_all().into_iter().map(Event::Came));
            events.extend(self.gone());
        }
        events
    }

    fn leave(&mut self, place: u64) {
        let Some(id) = self.known.iter().find(|id| id.place() == place).copied() else { return };
        self.known.remove(&id);
        // With its domain it has gone already.
        let _ = self.store.remove(&id.entry());
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
        let control = maps.map_with(&[reference], notify)?;
        Ok(Arrived { maps: Box::new(maps), control })
    }

    fn map_with(
        &mut self,
        references: &[u32],
        with: impl FnOnce(&OwnedFd, u64) -> Result<(), rustix::io::Errno>,
    ) -> Result<Window, Error> {
        let at = sys::map(&self.gntdev, self.id.domain, references).map_err(Error::system("its grants"))?;
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
    fn map(&mut self, references: &[u32]) -> Result<Window, Error> {
        self.map_with(references, |_, _| Ok(()))
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
    use super::*;

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
        for other in ["8 9", "8 9 1", "8 9 2 1", "-8 9 2", "99999999999 9 2", ""] {
            assert_eq!(read_entry(other), None, "{other}");
        }
    }
}
