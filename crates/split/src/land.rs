//! Pages of a transport that a program has its own memory in: it is the transport's from when it is allocated, and granted as it is when a region is
//! registered there (decision 126). What is where in it is the matter of an allocator of the program's.

use crate::ivshmem::IvshmemLand;
use crate::xen::XenLand;
use crate::{Error, PAGE};

/// Addresses of this process, from the first on pages of a transport as far as they have been taken.
pub enum Land {
    /// The slice of memory that virtual machines share: all of it is there.
    Ivshmem(IvshmemLand),
    /// Pages of `gntalloc`, which are made and granted when they are taken.
    Xen(XenLand),
}

impl Land {
    /// At a place as [`Frontend::call_at`](crate::Frontend::call_at) knows it: `xen`, or `ivshmem:` and where the memory is. `None`: it is the socket of a
    /// backend, whose transport takes memory where it lies.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(place: &str) -> Option<Result<Self, Error>> {
        if place == "xen" {
            return Some(XenLand::open().map(Self::Xen));
        }
        Some(IvshmemLand::open(place.strip_prefix("ivshmem:")?).map(Self::Ivshmem))
    }

    /// Where it begins, and how many pages it may have.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn extent(&self) -> Result<(usize, u32), Error> {
        match self {
            Self::Ivshmem(land) => {
                let all = land.all()?;
                let first = all.span(0, PAGE).map_or(0, |span| span.as_ptr().expose_provenance());
                Ok((first, (all.len() / PAGE) as u32))
            }
            Self::Xen(land) => Ok(land.extent()),
        }
    }

    /// Pages from number `first` on, which is behind those that were taken before, are the program's from now on, to be read and written. Whether they
    /// can be had.
    pub fn take(&self, first: u32, pages: u32) -> bool {
        match self {
            Self::Ivshmem(land) => land.take(first, pages),
            Self::Xen(land) => land.take(first, pages),
        }
    }

    /// By which the backend knows pages that were taken.
    pub fn references(&self, first: u32, pages: u32) -> Option<Vec<u64>> {
        match self {
            // The first page of the slice is before them.
            Self::Ivshmem(_) => Some((first..first.checked_add(pages)?).map(|page| u64::from(page) + 1).collect()),
            Self::Xen(land) => land.references(first, pages),
        }
    }
}
