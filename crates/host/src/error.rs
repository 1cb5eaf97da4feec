use crate::MAX_BURST;
use millrace_abi::control::FaultKind;
use millrace_abi::message::ErrorCode;
use millrace_abi::name::NameError;
use millrace_abi::queue::QueueId;
use millrace_card::CardError;
use millrace_driver::{ClientError, DriverError};

/// Why something did not work; the text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device name means nothing.
    #[error(transparent)]
    Name(#[from] NameError),
    /// An embedded card could not be built.
    #[error(transparent)]
    Card(#[from] CardError),
    /// The driver of an embedded card could not be started.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The driver refused, or could not be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The card is gone: its process has ended. Open the device again.
    #[error("the card is gone; open the device again")]
    Gone,
    /// The card has stopped the queue.
    #[error("{queue} was stopped by the card: {kind} (IOVA {iova:#x}); stop it and start it again")]
    Faulted {
        /// Which queue.
        queue: QueueId,
        /// Why.
        kind: FaultKind,
        /// The address concerned.
        iova: u64,
    },
    /// The program was thrown out of a shared queue because it fell behind.
    #[error("{0} went on without this program, which fell behind; open it again, or share it with `block` or `drop`")]
    Evicted(QueueId),
    /// The queue was stopped behind our back.
    #[error("{0} is not running any more")]
    Stopped(QueueId),
    /// A frame that the card does not carry or the buffers cannot hold.
    #[error(
        "a frame of {len} bytes: {queue} takes at most {max}; larger buffers are an option of the card (`buffer=`)"
    )]
    FrameTooLong {
        /// Which queue.
        queue: QueueId,
        /// Length asked for, in bytes.
        len: usize,
        /// Longest possible, in bytes.
        max: usize,
    },
    /// More packets than one burst can have.
    #[error("a burst of {0} packets: at most {MAX_BURST}, or fewer on a small ring, can be had at once")]
    BurstTooLong(usize),
    /// The ring holds something that no card writes.
    #[error("{queue}: {what}")]
    BadRing {
        /// Which queue.
        queue: QueueId,
        /// What is wrong.
        what: String,
    },
    /// The card has not taken everything that was sent, although there was time.
    #[error("{0} still held packets when it was stopped; they were dropped")]
    NotDrained(QueueId),
    /// The queue of this option belongs to another engine, mode or kind of buffers.
    #[error("{0}")]
    Unfit(String),
    /// Waiting failed.
    #[error("waiting failed: {0}")]
    Wait(std::io::Error),
}

impl Error {
    /// Whether the same call may work later, without a change by the caller.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Client(error) if matches!(error.code(), Some(ErrorCode::Busy | ErrorCode::NotDrained)))
    }

    /// Whether the device has to be opened again.
    pub fn must_reopen(&self) -> bool {
        let ended = matches!(self, Error::Client(error) if error.code() == Some(ErrorCode::Ended));
        ended || matches!(self, Error::Gone | Error::Client(ClientError::Gone | ClientError::Ended(_)))
    }
}
