//! The registers of the card, as data (`docs/spec/nfb-card.md` §2.3 to §2.8 and §3).
//!
//! Each kind of block is one [`Block`]: a name, where it is described, and one [`Register`] per line of the
//! data sheet. The same lines give the constants that card and driver use, so a table and its users cannot disagree:
//!
//! ```
//! use millrace_abi::register::{self, Way, medusa};
//! let start = medusa::CONTROL.at(register::map::dma_base(millrace_abi::queue::QueueId::rx(3)).unwrap());
//! assert_eq!(start, 0x0100_0180);
//! match medusa::BLOCK.locate(0x10, Way::Write).unwrap().register.offset {
//!     medusa::SDP => {}
//!     _ => unreachable!(),
//! }
//! ```
//!
//! Where blocks lie is the business of [`map`]; what answers there depends, for a queue, on its engine.
//! All registers are little-endian.

pub mod calypte;
pub mod dd;
pub mod map;
pub mod medusa;
pub mod pcs;
pub mod rxmac;
pub mod sze;
pub mod transceiver;
pub mod tsu;
pub mod txmac;

mod block;
mod controller;
mod define;

pub use block::{Block, Location};
pub use controller::Controller;

use core::fmt;

/// The test space: 256 bytes that keep what is written to them (§2.7).
pub mod test_space {
    use super::define::*;

    registers! {
        block "test", section "2.7", size 0x100;
        SCRATCH[64; 4] = 0x00, W32, RW, "plain memory, any access size";
    }
}

/// Distance of a register from the start of its block, in bytes. The constants of the block modules are of this type
/// and can be used as patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(u32);

impl Offset {
    /// The offset `bytes` from the start of a block.
    pub const fn new(bytes: u32) -> Self {
        Self(bytes)
    }

    /// The distance in bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }

    /// The address on the card's bus, given the base address of the block.
    pub const fn at(self, base: u32) -> u32 {
        base + self.0
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:02x}", self.0)
    }
}

/// Size of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// One byte.
    W8,
    /// Two bytes.
    W16,
    /// Four bytes.
    W32,
    /// Eight bytes; may also be accessed as two 32-bit halves.
    W64,
}

impl Width {
    /// Size in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Width::W8 => 1,
            Width::W16 => 2,
            Width::W32 => 4,
            Width::W64 => 8,
        }
    }

    /// Size in bits.
    pub const fn bits(self) -> u32 {
        self.bytes() * 8
    }
}

/// What a register does when it is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads give what was written, or what the card made of it.
    ReadWrite,
    /// Writes are ignored.
    ReadOnly,
    /// Reads of this name have no meaning; another register may answer reads at the same offset.
    WriteOnly,
    /// Reads may give something else than what was written, as the meaning of the register says.
    ReadsDifferently,
}

impl Access {
    /// Whether an access that way concerns the register.
    pub const fn allows(self, way: Way) -> bool {
        match self {
            Access::ReadWrite | Access::ReadsDifferently => true,
            Access::ReadOnly => matches!(way, Way::Read),
            Access::WriteOnly => matches!(way, Way::Write),
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Access::ReadWrite => "RW",
            Access::ReadOnly => "RO",
            Access::WriteOnly => "WO",
            Access::ReadsDifferently => "RW*",
        })
    }
}

/// Reading or writing: some offsets hold a value for readers and a command for writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The software reads.
    Read,
    /// The software writes.
    Write,
}

/// One line of a data sheet: a register, or `count` equal ones `stride` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Name in capitals, as in the constants of the block.
    pub name: &'static str,
    /// Where it lies in its block (the first, if there are several).
    pub offset: Offset,
    /// How wide it is (each, if there are several).
    pub width: Width,
    /// What reads and writes do.
    pub access: Access,
    /// How many there are; 1 for most.
    pub count: u32,
    /// Distance from one to the next, in bytes.
    pub stride: u32,
    /// What it is for, in one line.
    pub meaning: &'static str,
}

impl Register {
    /// Offset of the one with this index; `None` if there are not so many.
    pub const fn nth(&self, index: u32) -> Option<Offset> {
        if index < self.count { Some(Offset(self.offset.0 + index * self.stride)) } else { None }
    }

    /// First offset behind the register, in bytes from the start of the block.
    pub const fn end(&self) -> u32 {
        self.offset.0 + (self.count - 1) * self.stride + self.width.bytes()
    }

    /// Index of the one that holds the byte at `offset`; `None` if none does.
    pub const fn index_of(&self, offset: u32) -> Option<u32> {
        if offset < self.offset.0 || offset >= self.end() {
            return None;
        }
        let distance = offset - self.offset.0;
        if distance % self.stride < self.width.bytes() { Some(distance / self.stride) } else { None }
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.count {
            1 => self.name.to_owned(),
            count => format!("{}[{count}]", self.name),
        };
        write!(
            f,
            "0x{:05x}  {:<26} {:>2} bit  {:<3}  {}",
            self.offset.0,
            name,
            self.width.bits(),
            self.access,
            self.meaning
        )
    }
}
