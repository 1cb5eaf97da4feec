//! What the control side tells a worker, by way of a [`crate::mailbox`].

use crate::counters::Counts;
use crate::engine::{RxEngine, TxEngine};
use crate::opener::Opener;
use crate::schedule::PortSchedule;
use crate::shard::{Classifying, Detach, Detached, Shape, SlowEnds, Tapper};
use millrace_abi::queue::{Laggard, QueueId};
use millrace_port::Bell;
use millrace_ring::shared::{Losses, Reclaimer};
use std::sync::Arc;

/// A change for a worker.
pub(crate) enum Command {
    /// The queue runs from now on.
    StartTx(u32, Box<TxEngine>, Vec<Opener>),
    /// The queue runs from now on.
    StartRx(u32, Box<RxEngine>, Option<Box<Reclaimer>>, Vec<Opener>, bool),
    /// The queue stops at once, drained or not; its engine and openers come back with the answer.
    Halt(QueueId),
    /// The queue is not served any more, and its software is told nothing: its engine and openers come back with the answer. Frames of a TX queue that
    /// wait elsewhere go on waiting.
    Freeze(QueueId),
    /// A queue that was frozen, here or in another card, is served again; its software is told nothing.
    GoOnTx(u32, Box<TxEngine>, Vec<Opener>),
    /// The same of an RX queue, and whether it drops when there is no room.
    GoOnRx(u32, Box<RxEngine>, Vec<Opener>, bool),
    /// Whether no frame of a frozen TX queue waits, and none from another worker.
    IsDrained(QueueId),
    /// A queue has counted so much before it came to this card.
    AddCounts(QueueId, Box<Counts>),
    /// One more opener of a running queue; with a cursor, if it is a subscriber.
    Join(QueueId, Opener, Option<(Laggard, Arc<Losses>)>),
    /// One opener less.
    Leave(QueueId, u32),
    /// How to wake an opener from now on.
    SetCall(QueueId, u32, Arc<Bell>),
    /// One more ring of a running TX queue: its writer has it to itself.
    AddRing(u32, u32, Box<TxEngine>, Opener),
    /// A ring less, drained or not; its engine and opener come back with the answer.
    DropRing(u32, u32),
    /// Queues and port queues of a port leave the worker's shard; they come back with the answer.
    Detach(usize, Detach),
    /// Queues and port queues enter it.
    Adopt(Box<Detached>),
    /// What a port is from now on.
    Shape(usize, Shape),
    /// When the queues of a port may send from now on.
    Schedule(usize, Option<Arc<PortSchedule>>),
    /// Frames are classified from now on while there are rules.
    Classify(Box<Classifying>),
    /// Somebody finds neighbours of tunnels from now on.
    Neighbours(Box<SlowEnds>),
    /// Somebody listens to frames; workers can classify.
    Tap(Box<Tapper>),
    /// He does not listen any more; what the worker has for him comes back.
    Untap(u64),
    /// The rings of a TX queue are looked at once, however quiet they were.
    Look(QueueId),
    /// All queues take over what has changed in their domains; the answer says that the worker has come round since.
    Pass,
    /// The thread ends.
    Exit,
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
            Command::Freeze(_) | Command::GoOnTx(..) | Command::GoOnRx(..) | Command::AddCounts(..) => {
                Lateness::Withdraw
            }
            Command::Join(..) | Command::SetCall(..) | Command::AddRing(..) | Command::Tap(_) => Lateness::Withdraw,
            Command::Halt(_) | Command::Leave(..) | Command::DropRing(..) | Command::Untap(_) => Lateness::Leave,
            Command::Look(_) | Command::IsDrained(_) | Command::Pass | Command::Exit => Lateness::Leave,
            Command::Detach(..)
            | Command::Adopt(..)
            | Command::Shape(..)
            | Command::Schedule(..)
            | Command::Classify(_)
            | Command::Neighbours(_) => Lateness::Wait,
        }
    }
}
