//! Ordinary memory of this process that becomes shared memory in place, so that others can store straight into it.
//!
//! [`Adopter::adopt`] takes whole pages of a range aside in one step (`UFFDIO_MOVE`), copies them to a memfd, maps the
//! memfd over the same addresses, and wakes whoever touched them meanwhile. Threads of the program, and system calls that
//! are under way, notice nothing but the pause. What came of it is a list of [`Piece`]s, which another process can map,
//! and a list of what was [`Left`] as it is, each with the reason.
//!
//! An adoption is never undone: memory that is given back to the allocator stays shared, and only when the program
//! unmaps it are its pages freed.
//!
//! Files, in the order in which a range passes them: `maps` and `threads` say what is there, `sort` what may be
//! adopted, `exchange` does it, `index` remembers it, `adopter` drives them. `fork` keeps a child's memory its own.
//! Decision 58 says why it is done so.

mod adopter;
mod error;
#[allow(unsafe_code)]
mod exchange;
mod file;
#[allow(unsafe_code)]
mod fork;
mod index;
mod maps;
mod request;
mod sort;
#[allow(unsafe_code)]
mod sys;
#[allow(unsafe_code)]
mod threads;

pub use adopter::{AdoptCounters, Adopter};
pub use error::{AdoptError, Refusal};
pub use file::{Identity, SharedFile};

use std::sync::Arc;

/// Which memory may be adopted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Mappings, as those of `mmap` and of large blocks of `malloc` (128 KiB and more, unless it is told otherwise).
    #[default]
    Mappings,
    /// What `malloc` hands out again and again as well: the heap of `brk` and arenas. Only for programs that do not
    /// fork while other threads allocate: `malloc` of a child could find its own lists half changed by them (decision 58).
    Heap,
}

/// Addresses of this process whose bytes are those of a file that can be handed to others.
#[derive(Clone, Debug)]
pub struct Piece {
    /// First address.
    pub first: u64,
    /// Length in bytes; whole pages.
    pub len: u64,
    /// The file.
    pub file: Arc<SharedFile>,
    /// Where in the file the first byte is.
    pub offset: u64,
}

/// Addresses that stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// First address.
    pub first: u64,
    /// Length in bytes; whole pages.
    pub len: u64,
    /// Why.
    pub why: Refusal,
}

/// What came of a range. Pages that are only partly inside are in neither list.
#[derive(Clone, Debug, Default)]
pub struct Adoption {
    /// What others can map, in ascending order.
    pub pieces: Vec<Piece>,
    /// What they cannot.
    pub left: Vec<Left>,
}

impl Adoption {
    /// Bytes that others can map.
    pub fn shared(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum()
    }
}
