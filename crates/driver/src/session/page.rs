//! What an opener and the card share beside the memory of the queue: the control page, kick and call.

use super::error::SessionError;
use millrace_abi::control::{self, CARD_SLEEPS_AT, DOORBELL_AT, QueueState};
use millrace_abi::queue::QueueId;
use millrace_card::{Card, Opener};
use millrace_dma::{Ordering, Pages, Region, Word64};
use millrace_port::Bell;
use millrace_ring::wake::Ringer;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};
use std::sync::Arc;

/// The eventfd by which a program wakes a worker: one for all its queues there, which the number tells.
#[derive(Clone)]
pub(crate) struct Kick {
    pub number: u32,
    /// The program's process.
    pub owner: u32,
    pub fd: Arc<OwnedFd>,
}

impl Kick {
    pub fn new(number: u32, owner: u32) -> Result<Self, rustix::io::Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { number, owner, fd: Arc::new(fd) })
    }
}

/// A control page, and the ways to wake the two sides of it.
pub(super) struct Page {
    pub(super) region: Region,
    // The driver's own pages have none: it wakes the worker as the card itself does.
    pub(super) kick: Option<Kick>,
    // Made when the program sleeps for the first time.
    pub(super) call: Option<Arc<Bell>>,
}

impl Page {
    pub(super) fn new(kick: Option<Kick>) -> Result<Self, SessionError> {
        let region = Region::allocate(control::PAGE_SIZE, Pages::Ordinary)?;
        region.window().word64(control::MAGIC_AT)?.store(control::MAGIC, Ordering::Relaxed);
        Ok(Self { region, kick, call: None })
    }

    /// A page that is handed to nobody.
    pub(super) fn own() -> Result<Self, SessionError> {
        let mut page = Self::new(None)?;
        page.region.close_fd();
        Ok(page)
    }

    pub(super) fn opener(&self, id: u32) -> Opener {
        let control = self.region.window().clone();
        // The driver's own answer for nobody: the programs on whose behalf it works have pages, too.
        let (owner, kick) = self.kick.as_ref().map(|kick| (kick.owner, kick.fd.clone())).unzip();
        Opener { id, owner: owner.unwrap_or(0), control, kick, call: self.call.clone() }
    }

    /// What wakes a program that sleeps: its end, anew each time. The other is the worker's alone. That of an eventfd
    /// would be the same one for both, and a program can fill it and have whoever writes to it wait.
    pub(super) fn new_call(&mut self, uid: u32) -> Result<OwnedFd, SessionError> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // As few as the system allows: a program need not read what is sent to it, and one signal says it all.
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 1)?;
        // Nor can it send anything: fds in there would be closed by whoever closes ours, and that can take
        // long.
        rustix::net::shutdown(&ours, Shutdown::Read)?;
        // Signalled at once: the state may have changed before there was anything to tell it by.
        rustix::net::send(&ours, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        self.call = Some(Bell::of(uid, ours));
        Ok(theirs)
    }

    pub(super) fn doorbell(&self) -> Result<Word64, SessionError> {
        Ok(self.region.window().word64(DOORBELL_AT)?)
    }

    pub(super) fn state(&self) -> QueueState {
        let word = self.region.window().word32(control::STATE_AT).map(|word| word.load(Ordering::Acquire));
        word.ok().and_then(QueueState::from_word).unwrap_or(QueueState::Stopped)
    }

    /// Wakes the worker of queue `id` if it sleeps. To be called after a pointer word was stored.
    pub(super) fn ring(&self, card: &Card, id: QueueId) {
        let flag = self.region.window().word32(CARD_SLEEPS_AT).map(Ringer::new);
        if flag.is_ok_and(|ringer| ringer.must_signal()) {
            card.kick_all(id);
        }
    }
}
