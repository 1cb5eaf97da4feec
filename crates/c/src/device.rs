//! A device for C: with everything that a C program gets pointers to.

use crate::failure::Failure;
use crate::types::millrace_open_flags;
use host::{Device, Error, Joiners, Laggard, Mode, Pages, Region, Sharing};
use std::ffi::CString;
use std::sync::OnceLock;

/// An open device, and what was read from it once.
pub struct Opened {
    /// The device.
    pub device: Device,
    /// Its name.
    pub name: CString,
    tree: OnceLock<Box<[u8]>>,
}

impl Opened {
    /// Keeps a device.
    pub fn new(device: Device) -> Result<Self, Failure> {
        let name = CString::new(device.name()).map_err(|_| Failure::invalid("a device name with a zero byte"))?;
        Ok(Self { device, name, tree: OnceLock::new() })
    }

    /// The device tree, which stays where it is until the device is closed.
    pub fn tree(&self) -> Result<&[u8], Failure> {
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        let tree = self.device.device_tree()?;
        Ok(self.tree.get_or_init(|| tree.into()))
    }

    /// All counters, as `millrace stats --json` prints them.
    pub fn stats(&self) -> Result<CString, Failure> {
        let failed =
            |what: &dyn std::fmt::Display| Failure::invalid(format!("the statistics cannot be written: {what}"));
        let json = serde_json::to_string(&self.device.stats()?).map_err(|error| failed(&error))?;
        CString::new(json).map_err(|error| failed(&error))
    }
}

const MEDIATED: u32 = millrace_open_flags::MILLRACE_OPEN_MEDIATED as u32;
const BLOCK: u32 = millrace_open_flags::MILLRACE_OPEN_SHARED_BLOCK as u32;
const DROP: u32 = millrace_open_flags::MILLRACE_OPEN_SHARED_DROP as u32;
const EVICT: u32 = millrace_open_flags::MILLRACE_OPEN_SHARED_EVICT as u32;

const JOINERS_BLOCK: u32 = millrace_open_flags::MILLRACE_OPEN_JOINERS_BLOCK as u32;
const JOINERS_DROP: u32 = millrace_open_flags::MILLRACE_OPEN_JOINERS_DROP as u32;
const JOINERS_EVICT: u32 = millrace_open_flags::MILLRACE_OPEN_JOINERS_EVICT as u32;
const JOINERS: u32 = JOINERS_BLOCK | JOINERS_DROP | JOINERS_EVICT;

/// What the flags of an opening say about those who join.
pub fn joiners(flags: u32) -> Option<Joiners> {
    let has = |flag| flags & flag != 0;
    let joiners = Joiners { block: has(JOINERS_BLOCK), drop: has(JOINERS_DROP), evict: has(JOINERS_EVICT) };
    has(JOINERS).then_some(joiners)
}

/// What the flags of an opening ask for.
pub fn wishes(flags: u32) -> Result<(Mode, Sharing), Failure> {
    let mode = if flags & MEDIATED != 0 { Mode::Mediated } else { Mode::Direct };
    let sharing = match flags & !(MEDIATED | JOINERS) {
        0 if flags & JOINERS == 0 => Sharing::Exclusive,
        BLOCK => Sharing::Shared(Laggard::Block),
        DROP => Sharing::Shared(Laggard::Drop),
        EVICT => Sharing::Shared(Laggard::Evict),
        _ => {
            return Err(Failure::invalid(format!(
                "flags {flags:#x}: MILLRACE_OPEN_MEDIATED and one of MILLRACE_OPEN_SHARED_... can be set, and with the \
                 latter MILLRACE_OPEN_JOINERS_..., nothing else"
            )))
        }
    };
    Ok((mode, sharing))
}

/// Memory that program and card share.
pub struct Memory {
    region: Region,
    mapping: host::Mapping,
}

impl Memory {
    /// Allocates `size` bytes of zeros and maps them for the card.
    pub fn new(device: &Device, size: usize) -> Result<Self, Failure> {
        let region = Region::allocate(size, Pages::HugeIfAny).map_err(|error| Failure::of(&error))?;
        let mapping = device.map(&region, true, None)?;
        Ok(Self { region, mapping })
    }

    /// The first byte, for this program.
    pub fn data(&self) -> *mut u8 {
        let mut window = self.region.window().clone();
        let len = window.len();
        // The pointer stays valid without the window, as long as the region.
        window.slice_mut(0, len).map_or(core::ptr::null_mut(), <[u8]>::as_mut_ptr)
    }

    /// The first byte, for the card.
    pub fn iova(&self) -> u64 {
        self.mapping.iova().get()
    }

    /// Takes the memory away from the card and frees it.
    pub fn close(self) -> Result<(), Error> {
        self.mapping.unmap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_modes_and_kinds_of_sharing_or_refused() {
        assert_eq!(wishes(0).unwrap(), (Mode::Direct, Sharing::Exclusive));
        assert_eq!(wishes(MEDIATED | EVICT).unwrap(), (Mode::Mediated, Sharing::Shared(Laggard::Evict)));
        assert!(wishes(BLOCK | DROP).is_err() && wishes(JOINERS_DROP).is_err() && wishes(1 << 31).is_err());
        assert_eq!(wishes(DROP | JOINERS_BLOCK).unwrap(), (Mode::Direct, Sharing::Shared(Laggard::Drop)));
        assert_eq!(joiners(DROP | JOINERS_EVICT), Some(Joiners { block: false, drop: false, evict: true }));
        assert_eq!(joiners(DROP), None);
    }

    #[test]
    fn the_device_tree_is_read_once() {
        let opened = Opened::new(Device::open("embedded").unwrap()).unwrap();
        let first = opened.tree().unwrap();
        assert_eq!(first[..4], [0xd0, 0x0d, 0xfe, 0xed]);
        assert!(core::ptr::eq(first, opened.tree().unwrap()));
    }

    #[test]
    fn memory_is_the_programs_to_write() {
        let device = Device::open("embedded").unwrap();
        let memory = Memory::new(&device, 4096).unwrap();
        assert!(!memory.data().is_null() && memory.iova().is_multiple_of(4096));
        memory.close().unwrap();
        assert!(Memory::new(&device, 0).is_err());
    }
}
