//! Shared memory and IOMMU: memory that a card may reach, by which addresses, and the only home of raw shared memory in
//! Millrace.
//!
//! * [`Region`] is memory shared by fd: a memfd that can no longer shrink, mapped here.
//! * [`ForeignRegion`] is memory of a peer, which may shrink under us without harm.
//! * [`Window`] is a part of a region. Rings are built on what a window gives out: [`Word64`],
//!   [`Word32`] and [`Word16`] for pointers and flags, [`Slots64`], [`Slots32`] and [`Slots16`] for descriptors and
//!   headers, [`Span`] and [`SpanMut`] for payloads.
//! * [`Domain`] is the address space of one owner: IOVA to window. A card reaches memory only through the
//!   [`Iotlb`] of a domain, and an address outside it is a [`Fault`], never a crash. One kind of domain has the
//!   addresses of this process itself.
//!
//! All offsets are checked when a view is made; after that a masked index or a word costs one instruction. The other
//! side of shared memory may write at any moment: integers are read atomically, once, and bytes are copied before they
//! are interpreted.
//!
//! Under `--cfg loom` the same names stand for memory made of model-checked words, so that the rings of
//! `millrace-ring` run under loom unchanged.
#![deny(unsafe_code)]

#[cfg(not(loom))]
#[allow(unsafe_code)]
mod access;
#[cfg(loom)]
#[path = "model.rs"]
mod access;
#[cfg(not(loom))]
mod adopt;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod careful;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod device;
mod domain;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod foreign;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod guard;
mod iova;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod mapping;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod other;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod place;
#[cfg(not(loom))]
mod process;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod region;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod resource;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod rights;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod signal;
mod table;
mod watch;

pub use access::{Slots16, Slots32, Slots64, Span, SpanMut, Window, Word16, Word32, Word64, fence};
#[cfg(not(loom))]
pub use adopt::{AdoptCounters, AdoptError, Adopter, Adoption, Identity, Left, Piece, Refusal, Scope, SharedFile};
#[cfg(not(loom))]
pub use careful::{LARGE, Vanished};
pub use core::sync::atomic::Ordering;
pub use domain::{Access, Domain, Fault, Iotlb, MapError, Pinned, Reach, UnmapError};
#[cfg(not(loom))]
pub use foreign::ForeignRegion;
#[cfg(not(loom))]
pub use guard::foreign_cuts;
pub use iova::Iova;
#[cfg(not(loom))]
pub use other::OtherProcess;
#[cfg(not(loom))]
pub use place::{Place, PlaceError};
#[cfg(not(loom))]
pub use region::{Pages, Protection, Region, RegionError};
#[cfg(not(loom))]
pub use resource::PciResource;
#[cfg(not(loom))]
pub use rights::{refuse_descriptors, send_when_taken, take_descriptors};

#[cfg(not(loom))]
pub use watch::{Cover, Watch, WatchCounters, WatchError};
pub use watch::{Entered, Gate, Outside, Presence, SEATS, Seat, Taken};

/// A view that does not lie inside its window, or is not aligned as its words need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not lie inside {window} bytes, or are not aligned for their words")]
pub struct OutOfRange {
    /// Offset asked for, in bytes.
    pub offset: usize,
    /// Length asked for, in bytes.
    pub len: usize,
    /// Length of the window, in bytes.
    pub window: usize,
}
