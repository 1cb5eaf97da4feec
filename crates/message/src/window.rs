//! Memory of another end that this one reaches: reads and writes without anybody's doing there, as RapidIO has them (NREAD, NWRITE, NWRITE_R and
//! SWRITE of its input/output logical layer, which the source's interface passes on).
//!
//! The owner allocates a [`Block`](crate::block::Block), says its [`number`](crate::block::Block::number) to the other end by a message, and keeps it. On one
//! host a write is a store of the other end's own processor: nothing of it fails, or arrives later than a doorbell that is rung behind it.

use core::sync::atomic::{Ordering, fence};
use millrace_dma::{OutOfRange, Window};

/// Whatever is written by SWRITE has so many bytes, or a multiple, and begins at a multiple of it.
pub const DOUBLE_WORD: usize = 8;

/// A window is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// The other endpoint is gone.
    #[error("the other endpoint is gone")]
    Lost,
    /// The other end has no memory there that this one may see.
    #[error(
        "the other endpoint has given no such memory: is it on this host, and has it allocated a block for this one?"
    )]
    Nowhere,
}

/// Bytes were not written, or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// They are not in the window.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// SWRITE writes whole double words.
    #[error("SWRITE writes multiples of 8 bytes, at multiples of 8")]
    Unaligned,
}

/// Memory of another end.
pub struct Remote {
    window: Window,
}

impl Remote {
    pub(crate) fn new(window: Window) -> Self {
        Self { window }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes bytes; there is no response. A doorbell or message that this thread sends afterwards arrives behind them.
    ///
    /// # Errors
    /// [`AccessError::Range`]: nothing was written.
    pub fn nwrite(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        let part = self.window.part(offset, bytes.len())?;
        part.span_mut(0, bytes.len()).map(|to| to.write_from(bytes));
        Ok(())
    }

    /// Writes bytes, with a response: when this returns, whoever looks there sees them, whatever this thread does next.
    ///
    /// # Errors
    /// As [`Remote::nwrite`].
    pub fn nwrite_r(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.nwrite(offset, bytes)?;
        // SeqCst: the stores are seen before anything that this thread loads next; pairs with nothing, as a response does not.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Writes double words: the shortest way, for streams; there is no response.
    ///
    /// # Errors
    /// [`AccessError`]: nothing was written.
    pub fn swrite(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        if !offset.is_multiple_of(DOUBLE_WORD) || !bytes.len().is_multiple_of(DOUBLE_WORD) {
            return Err(AccessError::Unaligned);
        }
        self.nwrite(offset, bytes)
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// [`AccessError::Range`]: nothing was read.
    pub fn nread(&self, offset: usize, to: &mut [u8]) -> Result<(), AccessError> {
        let part = self.window.part(offset, to.len())?;
        part.span(0, to.len()).map(|span| span.read_into(to));
        Ok(())
    }
}
