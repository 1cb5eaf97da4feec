//! The cage of a port: a status byte and the I2C master in front of the module, `specs/nfb-card.md` §2.3.

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

    /// [`STATUS`]: nobody acknowledged. A card without a module always shows this, and never "in progress", on which
    /// tools wait without limit.
    pub const STATUS_NO_ACK: u32 = 1 << 7;
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
