//! The backend's side: a peer of the host, among the machines that share a memory.

use super::pace::Pace;
use super::{BACKEND, BEAT, CONTROL, ENDED, PRESENCE, Slices, WHO};
use crate::notices::Why;
use crate::transport::{Arrived, Counts, Door, Event, Maps};
use crate::{Address, Error, PAGE};
use millrace_dma::{Ordering, Window};
use millrace_ivshmem::{At, Endpoint};
use millrace_rdma::served::Account;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often peers are looked at, besides when one has rung.
const LOOK: i64 = 1;
/// A program that has not said for so long that it lives has ended, or its machine stands still.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the backend knows of a program.
struct Known {
    peer: u16,
    /// Which of those that have had this number the peer is.
    presence: u64,
    who: u64,
    place: u64,
    beat: u64,
    /// When the beat was another one.
    at: Instant,
}

/// A server of `millrace ivshmem` whose peers are served: one program of each virtual machine, and programs of the host.
pub struct IvshmemDoor {
    path: PathBuf,
    endpoint: Arc<Mutex<Endpoint>>,
    slices: Slices,
    /// Readable when the peer of this backend was rung; and when the server has said something.
    bells: [OwnedFd; 2],
    timer: OwnedFd,
    /// Which door of the backend this is.
    number: u8,
    own: u16,
    known: Vec<Known>,
    /// Those that have ended, and are served until [`Door::leave`]: place, peer and program.
    ending: Vec<(u64, u16, u64)>,
    /// Those that were turned away, so that they are not asked again and again: peer, presence and program.
    refused: Vec<(u16, u64, u64)>,
    pace: Pace,
    /// The server has cut it off, or has ended, and it was said.
    is_end_said: bool,
    next: u16,
}

fn lock(endpoint: &Mutex<Endpoint>) -> MutexGuard<'_, Endpoint> {
    endpoint.lock().unwrap_or_else(PoisonError::into_inner)
}

impl IvshmemDoor {
    /// Joins the peers of the server at `path`. `number`: which of the backend's doors of this kind it is.
    ///
    /// # Errors
    /// There is no server, or its memory has no room for granted pages.
    pub fn open(path: &Path, number: u8) -> Result<Self, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Shared(error.to_string());
        let endpoint = Endpoint::open(&At::Socket(path.to_owned())).map_err(|error| failed(&error))?;
        let slices = endpoint.rest().and_then(|rest| Slices::of(&rest, endpoint.slots()));
        let slices =
            slices.ok_or_else(|| failed(&"it has no room for granted pages: start the server with more (--memory)"))?;
        let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(Error::io("one more descriptor"));
        let bells = match endpoint.fds() {
            Some([bell, server]) => [copy(bell)?, copy(server)?],
            None => return Err(failed(&"it is no server of this host")),
        };
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
            .and_then(|timer| {
                let every = Timespec { tv_sec: LOOK, tv_nsec: 0 };
                let times = Itimerspec { it_interval: every, it_value: every };
                timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
                Ok(timer)
            })
            .map_err(Error::system("a timer"))?;
        let own = endpoint.id();
        let head = slices.head(own)?;
        head.word64(PRESENCE)?.store(endpoint.presence(own), Ordering::Relaxed);
        // Release pairs with the Acquire in `find_backend`.
        head.word64(WHO)?.store(BACKEND, Ordering::Release);
        let (known, ending, refused, pace, is_end_said) = Default::default();
        let endpoint = Arc::new(Mutex::new(endpoint));
        Ok(Self {
            path: path.to_owned(),
            endpoint,
            slices,
            bells,
            timer,
            number,
            own,
            known,
            ending,
            refused,
            pace,
            is_end_said,
            next: 0,
        })
    }

    /// What a peer says that it is now, if it is there.
    fn says(&self, peer: u16) -> Option<(u64, u64, Window)> {
        let presence = lock(&self.endpoint).presence(peer);
        let head = self.slices.head(peer).ok()?;
        // Acquire pairs with the Release in `connect`.
        let who = head.word64(WHO).ok()?.load(Ordering::Acquire);
        (presence != 0 && who != 0 && who != BACKEND).then_some((presence, who, head))
    }

    /// Those that have ended: the peer has gone, says that it is another program, or says nothing any more.
    fn gone(&mut self) -> Vec<Event> {
        let now = Instant::now();
        let (mut gone, mut known) = (Vec::new(), core::mem::take(&mut self.known));
        let (mut refused, mut ending) = (Vec::new(), Vec::new());
        known.retain_mut(|one| {
            let says = self.says(one.peer).filter(|(presence, who, _)| (*presence, *who) == (one.presence, one.who));
            let beat = says.and_then(|(.., head)| head.word64(BEAT).ok()).map(|word| word.load(Ordering::Relaxed));
            if beat.is_some_and(|beat| beat != one.beat) {
                (one.beat, one.at) = (beat.unwrap_or_default(), now);
            }
            let is_there = beat.is_some() && now - one.at < PATIENCE;
            if !is_there {
                gone.push(Event::Went(one.place));
                refused.push((one.peer, one.presence, one.who));
                ending.push((one.place, one.peer, one.who));
            }
            is_there
        });
        self.known = known;
        self.refused.extend(refused);
        self.ending.extend(ending);
        gone
    }

    /// Says once that nobody finds this backend any more.
    fn end_of_server(&mut self) -> Option<Event> {
        let why = {
            let endpoint = lock(&self.endpoint);
            // Who is cut off is hung up on as well.
            if endpoint.is_cut_off() {
                "has cut this backend off, so that nobody finds it"
            } else if endpoint.is_alone() {
                "has ended: guests that are there go on, and others do not find this backend"
            } else {
                return None;
            }
        };
        let is_said = core::mem::replace(&mut self.is_end_said, true);
        let line = || Event::Noted(format!("the server at {} {why}: start the backend again", self.path.display()));
        (!is_said).then(line)
    }

    fn arrive(&mut self, peer: u16) -> Option<Event> {
        let (presence, who, head) = self.says(peer)?;
        let is_known = self.known.iter().any(|one| one.peer == peer);
        if is_known || self.refused.contains(&(peer, presence, who)) {
            return None;
        }
        if let Err(is_to_be_said) = self.pace.ask(peer, Instant::now()) {
            let path = self.path.display();
            let line =
                || format!("peer {peer} of {path} has programs come and go too often: for a while few are let in");
            return is_to_be_said.then(|| Event::TurnedAway(Why::Crowded, line()));
        }
        self.refused.retain(|(refused, ..)| *refused != peer);
        self.next = self.next.wrapping_add(1);
        let place = u64::from(self.number) << 32 | u64::from(peer) << 16 | u64::from(self.next);
        match self.meet(peer, place, &head) {
            Ok(arrived) => {
                let at = Instant::now();
                self.known.push(Known { peer, presence, who, place, beat: 0, at });
                Some(Event::Came(arrived))
            }
            Err(error) => {
                self.refused.push((peer, presence, who));
                let path = self.path.display();
                Some(Event::TurnedAway(Why::Memory, format!("peer {peer} of {path} was turned away: {error}")))
            }
        }
    }

    fn meet(&self, peer: u16, place: u64, head: &Window) -> Result<Arrived, Error> {
        let page = head.word64(CONTROL)?.load(Ordering::Relaxed);
        let page = u32::try_from(page).map_err(|_| Error::Version)?;
        let mut maps = IvshmemMaps {
            endpoint: Arc::clone(&self.endpoint),
            bell: self.bells[0].try_clone().map_err(Error::io("one more descriptor"))?,
            slices: self.slices.clone(),
            name: format!("peer {peer} of {}", self.path.display()),
            peer,
            number: self.number,
            place,
            counts: Counts::default(),
        };
        let control = maps.map(&[page.into()])?;
        Ok(Arrived { maps: Box::new(maps), control })
    }
}

impl Door for IvshmemDoor {
    fn fds(&mut self) -> Vec<BorrowedFd<'_>> {
        let is_alone = lock(&self.endpoint).is_alone();
        let [bell, server] = &self.bells;
        let all = [Some(bell), Some(server).filter(|_| !is_alone), Some(&self.timer)];
        all.into_iter().flatten().map(AsFd::as_fd).collect()
    }

    fn look(&mut self) -> Vec<Event> {
        let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
        let slots = {
            let mut endpoint = lock(&self.endpoint);
            endpoint.hear();
            endpoint.slots()
        };
        let mut events = self.gone();
        events.extend(self.end_of_server());
        let own = self.own;
        for peer in (0..slots).filter(|peer| *peer != own) {
            events.extend(self.arrive(peer));
        }
        events
    }

    fn leave(&mut self, place: u64) {
        if let Some(at) = self.ending.iter().position(|(of, ..)| *of == place) {
            let (_, peer, who) = self.ending.swap_remove(at);
            if let Ok(word) = self.slices.head(peer).and_then(|head| head.word64(ENDED)) {
                // Release pairs with the Acquire in `IvshmemLand::open`: what the engine wrote there for it was before.
                word.store(who, Ordering::Release);
            }
            return;
        }
        let Some(at) = self.known.iter().position(|one| one.place == place) else { return };
        let one = self.known.swap_remove(at);
        // It may still say that it is there.
        self.refused.push((one.peer, one.presence, one.who));
    }
}

impl Drop for IvshmemDoor {
    fn drop(&mut self) {
        if let Ok(who) = self.slices.head(self.own).and_then(|head| head.word64(WHO)) {
            who.store(0, Ordering::Release);
        }
    }
}

struct IvshmemMaps {
    endpoint: Arc<Mutex<Endpoint>>,
    /// That of the backend's peer: all its guests ring it.
    bell: OwnedFd,
    slices: Slices,
    name: String,
    peer: u16,
    number: u8,
    place: u64,
    counts: Counts,
}

impl Maps for IvshmemMaps {
    fn map(&mut self, references: &[u64]) -> Result<Window, Error> {
        let first = references.first().copied().unwrap_or(0);
        let is_run = references.array_windows().all(|[one, next]| one.checked_add(1) == Some(*next));
        // The first page says who the peer is.
        if first == 0 || !is_run {
            return Err(Error::system("pages that lie apart")(rustix::io::Errno::INVAL));
        }
        let first = usize::try_from(first).map_err(|_| Error::system("pages")(rustix::io::Errno::INVAL))?;
        let window = self.slices.part(self.peer, first, references.len())?;
        self.counts.pages += references.len() as u64;
        debug_assert_eq!(window.len(), references.len() * PAGE);
        Ok(window)
    }

    fn mappings(&self, _: &[u64]) -> u64 {
        0
    }

    fn ring(&mut self) {
        lock(&self.endpoint).wake(self.peer);
        self.counts.system_calls += 1;
        self.counts.rung += 1;
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn hear(&mut self) {
        lock(&self.endpoint).hear();
        self.counts.system_calls += 1;
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
        // Each peer is a user of its own, beyond those that Linux has by default, and other than domains of Xen.
        Account { uid: 1 << 30 | u32::from(self.number) << 16 | u32::from(self.peer), is_owner: false }
    }

    fn place(&self) -> u64 {
        self.place
    }

    fn address(&self) -> Address {
        let [a, b] = (self.place as u16).to_be_bytes();
        Address([0x02, b'I', self.number, self.peer as u8, a, b])
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_dma::Region;
    use millrace_ivshmem::layout::bytes_of;

    #[test]
    fn slices_are_apart_and_nothing_outside_of_one_is_mapped() {
        let (peers, pages) = (4_u16, 100);
        let at = bytes_of(peers);
        let skip = at.next_multiple_of(PAGE) - at;
        let memory = Region::heap(skip + usize::from(peers) * pages * PAGE + 5);
        let slices = Slices::of(memory.window(), peers).unwrap();
        assert_eq!(slices.pages, pages);
        for peer in 0..peers {
            slices.head(peer).unwrap().word64(0).unwrap().store(u64::from(peer) + 7, Ordering::Relaxed);
            let last = slices.part(peer, pages - 1, 1).unwrap();
            last.word64(PAGE - 8).unwrap().store(u64::from(peer) + 70, Ordering::Relaxed);
        }
        for peer in 0..peers {
            let word =
                |page: usize, at| slices.part(peer, page, 1).unwrap().word64(at).unwrap().load(Ordering::Relaxed);
            assert_eq!((word(0, 0), word(pages - 1, PAGE - 8)), (u64::from(peer) + 7, u64::from(peer) + 70));
            for (first, count) in [(pages, 1), (pages - 1, 2), (0, pages + 1), (usize::MAX, 2)] {
                assert!(slices.part(peer, first, count).is_err(), "{first} {count}");
            }
        }
        assert!(Slices::of(&memory.window().part(0, 4 * 63 * PAGE).unwrap(), peers).is_none(), "too small");
    }
}
