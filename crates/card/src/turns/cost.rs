//! What a look is charged with: about as much for each as a worker needs for it.

/// A look that finds nothing.
pub(crate) const LOOK: u32 = 1;
/// A look at a port queue that has nothing: some ask the system.
pub(crate) const PORT_QUEUE: u32 = 4;
/// A look at a ring whose frames have nowhere to go.
pub(crate) const BLOCKED: u32 = 8;

/// Bytes whose copy costs as much as a frame.
const BYTES: u64 = 64;

/// Nanoseconds in which a worker does what one unit stands for, about.
const UNIT_NS: u64 = 10;

/// So many ns in which the worker did nothing else for anybody.
#[inline(always)]
pub(crate) const fn of_waiting(ns: u64) -> u32 {
    let units = ns.div_ceil(UNIT_NS);
    if units > 1000 { 1000 } else { units as u32 }
}

/// A burst of so many frames, or entries of the ring that were looked at, with so many bytes in all.
#[inline(always)]
pub(crate) const fn of(frames: u64, bytes: u64) -> u32 {
    // A burst is at most some hundred frames of 64 KiB.
    LOOK + (frames + bytes / BYTES) as u32
}
