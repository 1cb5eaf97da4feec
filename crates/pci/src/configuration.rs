//! Configuration space: 4096 bytes, of which software may write some.
//!
//! ```text
//! 0x000  header, type 0                      BAR 0 registers, 2 doorbells, 4 MSI-X: 64 bits each, not prefetchable
//! 0x040  PCI Express capability, endpoint    bit 15 of its device control resets the function
//! 0x080  MSI-X capability
//! 0x100  vendor-specific: the device tree    (`abi::pci`)
//! 0x140  serial number
//! ```

use millrace_abi::pci::{
    self, CLASS, DEVICE, EXT_SERIAL, EXT_VENDOR, MSIX_BAR, TREE_ENDPOINT, TREE_HEADER, TREE_INDEX, TREE_LENGTH,
    TREE_SERIAL_INDEX, TREE_SERIAL_WORD, TREE_WORD, VENDOR,
};

/// Its size in bytes.
pub(crate) const SIZE: usize = 4096;
const COMMAND: usize = 0x04;
const BUS_MASTER: u16 = 1 << 2;
const EXPRESS: usize = 0x40;
const DEVICE_CONTROL: usize = EXPRESS + 8;
const FUNCTION_RESET: u16 = 1 << 15;
const MSIX: usize = 0x80;
const TREE: usize = 0x100;
const SERIAL: usize = 0x140;

/// What the space of a function is made of.
pub(crate) struct Identity {
    /// The device tree, compressed.
    pub tree: Vec<u8>,
    /// What tells functions apart.
    pub serial: u64,
    /// Sizes of BARs 0 to 5; powers of two, or 0.
    pub bars: [u64; 6],
    /// MSI-X vectors.
    pub vectors: u32,
    /// Where the pending bits lie in their BAR.
    pub pending_at: u32,
}

/// What a write asks for beyond what it leaves in the space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The function is to be reset.
    pub reset: bool,
    /// It may not reach memory any more.
    pub master_off: bool,
}

/// The space of a function.
pub(crate) struct Configuration {
    identity: Identity,
    bytes: Box<[u8; SIZE]>,
    // 1: software may write this bit.
    mask: Box<[u8; SIZE]>,
}

impl Configuration {
    /// The space as it is after a reset.
    pub fn new(identity: Identity) -> Self {
        let mut space = Self { identity, bytes: Box::new([0; SIZE]), mask: Box::new([0; SIZE]) };
        space.header();
        space.express();
        space.msix();
        space.tree();
        space.serial();
        space
    }

    /// Everything is as at first.
    pub fn reset(&mut self) {
        let none = Identity { tree: Vec::new(), serial: 0, bars: [0; 6], vectors: 0, pending_at: 0 };
        *self = Self::new(core::mem::replace(&mut self.identity, none));
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..]
    }

    /// What software has written into the space of another card's function; of everything else this one's is true.
    pub fn restore(&mut self, bytes: &[u8]) {
        for (at, &byte) in bytes.iter().enumerate().take(SIZE) {
            self.bytes[at] = self.bytes[at] & !self.mask[at] | byte & self.mask[at];
        }
        self.show_words();
    }

    /// Whether the function may reach memory.
    pub fn is_master(&self) -> bool {
        self.get16(COMMAND) & BUS_MASTER != 0
    }

    /// Reads from an offset on. What lies beyond the space reads as 0.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        to.fill(0);
        if let Some(from) = self.bytes.get(offset..) {
            let len = from.len().min(to.len());
            to[..len].copy_from_slice(&from[..len]);
        }
    }

    /// Writes from an offset on. What lies beyond the space, or is for reading, is not written.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Asked {
        let was_master = self.is_master();
        for (at, &byte) in (offset..SIZE).zip(from) {
            let mask = self.mask[at];
            self.bytes[at] = self.bytes[at] & !mask | byte & mask;
        }
        let control = self.get16(DEVICE_CONTROL);
        self.put16(DEVICE_CONTROL, control & !FUNCTION_RESET);
        self.show_words();
        let reset = control & FUNCTION_RESET != 0;
        Asked { reset, master_off: was_master && (reset || !self.is_master()) }
    }

    /// The words of the tree and of the serial number that were asked for.
    fn show_words(&mut self) {
        let word = |bytes: &[u8], index: u32| {
            let at = (index as usize).saturating_mul(4);
            let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
            word.map_or(0, |word| u32::from_le_bytes(*word))
        };
        let of_tree = word(&self.identity.tree, self.get32(TREE + TREE_INDEX));
        let of_serial = word(&self.identity.serial.to_le_bytes(), self.get32(TREE + TREE_SERIAL_INDEX));
        self.put32(TREE + TREE_WORD, of_tree);
        self.put32(TREE + TREE_SERIAL_WORD, of_serial);
    }

    fn header(&mut self) {
        self.put16(0x00, VENDOR);
        self.put16(0x02, DEVICE);
        // Memory, bus master, parity, SERR; INTx disable.
        self.writable16(COMMAND, 0b0101_0100_0110);
        // There are capabilities.
        self.put16(0x06, 1 << 4);
        self.put32(0x08, CLASS << 8 | 1);
        self.writable(0x0c, &[0xff]);
        for (bar, size) in self.identity.bars.into_iter().enumerate().filter(|(_, size)| *size > 0) {
            let at = 0x10 + 4 * bar;
            // A memory BAR of 64 bits.
            self.put32(at, 0b100);
            self.writable(at, &(!(size - 1)).to_le_bytes());
            self.mask[at] &= 0xf0;
        }
        self.put16(0x2c, VENDOR);
        self.put16(0x2e, DEVICE);
        self.bytes[0x34] = EXPRESS as u8;
        self.writable(0x3c, &[0xff]);
    }

    fn express(&mut self) {
        // PCI Express; MSI-X follows; version 2, an endpoint.
        self.put32(EXPRESS, 0x10 | (MSIX as u32) << 8 | 2 << 16);
        // Payloads of 256 bytes, extended tags, role-based errors, reset of the function.
        self.put32(EXPRESS + 4, 1 | 1 << 5 | 1 << 15 | 1 << 28);
        self.writable16(DEVICE_CONTROL, u16::MAX);
        // As it is after a reset: relaxed order, no snoop, requests of 512 bytes.
        self.put16(DEVICE_CONTROL, 1 << 4 | 1 << 11 | 2 << 12);
        // 8 GT/s, 16 lanes: what they can, and what they do.
        self.put32(EXPRESS + 0x0c, 3 | 16 << 4);
        self.writable16(EXPRESS + 0x10, 0x00c3);
        self.put16(EXPRESS + 0x12, 3 | 16 << 4);
        self.put32(EXPRESS + 0x2c, 0b111 << 1);
    }

    fn msix(&mut self) {
        self.put16(MSIX, 0x11);
        self.put16(MSIX + 2, self.identity.vectors.saturating_sub(1) as u16);
        // Function mask, enable.
        self.writable16(MSIX + 2, 1 << 14 | 1 << 15);
        self.put32(MSIX + 4, MSIX_BAR);
        self.put32(MSIX + 8, self.identity.pending_at | MSIX_BAR);
    }

    fn tree(&mut self) {
        self.put32(TREE, u32::from(EXT_VENDOR) | 1 << 16 | (SERIAL as u32) << 20);
        self.put32(TREE + 4, TREE_HEADER);
        // It is endpoint 0 of its card, and the serial number can be read here too.
        self.put32(TREE + TREE_ENDPOINT, 1 << 31 | 1 << 30);
        self.put32(TREE + TREE_LENGTH, self.identity.tree.len() as u32);
        for index in [TREE_INDEX, TREE_SERIAL_INDEX] {
            self.writable(TREE + index, &[0xff; 4]);
        }
        self.show_words();
    }

    fn serial(&mut self) {
        self.put32(SERIAL, u32::from(EXT_SERIAL) | 1 << 16);
        self.put32(SERIAL + 4, self.identity.serial as u32);
        self.put32(SERIAL + 8, (self.identity.serial >> 32) as u32);
    }

    fn get16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn get32(&self, at: usize) -> u32 {
        u32::from(self.get16(at)) | u32::from(self.get16(at + 2)) << 16
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn writable(&mut self, at: usize, mask: &[u8]) {
        self.mask[at..at + mask.len()].copy_from_slice(mask);
    }

    fn writable16(&mut self, at: usize, mask: u16) {
        self.writable(at, &mask.to_le_bytes());
    }
}

/// The size of a BAR that holds so many bytes.
pub(crate) fn bar_size(bytes: u64) -> u64 {
    bytes.next_power_of_two().max(4096)
}

/// Where the pending bits lie behind a table of so many vectors.
pub(crate) fn pending_at(vectors: u32) -> u32 {
    (vectors * 16).next_multiple_of(4096)
}

const _: () = assert!(pci::MOST_QUEUES * 2 <= 2048, "what MSI-X has");

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Configuration {
        let tree = (0..40u8).collect();
        let bars = [1 << 26, 0, 1 << 14, 0, 1 << 13, 0];
        Configuration::new(Identity { tree, serial: 0x1122_3344_5566_7788, bars, vectors: 4, pending_at: 4096 })
    }

    fn read32(space: &Configuration, at: usize) -> u32 {
        let mut bytes = [0; 4];
        space.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn a_driver_finds_the_card_and_its_capabilities() {
        let space = space();
        assert_eq!(read32(&space, 0), 0xc000_18ec);
        assert_eq!(read32(&space, 8) >> 8, 0x02_0000);
        let mut found = Vec::new();
        let mut at = read32(&space, 0x34) as usize & 0xff;
        while at != 0 {
            found.push(read32(&space, at) & 0xff);
            at = read32(&space, at) as usize >> 8 & 0xff;
        }
        assert_eq!(found, [0x10, 0x11]);
        let mut at = 0x100;
        let mut found = Vec::new();
        while at != 0 {
            found.push(read32(&space, at) & 0xffff);
            at = read32(&space, at) as usize >> 20;
        }
        assert_eq!(found, [0x0b, 0x03]);
        assert_eq!(read32(&space, MSIX) >> 16 & 0x7ff, 3);
    }

    #[test]
    fn bars_say_how_large_they_are() {
        let mut space = space();
        for (at, low) in [(0x10, 0xfc00_0004), (0x18, 0xffff_c004), (0x20, 0xffff_e004), (0x14, u32::MAX)] {
            space.write(at, &u32::MAX.to_le_bytes());
            assert_eq!(read32(&space, at), low, "{at:#x}");
        }
        space.write(0x30, &u32::MAX.to_le_bytes());
        assert_eq!(read32(&space, 0x30), 0, "there is no ROM");
    }

    #[test]
    fn the_tree_is_read_word_by_word_and_ends() {
        let mut space = space();
        assert_eq!(read32(&space, TREE + TREE_LENGTH), 40);
        for (index, word) in [(0u32, 0x0302_0100), (9, 0x2726_2524), (10, 0), (u32::MAX, 0)] {
            space.write(TREE + TREE_INDEX, &index.to_le_bytes());
            assert_eq!(read32(&space, TREE + TREE_WORD), word, "{index}");
        }
        space.write(TREE + TREE_SERIAL_INDEX, &1u32.to_le_bytes());
        assert_eq!(read32(&space, TREE + TREE_SERIAL_WORD), 0x1122_3344);
    }

    #[test]
    fn bus_mastering_and_resets_are_seen() {
        let mut space = space();
        assert_eq!(space.write(4, &[6, 0]), Asked::default());
        assert!(space.is_master());
        assert_eq!(space.write(DEVICE_CONTROL, &[0, 0x80]), Asked { reset: true, master_off: true });
        assert_eq!(read32(&space, DEVICE_CONTROL) & 0x8000, 0, "the bit reads as 0");
        assert!(space.write(4, &[2]).master_off && !space.is_master());
        space.reset();
        assert_eq!((read32(&space, 4) as u16, read32(&space, 0)), (0, 0xc000_18ec));
    }

    #[test]
    fn what_lies_beyond_is_nothing() {
        let mut space = space();
        space.write(SIZE - 1, &[0xff; 8]);
        space.write(usize::MAX, &[0xff]);
        let mut bytes = [7; 8];
        space.read(SIZE - 2, &mut bytes);
        assert_eq!(bytes, [0; 8]);
        space.read(usize::MAX, &mut bytes);
    }
}
