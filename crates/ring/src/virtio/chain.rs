//! From the index in the available ring to the buffers that it stands for (virtio 1.2, 2.7.5), as a driver may have
//! written them that means harm.

use super::layout::{Descriptor, descriptor_flag as flag};
use super::rings::Table;
use millrace_dma::{Iotlb, Iova};

/// Most descriptors that one frame may lie in, those of all its chains together.
pub const MAX_CHAIN: usize = crate::budget::MAX_CHAIN as usize;

/// Why the device's half cannot go on. Everything before the fault has been done and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// The available index is further ahead than the ring is long.
    #[error("available-index")]
    AvailableIndex,
    /// The available ring names a descriptor that the table does not have.
    #[error("head")]
    Head,
    /// A chain goes on in a descriptor that the table does not have.
    #[error("next")]
    Next,
    /// A chain that runs in a loop or has more than [`MAX_CHAIN`] descriptors.
    #[error("chain-length")]
    ChainLength,
    /// An indirect table where none is allowed, of no whole number of descriptors, or of too many.
    #[error("indirect")]
    Indirect,
    /// A buffer that is to be written among those to be read, or the other way round.
    #[error("direction")]
    Direction,
    /// An address outside the memory of the driver, or of an indirect table that is not aligned.
    #[error("unmapped")]
    Unmapped,
    /// A chain of buffers without a single byte.
    #[error("empty")]
    Empty,
}

impl From<millrace_dma::Fault> for Fault {
    fn from(_: millrace_dma::Fault) -> Self {
        Self::Unmapped
    }
}

/// Where the next descriptor of a chain comes from.
enum Source<'a> {
    Ring(&'a Table),
    Indirect(Iova),
}

/// Calls `visit` for each descriptor of the chain, which is loaded once: neither the chain nor what `visit` sees can
/// change afterwards. `looked` counts the descriptors of the frame, over all its chains.
pub(super) fn walk(
    table: &Table,
    iotlb: &Iotlb,
    head: u16,
    indirect: bool,
    looked: &mut usize,
    mut visit: impl FnMut(Descriptor) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let first = table.load(head);
    if !first.has(flag::INDIRECT) {
        return follow(Source::Ring(table), table.size(), iotlb, first, looked, &mut visit);
    }
    let entries = first.len / Descriptor::LEN as u32;
    let whole = first.len.is_multiple_of(Descriptor::LEN as u32) && (1..=table.size()).contains(&entries);
    if !indirect || first.has(flag::NEXT) || !whole {
        return Err(Fault::Indirect);
    }
    let at = first.address;
    let first = load_indirect(iotlb, at, 0)?;
    follow(Source::Indirect(at), entries, iotlb, first, looked, &mut visit)
}

fn load_indirect(iotlb: &Iotlb, table: Iova, index: u16) -> Result<Descriptor, Fault> {
    let at = table.plus(u64::from(index) * Descriptor::LEN as u64);
    Ok(Descriptor::decode([iotlb.read_u64(at)?, iotlb.read_u64(at.plus(8))?]))
}

fn follow(
    source: Source<'_>,
    entries: u32,
    iotlb: &Iotlb,
    mut descriptor: Descriptor,
    looked: &mut usize,
    visit: &mut impl FnMut(Descriptor) -> Result<(), Fault>,
) -> Result<(), Fault> {
    // A chain with more descriptors than its table visits one of them twice.
    for _ in 0..entries {
        if *looked == MAX_CHAIN {
            break;
        }
        *looked += 1;
        // The first descriptor of the ring was looked at by `walk`; a table inside a table is not allowed.
        if descriptor.has(flag::INDIRECT) {
            return Err(Fault::Indirect);
        }
        visit(descriptor)?;
        if !descriptor.has(flag::NEXT) {
            return Ok(());
        }
        if u32::from(descriptor.next) >= entries {
            return Err(Fault::Next);
        }
        descriptor = match source {
            Source::Ring(table) => table.load(descriptor.next),
            Source::Indirect(table) => load_indirect(iotlb, table, descriptor.next)?,
        };
    }
    Err(Fault::ChainLength)
}
