//! Pools of programs, lent to port queues that work on them, so that frames need not be copied on their way.

use crate::TxOutcome;
use millrace_dma::{Region, Span};

/// Buffers of an application, at equal distances from the beginning of a region.
#[derive(Clone)]
pub struct Pool {
    /// What they lie in. The port writes there.
    pub region: Region,
    /// Bytes of a buffer.
    pub size: u32,
    /// From one buffer to the next, in bytes; at least `size`.
    pub stride: u32,
    /// How many there are.
    pub count: u32,
}

/// Why a pool cannot be lent to a port queue. It goes on with memory of its own.
#[derive(Debug, thiserror::Error)]
pub enum LendError {
    /// A buffer has to hold a frame and what the port needs before it.
    #[error("buffers of {has} bytes, where frames of this wire need {needs}; make the pool with larger ones")]
    TooSmall {
        /// Bytes of a buffer.
        has: u32,
        /// Bytes that would do.
        needs: u32,
    },
    /// A frame of this wire does not fit one buffer, whatever their size.
    #[error("frames of this wire come in several pieces, which have to be put together; lower its MTU")]
    Pieces,
    /// The driver of the interface works on the port's memory and wants it in pages of its own.
    #[error("the driver of this interface works on the memory itself and cannot do so with buffers across pages")]
    Driver,
    /// The port is not working, or was not before.
    #[error("the wire is gone")]
    Gone,
    /// The system refused.
    #[error("{0}")]
    Refused(String),
}

/// A port queue that a pool can be lent to, one at a time.
///
/// What arrives is put into buffers that were [posted](Lendable::post), and shown by
/// [`Sink::take_lent`](crate::Sink::take_lent). Some ports also send from anywhere in that memory
/// ([`Lendable::sender`]). Everything else works on the port as before.
pub trait Lendable {
    /// Works on this pool from now on, until [`Lendable::return_pool`]. Called while nobody else uses the port queue; may take
    /// some milliseconds, in which nothing is received.
    ///
    /// # Errors
    /// [`LendError`]; the port queue goes on without a pool.
    fn lend(&mut self, pool: &Pool) -> Result<(), LendError>;

    /// Works on no pool from now on. Buffers that were posted and frames that are on their way belong to nobody afterwards.
    /// Otherwise as [`Lendable::lend`].
    ///
    /// # Errors
    /// [`LendError`] when the port queue cannot go on with memory of its own.
    fn return_pool(&mut self) -> Result<(), LendError>;

    /// Takes empty buffers as long as there is room for more: `next` says where one begins in the region.
    fn post(&mut self, next: &mut dyn FnMut() -> Option<usize>);

    /// This port, if it can send frames from where they lie in the memory. Otherwise they are sent like all others.
    fn sender(&mut self) -> Option<&mut dyn LentSender> {
        None
    }
}

/// A port that sends frames from memory of an application, without a copy. They belong to it until [`LentSender::sent`]
/// counts them.
pub trait LentSender {
    /// Takes a frame that lies in the memory, `at` this offset, towards the wire. What it drops, and counts, is
    /// [sent](LentSender::sent) like the rest.
    fn send_from(&mut self, at: usize, frame: Span<'_>) -> TxOutcome;

    /// How many of those frames, in the order of [`LentSender::send_from`], the port is done with since this was last
    /// called.
    fn sent(&mut self) -> u32;
}
