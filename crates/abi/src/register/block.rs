//! Looking registers up in a block.

use super::{Offset, Register, Way};
use core::fmt;

/// The data sheet of one kind of block.
#[derive(Debug)]
pub struct Block {
    /// Short name, such as `medusa`.
    pub name: &'static str,
    /// Where it is described: a document, and the section of it.
    pub reference: &'static str,
    /// Size of its window on the bus, in bytes.
    pub size: u32,
    /// Its registers by ascending offset. Two may share an offset only if one is read-only and the other write-only.
    pub registers: &'static [Register],
}

/// The register behind an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The register, or the group of equal registers.
    pub register: &'static Register,
    /// Which of the group, from 0.
    pub index: u32,
    /// Which byte of it, from 0.
    pub byte: u32,
}

impl Block {
    /// The register that an access to the byte at `offset` concerns; `None` where the block has none.
    pub fn locate(&self, offset: u32, way: Way) -> Option<Location> {
        self.registers.iter().filter(|register| register.access.allows(way)).find_map(|register| {
            let index = register.index_of(offset)?;
            let byte = (offset - register.offset.bytes()) % register.stride;
            Some(Location { register, index, byte })
        })
    }

    /// The register of that name, in capitals or not; `None` if the block has none.
    pub fn find(&self, name: &str) -> Option<&'static Register> {
        self.registers.iter().find(|register| register.name.eq_ignore_ascii_case(name))
    }

    /// The offset that a name such as `SDP` or `mac_table[3]` stands for.
    pub fn resolve(&self, name: &str) -> Option<(&'static Register, Offset)> {
        let (name, index) = match name.strip_suffix(']') {
            Some(rest) => {
                let (name, index) = rest.split_once('[')?;
                (name, index.parse().ok()?)
            }
            None => (name, 0),
        };
        let register = self.find(name)?;
        Some((register, register.nth(index)?))
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({}), 0x{:x} bytes", self.name, self.reference, self.size)?;
        for register in self.registers {
            writeln!(f, "  {register}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Access, Width, map, medusa, rxmac, test_space, transceiver};
    use super::*;

    #[test]
    fn no_two_registers_overlap_unless_one_only_reads_and_the_other_only_writes() {
        for block in map::BLOCKS {
            for (place, a) in block.registers.iter().enumerate() {
                assert!(a.end() <= block.size, "{}: {} reaches beyond the block", block.name, a.name);
                assert!(a.stride >= a.width.bytes() && a.count > 0, "{}: {}", block.name, a.name);
                for b in &block.registers[place + 1..] {
                    assert_ne!(a.name, b.name, "{}", block.name);
                    assert!(a.offset <= b.offset, "{}: {} is listed after {}", block.name, b.name, a.name);
                    let shares_a_byte = (a.offset.bytes()..a.end())
                        .any(|byte| a.index_of(byte).is_some() && b.index_of(byte).is_some());
                    let apart = (a.access == Access::ReadOnly && b.access == Access::WriteOnly)
                        || (a.access == Access::WriteOnly && b.access == Access::ReadOnly);
                    assert!(!shares_a_byte || apart, "{}: {} overlaps {}", block.name, a.name, b.name);
                }
            }
        }
    }

    #[test]
    fn names_and_offsets_lead_to_each_other() {
        for block in map::BLOCKS {
            for register in block.registers {
                let way = if register.access.allows(Way::Read) { Way::Read } else { Way::Write };
                for index in 0..register.count.min(70) {
                    let offset = register.nth(index).unwrap();
                    assert_eq!(block.locate(offset.bytes(), way), Some(Location { register, index, byte: 0 }));
                    assert_eq!(block.resolve(&format!("{}[{index}]", register.name)), Some((register, offset)));
                }
                assert_eq!(block.find(&register.name.to_lowercase()), Some(register));
                assert_eq!(register.nth(register.count), None);
            }
        }
        assert_eq!(medusa::BLOCK.find("NOSUCH"), None);
        for malformed in ["", "]", "[]", "SDP[", "SDP]", "SDP[x]", "SDP[1]", "SDP[-1]"] {
            assert_eq!(medusa::BLOCK.resolve(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn one_offset_can_be_a_value_for_readers_and_a_command_for_writers() {
        let read = medusa::BLOCK.locate(0x60, Way::Read).unwrap().register;
        let write = medusa::BLOCK.locate(0x60, Way::Write).unwrap().register;
        assert_eq!((read.offset, read.width), (medusa::PASSED_FRAMES, Width::W64));
        assert_eq!((write.offset, write.width), (medusa::COUNTER_COMMAND, Width::W32));
        assert_eq!(transceiver::I2C.locate(4, Way::Write).unwrap().register.name, "COMMAND");
        assert_eq!(transceiver::I2C.locate(4, Way::Read).unwrap().register.name, "STATUS");
    }

    #[test]
    fn every_byte_of_a_wide_register_belongs_to_it() {
        let octets = rxmac::BLOCK.locate(0x3f, Way::Read).unwrap();
        assert_eq!((octets.register.offset, octets.byte), (rxmac::RECEIVED_OCTETS, 3));
        let entry = rxmac::BLOCK.locate(0x80 + 8 * 3 + 5, Way::Write).unwrap();
        assert_eq!((entry.register.offset, entry.index, entry.byte), (rxmac::MAC_TABLE, 3, 5));
        assert_eq!(medusa::BLOCK.locate(0x0c, Way::Read), None);
        assert_eq!(medusa::BLOCK.locate(u32::MAX, Way::Read), None);
        assert!((0..0x100).all(|byte| test_space::BLOCK.locate(byte, Way::Write).is_some()));
    }

    #[test]
    fn the_table_prints_every_register_with_its_offset_and_access() {
        let text = medusa::BLOCK.to_string();
        assert!(text.starts_with("medusa (docs/spec/nfb-card.md §3.2), 0x80 bytes\n"), "{text}");
        let other = crate::register::dd::BLOCK.to_string();
        assert!(other.starts_with("dd (docs/spec/dd.md), 0x80 bytes\n"), "{other}");
        assert!(text.contains("  0x00018  HDP                        32 bit  RO   "), "{text}");
        assert!(text.contains("  0x00058  MDP                        32 bit  RW*  "), "{text}");
        for block in map::BLOCKS {
            assert_eq!(block.to_string().lines().count(), block.registers.len() + 1);
        }
    }
}
