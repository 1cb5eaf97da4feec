//! The device tree of a function, from its configuration space: words behind a capability, compressed by xz
//! (`docs/spec/pci.md` §1).

use crate::error::VfioError;
use millrace_abi::pci::{TREE_HEADER, TREE_INDEX, TREE_LARGEST, TREE_LENGTH, TREE_WORD};
use std::io::Read;

/// Where the extended capabilities begin.
const EXTENDED: u64 = 0x100;
/// More than there is room for.
const MOST_CAPABILITIES: usize = 1024;
/// More than the tree of any card has.
const MOST_BYTES: u64 = 64 << 20;

/// Configuration space, in words.
pub(crate) trait Space {
    fn load(&self, at: u64) -> Result<u32, VfioError>;
    fn store(&self, at: u64, word: u32) -> Result<(), VfioError>;
}

/// The tree, unpacked.
pub(crate) fn read(space: &impl Space) -> Result<Vec<u8>, VfioError> {
    let at = find(space)?;
    let len = space.load(at + TREE_LENGTH as u64)? as usize;
    if len > TREE_LARGEST {
        return Err(VfioError::Tree(format!("{len} bytes, and {TREE_LARGEST} at most")));
    }
    let mut packed = Vec::with_capacity(len);
    for index in 0..len as u32 / 4 {
        space.store(at + TREE_INDEX as u64, index)?;
        packed.extend(space.load(at + TREE_WORD as u64)?.to_le_bytes());
    }
    let mut tree = Vec::new();
    let unpacked = lzma_rust2::XzReader::new(&packed[..], false).take(MOST_BYTES).read_to_end(&mut tree);
    unpacked.map_err(|error| VfioError::Tree(error.to_string()))?;
    Ok(tree)
}

/// Where the capability is.
fn find(space: &impl Space) -> Result<u64, VfioError> {
    let mut at = EXTENDED;
    for _ in 0..MOST_CAPABILITIES {
        if space.load(at + 4)? == TREE_HEADER {
            return Ok(at);
        }
        at = u64::from(space.load(at)? >> 20);
        if at < EXTENDED {
            break;
        }
    }
    let text = "there is no capability for it; the function has to be behind a port of PCI Express (docs/guests.md)";
    Err(VfioError::Tree(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::io::Write;

    /// Capabilities, one behind the other, and the tree behind the last one.
    struct Words(RefCell<Vec<u32>>, Vec<u8>);

    impl Space for Words {
        fn load(&self, at: u64) -> Result<u32, VfioError> {
            let words = self.0.borrow();
            if at == 0x180 + TREE_WORD as u64 {
                let index = words[(0x180 + TREE_INDEX) / 4] as usize;
                return Ok(u32::from_le_bytes(self.1[4 * index..][..4].try_into().unwrap()));
            }
            Ok(words[at as usize / 4])
        }

        fn store(&self, at: u64, word: u32) -> Result<(), VfioError> {
            self.0.borrow_mut()[at as usize / 4] = word;
            Ok(())
        }
    }

    fn space(header: u32, next: u32, tree: Vec<u8>) -> Words {
        let mut words = vec![0; 1024];
        words[0x100 / 4] = 0x180 << 20 | 3;
        words[0x180 / 4] = next << 20 | 0xb;
        words[0x184 / 4] = header;
        words[(0x180 + TREE_LENGTH) / 4] = tree.len() as u32;
        Words(RefCell::new(words), tree)
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut writer = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn a_tree_is_read_word_by_word() {
        let blob: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(read(&space(TREE_HEADER, 0, packed(&blob)[..].to_vec())).unwrap(), blob);
    }

    #[test]
    fn what_is_no_tree_is_an_error() {
        assert!(read(&space(TREE_HEADER, 0, vec![7; 400])).is_err());
        let whole = packed(&[1; 5000]);
        assert!(read(&space(TREE_HEADER, 0, whole[..whole.len() / 8 * 4].to_vec())).is_err(), "half of it");
        assert!(read(&space(TREE_HEADER, 0, vec![0; TREE_LARGEST + 4])).is_err());
        // One that leads nowhere, and one that leads to itself.
        assert!(read(&space(1, 0, Vec::new())).is_err() && read(&space(1, 0x180, Vec::new())).is_err());
    }
}
