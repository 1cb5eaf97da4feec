//! What the control side tells a worker, by way of a [`crate::mailbox`].

use crate::buffers::TxBuffers;
use crate::engine::{RxEngine, TxEngine};
use crate::lane::{Detach, Detached, Patch};
use millrace_abi::queue::{Laggard, QueueId};
use millrace_dma::{Domain, Window};
use millrace_ring::shared::{Losses, Reclaimer};
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// Who has a queue open, as the card needs to know it.
pub struct Opener {
    /// Chosen by the driver; unique among the openers of the queue.
    pub id: u32,
    /// Process that has it open, with which the queue's share of its worker is reckoned; 0: nobody in particular.
    pub owner: u32,
    /// The control page (`abi::control`).
    pub control: Window,
    /// Software to card: signalled when a sleeping worker should look at the doorbell. Openers may have it in common;
    /// one without it wakes the worker by [`crate::Card::kick_all`].
    pub kick: Option<Arc<OwnedFd>>,
    /// Card to software: a socket, so that whatever is done to the other end nobody waits here. It is sent a byte when
    /// the opener sleeps and something has come. An opener that never sleeps needs none.
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
    /// Queues and port queues leave the worker's lane of a port; they come back with the answer.
    Detach(usize, Detach),
    /// Queues and port queues enter it.
    Adopt(usize, Box<Detached>),
    /// What the port queue of a port is from now on: whether it loops back, and with what it is connected.
    Shape(usize, bool, Option<Patch>),
    /// The rings of a TX queue are looked at once, however quiet they were.
    Look(QueueId),
    /// All queues take over what has changed in their domains; the answer says that the worker has come round since.
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
    pub detached: Option<Box<Detached>>,
}

/// What becomes of a command that a worker has not carried out in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lateness {
    /// It is taken back and never carried out: everything stays as it was.
    Withdraw,
    /// It is carried out as soon as the worker comes round: to take something away is never wrong later.
    Leave,
    /// Whoever asked goes on waiting: queues and port queues are in the command or in its answer, and must not get
    /// lost.
    Wait,
}

impl Command {
    pub fn lateness(&self) -> Lateness {
        match self {
            Command::StartTx(..) | Command::StartRx(..) => Lateness::Withdraw,
            Command::Join(..) | Command::SetCall(..) | Command::AddRing(..) => Lateness::Withdraw,
            Command::Halt(_) | Command::Leave(..) | Command::DropRing(..) => Lateness::Leave,
            Command::Look(_) | Command::Pass | Command::Exit => Lateness::Leave,
            Command::Detach(..) | Command::Adopt(..) | Command::Shape(..) => Lateness::Wait,
        }
    }
}
