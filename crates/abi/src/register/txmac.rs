//! The transmitting half of a port, `docs/spec/nfb-card.md` §2.5. Counters are read after a strobe, as in
//! [`rxmac`](super::rxmac).

use super::define::*;

registers! {
    block "txmac", section "2.5", size 0x200;
    TOTAL_LOW = 0x00, W32, RO, "all frames, low half";
    SENT_OCTETS_LOW = 0x04, W32, RO, "bytes of sent frames, with FCS, low half";
    DROPPED_LOW = 0x08, W32, RO, "frames dropped for any reason, low half";
    SENT_LOW = 0x0c, W32, RO, "frames sent, low half";
    TOTAL_HIGH = 0x10, W32, RO, "all frames, high half";
    SENT_OCTETS_HIGH = 0x14, W32, RO, "bytes of sent frames, with FCS, high half";
    DROPPED_HIGH = 0x18, W32, RO, "frames dropped for any reason, high half";
    SENT_HIGH = 0x1c, W32, RO, "frames sent, high half";
    ENABLE = 0x20, W32, RW, "bit 0: frames are let out, otherwise dropped";
    COMMAND = 0x2c, W32, WO, "1 strobes all counters, 2 resets them";
    STATUS = 0x30, W32, RO, "6:4 speed, 7 link up";
    TOTAL_OCTETS = 0x40, W64, RO, "bytes of all frames, with FCS";
    DROPPED_LINK_DOWN = 0x48, W64, RO, "frames dropped because the link was down";
    DROPPED_LENGTH = 0x50, W64, RO, "frames dropped for their length";
    DROPPED_DISABLED = 0x58, W64, RO, "frames dropped while ENABLE was 0";
}

/// Version property of the node: with the counters from 0x40 on.
pub const VERSION: u32 = 3;

/// [`COMMAND`]: make all counters readable as of now.
pub const COMMAND_STROBE: u32 = 1;
/// [`COMMAND`]: set all counters to 0.
pub const COMMAND_RESET: u32 = 2;
/// [`STATUS`]: the link is up. The speed code is that of [`rxmac::speed_code`](super::rxmac::speed_code).
pub const STATUS_LINK_UP: u32 = 1 << 7;
/// [`STATUS`]: lowest bit of the speed code, which is three bits wide.
pub const STATUS_SPEED_SHIFT: u32 = 4;
