//! The guest's side.

use super::{BACKEND, BEAT, CONTROL, ENDED, PRESENCE, Slices, WHO};
use crate::transport::{Counts, Granted, Grants};
use crate::{Error, PAGE};
use millrace_dma::{Ordering, Window};
use millrace_ivshmem::{At, Endpoint};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a backend is looked for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often somebody says that the program lives.
const BEATS: Duration = Duration::from_secs(1);

/// How long somebody who calls again waits for the connection before to have ended.
const ENDS: Duration = Duration::from_secs(2);

/// A program that grants pages of its peer's slice.
pub struct IvshmemGrants {
    /// There until the end of this.
    endpoint: Option<Endpoint>,
    slices: Slices,
    own: u16,
    head: Window,
    /// The backend: its number, and which of those that have had it.
    backend: (u16, u64),
    free: Arc<Mutex<Runs>>,
    /// Pages of this connection: the first of each run, and how many.
    granted: Vec<(u32, u32)>,
    /// By which the backend knows this connection; 0: it has not been called.
    number: u64,
    /// Where the endpoint goes at the end, for the next connection of this program.
    home: Option<Arc<Mutex<Option<Endpoint>>>>,
    counts: Counts,
    /// As long as it is there, the program is said to live.
    _life: Arc<()>,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Shared(error.to_string())
}

/// Runs of free pages: the first, and how many, in order.
struct Runs(Vec<(u32, u32)>);

impl Runs {
    /// So many pages that follow one another, the last ones that are free: memory that a program has of its own grows from the first ones.
    fn take(&mut self, pages: u32) -> Option<u32> {
        let run = self.0.iter_mut().rev().find(|(_, len)| *len >= pages)?;
        run.1 -= pages;
        let first = run.0 + run.1;
        self.0.retain(|(_, len)| *len > 0);
        Some(first)
    }

    /// So many pages from `first` on, if they are all free.
    fn take_at(&mut self, first: u32, pages: u32) -> bool {
        let Some(run) = self.0.iter_mut().find(|(begin, len)| *begin == first && *len >= pages) else { return false };
        (run.0, run.1) = (run.0 + pages, run.1 - pages);
        self.0.retain(|(_, len)| *len > 0);
        true
    }

    fn give_back(&mut self, run: (u32, u32)) {
        self.0.push(run);
        self.0.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (first, len) in self.0.drain(..) {
            match merged.last_mut() {
                Some((begin, before)) if *begin + *before == first => *before += len,
                _ => merged.push((first, len)),
            }
        }
        self.0 = merged;
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins those who share the memory at `at` (`pci`, `pci:ADDRESS`, or the socket of the server on the host), and tells the backend among them
/// of this program.
///
/// `prepare` is called with the control page before anybody else looks at it.
///
/// # Errors
/// [`Error`].
pub fn connect<T>(
    at: &str,
    prepare: impl FnOnce(&Window) -> Result<T, Error>,
) -> Result<(IvshmemGrants, Granted, T), Error> {
    let (mut endpoint, slices) = join(at)?;
    let backend = find_backend(&mut endpoint, &slices, PATIENCE)?;
    let free = Runs(vec![(1, slices.pages as u32 - 1)]);
    greet(endpoint, backend, &slices, Arc::new(Mutex::new(free)), None, prepare)
}

/// Joins those who share the memory: nobody else of this machine has its slice from now on.
fn join(at: &str) -> Result<(Endpoint, Slices), Error> {
    let Ok(place) = at.parse::<At>();
    let mut endpoint = Endpoint::open(&place).map_err(failed)?;
    // The next program of this machine would have the same pages.
    endpoint.claim().map_err(failed)?;
    let slices = endpoint.rest().and_then(|rest| Slices::of(&rest, endpoint.slots()));
    let slices =
        slices.ok_or_else(|| failed("it has no room for granted pages: start the server with more (--memory)"))?;
    Ok((endpoint, slices))
}

/// Tells the backend of this program.
fn greet<T>(
    endpoint: Endpoint,
    backend: (u16, u64),
    slices: &Slices,
    free: Arc<Mutex<Runs>>,
    home: Option<Arc<Mutex<Option<Endpoint>>>>,
    prepare: impl FnOnce(&Window) -> Result<T, Error>,
) -> Result<(IvshmemGrants, Granted, T), Error> {
    let own = endpoint.id();
    let (head, life) = (slices.head(own)?, Arc::new(()));
    let counts = Counts { system_calls: 4, ..Counts::default() };
    let (slices, endpoint) = (slices.clone(), Some(endpoint));
    let (granted, number, _life) = (Vec::new(), 0, Arc::clone(&life));
    let mut grants = IvshmemGrants { endpoint, slices, own, head, backend, free, granted, number, home, counts, _life };
    // From here on the endpoint goes home with what is dropped.
    let (control, prepared) = introduce(&mut grants, &life, prepare)?;
    Ok((grants, control, prepared))
}

fn introduce<T>(
    grants: &mut IvshmemGrants,
    life: &Arc<()>,
    prepare: impl FnOnce(&Window) -> Result<T, Error>,
) -> Result<(Granted, T), Error> {
    // The one before it is over, and its pages are not looked at any more when the backend has seen that.
    grants.head.word64(WHO)?.store(0, Ordering::Release);
    let control = grants.grant(1)?;
    let prepared = prepare(&control.window)?;
    beat(grants.head.clone(), Arc::downgrade(life))?;
    grants.head.word64(CONTROL)?.store(control.place, Ordering::Relaxed);
    // Release: the control page is seen by whoever sees this.
    grants.number = RandomState::new().hash_one(control.place) | 1;
    grants.head.word64(WHO)?.store(grants.number, Ordering::Release);
    grants.ring();
    Ok((control, prepared))
}

/// The pages of the program before this one, which was killed, are this one's when its backend has others write there no more.
fn await_end(endpoint: &mut Endpoint, slices: &Slices) -> Result<(), Error> {
    let head = slices.head(endpoint.id())?;
    let who = head.word64(WHO)?;
    let before = who.load(Ordering::Relaxed);
    if before != 0 {
        who.store(0, Ordering::Release);
        await_end_of(before, endpoint, slices)?;
    }
    Ok(())
}

/// Whether the backend has nobody write to the pages of that program any more, or there is none.
fn await_end_of(number: u64, endpoint: &mut Endpoint, slices: &Slices) -> Result<bool, Error> {
    let head = slices.head(endpoint.id())?;
    let ended = head.word64(ENDED)?;
    let until = Instant::now() + ENDS;
    // Acquire pairs with the Release in `IvshmemDoor::leave`.
    while ended.load(Ordering::Acquire) != number {
        // If there is no backend, nobody writes; it looks by itself, too.
        let Ok((backend, _)) = find_backend(endpoint, slices, Duration::ZERO) else { return Ok(true) };
        if Instant::now() >= until {
            return Ok(false);
        }
        endpoint.wake(backend);
        endpoint.wait(Duration::from_millis(10));
    }
    Ok(true)
}

/// The slice of a program that has its own memory in it, before it calls a backend and between two calls.
pub struct IvshmemLand {
    slices: Slices,
    own: u16,
    endpoint: Arc<Mutex<Option<Endpoint>>>,
    free: Arc<Mutex<Runs>>,
}

impl IvshmemLand {
    /// Joins those who share the memory at `at`.
    ///
    /// # Errors
    /// [`Error::Shared`]: there are none, or another program of this machine has its slice.
    pub fn open(at: &str) -> Result<Self, Error> {
        let (mut endpoint, slices) = join(at)?;
        let own = endpoint.id();
        await_end(&mut endpoint, &slices)?;
        let free = Arc::new(Mutex::new(Runs(vec![(1, slices.pages as u32 - 1)])));
        Ok(Self { slices, own, endpoint: Arc::new(Mutex::new(Some(endpoint))), free })
    }

    /// All pages of it but the first, which says who it is.
    pub fn all(&self) -> Result<Window, Error> {
        Ok(self.slices.part(self.own, 1, self.slices.pages - 1)?)
    }

    /// Pages from `first` on (0 is where [`IvshmemLand::all`] begins) are the program's. Whether nobody had them.
    pub fn take(&self, first: u32, pages: u32) -> bool {
        lock(&self.free).take_at(first + 1, pages)
    }

    /// Calls the backend.
    ///
    /// # Errors
    /// [`Error`].
    pub fn connect<T>(
        &self,
        prepare: impl FnOnce(&Window) -> Result<T, Error>,
    ) -> Result<(IvshmemGrants, Granted, T), Error> {
        let until = Instant::now() + ENDS;
        let mut endpoint = loop {
            if let Some(endpoint) = lock(&self.endpoint).take() {
                break endpoint;
            }
            if Instant::now() > until {
                return Err(failed("this program has a connection already"));
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        match find_backend(&mut endpoint, &self.slices, PATIENCE) {
            Ok(backend) => {
                let (free, home) = (Arc::clone(&self.free), Some(Arc::clone(&self.endpoint)));
                greet(endpoint, backend, &self.slices, free, home, prepare)
            }
            Err(error) => {
                *lock(&self.endpoint) = Some(endpoint);
                Err(error)
            }
        }
    }
}

/// The first peer that says that it is a backend, and is the one that said so.
fn find_backend(endpoint: &mut Endpoint, slices: &Slices, patience: Duration) -> Result<(u16, u64), Error> {
    let until = Instant::now() + patience;
    loop {
        for peer in (0..endpoint.slots()).filter(|peer| *peer != endpoint.id()) {
            let (head, presence) = (slices.head(peer)?, endpoint.presence(peer));
            // Acquire pairs with the Release in `IvshmemDoor::open`.
            let is_backend = head.word64(WHO)?.load(Ordering::Acquire) == BACKEND;
            if presence != 0 && is_backend && head.word64(PRESENCE)?.load(Ordering::Relaxed) == presence {
                return Ok((peer, presence));
            }
        }
        if Instant::now() >= until {
            return Err(failed(
                "no backend is there: start one on the host, with --ivshmem and the socket of the same server",
            ));
        }
        endpoint.wait(Duration::from_millis(20));
    }
}

/// Says that the program lives, as long as it does: in a virtual machine nobody else could say that it does not.
fn beat(head: Window, life: Weak<()>) -> Result<(), Error> {
    let word = head.word64(BEAT)?;
    let run = move || {
        let mut number = word.load(Ordering::Relaxed);
        while life.strong_count() > 0 {
            number = number.wrapping_add(1);
            // Relaxed: nothing is read because of it.
            word.store(number, Ordering::Relaxed);
            std::thread::park_timeout(BEATS);
        }
    };
    let thread = std::thread::Builder::new().name("millrace-life".to_owned()).stack_size(64 << 10);
    thread.spawn(run).map(drop).map_err(Error::io("a thread that says that this program lives"))
}

impl Grants for IvshmemGrants {
    fn grant(&mut self, pages: u32) -> Result<Granted, Error> {
        let few = || {
            Error::system("pages in this machine's part of the shared memory (--memory of the server)")(Errno::NOMEM)
        };
        let first = lock(&self.free).take(pages).ok_or_else(few)?;
        let window = self.slices.part(self.own, first as usize, pages as usize)?;
        const ZEROS: [u8; PAGE] = [0; PAGE];
        for at in 0..pages as usize {
            if let Some(page) = window.span_mut(at * PAGE, PAGE) {
                page.write_from(&ZEROS);
            }
        }
        self.counts.pages += u64::from(pages);
        self.granted.push((first, pages));
        Ok(Granted { window, references: (first..first + pages).map(u64::from).collect(), place: first.into() })
    }

    fn end(&mut self, granted: Granted) {
        let run = (granted.place as u32, granted.references.len() as u32);
        self.granted.retain(|other| *other != run);
        lock(&self.free).give_back(run);
    }

    fn ring(&mut self) {
        let Some(endpoint) = &mut self.endpoint else { return };
        endpoint.wake(self.backend.0);
        // In a machine it is a store to the doorbell register, and an exit.
        self.counts.system_calls += u64::from(endpoint.fds().is_some());
        self.counts.hypercalls += u64::from(endpoint.fds().is_none());
        self.counts.rung += 1;
    }

    fn wait(&mut self, most: Duration) -> Result<(), Error> {
        if self.has_gone() {
            return Err(Error::Gone);
        }
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.wait(most);
        }
        // Asleep, and what was heard.
        self.counts.system_calls += 1;
        self.counts.heard += 1;
        if self.has_gone() { Err(Error::Gone) } else { Ok(()) }
    }

    fn has_gone(&mut self) -> bool {
        let (peer, presence) = self.backend;
        self.endpoint.as_ref().is_none_or(|endpoint| endpoint.presence(peer) != presence)
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.as_ref()?.fds().map(|[bell, _]| bell)
    }

    fn hear(&mut self) {
        // What the server says besides is read as well: who does not read that is cut off.
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.hear();
        }
        self.counts.system_calls += 2;
        self.counts.heard += 1;
    }
}

impl Drop for IvshmemGrants {
    fn drop(&mut self) {
        if let Ok(who) = self.head.word64(WHO) {
            who.store(0, Ordering::Release);
        }
        self.ring();
        let (Some(home), Some(mut endpoint)) = (&self.home, self.endpoint.take()) else { return };
        // The program goes on, and has these pages for something else next: not before its backend lets nobody write there. If that does not
        // say so, they are nobody's until the end of the program.
        if self.number == 0 || await_end_of(self.number, &mut endpoint, &self.slices).unwrap_or(false) {
            self.granted.drain(..).for_each(|run| lock(&self.free).give_back(run));
        }
        *lock(home) = Some(endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_from_both_ends_and_given_back() {
        let mut runs = Runs(vec![(1, 9)]);
        assert_eq!((runs.take(2), runs.take(1)), (Some(8), Some(7)));
        assert!(runs.take_at(1, 4) && !runs.take_at(1, 1) && !runs.take_at(5, 3), "{:?}", runs.0);
        assert!(runs.take_at(5, 2));
        assert_eq!((runs.take(1), runs.0.len()), (None, 0));
        runs.give_back((8, 2));
        runs.give_back((7, 1));
        assert_eq!(runs.0, [(7, 3)]);
        assert_eq!((runs.take(4), runs.take(3)), (None, Some(7)));
    }
}
