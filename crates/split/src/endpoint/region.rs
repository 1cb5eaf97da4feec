//! Memory of a program that others may reach.

use super::transfer::Part;
use super::{Inner, lock};
use crate::Error;
use millrace_dma::{Iova, Window};
use millrace_rdma::number::Key;
use millrace_served::wire;
use std::sync::{Mutex, Weak};

/// A region in memory that was granted for it. When it is dropped, nobody reaches it any more, and the memory is the guest's again.
pub struct Region {
    pub(super) inner: Weak<Mutex<Inner>>,
    pub(super) key: Key,
    pub(super) at: Iova,
    pub(super) len: u64,
    pub(super) window: Window,
}

impl Region {
    /// Its key, which others have to be given.
    pub fn key(&self) -> u32 {
        self.key.value()
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it, for a transfer.
    ///
    /// # Errors
    /// [`Error::Bounds`]
    pub fn part(&self, offset: u64, len: u32) -> Result<Part, Error> {
        self.check(offset, len as usize)?;
        Ok(Part { key: self.key, offset, len })
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), Error> {
        let is_inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.len);
        if is_inside { Ok(()) } else { Err(Error::Bounds { offset, len: len as u64, region: self.len }) }
    }

    /// Copies from it. Others may write meanwhile: then it is some old and some new bytes.
    ///
    /// # Errors
    /// [`Error::Bounds`]
    pub fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        self.check(offset, to.len())?;
        if let Some(span) = self.window.span(offset as usize, to.len()) {
            span.read_into(to);
        }
        Ok(())
    }

    /// Copies into it.
    ///
    /// # Errors
    /// [`Error::Bounds`]
    pub fn store(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.check(offset, from.len())?;
        if let Some(span) = self.window.span_mut(offset as usize, from.len()) {
            span.write_from(from);
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            let mut inner = lock(&inner);
            // If the backend has gone, so has the region; if it answers late, it does one after the other all the same.
            if matches!(inner.frontend.engine(wire::Request::Deregister(self.key)), Ok(_) | Err(Error::Silent)) {
                let _ = inner.frontend.release(self.at);
            }
        }
    }
}
