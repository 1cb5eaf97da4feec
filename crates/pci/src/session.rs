//! A function while a machine has it: everything that is gone when the machine goes.
//!
//! * here: what it consists of, and its queues: who may write their registers, and that they stop.
//! * `access`: regions, read and written. `requests`: what messages ask for.
//! * `save`: all of it in words, for another card. `restore`: from the words of another one. `tell`: what changes, for a keeper.

mod access;
mod requests;
mod restore;
mod save;
mod tell;

use crate::books::Books;
use crate::configuration::{Configuration, Identity, bar_size, pending_at};
use crate::counters::{Counting, count};
use crate::interrupts::Interrupts;
use crate::keeper::Told;
use crate::memory::Memory;
use crate::share::Share;
use millrace_abi::control::PAGE_SIZE;
use millrace_abi::pci;
use millrace_abi::queue::{Engine, QueueId};
use millrace_abi::register::map::{Component, SPACE, dma_block};
use millrace_abi::register::{Controller, Register, Way, medusa, test_space};
use millrace_callers::{Caller, Closer};
use millrace_dma::{Pages, Region};
use millrace_driver::{Client, Driver, Guest, GuestQueue};
use millrace_port::Bell;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tell::Changes;

pub(crate) use requests::Answer;

/// What stays the same of a function whoever has it.
pub(crate) struct Function {
    pub driver: Arc<Driver>,
    pub share: Share,
    /// Paths of the DMA controllers of its queues, by which they are locked; numbered as the card does.
    pub controllers: HashMap<QueueId, String>,
    /// The device tree, compressed.
    pub tree: Vec<u8>,
    pub serial: u64,
    /// What tells it from programs when workers give turns.
    pub owner: u32,
    /// By vector: the sockets by which workers say that something has come.
    pub calls: Vec<Arc<Bell>>,
    pub counting: Arc<Counting>,
    /// Of all functions of the card.
    pub books: Arc<Books>,
}

/// A function in the hands of a machine.
pub(crate) struct Session {
    function: Arc<Function>,
    // The process that emulates the machine, as whose the queues are shown.
    pid: u32,
    configuration: Configuration,
    memory: Memory,
    interrupts: Interrupts,
    // Fresh for each machine: the one before may have them mapped for ever.
    doorbells: Region,
    doorbells_fd: Arc<OwnedFd>,
    msix_table: Vec<u8>,
    test_space: Vec<u8>,
    // The data registers of the time-stamp unit: what this machine has asked for. Those of the card are arguments of whoever sets the clock.
    clock: [u32; 3],
    // The driver's view of this machine, from its first write to a queue on until its queues are stopped at once.
    client: Option<Client>,
    // Queues whose controllers are locked for this machine.
    locked: HashSet<QueueId>,
    introduced: bool,
    // Whether its memory was cut from under the card.
    cut: bool,
    // What the machine has handed over is closed elsewhere: it may take as long as it likes.
    closer: Closer,
    // What its keeper knows, if it has one, and what may be new.
    told: Option<Told>,
    changes: Changes,
}

impl Session {
    pub fn new(function: Arc<Function>, Caller { pid, uid, .. }: Caller) -> Result<Self, std::io::Error> {
        let vectors = function.vectors();
        let failed = |error: millrace_dma::RegionError| std::io::Error::other(error.to_string());
        let doorbells = Region::allocate_guarded(vectors as usize * PAGE_SIZE, Pages::Ordinary).map_err(failed)?;
        let fd = doorbells.fd().ok_or(std::io::Error::other("memory without a file"))?;
        let doorbells_fd = Arc::new(fd.as_fd().try_clone_to_owned()?);
        Ok(Self::over(function, (pid, uid), doorbells, doorbells_fd))
    }

    /// With this BAR 2.
    fn over(function: Arc<Function>, (pid, uid): (u32, u32), doorbells: Region, doorbells_fd: Arc<OwnedFd>) -> Self {
        let vectors = function.vectors();
        let identity = Identity {
            tree: function.tree.clone(),
            serial: function.serial,
            bars: [0, 1, 2, 3, 4, 5].map(|bar| function.bar(bar)),
            vectors,
            pending_at: pending_at(vectors),
        };
        Self {
            configuration: Configuration::new(identity),
            memory: Memory::new(function.books.clone()),
            interrupts: Interrupts::new(vectors, uid),
            doorbells,
            doorbells_fd,
            msix_table: empty_table(vectors),
            test_space: vec![0; test_space::BLOCK.size as usize],
            clock: [0; 3],
            client: None,
            locked: HashSet::new(),
            introduced: false,
            cut: false,
            closer: Closer::default(),
            told: None,
            changes: Changes::default(),
            pid,
            function,
        }
    }

    /// Whether versions are agreed on.
    pub fn is_introduced(&self) -> bool {
        self.introduced
    }

    /// A worker says that something has come by the queue of a vector.
    pub fn called(&mut self, vector: u32) {
        self.interrupts.fire(vector, &self.function.counting);
    }

    /// Whether so much of what it has handed over waits to be closed that it is not listened to.
    pub fn is_choked(&mut self) -> bool {
        !self.closer.try_again() || self.closer.is_full()
    }

    /// Whether there is something to be looked at again soon, though nothing comes.
    pub fn is_uneasy(&self) -> bool {
        self.interrupts.has_unsent() || self.client.is_some()
    }

    /// Looks at what nobody says: whether the machine's memory is still there, and whether the system can send what it could not.
    pub fn look(&mut self) {
        if self.interrupts.has_unsent() {
            self.interrupts.send_unsent(&self.function.counting);
        }
        let was_cut = core::mem::replace(&mut self.cut, self.memory.was_cut());
        if self.cut && !was_cut {
            count(&self.function.counting.memory_cut);
            self.halt();
        }
    }

    /// Ends it: its queues stop, and its memory is unmapped, by another thread, of which this is what is left. Until that has nothing to do any more the
    /// machine is not quite gone.
    pub fn end(mut self) -> Closer {
        self.halt();
        let (memory, interrupts) = (
            core::mem::replace(&mut self.memory, Memory::new(self.function.books.clone())),
            core::mem::replace(&mut self.interrupts, Interrupts::new(0, 0)),
        );
        self.closer.close((memory, interrupts, self.told.take()));
        core::mem::take(&mut self.closer)
    }

    /// Has something closed as what the machine has handed over.
    pub fn close(&mut self, garbage: impl Send + 'static) {
        self.closer.close(garbage);
    }

    /// The driver's view of this machine.
    fn client(&mut self) -> Result<&Client, Errno> {
        if self.client.is_none() {
            let queues = self.function.share.all_queues().filter_map(|(here, there)| {
                let control = self.doorbells.part(pci::doorbell(here) as usize, PAGE_SIZE).ok()?;
                let call = self.function.calls.get(pci::vector(here) as usize)?.clone();
                Some((there, GuestQueue { control, call }))
            });
            let (domain, owner) = (self.memory.domain().clone(), self.function.owner);
            let (is_kept, queues) = (self.told.is_some(), queues.collect());
            let guest = Guest { domain, owner, pid: self.pid, is_kept, queues };
            self.client = Some(Client::guest(self.function.driver.clone(), guest).map_err(|_| Errno::IO)?);
        }
        self.client.as_ref().ok_or(Errno::IO)
    }

    /// Takes a queue for this machine, unless somebody else has it.
    fn take(&mut self, queue: QueueId) -> bool {
        if self.locked.contains(&queue) {
            return true;
        }
        let function = self.function.clone();
        let Some(path) = function.controllers.get(&queue) else { return false };
        let is_taken = self.client().is_ok_and(|client| client.lock(path, 1).is_ok());
        if is_taken {
            self.locked.insert(queue);
            self.changes.add_queue(queue);
            // A program of the host may have had it, and has left its addresses there.
            clear(function.driver.card(), queue);
        }
        is_taken
    }

    /// Stops all queues at once and gives them back; returns when they have stopped.
    fn halt(&mut self) {
        if self.client.is_none() {
            return;
        }
        self.changes.queues = true;
        let card = self.function.driver.card();
        for &queue in &self.locked {
            clear(card, queue);
        }
        let are_running = |queue: &QueueId| card.state(*queue) == Some(millrace_abi::control::QueueState::Running);
        if self.locked.iter().any(are_running) {
            count(&self.function.counting.stops_by_machine);
        }
        drop(self.client.take());
        self.locked.clear();
    }

    /// Everything is as when the machine came, except for its memory and the ways of its interrupts.
    fn reset(&mut self) {
        self.halt();
        self.changes = self.changes.and_reset();
        self.configuration.reset();
        self.interrupts.forget_pending();
        self.msix_table = empty_table(self.function.vectors());
        self.test_space.fill(0);
        self.clock = [0; 3];
        let window = self.doorbells.window();
        if let Some(all) = window.span_mut(0, window.len()) {
            all.write_from(&vec![0; window.len()]);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.halt();
    }
}

/// All vectors are masked.
fn empty_table(vectors: u32) -> Vec<u8> {
    let mut table = vec![0; vectors as usize * 16];
    table.chunks_exact_mut(16).for_each(|entry| entry[12] = 1);
    table
}

/// Registers of a DMA controller that show what software has put there, but for CONTROL.
fn kept(engine: Engine) -> impl Iterator<Item = &'static Register> {
    dma_block(engine).registers.iter().filter(|register| {
        let keeps = register.access.allows(Way::Read) && register.access.allows(Way::Write);
        keeps && register.offset != medusa::CONTROL
    })
}

/// The registers of a queue are as at first: nobody is to read the addresses of another's memory. The pointers of one that runs are cleared by the driver, when
/// it has stopped.
fn clear(card: &millrace_card::Card, queue: QueueId) {
    let (Some(engine), Some(base)) = (card.engine(queue), Component::Dma(queue).base()) else { return };
    let pointers = Controller::of(engine);
    let runs = card.state(queue) != Some(millrace_abi::control::QueueState::Stopped);
    let of_pointers = pointers.pointers.bytes()..pointers.pointers.bytes() + pointers.pointers_len as u32;
    for register in kept(engine) {
        if !(runs && of_pointers.contains(&register.offset.bytes())) {
            card.write(register.offset.at(base), &[0; 8][..register.width.bytes() as usize]);
        }
    }
}

impl Function {
    /// MSI-X vectors, which are as many as doorbell pages: two for each queue of the direction that has more.
    pub fn vectors(&self) -> u32 {
        2 * self.share.rx.len().max(self.share.tx.len()) as u32
    }

    /// Size of a BAR in bytes; 0: there is none.
    pub fn bar(&self, bar: u32) -> u64 {
        match bar {
            pci::REGISTERS_BAR => u64::from(SPACE),
            pci::DOORBELLS_BAR => bar_size(u64::from(self.vectors()) * PAGE_SIZE as u64),
            pci::MSIX_BAR => {
                bar_size(u64::from(pending_at(self.vectors())) + u64::from(self.vectors().div_ceil(64)) * 8)
            }
            _ => 0,
        }
    }
}
