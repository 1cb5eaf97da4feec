//! Room in hand, to be written.

use super::TxQueue;
use super::ring::Slot;
use crate::error::Error;
use core::ops::{Index, IndexMut};

/// Slots of a TX queue, which they borrow. Nothing is sent unless they are put back with [`TxBurst::put`].
#[must_use = "nothing is sent before `put`"]
pub struct TxBurst<'q> {
    pub(super) queue: &'q mut TxQueue,
    pub(super) count: usize,
}

impl TxBurst<'_> {
    /// Number of slots.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All slots have been written: they will be sent, at the latest at the next [`TxQueue::flush`]. What can go wrong
    /// in mediated mode shows there.
    #[inline(always)]
    pub fn put(self) {
        self.queue.post(self.count);
        let _ = self.queue.commit();
        core::mem::forget(self);
    }

    /// Leaves the slots to be written later: [`TxQueue::commit`] and [`TxQueue::flush`] send them, the next
    /// [`TxQueue::get`] goes on behind them. For C interfaces, whose pointers outlive a borrow.
    #[inline(always)]
    pub fn keep(self) {
        self.queue.post(self.count);
        core::mem::forget(self);
    }

    /// As [`TxBurst::put`] and [`TxQueue::flush`] after it.
    ///
    /// # Errors
    /// [`Error::Client`] in mediated mode.
    #[inline(always)]
    pub fn send(self) -> Result<(), Error> {
        self.queue.post(self.count);
        let flushed = self.queue.flush();
        core::mem::forget(self);
        flushed
    }
}

impl Drop for TxBurst<'_> {
    fn drop(&mut self) {
        self.queue.untake(self.count);
    }
}

impl Index<usize> for TxBurst<'_> {
    type Output = [u8];

    #[inline(always)]
    fn index(&self, i: usize) -> &[u8] {
        let Slot { at, len, .. } = self.queue.slots[..self.count][i];
        self.queue.data.slice(at as usize, usize::from(len)).unwrap_or_default()
    }
}

impl IndexMut<usize> for TxBurst<'_> {
    #[inline(always)]
    fn index_mut(&mut self, i: usize) -> &mut [u8] {
        let Slot { at, len, .. } = self.queue.slots[..self.count][i];
        self.queue.data.slice_mut(at as usize, usize::from(len)).unwrap_or_default()
    }
}
