//! The Medusa (NDP version 2) DMA controller, `docs/spec/nfb-card.md` §3.2: one block per queue and direction.

use super::define::*;

registers! {
    block "medusa", section "3.2", size 0x80;
    CONTROL = 0x00, W32, RW, "bit 0: 1 starts the queue, 0 asks it to drain and stop";
    STATUS = 0x04, W32, RO, "bit 0: the queue is running";
    EXPER = 0x08, W32, RW, "peer-to-peer mode of another engine; always written 0";
    SDP = 0x10, W32, RW, "software descriptor pointer; a 64-bit write also sets SHP";
    SHP = 0x14, W32, RW, "software header pointer, RX only";
    HDP = 0x18, W32, RO, "hardware descriptor pointer";
    HHP = 0x1c, W32, RO, "hardware header pointer, RX only";
    TIMEOUT = 0x20, W32, RW, "accepted and kept; a software card needs no timeout";
    DESC_BASE = 0x40, W64, RW, "IOVA of the descriptor ring, 8-byte aligned";
    HDR_BASE = 0x48, W64, RW, "IOVA of the header ring, 4-byte aligned, RX only";
    UPDATE_BASE = 0x50, W64, RW, "IOVA of the word where the card stores HDP and HHP, 8-byte aligned";
    MDP = 0x58, W32, RD, "descriptor pointer mask, latched at start; all ones reads as the limit";
    MHP = 0x5c, W32, RD, "header pointer mask, latched at start; all ones reads as the limit";
    PASSED_FRAMES = 0x60, W64, RO, "frames received or sent, as of the last strobe";
    COUNTER_COMMAND = 0x60, W32, WO, "0 resets the four counters, 1 strobes them, 2 does both at once";
    PASSED_BYTES = 0x68, W64, RO, "bytes received or sent, as of the last strobe";
    DISCARDED_FRAMES = 0x70, W64, RO, "frames discarded, as of the last strobe";
    DISCARDED_BYTES = 0x78, W64, RO, "bytes discarded, as of the last strobe";
}

/// Version property of a Medusa node in the device tree (trap T12: below 0x0003_0000).
pub const VERSION: u32 = 0x0002_0000;

/// [`CONTROL`]: start, or keep running.
pub const CONTROL_START: u32 = 1;
/// [`CONTROL`]: drain, then stop (§3.2.3).
pub const CONTROL_STOP: u32 = 0;
/// [`STATUS`]: the queue is running.
pub const STATUS_RUNNING: u32 = 1;

/// [`COUNTER_COMMAND`]: set all four counters to 0.
pub const COUNTERS_RESET: u32 = 0;
/// [`COUNTER_COMMAND`]: make the four counters readable as of now.
pub const COUNTERS_STROBE: u32 = 1;
/// [`COUNTER_COMMAND`]: both in one step, so that no frame is lost in between.
pub const COUNTERS_STROBE_AND_RESET: u32 = 2;

/// What software writes to [`TIMEOUT`] when nobody asked for another value.
pub const TIMEOUT_DEFAULT: u32 = 0x800;

/// Most entries that a descriptor or header ring of this card can have.
pub const MAX_ENTRIES: u32 = 0x8000;
/// What one half of the mask probe writes (§3.2.2 step 6, trap T14).
pub const MASK_PROBE: u32 = u32::MAX;
/// What [`MDP`] and [`MHP`] read as after [`MASK_PROBE`] was written: twice the number of entries, less one.
pub const MASK_LIMIT: u32 = 2 * MAX_ENTRIES - 1;

/// The largest mask that a card takes, from what [`MDP`] or [`MHP`] read as after the probe.
pub const fn largest_mask(probed: u32) -> u32 {
    probed >> 1
}

const _: () = assert!(largest_mask(MASK_LIMIT) == MAX_ENTRIES - 1);
