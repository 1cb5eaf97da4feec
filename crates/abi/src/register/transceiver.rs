//! The cage of a port: a status byte and the I2C master in front of the module, `docs/spec/nfb-card.md` §2.3.

pub use i2c::BLOCK as I2C;
pub use pmd::BLOCK as PMD;

/// The I2C master.
pub mod i2c {
    use crate::register::define::*;

    registers! {
        block "i2c", section "2.3", size 0x8;
        CONTROL = 0x00, W32, RW, "15:0 prescaler, 23 enable";
        COMMAND = 0x04, W32, WO, "15:8 byte to send, 7 START, 6 STOP, 5 READ, 4 WRITE, 3 NACK, 0 acknowledge";
        STATUS = 0x04, W32, RO, "15:8 byte received, 7 no ACK, 6 busy, 5 lost, 1 in progress, 0 done";
    }

    /// [`CONTROL`]: the bits that it keeps, of which the upper one switches the master on.
    pub const CONTROL_BITS: u32 = CONTROL_ENABLE | 0xffff;
    /// [`CONTROL`]: on.
    pub const CONTROL_ENABLE: u32 = 1 << 23;
    /// [`COMMAND`]: begin a transfer, with the address of the other side as the byte to send.
    pub const COMMAND_START: u8 = 1 << 7;
    /// [`COMMAND`]: end the transfer after this byte.
    pub const COMMAND_STOP: u8 = 1 << 6;
    /// [`COMMAND`]: receive a byte.
    pub const COMMAND_READ: u8 = 1 << 5;
    /// [`COMMAND`]: send a byte.
    pub const COMMAND_WRITE: u8 = 1 << 4;
    /// [`COMMAND`]: take [`STATUS_DONE`] back.
    pub const COMMAND_ACKNOWLEDGE: u8 = 1 << 0;
    /// [`STATUS`]: nobody acknowledged the byte.
    pub const STATUS_NO_ACK: u8 = 1 << 7;
    /// [`STATUS`]: a transfer has begun and not ended. There is no bit for one in progress here: every command is carried
    /// out when it is written, and tools that wait for the end of one without limit do not wait.
    pub const STATUS_BUSY: u8 = 1 << 6;
    /// [`STATUS`]: a byte was transferred.
    pub const STATUS_DONE: u8 = 1 << 0;
}

/// The status of the cage.
pub mod pmd {
    use crate::register::define::*;

    registers! {
        block "pmd", section "2.3", size 0x4;
        STATUS = 0x00, W8, RO, "bit 4: no module present";
    }

    /// [`STATUS`]: the cage is empty.
    pub const STATUS_ABSENT: u8 = 1 << 4;
}
