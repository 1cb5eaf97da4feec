use millrace_abi::control::FaultKind;
use millrace_abi::message::ErrorCode;
use millrace_abi::name::NameError;
use millrace_abi::queue::QueueId;
use millrace_card::CardError;
use millrace_clock::PageError;
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
    #[error("a frame of {len} bytes: {queue} takes at most {max}; {limit}")]
    FrameTooLong {
        /// Which queue.
        queue: QueueId,
        /// Length asked for, in bytes.
        len: usize,
        /// Longest possible, in bytes.
        max: usize,
        /// What sets it.
        limit: FrameLimit,
    },
    /// More packets than can ever be had at once.
    #[error("a burst of {count} packets for {queue}: only the first {fits} of them can be had at once")]
    BurstTooLong {
        /// Which queue.
        queue: QueueId,
        /// Packets asked for.
        count: usize,
        /// How many of them, from the first on, an empty queue has room for; [`MAX_BURST`](crate::MAX_BURST) at most.
        fits: usize,
    },
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
    /// The card's clock cannot be read here.
    #[error(transparent)]
    Clock(#[from] PageError),
    /// Waiting failed.
    #[error("waiting failed: {0}")]
    Wait(std::io::Error),
}

/// What sets the longest frame of a queue; as text, what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameLimit {
    /// The card carries none that is longer.
    Card,
    /// The card would, but the buffers of the queue are no larger.
    Buffers,
    /// The same, of a queue whose frames lie in one ring.
    Ring,
}

impl core::fmt::Display for FrameLimit {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            FrameLimit::Card => "longer ones are a matter of the card's option `--frame-max` (at most 16383)",
            FrameLimit::Buffers => "larger buffers are a matter of the card's option `--buffer`",
            FrameLimit::Ring => "a larger ring is a matter of the card's options",
        })
    }
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
