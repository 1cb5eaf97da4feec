//! The guest's side.

use super::{BACKEND, BEAT, CONTROL, PRESENCE, Slices, WHO};
use crate::transport::{Counts, Granted, Grants};
use crate::{Error, PAGE};
use millrace_dma::{Ordering, Window};
use millrace_ivshmem::{At, Endpoint};
use rustix::io::Errno;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a backend is looked for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often somebody says that the program lives.
const BEATS: Duration = Duration::from_secs(1);

/// A program that grants pages of its peer's slice.
pub struct IvshmemGrants {
    endpoint: Endpoint,
    slices: Slices,
    head: Window,
    /// The backend: its number, and which of those that have had it.
    backend: (u16, u64),
    /// Runs of free pages: the first, and how many.
    free: Vec<(u32, u32)>,
    counts: Counts,
    /// As long as it is there, the program is said to live.
    _life: Arc<()>,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Shared(error.to_string())
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
    let Ok(place) = at.parse::<At>();
    let mut endpoint = Endpoint::open(&place).map_err(failed)?;
    // The next program of this machine would have the same pages.
    endpoint.claim().map_err(failed)?;
    let slices = endpoint.rest().and_then(|rest| Slices::of(&rest, endpoint.slots()));
    let slices =
        slices.ok_or_else(|| failed("it has no room for granted pages: start the server with more (--memory)"))?;
    let backend = find_backend(&mut endpoint, &slices)?;
    let head = slices.head(endpoint.id())?;
    // The one before it is over, and its pages are not looked at any more when the backend has seen that.
    head.word64(WHO)?.store(0, Ordering::Release);
    let (free, life) = (vec![(1, slices.pages as u32 - 1)], Arc::new(()));
    let counts = Counts { system_calls: 4, ..Counts::default() };
    let mut grants = IvshmemGrants { endpoint, slices, head, backend, free, counts, _life: Arc::clone(&life) };
    let control = grants.grant(1)?;
    let prepared = prepare(&control.window)?;
    beat(grants.head.clone(), Arc::downgrade(&life))?;
    grants.head.word64(CONTROL)?.store(control.place, Ordering::Relaxed);
    // Release: the control page is seen by whoever sees this.
    grants.head.word64(WHO)?.store(RandomState::new().hash_one(control.place) | 1, Ordering::Release);
    grants.ring();
    Ok((grants, control, prepared))
}

/// The first peer that says that it is a backend, and is the one that said so.
fn find_backend(endpoint: &mut Endpoint, slices: &Slices) -> Result<(u16, u64), Error> {
    let until = Instant::now() + PATIENCE;
    loop {
        for peer in (0..endpoint.slots()).filter(|peer| *peer != endpoint.id()) {
            let (head, presence) = (slices.head(peer)?, endpoint.presence(peer));
            // Acquire pairs with the Release in `IvshmemDoor::open`.
            let is_backend = head.word64(WHO)?.load(Ordering::Acquire) == BACKEND;
            if presence != 0 && is_backend && head.word64(PRESENCE)?.load(Ordering::Relaxed) == presence {
                return Ok((peer, presence));
            }
        }
        if Instant::now() > until {
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
        let run = self.free.iter_mut().find(|(_, len)| *len >= pages).ok_or_else(few)?;
        let first = run.0;
        (run.0, run.1) = (run.0 + pages, run.1 - pages);
        self.free.retain(|(_, len)| *len > 0);
        let window = self.slices.part(self.endpoint.id(), first as usize, pages as usize)?;
        const ZEROS: [u8; PAGE] = [0; PAGE];
        for at in 0..pages as usize {
            if let Some(page) = window.span_mut(at * PAGE, PAGE) {
                page.write_from(&ZEROS);
            }
        }
        self.counts.pages += u64::from(pages);
        Ok(Granted { window, references: (first..first + pages).map(u64::from).collect(), place: first.into() })
    }

    fn end(&mut self, granted: Granted) {
        self.free.push((granted.place as u32, granted.references.len() as u32));
        self.free.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (first, len) in self.free.drain(..) {
            match merged.last_mut() {
                Some((begin, before)) if *begin + *before == first => *before += len,
                _ => merged.push((first, len)),
            }
        }
        self.free = merged;
    }

    fn ring(&mut self) {
        self.endpoint.wake(self.backend.0);
        // In a machine it is a store to the doorbell register, and an exit.
        self.counts.system_calls += u64::from(self.endpoint.fds().is_some());
        self.counts.hypercalls += u64::from(self.endpoint.fds().is_none());
        self.counts.rung += 1;
    }

    fn wait(&mut self, most: Duration) -> Result<(), Error> {
        let (peer, presence) = self.backend;
        if self.endpoint.presence(peer) != presence {
            return Err(Error::Gone);
        }
        self.endpoint.wait(most);
        // Asleep, and what was heard.
        self.counts.system_calls += 1;
        self.counts.heard += 1;
        if self.endpoint.presence(peer) == presence { Ok(()) } else { Err(Error::Gone) }
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

impl Drop for IvshmemGrants {
    fn drop(&mut self) {
        if let Ok(who) = self.head.word64(WHO) {
            who.store(0, Ordering::Release);
        }
        self.ring();
    }
}
