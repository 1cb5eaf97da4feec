//! The card as a PCI function: identity, BARs, and what a driver finds in configuration space (`docs/spec/pci.md`).
//!
//! Everything that a driver of the hardware looks at is where `CESNET/ndk-sw` looks for it: vendor and device, and a
//! vendor-specific extended capability with the device tree. The doorbell pages and the interrupts are ours.

use crate::control::PAGE_SIZE;
use crate::queue::{Direction, QueueId};
use core::{fmt, str::FromStr};

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

/// Where a PCI function is in a machine. Shown as Linux names it, `0000:00:04.0`; the domain can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PciAddress {
    /// The domain.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on the bus, below 32.
    pub device: u8,
    /// The function of the device, below 8.
    pub function: u8,
}

/// Not the address of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the address of a PCI function; accepted: DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal digits, such as 0000:00:04.0"
)]
pub struct BadAddress;

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let (rest, function) = text.rsplit_once('.').ok_or(BadAddress)?;
        let (rest, device) = rest.rsplit_once(':').ok_or(BadAddress)?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        let number = |digits: &str, most: u32| {
            let is_sound = digits.len() <= 8 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            let number = u32::from_str_radix(digits, 16).ok().filter(|number| is_sound && *number <= most);
            number.ok_or(BadAddress)
        };
        Ok(Self {
            domain: number(domain, u32::MAX)?,
            bus: number(bus, 0xff)? as u8,
            device: number(device, 0x1f)? as u8,
            function: number(function, 7)? as u8,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_linux_does() {
        let whole: PciAddress = "10000:AF:1f.7".parse().unwrap();
        assert_eq!(whole, PciAddress { domain: 0x10000, bus: 0xaf, device: 0x1f, function: 7 });
        assert_eq!(whole.to_string(), "10000:af:1f.7");
        assert_eq!("00:04.0".parse::<PciAddress>().unwrap().to_string(), "0000:00:04.0");
        for text in ["", "4", "00:04", "04.0", "0:0:04.8", "0:0:20.0", "0:100:0.0", ":0.0", "0:0:+4.0", "0:0:0:0.0"] {
            assert_eq!(text.parse::<PciAddress>(), Err(BadAddress), "{text}");
        }
    }
}
