//! The SZE (version 1) DMA controller, `docs/spec/nfb-card.md` §3.1: one block per queue and direction.

use super::define::*;

registers! {
    block "sze", section "3.1", size 0x80;
    CONTROL = 0x00, W32, RW, "bit 0 start, bit 1 discard when there is no room, 23:16 endpoints, 31:24 VF";
    STATUS = 0x04, W32, RO, "bit 0 running, 1 descriptors ready, 2 data ready, 3 ring ready";
    SW_POINTER = 0x08, W32, RW, "software pointer, in bytes from the start of the ring";
    HW_POINTER = 0x0c, W32, RO, "hardware pointer, in bytes from the start of the ring";
    RING_MASK = 0x10, W32, RW, "size of the ring in bytes, a power of two, less one; latched at start";
    IRQ = 0x14, W32, RW, "accepted and kept; a software card wakes by eventfd";
    TIMEOUT = 0x18, W32, RW, "accepted and kept, in units of 5 ns";
    MAX_REQUEST = 0x1c, W32, RW, "accepted and kept, in bytes";
    DESC_BASE = 0x20, W64, RW, "IOVA of the descriptor list, 8-byte aligned";
    UPDATE_BASE = 0x28, W64, RW, "IOVA of the word where the card stores its pointer, 8-byte aligned";
    PASSED_FRAMES = 0x30, W64, RO, "frames received or sent";
    COUNTER_COMMAND = 0x30, W32, WO, "1 sets both counters to 0";
    DISCARDED_FRAMES = 0x38, W64, RO, "frames discarded";
}

/// Version property of an SZE node in the device tree. Nothing reads it for this engine, but trap T12 punishes a DMA
/// node without one.
pub const VERSION: u32 = 0x0001_0000;

/// [`CONTROL`]: start, or keep running. Without it: stop at once.
pub const CONTROL_START: u32 = 1 << 0;
/// [`CONTROL`]: an RX queue without room drops the frame instead of holding the port back.
pub const CONTROL_DISCARD: u32 = 1 << 1;

/// [`STATUS`]: the queue is running.
pub const STATUS_RUNNING: u32 = 1 << 0;
/// [`STATUS`]: descriptors ready.
pub const STATUS_DESCRIPTORS_READY: u32 = 1 << 1;
/// [`STATUS`]: data ready.
pub const STATUS_DATA_READY: u32 = 1 << 2;
/// [`STATUS`]: ring ready.
pub const STATUS_RING_READY: u32 = 1 << 3;

/// [`COUNTER_COMMAND`]: set both counters to 0.
pub const COUNTERS_RESET: u32 = 1;

/// What software writes to [`TIMEOUT`], in units of 5 ns.
pub const TIMEOUT_DEFAULT: u32 = 10_000;
/// What software writes to [`MAX_REQUEST`] of an RX queue, in bytes.
pub const MAX_REQUEST_RX: u32 = 256;
/// What software writes to [`MAX_REQUEST`] of a TX queue, in bytes.
pub const MAX_REQUEST_TX: u32 = 512;
