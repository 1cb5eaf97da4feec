//! The receiving half of a port, `docs/spec/nfb-card.md` §2.4.
//!
//! Counters are read by writing [`COMMAND_STROBE`] to [`COMMAND`] and then the values, which belong together. Lengths
//! and octets include the four bytes of the FCS, although no frame carries one through this card.

use super::define::*;

registers! {
    block "rxmac", section "2.4", size 0x200;
    TOTAL_LOW = 0x00, W32, RO, "all frames, low half";
    RECEIVED_LOW = 0x04, W32, RO, "correct frames passed on, low half";
    DROPPED_LOW = 0x08, W32, RO, "frames dropped for any reason, low half";
    OVERFLOWED_LOW = 0x0c, W32, RO, "frames dropped because a buffer was full, low half";
    TOTAL_HIGH = 0x10, W32, RO, "all frames, high half";
    RECEIVED_HIGH = 0x14, W32, RO, "correct frames passed on, high half";
    DROPPED_HIGH = 0x18, W32, RO, "frames dropped for any reason, high half";
    OVERFLOWED_HIGH = 0x1c, W32, RO, "frames dropped because a buffer was full, high half";
    ENABLE = 0x20, W32, RW, "bit 0: frames are let in";
    ERROR_MASK = 0x24, W32, RW, "what to drop: bit 0 MII error, 1 CRC, 2 too short, 3 too long, 4 address";
    STATUS = 0x28, W32, RO, "bit 0 overflow, 6:4 speed, 7 link up, 27:23 entries in the address table";
    COMMAND = 0x2c, W32, WO, "1 strobes all counters, 2 resets them";
    LENGTH_MIN = 0x30, W32, RW, "shortest frame let in, in bytes with FCS";
    LENGTH_MAX = 0x34, W32, RW, "longest frame let in, in bytes with FCS";
    FILTER = 0x38, W32, RW, "0 promiscuous, 1 table, 2 and broadcast, 3 and multicast";
    RECEIVED_OCTETS = 0x3c, W64, RO, "bytes of correct frames, with FCS";
    SPEED_METER[3; 4] = 0x44, W32, RO, "speed meter; reads 0";
    MAC_TABLE[16; 8] = 0x80, W64, RW, "address, first wire byte in bits 47:40; bit 48: valid";
    CRC_ERRORS_LOW = 0x100, W32, RO, "frames with a wrong CRC, low half";
    OVER_MAX_LOW = 0x104, W32, RO, "frames longer than LENGTH_MAX, low half";
    UNDER_MIN_LOW = 0x108, W32, RO, "frames shorter than LENGTH_MIN, low half";
    BROADCAST_LOW = 0x10c, W32, RO, "broadcast frames, low half";
    MULTICAST_LOW = 0x110, W32, RO, "multicast frames, low half";
    FRAGMENTS_LOW = 0x114, W32, RO, "too short and wrong CRC, low half";
    JABBERS_LOW = 0x118, W32, RO, "too long and wrong CRC, low half";
    OCTETS_LOW = 0x11c, W32, RO, "bytes of all frames, with FCS, low half";
    SIZE_64_LOW = 0x120, W32, RO, "frames of 64 bytes, low half";
    SIZE_65_127_LOW = 0x124, W32, RO, "frames of 65 to 127 bytes, low half";
    SIZE_128_255_LOW = 0x128, W32, RO, "frames of 128 to 255 bytes, low half";
    SIZE_256_511_LOW = 0x12c, W32, RO, "frames of 256 to 511 bytes, low half";
    SIZE_512_1023_LOW = 0x130, W32, RO, "frames of 512 to 1023 bytes, low half";
    SIZE_1024_1518_LOW = 0x134, W32, RO, "frames of 1024 to 1518 bytes, low half";
    CRC_ERRORS_HIGH = 0x138, W32, RO, "frames with a wrong CRC, high half";
    OVER_MAX_HIGH = 0x13c, W32, RO, "frames longer than LENGTH_MAX, high half";
    UNDER_MIN_HIGH = 0x140, W32, RO, "frames shorter than LENGTH_MIN, high half";
    BROADCAST_HIGH = 0x144, W32, RO, "broadcast frames, high half";
    MULTICAST_HIGH = 0x148, W32, RO, "multicast frames, high half";
    FRAGMENTS_HIGH = 0x14c, W32, RO, "too short and wrong CRC, high half";
    JABBERS_HIGH = 0x150, W32, RO, "too long and wrong CRC, high half";
    OCTETS_HIGH = 0x154, W32, RO, "bytes of all frames, with FCS, high half";
    SIZE_64_HIGH = 0x158, W32, RO, "frames of 64 bytes, high half";
    SIZE_65_127_HIGH = 0x15c, W32, RO, "frames of 65 to 127 bytes, high half";
    SIZE_128_255_HIGH = 0x160, W32, RO, "frames of 128 to 255 bytes, high half";
    SIZE_256_511_HIGH = 0x164, W32, RO, "frames of 256 to 511 bytes, high half";
    SIZE_512_1023_HIGH = 0x168, W32, RO, "frames of 512 to 1023 bytes, high half";
    SIZE_1024_1518_HIGH = 0x16c, W32, RO, "frames of 1024 to 1518 bytes, high half";
    SIZE_OVER_1518 = 0x170, W64, RO, "frames over 1518 bytes";
    SIZE_UNDER_64 = 0x178, W64, RO, "frames under 64 bytes";
    SIZE_1519_2047 = 0x180, W64, RO, "frames of 1519 to 2047 bytes";
    SIZE_2048_4095 = 0x188, W64, RO, "frames of 2048 to 4095 bytes";
    SIZE_4096_8191 = 0x190, W64, RO, "frames of 4096 to 8191 bytes";
    SIZE_OVER_8191 = 0x198, W64, RO, "frames of 8192 bytes and more";
    DROPPED_FILTER = 0x1a0, W64, RO, "frames dropped by the address filter";
    DROPPED_ERROR = 0x1a8, W64, RO, "frames dropped as erroneous";
    DROPPED_DISABLED = 0x1b0, W64, RO, "frames dropped while ENABLE was 0";
    DROPPED_MII = 0x1b8, W64, RO, "frames dropped for an MII error";
    DROPPED_CRC = 0x1c0, W64, RO, "frames dropped for a wrong CRC";
    DROPPED_LENGTH = 0x1c8, W64, RO, "frames dropped for their length";
}

/// Size of the block in bytes; that of [`txmac`](super::txmac) too.
pub const BLOCK_SIZE: u32 = 0x200;

/// Version property of the node: with the counters from 0x170 on.
pub const VERSION: u32 = 3;

/// [`COMMAND`]: make all counters readable as of now.
pub const COMMAND_STROBE: u32 = 1;
/// [`COMMAND`]: set all counters to 0.
pub const COMMAND_RESET: u32 = 2;

/// [`ERROR_MASK`]: drop frames with an error of the medium, of the CRC. Such frames never come as far as a choice here.
pub const ERROR_MII: u32 = 1 << 0;
/// As [`ERROR_MII`].
pub const ERROR_CRC: u32 = 1 << 1;
/// [`ERROR_MASK`]: drop frames shorter than [`LENGTH_MIN`].
pub const ERROR_TOO_SHORT: u32 = 1 << 2;
/// [`ERROR_MASK`]: drop frames longer than [`LENGTH_MAX`].
pub const ERROR_TOO_LONG: u32 = 1 << 3;
/// [`ERROR_MASK`]: drop frames that [`FILTER`] does not let in.
pub const ERROR_ADDRESS: u32 = 1 << 4;
/// [`ERROR_MASK`]: all bits that there are.
pub const ERROR_MASK_BITS: u32 = 0x1f;
/// [`ERROR_MASK`] after power-on: everything but the shortest length. Ports do not pad, and captures are full of frames
/// that were never padded; nobody shall miss them by surprise.
pub const ERROR_MASK_DEFAULT: u32 = ERROR_MASK_BITS & !ERROR_TOO_SHORT;

/// [`STATUS`]: a buffer overflowed.
pub const STATUS_OVERFLOW: u32 = 1 << 0;
/// [`STATUS`]: the link is up.
pub const STATUS_LINK_UP: u32 = 1 << 7;
/// [`STATUS`]: lowest bit of the speed code, which is three bits wide.
pub const STATUS_SPEED_SHIFT: u32 = 4;
/// [`STATUS`]: lowest bit of the number of entries of [`MAC_TABLE`], which is five bits wide.
pub const STATUS_TABLE_SHIFT: u32 = 23;

/// Entries of [`MAC_TABLE`].
pub const MAC_TABLE_ENTRIES: u32 = 16;
/// [`MAC_TABLE`]: the entry counts.
pub const MAC_TABLE_VALID: u64 = 1 << 48;
/// [`MAC_TABLE`]: the bits that an entry keeps.
pub const MAC_TABLE_BITS: u64 = (MAC_TABLE_VALID << 1) - 1;

/// [`FILTER`]: every frame.
pub const FILTER_PROMISCUOUS: u32 = 0;
/// [`FILTER`]: destination in [`MAC_TABLE`].
pub const FILTER_TABLE: u32 = 1;
/// [`FILTER`]: also broadcast.
pub const FILTER_BROADCAST: u32 = 2;
/// [`FILTER`]: also multicast.
pub const FILTER_MULTICAST: u32 = 3;

/// [`LENGTH_MIN`] after power-on, in bytes with FCS.
pub const LENGTH_MIN_DEFAULT: u32 = 64;

/// The speed code in [`STATUS`] for a speed in Gbit/s; 0, which tools print as unknown, for any but 10, 40 and 100.
pub const fn speed_code(gbps: u32) -> u32 {
    match gbps {
        10 => 3,
        40 => 4,
        100 => 5,
        _ => 0,
    }
}
