//! The DD DMA controller, of this project's own (`docs/spec/dd.md`): one block per queue and direction.
//!
//! The registers lie where Medusa's do, where they mean the same; counters, START and STOP are the same.

use super::define::*;

registers! {
    block "dd", reference "docs/spec/dd.md", size 0x80;
    CONTROL = 0x00, W32, RW, "bit 0: 1 starts the queue, 0 asks it to drain and stop";
    STATUS = 0x04, W32, RO, "bit 0: the queue is running";
    TAIL = 0x10, W32, RW, "place behind the last descriptor given to the card; a write wakes the card, which polls done bits";
    HEAD = 0x18, W32, RO, "place of the next descriptor that the card takes";
    DONE = 0x1c, W32, RO, "place of the next descriptor that the card hands back";
    TIMEOUT = 0x20, W32, RW, "accepted and kept; a software card needs no timeout";
    LAUNCH = 0x24, W32, RW, "latched at start: bits 1:0, a frame later than SLACK is 0 sent, 1 dropped, 2 marked; bit 4, one too far ahead is held";
    SLACK = 0x28, W32, RW, "latched at start: from so many ns behind its launch time on a frame is late";
    BASE = 0x40, W64, RW, "IOVA of the descriptor ring, 64-byte aligned";
    SIZE = 0x58, W32, RD, "descriptors of the ring less one, latched at start; all ones reads as the limit";
    PASSED_FRAMES = 0x60, W64, RO, "frames received or sent, as of the last strobe";
    COUNTER_COMMAND = 0x60, W32, WO, "0 resets the four counters, 1 strobes them, 2 does both at once";
    PASSED_BYTES = 0x68, W64, RO, "bytes received or sent, as of the last strobe";
    DISCARDED_FRAMES = 0x70, W64, RO, "frames discarded, as of the last strobe";
    DISCARDED_BYTES = 0x78, W64, RO, "bytes discarded, as of the last strobe";
}

/// Version property of a DD node in the device tree.
pub const VERSION: u32 = 0x0001_0000;

/// Bytes of a descriptor.
pub const DESCRIPTOR: u32 = 32;
/// The descriptor ring begins at a multiple of this many bytes: no descriptor lies in two cache lines.
pub const RING_ALIGN: u32 = 64;
/// Fewest descriptors that a queue can have which the driver sets up.
pub const MIN_ENTRIES: u32 = 8;

const _: () = {
    use super::medusa as m;
    // The card and the driver handle both controllers with one set of names.
    assert!(CONTROL.0 == m::CONTROL.0 && STATUS.0 == m::STATUS.0 && TIMEOUT.0 == m::TIMEOUT.0);
    assert!(TAIL.0 == m::SDP.0 && HEAD.0 == m::HDP.0 && DONE.0 == m::HHP.0);
    assert!(BASE.0 == m::DESC_BASE.0 && SIZE.0 == m::MDP.0);
    assert!(PASSED_FRAMES.0 == m::PASSED_FRAMES.0 && COUNTER_COMMAND.0 == m::COUNTER_COMMAND.0);
    assert!(PASSED_BYTES.0 == m::PASSED_BYTES.0 && DISCARDED_FRAMES.0 == m::DISCARDED_FRAMES.0);
    assert!(DISCARDED_BYTES.0 == m::DISCARDED_BYTES.0);
};
