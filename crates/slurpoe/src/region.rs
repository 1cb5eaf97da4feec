//! Registered memory.

use crate::endpoint::Shared;
use crate::error::Error;
use millrace_dma::Window;
use millrace_rdma::number::Key;
use std::sync::{Arc, Weak};

/// What others may do in a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Transfers of this end may store there: reads and received messages.
    pub local: bool,
    /// Others may write there.
    pub write: bool,
    /// Others may read there.
    pub read: bool,
}

impl Access {
    /// Only this end.
    pub const LOCAL: Self = Self { local: true, write: false, read: false };
    /// Others may read and write.
    pub const ALL: Self = Self { local: true, write: true, read: true };

    /// As the engine has them; with addresses that begin at 0.
    pub fn bits(self) -> millrace_rdma::work::Access {
        use millrace_rdma::work::Access as Bits;
        let bit = |wanted: bool, bit: Bits| if wanted { bit } else { Bits::default() };
        // Others may write only what this end may write, too.
        Bits::ZERO_BASED
            .with(bit(self.local || self.write, Bits::LOCAL_WRITE))
            .with(bit(self.write, Bits::REMOTE_WRITE))
            .with(bit(self.read, Bits::REMOTE_READ))
    }
}

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub(crate) key: Key,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// A registered region. It is deregistered when it is dropped: what comes for it then is refused.
pub struct Region {
    pub(crate) shared: Weak<Shared>,
    pub(crate) key: Key,
    pub(crate) len: u64,
    /// Memory that was made for it.
    pub(crate) window: Option<Window>,
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
        self.check(offset, u64::from(len))?;
        Ok(Part { key: self.key, offset, len })
    }

    fn outside(&self, offset: u64, len: usize) -> Error {
        Error::Bounds { offset, len: len as u64, region: self.len }
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), Error> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if is_inside { Ok(()) } else { Err(Error::Bounds { offset, len, region: self.len }) }
    }

    /// Copies from [allocated](crate::Endpoint::allocate) memory. Others may write meanwhile: then it is some old and some new bytes.
    ///
    /// # Errors
    /// [`Error::Bounds`]; [`Error::Range`] for memory that is the program's.
    pub fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        self.check(offset, to.len() as u64)?;
        let window = self.window.as_ref().ok_or(Error::Range("the memory of this region is the program's own"))?;
        window.span(offset as usize, to.len()).ok_or_else(|| self.outside(offset, to.len()))?.read_into(to);
        Ok(())
    }

    /// Copies into allocated memory.
    ///
    /// # Errors
    /// As those of [`load`](Self::load).
    pub fn store(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.check(offset, from.len() as u64)?;
        let window = self.window.as_ref().ok_or(Error::Range("the memory of this region is the program's own"))?;
        window.span_mut(offset as usize, from.len()).ok_or_else(|| self.outside(offset, from.len()))?.write_from(from);
        Ok(())
    }

    /// Ends it, as drop does, for good when this returns.
    ///
    /// # Errors
    /// It is not there any more.
    pub fn deregister(mut self) -> Result<(), Error> {
        let shared = core::mem::take(&mut self.shared);
        shared.upgrade().map_or(Ok(()), |shared| shared.deregister(self.key))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            // That there is no such region any more is what is wanted.
            let _ = shared.deregister(self.key);
        }
    }
}

impl Region {
    pub(crate) fn new(shared: &Arc<Shared>, key: Key, len: u64, window: Option<Window>) -> Self {
        Self { shared: Arc::downgrade(shared), key, len, window }
    }
}
