//! How pages are granted and mapped, and how two sides wake each other: what a transport has to do.

use crate::notices::Why;
use crate::{Address, Error};
use millrace_dma::Window;
use millrace_rdma::served::Account;
use rustix::fd::BorrowedFd;
use std::time::Duration;

/// What a side has asked of the system so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// System calls of the transport, those below among them; giving the core away is none of them.
    pub system_calls: u64,
    /// Calls to drivers of Xen that make at least one hypercall each: pages mapped or unmapped, and events sent.
    pub hypercalls: u64,
    /// Events sent to the other side.
    pub rung: u64,
    /// Times that this side was woken by one.
    pub heard: u64,
    /// Pages granted or mapped.
    pub pages: u64,
}

impl Counts {
    /// In the order in which they stand in messages and in tables.
    pub fn words(&self) -> [u64; 5] {
        let Self { system_calls, hypercalls, rung, heard, pages } = *self;
        [system_calls, hypercalls, rung, heard, pages]
    }

    /// The other way round.
    pub fn of_words([system_calls, hypercalls, rung, heard, pages]: [u64; 5]) -> Self {
        Self { system_calls, hypercalls, rung, heard, pages }
    }

    /// What was added since.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut words = self.words();
        words.iter_mut().zip(before.words()).for_each(|(now, before)| *now = now.saturating_sub(before));
        Self::of_words(words)
    }
}

/// Pages that the guest has granted.
pub struct Granted {
    /// The memory, zeros at first.
    pub window: Window,
    /// By which the other side knows the pages, one each, in order.
    pub references: Vec<u64>,
    /// What the transport knows them by.
    pub place: u64,
}

/// The guest's side of a transport.
pub trait Grants: Send {
    /// Makes pages that the backend may map.
    ///
    /// # Errors
    /// There is no memory, or no more may be granted.
    fn grant(&mut self, pages: u32) -> Result<Granted, Error>;

    /// The backend has unmapped them, and they are the guest's own again.
    fn end(&mut self, granted: Granted);

    /// Wakes the backend. Never waits.
    fn ring(&mut self);

    /// Sleeps until the backend rings, or so long.
    ///
    /// # Errors
    /// [`Error::Gone`].
    fn wait(&mut self, most: Duration) -> Result<(), Error>;

    /// Whether the backend has ended, as far as the transport knows, without waiting.
    fn has_gone(&mut self) -> bool {
        false
    }

    /// What it took so far.
    fn counts(&self) -> Counts;

    /// What is readable when the backend has rung, until [`Grants::hear`]; `None`: nothing is, and somebody has to look.
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes what was rung, without waiting.
    fn hear(&mut self) {}

    /// What is readable when the backend has rung, and ready for anything when it has ended; `None`: nothing is, and somebody has to look.
    fn fds(&self) -> Option<[BorrowedFd<'_>; 2]> {
        None
    }
}

/// The backend's side of a transport: one for each program in a guest.
pub trait Maps: Send {
    /// Maps pages that the guest has granted, as one window.
    ///
    /// # Errors
    /// They are not granted, or there are too many.
    fn map(&mut self, references: &[u64]) -> Result<Window, Error>;

    /// Mappings of this process that [`Maps::map`] makes of them; 0: they are a part of one that is there.
    fn mappings(&self, references: &[u64]) -> u64;

    /// Wakes the guest. Never waits.
    fn ring(&mut self);

    /// Readable when the guest has rung.
    fn bell(&self) -> BorrowedFd<'_>;

    /// The guest has rung: `bell` is not readable any more.
    fn hear(&mut self);

    /// Ready for anything when the program may have ended, if something says that.
    fn life(&self) -> Option<BorrowedFd<'_>>;

    /// Whether it has ended, as far as the transport knows.
    fn has_ended(&mut self) -> bool;

    /// What it is called, for people.
    fn name(&self) -> &str;

    /// Who pays for what it has.
    fn account(&self) -> Account;

    /// What the door knows it by.
    fn place(&self) -> u64;

    /// Of its endpoint: nobody else has it.
    fn address(&self) -> Address;

    /// What it took so far.
    fn counts(&self) -> Counts;
}

/// A program that has come, and its control page.
pub struct Arrived {
    /// Its side of the transport.
    pub maps: Box<dyn Maps>,
    /// The control page, as the guest has made it.
    pub control: Window,
}

/// What happened at a door.
pub enum Event {
    /// A program has come.
    Came(Arrived),
    /// The guest with that [`Maps::place`] has ended.
    Went(u64),
    /// A program was not let in; why, and more for people.
    TurnedAway(Why, String),
    /// Something else for the log.
    Noted(String),
}

/// Where programs of guests come in.
pub trait Door: Send {
    /// Readable when something may have happened. Asked again ten times a second.
    fn fds(&mut self) -> Vec<BorrowedFd<'_>>;

    /// What has happened. Looks at a few things, without waiting.
    fn look(&mut self) -> Vec<Event>;

    /// Nobody is served at that place any more.
    fn leave(&mut self, place: u64);
}
