//! The Calypte (NDP version 3) DMA controller, `docs/spec/nfb-card.md` §3.2 and §3.2.5: one block per queue and direction,
//! and for each TX queue the device's own buffers, which lie on the second bus.
//!
//! The registers lie where Medusa's do; counters, START and STOP are the same.

use super::define::*;

registers! {
    block "calypte", section "3.2", size 0x80;
    CONTROL = 0x00, W32, RW, "bit 0: 1 starts the queue, 0 asks it to drain and stop";
    STATUS = 0x04, W32, RO, "bit 0: the queue is running";
    EXPER = 0x08, W32, RW, "peer-to-peer mode, which this card has not; software writes 0";
    SDP = 0x10, W32, RW, "software data pointer, RX blocks, TX bytes; a 64-bit write also sets SHP";
    SHP = 0x14, W32, RW, "software header pointer";
    HDP = 0x18, W32, RO, "hardware data pointer";
    HHP = 0x1c, W32, RO, "hardware header pointer";
    TIMEOUT = 0x20, W32, RW, "accepted and kept; a software card needs no timeout";
    DATA_BASE = 0x40, W64, RW, "IOVA of the data ring, 128-byte aligned, RX only";
    HDR_BASE = 0x48, W64, RW, "IOVA of the header ring, 8-byte aligned, RX only";
    UPDATE_BASE = 0x50, W64, RW, "IOVA of the word where the card stores HDP and HHP, 8-byte aligned";
    MDP = 0x58, W32, RD, "data pointer mask, latched at start; RX: all ones reads as the limit; TX: read-only";
    MHP = 0x5c, W32, RD, "header pointer mask, latched at start; RX: all ones reads as the limit; TX: read-only";
    PASSED_FRAMES = 0x60, W64, RO, "frames received or sent, as of the last strobe";
    COUNTER_COMMAND = 0x60, W32, WO, "0 resets the four counters, 1 strobes them, 2 does both at once";
    PASSED_BYTES = 0x68, W64, RO, "bytes received or sent, as of the last strobe";
    DISCARDED_FRAMES = 0x70, W64, RO, "frames discarded, as of the last strobe";
    DISCARDED_BYTES = 0x78, W64, RO, "bytes discarded, as of the last strobe";
}

/// The data buffer of a TX queue, a component of the second bus. Nobody reads there what another program sends.
pub mod tx_data {
    use super::super::define::*;

    registers! {
        block "calypte_tx_data", section "3.2.5", size 0x20000;
        DATA[0x8000; 4] = 0x00, W32, WO, "bytes of frames, any access size; the second half is the first once more";
    }
}

/// The header buffer of a TX queue, a component of the second bus. Written in words of 4 or 8 bytes.
pub mod tx_headers {
    use super::super::define::*;

    registers! {
        block "calypte_tx_headers", section "3.2.5", size 0x8000;
        HEADER[0x1000; 8] = 0x00, W64, WO, "a header; its upper 32 bits send the frame; second half as the first";
    }
}

/// Version property of a Calypte node in the device tree (trap T12: from 0x0002_0000, below 0x0003_0000).
pub const VERSION: u32 = 0x0002_0000;

/// Bytes of a block of an RX data ring.
pub const RX_BLOCK: u32 = 128;
/// Bytes of the data ring of a TX queue: 16 bits say where a frame begins. Its component has twice as many, so that no
/// frame has to wrap.
pub const TX_RING: u32 = 0x1_0000;
/// Entries of the header ring of a TX queue: one for every place where a frame can begin. Its component has twice as
/// many.
pub const TX_HEADERS: u32 = TX_RING / TX_FRAME_ALIGN;
/// A TX frame begins at a multiple of this many bytes.
pub const TX_FRAME_ALIGN: u32 = 32;

const _: () = {
    use super::medusa as m;
    assert!(tx_data::BLOCK.size == 2 * TX_RING && tx_headers::BLOCK.size == 2 * 8 * TX_HEADERS);
    // The card and the driver handle both controllers with one set of names.
    assert!(CONTROL.0 == m::CONTROL.0 && STATUS.0 == m::STATUS.0 && EXPER.0 == m::EXPER.0);
    assert!(SDP.0 == m::SDP.0 && SHP.0 == m::SHP.0 && HDP.0 == m::HDP.0 && HHP.0 == m::HHP.0);
    assert!(TIMEOUT.0 == m::TIMEOUT.0 && DATA_BASE.0 == m::DESC_BASE.0 && HDR_BASE.0 == m::HDR_BASE.0);
    assert!(UPDATE_BASE.0 == m::UPDATE_BASE.0 && MDP.0 == m::MDP.0 && MHP.0 == m::MHP.0);
    assert!(PASSED_FRAMES.0 == m::PASSED_FRAMES.0 && COUNTER_COMMAND.0 == m::COUNTER_COMMAND.0);
    assert!(PASSED_BYTES.0 == m::PASSED_BYTES.0 && DISCARDED_FRAMES.0 == m::DISCARDED_FRAMES.0);
    assert!(DISCARDED_BYTES.0 == m::DISCARDED_BYTES.0);
};
