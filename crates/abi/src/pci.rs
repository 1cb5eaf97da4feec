//! The card as a PCI function: identity, BARs, and what a driver finds in configuration space (`docs/spec/pci.md`).
//!
//! Everything that a driver of the hardware looks at is where `CESNET/ndk-sw` looks for it: vendor and device, and a
//! vendor-specific extended capability with the device tree. The doorbell pages and the interrupts are ours.

use crate::control::PAGE_SIZE;
use crate::queue::{Direction, QueueId};

/// CESNET.
pub const VENDOR: u16 = 0x18ec;
/// A card that is described by its device tree and by nothing else (`COMBO-GENERIC`).
pub const DEVICE: u16 = 0xc000;
/// Ethernet controller.
pub const CLASS: u32 = 0x02_0000;

/// The BAR of the registers: the first bus of the card.
pub const REGISTERS_BAR: u32 = 0;
/// The BAR of the doorbell pages.
pub const DOORBELLS_BAR: u32 = 2;
/// The BAR of the MSI-X table and of the pending bits.
pub const MSIX_BAR: u32 = 4;

/// Extended capability: vendor-specific (VSEC).
pub const EXT_VENDOR: u16 = 0x000b;
/// Extended capability: serial number of the device.
pub const EXT_SERIAL: u16 = 0x0003;
/// The second word of the capability with the device tree: length 0x20, revision 1, identifier 0x0d7b.
pub const TREE_HEADER: u32 = 0x0201_0d7b;
/// In the capability with the device tree: bit 31 says that bits 3:0 are the number of the endpoint within the card.
pub const TREE_ENDPOINT: usize = 0x08;
/// In the same: how many bytes the tree has, compressed (xz).
pub const TREE_LENGTH: usize = 0x0c;
/// In the same: which word of it is read next, counted in words.
pub const TREE_INDEX: usize = 0x10;
/// In the same: that word.
pub const TREE_WORD: usize = 0x14;
/// In the same: which word of the serial number is read next.
pub const TREE_SERIAL_INDEX: usize = 0x18;
/// In the same: that word.
pub const TREE_SERIAL_WORD: usize = 0x1c;
/// Largest compressed tree that CESNET's driver reads.
pub const TREE_LARGEST: usize = 65536;

/// Most queues that a function has in one direction: as many as there are interrupts for.
pub const MOST_QUEUES: u32 = 1024;

/// Property of a DMA controller in the tree of a function: where its control page lies in [`DOORBELLS_BAR`].
pub const DOORBELL_PROPERTY: &str = "millrace,doorbell";
/// Property of a DMA controller in the tree of a function: the MSI-X vector that says that something has come.
pub const VECTOR_PROPERTY: &str = "millrace,vector";

/// The MSI-X vector of a queue.
pub const fn vector(queue: QueueId) -> u32 {
    2 * queue.index
        + match queue.direction {
            Direction::Rx => 0,
            Direction::Tx => 1,
        }
}

/// Where the control page of a queue lies in [`DOORBELLS_BAR`].
pub const fn doorbell(queue: QueueId) -> u32 {
    vector(queue) * PAGE_SIZE as u32
}
