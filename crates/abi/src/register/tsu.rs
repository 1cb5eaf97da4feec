//! The time-stamp unit, `docs/spec/nfb-card.md` §2.8: the card's clock as software reads and steers it.
//!
//! A time is 32 bits of seconds in [`DATA_HIGH`] and a 64-bit fraction of a second in the other two data registers; an
//! increment is the fraction per tick of the clock.

use super::define::*;

registers! {
    block "tsu", section "2.8", size 0x1000;
    DATA_LOW = 0x00, W32, RW, "data window, bits 31:0";
    DATA_MIDDLE = 0x04, W32, RW, "data window, bits 63:32";
    DATA_HIGH = 0x08, W32, RW, "data window, bits 95:64";
    COMMAND = 0x0c, W32, WO, "0 write increment, 1 write time, 4 read increment, 5 read time, 7 read PPS time";
    STATUS = 0x10, W32, RO, "bit 0 PPS active, 1 clock active";
    ENABLE = 0x14, W32, RW, "1: time stamps are valid";
    PPS_SELECT = 0x18, W32, RW, "source of the pulse per second";
    FREQUENCY = 0x1c, W32, RO, "frequency of the clock in Hz, less one";
    CLOCK_SELECT = 0x20, W32, RW, "source of the clock";
    SOURCES = 0x24, W32, RO, "31:16 number of clock sources, 15:0 number of PPS sources";
}

/// [`COMMAND`]: take the increment from the data window.
pub const COMMAND_WRITE_INCREMENT: u32 = 0;
/// [`COMMAND`]: take the time from the data window.
pub const COMMAND_WRITE_TIME: u32 = 1;
/// [`COMMAND`]: put the increment into the data window.
pub const COMMAND_READ_INCREMENT: u32 = 4;
/// [`COMMAND`]: put the time into the data window.
pub const COMMAND_READ_TIME: u32 = 5;
/// [`COMMAND`]: put the time of the last pulse per second into the data window.
pub const COMMAND_READ_PPS_TIME: u32 = 7;
/// [`SOURCES`]: lowest bit of the number of clock sources.
pub const SOURCES_CLOCK_SHIFT: u32 = 16;
/// [`STATUS`]: pulses per second arrive.
pub const STATUS_PPS_ACTIVE: u32 = 1 << 0;
/// [`STATUS`]: the clock runs.
pub const STATUS_CLOCK_ACTIVE: u32 = 1 << 1;
