//! What a program asks for, and what it is told: work requests, completions, and the queues of both.
//!
//! Queues have all their memory from the beginning. Positions in them are numbers of 32 bits that only go up and come
//! round; their lower bits are the place.

mod completion;
mod completion_queue;
mod receive_queue;
mod request;
mod send_queue;
mod shared_receive_queue;

pub use completion::{Completion, Ended, Extra, Status};
pub use request::{Access, Data, Flags, Operation, Piece, Request, Target};

pub(crate) use completion_queue::{Added, CompletionQueue};
pub(crate) use receive_queue::{ReceiveQueue, Taken};
pub(crate) use send_queue::{Progress, SendQueue, Slot};
pub(crate) use shared_receive_queue::SharedReceiveQueue;
