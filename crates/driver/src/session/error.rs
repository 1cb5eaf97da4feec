//! Why something was not done to a queue.

use crate::memory::MemoryError;
use millrace_abi::control::{self};
use millrace_abi::message::ErrorCode;
use millrace_abi::queue::{Engine, Laggard, MAX_SUBSCRIBERS, QueueId};
use millrace_card::StartError;
use millrace_dma::{OutOfRange, RegionError};

/// Why something was not done to a queue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("{id} is held exclusively by process {pid}; close it there, or use another queue")]
    Held { id: QueueId, pid: u32 },
    #[error("{id} is open in process {pid} and cannot be had exclusively; close it there, or share it (`--share`)")]
    Shared { id: QueueId, pid: u32 },
    #[error(
        "{id} was opened by process {pid}, which lets nobody join who chooses {policy}; choose another policy, or open it \
         first there with --joiners {policy}"
    )]
    Joiner { id: QueueId, policy: Laggard, pid: u32 },
    #[error(
        "{0} is open {MAX_SUBSCRIBERS} times already, which is as often as it can be: close it in one of the programs that \
         `millrace clients` shows, or use another queue"
    )]
    Full(QueueId),
    #[error(
        "users other than the first who opened {0} have half of its places already, and the rest is kept for that one"
    )]
    FullOfOthers(QueueId),
    #[error("{0} cannot use buffers of the program: that takes Medusa or DD, direct and exclusive")]
    Supplied(QueueId),
    #[error(
        "{0} is a DD queue, which belongs to one program that drives it itself: open it direct and exclusive, or give \
         it another engine, such as engine=medusa@{0}"
    )]
    OwnOnly(QueueId),
    #[error("{0} is a queue of {1}; pools are for DD: give the card engine=dd@{0}")]
    NoPools(QueueId, Engine),
    #[error("a pool of {1} buffers at IOVA {0:#x}: nothing that is mapped there for writing has so much room")]
    NoPool(u64, u32),
    #[error("a ring of {0} descriptors: a power of two from 8 to 32768 is wanted")]
    Entries(u32),
    #[error("{0} is not started")]
    NotStarted(QueueId),
    #[error("{0} is started already")]
    Started(QueueId),
    #[error("{0} is not open in mediated mode")]
    NotMediated(QueueId),
    #[error("{0} was not given so much room, or a frame of {1} bytes is not what it sends")]
    Commit(QueueId, u16),
    #[error("{0} still holds packets that the card has not taken")]
    NotDrained(QueueId),
    #[error("this program was thrown out of {0} because it fell behind; close and open it again")]
    Evicted(QueueId),
    #[error("{0} stopped: {1}")]
    Faulted(QueueId, control::FaultKind),
    #[error("cannot start {0}: {1}")]
    Start(QueueId, StartError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error(transparent)]
    Range(#[from] OutOfRange),
    #[error("the system refused an fd: {0}")]
    System(#[from] rustix::io::Errno),
    #[error("{0} has a ring that its software half cannot use")]
    Ring(QueueId),
}

impl SessionError {
    pub fn code(&self) -> ErrorCode {
        match self {
            SessionError::Held { .. } | SessionError::Shared { .. } | SessionError::Full(_) => ErrorCode::Busy,
            SessionError::Joiner { .. } => ErrorCode::Denied,
            SessionError::NotDrained(_) => ErrorCode::NotDrained,
            SessionError::Evicted(_) => ErrorCode::Evicted,
            SessionError::Memory(_) | SessionError::Region(_) | SessionError::System(_) => ErrorCode::System,
            _ => ErrorCode::Invalid,
        }
    }
}
