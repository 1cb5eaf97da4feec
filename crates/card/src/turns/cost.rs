//! What a look is charged with: about as much for each as a worker needs for it.

/// A look that finds nothing.
pub(crate) const LOOK: u32 = 1;
/// A look at a port queue that has nothing: some ask the system.
pub(crate) const PORT_QUEUE: u32 = 4;
/// A look at a ring whose frames have nowhere to go.
pub(crate) const BLOCKED: u32 = 8;

/// Bytes whose copy costs as much as a frame.
const BYTES: u64 = 64;

/// A burst of so many frames, or entries of the ring that were looked at, with so many bytes in all.
#[inline(always)]
pub(crate) const fn of(frames: u64, bytes: u64) -> u32 {
    // A burst is at most some hundred frames of 64 KiB.
    LOOK + (frames + bytes / BYTES) as u32
}
