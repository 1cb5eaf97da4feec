//! Addresses that the device uses: which are free.

use std::collections::BTreeMap;

/// Where what is mapped begins: above what machines have memory, registers and interrupts at, so that none is reserved.
const FIRST: u64 = 1 << 32;
/// Behind the last: what an IOMMU of 39 bits reaches.
const END: u64 = 1 << 39;
/// Mappings begin at huge pages, so that each huge page is one for the IOMMU, too.
const ALIGNMENT: u64 = 2 << 20;

/// The addresses that are used, by first address: their lengths.
#[derive(Default)]
pub(crate) struct Addresses {
    used: BTreeMap<u64, u64>,
}

impl Addresses {
    /// The first free range of so many bytes; `None`: there is none.
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let rounded = len.checked_next_multiple_of(ALIGNMENT).filter(|len| *len > 0)?;
        let mut at = FIRST;
        for (&first, &used) in &self.used {
            if first - at >= rounded {
                break;
            }
            at = first + used;
        }
        if rounded > END - at {
            return None;
        }
        self.used.insert(at, rounded);
        Some(at)
    }

    /// It is free again; the length, or `None`: nothing begins there.
    pub fn free(&mut self, at: u64) -> Option<u64> {
        self.used.remove(&at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_used_again() {
        let mut addresses = Addresses::default();
        let (one, two, three) = (addresses.take(1), addresses.take(3 << 20), addresses.take(2 << 20));
        assert_eq!((one, two, three), (Some(FIRST), Some(FIRST + (2 << 20)), Some(FIRST + (6 << 20))));
        assert_eq!((addresses.free(two.unwrap()), addresses.free(two.unwrap())), (Some(4 << 20), None));
        assert_eq!(addresses.take(6 << 20), Some(FIRST + (8 << 20)), "it does not fit into the gap");
        assert_eq!(addresses.take(4 << 20), two);
        assert_eq!((addresses.take(0), addresses.take(u64::MAX), addresses.take(END)), (None, None, None));
        assert!(addresses.take(END - FIRST - (14 << 20)).is_some(), "all that is left");
        assert_eq!(addresses.take(1), None);
    }
}
