//! What the control side tells a worker. A worker looks for commands once per pass, by one load of a flag that is
//! mostly in its own cache.

use crate::buffers::TxBuffers;
use crate::engine::{RxEngine, TxEngine};
use crate::lane::{Packing, Parcel, Patch};
use millrace_abi::queue::{Laggard, QueueId};
use millrace_dma::{Domain, Window};
use millrace_ring::shared::{Losses, Reclaimer};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// Who has a queue open, as the card needs to know it.
pub struct Opener {
    /// Chosen by the driver; unique among the openers of the queue.
    pub id: u32,
    /// The control page (`abi::control`).
    pub control: Window,
    /// Software to card: signalled when a sleeping worker should look at the doorbell. Openers may have it in common; one
    /// without it wakes the worker by [`crate::Card::nudge`].
    pub kick: Option<Arc<OwnedFd>>,
    /// Card to software: a socket, so that whatever is done to the other end nobody waits here. It is sent a byte when the
    /// opener sleeps and something has come. An opener that never sleeps needs none.
    pub call: Option<Arc<OwnedFd>>,
}

/// What the driver attaches to a queue before it starts it through the registers.
pub struct Attachment {
    /// Where the card finds the memory whose IOVAs are written to the registers and descriptors.
    pub domain: Arc<Domain>,
    /// The page whose doorbell word is SDP and SHP, or SW, or TAIL.
    pub control: Window,
    /// For a queue with subscribers: who gives the ring back.
    pub reclaimer: Option<Box<Reclaimer>>,
    /// Who is to be woken and may wake.
    pub openers: Vec<Opener>,
    /// For a Calypte TX queue: the buffers of the device that software shares. Without them the queue has its own.
    pub buffers: Option<TxBuffers>,
}

/// A change for a worker.
pub(crate) enum Command {
    /// The queue runs from now on.
    StartTx(u32, Box<TxEngine>, Vec<Opener>),
    /// The queue runs from now on.
    StartRx(u32, Box<RxEngine>, Option<Box<Reclaimer>>, Vec<Opener>, bool),
    /// The queue stops at once, drained or not; its engine and openers come back with the answer.
    Halt(QueueId),
    /// One more opener of a running queue; with a cursor, if it is a subscriber.
    Join(QueueId, Opener, Option<(Laggard, Arc<Losses>)>),
    /// One opener less.
    Leave(QueueId, u32),
    /// How to wake an opener from now on.
    SetCall(QueueId, u32, Arc<OwnedFd>),
    /// One more ring of a running TX queue: its writer has it to itself.
    AddRing(u32, u32, Box<TxEngine>, Opener),
    /// A ring less, drained or not; its engine and opener come back with the answer.
    DropRing(u32, u32),
    /// Queues and wires leave the worker's lane of a port; they come back with the answer.
    Pack(usize, Packing),
    /// Queues and wires enter it.
    Unpack(usize, Box<Parcel>),
    /// What the wire of a port is from now on: whether it loops back, and with what it is connected.
    Shape(usize, bool, Option<Patch>),
    /// Nothing: the answer says that the worker has come round since.
    Pass,
    /// The thread ends.
    Exit,
}

/// What comes back from a worker: things to be dropped where dropping may take its time.
#[derive(Default)]
#[allow(dead_code)]
pub(crate) struct Answer {
    pub done: bool,
    pub tx: Vec<TxEngine>,
    pub rx: Option<Box<RxEngine>>,
    pub reclaimer: Option<Box<Reclaimer>>,
    pub openers: Vec<Opener>,
    pub parcel: Option<Box<Parcel>>,
}

type Letter = (Command, Option<mpsc::SyncSender<Answer>>);

/// The way from the control side to one worker.
pub(crate) struct Mailbox {
    letters: Mutex<VecDeque<Letter>>,
    waiting: AtomicBool,
    pub wake: OwnedFd,
}

impl Mailbox {
    pub fn new() -> Result<Self, rustix::io::Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { letters: Mutex::default(), waiting: AtomicBool::new(false), wake })
    }

    fn post(&self, letter: Letter) {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).push_back(letter);
        // Release pairs with the Acquire in `is_waiting`; the mutex orders the letter itself.
        self.waiting.store(true, Ordering::Release);
        self.nudge();
    }

    /// Makes a sleeping worker come round.
    pub fn nudge(&self) {
        // A full eventfd is already readable, which is all that is wanted.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Sends a command and does not wait.
    pub fn send(&self, command: Command) {
        self.post((command, None));
    }

    /// Sends a command and waits until the worker has carried it out. `None` when the worker is gone or stuck.
    pub fn call(&self, command: Command) -> Option<Answer> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.post((command, Some(sender)));
        receiver.recv_timeout(Duration::from_secs(5)).ok()
    }

    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    pub fn take(&self) -> VecDeque<Letter> {
        self.waiting.store(false, Ordering::Relaxed);
        core::mem::take(&mut self.letters.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
