//! A function, open: its regions, its interrupts, and the memory that it may reach.

use crate::addresses::Addresses;
use crate::error::VfioError;
use crate::sys;
use crate::tree::{self, Space};
use millrace_abi::control::PAGE_SIZE;
use millrace_abi::pci::{DEVICE, DOORBELLS_BAR, PciAddress, REGISTERS_BAR, VENDOR};
use millrace_dma::{Pages, Place, Region};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, pread, pwrite};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The index of configuration space among the regions, and of MSI-X among the kinds of interrupts.
const CONFIGURATION: u32 = 7;
const MSIX: u32 = 2;
/// The command register: memory and bus master.
const COMMAND: u64 = 4;
const MEMORY_AND_MASTER: u32 = 0b110;
const HUGE_PAGE: usize = 2 << 20;

/// A region of the device: where it is in the file of the device, and its length.
struct Part {
    at: u64,
    len: u64,
}

/// A function that this program has to itself. Dropping it resets it.
pub struct Function {
    address: PciAddress,
    // In this order: the device goes before what it is in.
    device: OwnedFd,
    _group: OwnedFd,
    container: OwnedFd,
    registers: Part,
    doorbells: Part,
    configuration: Part,
    vectors: u32,
    addresses: Mutex<Addresses>,
    tree: Vec<u8>,
}

impl Function {
    /// Opens the function at that address, which vfio-pci has, and reads its device tree.
    ///
    /// # Errors
    /// [`VfioError`].
    pub fn open(address: PciAddress) -> Result<Self, VfioError> {
        let folder = PathBuf::from(format!("/sys/bus/pci/devices/{address}"));
        let number = group_of(address, &folder)?;
        let container = open_file(address, "/dev/vfio/vfio")?;
        let group = open_file(address, &format!("/dev/vfio/{number}"))?;
        let version = sys::api_version(&container).map_err(VfioError::system("asking for the version of VFIO"))?;
        if version != 0 {
            return Err(VfioError::Unknown(address, "driver of a version that is known here"));
        }
        if !sys::is_viable(&group).map_err(VfioError::system("asking for the IOMMU group"))? {
            return Err(VfioError::NotViable(address));
        }
        sys::join(&group, &container).map_err(|source| match source {
            Errno::PERM => VfioError::NoRemapping(address),
            source => VfioError::System { what: "entering the IOMMU group", source },
        })?;
        let device = sys::device(&group, &address.to_string()).map_err(VfioError::system("opening the function"))?;
        let part = |index| {
            let found = sys::region(&device, index).map_err(VfioError::system("asking for a region of the function"));
            found.map(|(at, len)| Part { at, len })
        };
        let (registers, doorbells) = (part(REGISTERS_BAR)?, part(DOORBELLS_BAR)?);
        let configuration = part(CONFIGURATION)?;
        let vectors = sys::interrupts(&device, MSIX).map_err(VfioError::system("asking for interrupts"))?;
        let (addresses, tree) = (Mutex::default(), Vec::new());
        let mut function = Self {
            address,
            device,
            _group: group,
            container,
            registers,
            doorbells,
            configuration,
            vectors,
            addresses,
            tree,
        };
        let command = function.load(COMMAND)?;
        function.store(COMMAND, command & 0xffff | MEMORY_AND_MASTER)?;
        function.tree = tree::read(&function)?;
        // All at once, as older systems want it; what each signals is said later.
        let none = vec![None; vectors as usize];
        sys::set_interrupts(&function.device, MSIX, 0, &none).map_err(VfioError::system("enabling MSI-X"))?;
        Ok(function)
    }

    /// Where it is.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// Its device tree.
    pub fn tree(&self) -> &[u8] {
        &self.tree
    }

    /// Reads registers. What is no register is read as 0.
    ///
    /// # Errors
    /// [`VfioError::System`]: the function is gone.
    pub fn read(&self, address: u32, to: &mut [u8]) -> Result<(), VfioError> {
        let len = self.within(address, to.len());
        to[len..].fill(0);
        let mut done = 0;
        while done < len {
            let at = self.registers.at + u64::from(address) + done as u64;
            match pread(&self.device, &mut to[done..len], at) {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(VfioError::System { what: "reading a register", source: Errno::NODEV }),
                Ok(some) => done += some,
                Err(source) => return Err(VfioError::System { what: "reading a register", source }),
            }
        }
        Ok(())
    }

    /// Writes registers.
    ///
    /// # Errors
    /// As [`Function::read`].
    pub fn write(&self, address: u32, from: &[u8]) -> Result<(), VfioError> {
        let len = self.within(address, from.len());
        let mut done = 0;
        while done < len {
            let at = self.registers.at + u64::from(address) + done as u64;
            match pwrite(&self.device, &from[done..len], at) {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(VfioError::System { what: "writing a register", source: Errno::NODEV }),
                Ok(some) => done += some,
                Err(source) => return Err(VfioError::System { what: "writing a register", source }),
            }
        }
        Ok(())
    }

    /// How many of so many bytes are in BAR 0.
    fn within(&self, address: u32, len: usize) -> usize {
        self.registers.len.saturating_sub(address.into()).min(len as u64) as usize
    }

    /// The control page that lies there in BAR 2.
    ///
    /// # Errors
    /// [`VfioError::Unknown`], [`VfioError::Region`].
    pub fn page(&self, at: u32) -> Result<Region, VfioError> {
        let unknown = VfioError::Unknown(self.address, "control page for that queue");
        if u64::from(at) + PAGE_SIZE as u64 > self.doorbells.len {
            return Err(unknown);
        }
        let fd = self.device.try_clone().map_err(|error| VfioError::System {
            what: "mapping a control page",
            source: Errno::from_io_error(&error).unwrap_or(Errno::MFILE),
        })?;
        Ok(Region::map_vfio(fd, self.doorbells.at + u64::from(at), PAGE_SIZE)?)
    }

    /// An eventfd that is signalled by the interrupts of a vector from now on, and once at first: something may have come before.
    ///
    /// # Errors
    /// [`VfioError::Unknown`], [`VfioError::System`].
    pub fn signalled_by(&self, vector: u32) -> Result<OwnedFd, VfioError> {
        if vector >= self.vectors {
            return Err(VfioError::Unknown(self.address, "interrupt for that queue"));
        }
        let event = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(VfioError::system("making an eventfd"))?;
        let set = sys::set_interrupts(&self.device, MSIX, vector, &[Some(&event)]);
        set.map_err(VfioError::system("setting an interrupt"))?;
        Ok(event)
    }

    /// Memory on huge pages that the function can reach, and where it does. Pages of 4 KiB are scattered over the memory of a machine, and a ring has to
    /// lie in one piece there.
    ///
    /// # Errors
    /// [`VfioError::NoHugePages`], [`VfioError::Region`], [`VfioError::System`].
    pub fn allocate(&self, len: usize) -> Result<(Region, u64), VfioError> {
        let len = len.next_multiple_of(HUGE_PAGE);
        let region = Region::allocate(len, Pages::HugeIfAny)?.without_fd();
        if !Place::window(region.window()).is_huge() {
            return Err(VfioError::NoHugePages(len));
        }
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let none = VfioError::System { what: "finding a free address", source: Errno::NOSPC };
        let at = addresses.take(len as u64).ok_or(none)?;
        if let Err(source) = sys::map(&self.container, region.window(), at) {
            addresses.free(at);
            return Err(VfioError::System { what: "mapping memory for the function", source });
        }
        Ok((region, at))
    }

    /// The function does not reach it any more.
    pub fn release(&self, at: u64) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(len) = addresses.free(at) {
            // Fails only where the system does not know it, either.
            let _ = sys::unmap(&self.container, at, len);
        }
    }
}

impl Space for Function {
    fn load(&self, at: u64) -> Result<u32, VfioError> {
        let mut word = [0; 4];
        let read = pread(&self.device, &mut word, self.configuration.at + at);
        read.map_err(VfioError::system("reading configuration space"))?;
        Ok(u32::from_le_bytes(word))
    }

    fn store(&self, at: u64, word: u32) -> Result<(), VfioError> {
        let written = pwrite(&self.device, &word.to_le_bytes(), self.configuration.at + at);
        written.map_err(VfioError::system("writing configuration space")).map(drop)
    }
}

/// The IOMMU group of a function that is a card, and vfio-pci's.
fn group_of(address: PciAddress, folder: &Path) -> Result<String, VfioError> {
    if !folder.exists() {
        return Err(VfioError::Nothing(address));
    }
    let number = |file: &str| {
        let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
        u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap_or(0)
    };
    let (vendor, device) = (number("vendor"), number("device"));
    if (vendor, device) != (VENDOR, DEVICE) {
        return Err(VfioError::NoCard(address, vendor, device));
    }
    let name = |link: &str| {
        let target = fs::read_link(folder.join(link)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    };
    // First, because without one there is no use in another driver.
    let group = name("iommu_group").ok_or(VfioError::NoIommu(address))?;
    match name("driver") {
        Some(driver) if driver == "vfio-pci" => Ok(group),
        driver => Err(VfioError::NotBound { address, driver }),
    }
}

fn open_file(address: PciAddress, path: &str) -> Result<OwnedFd, VfioError> {
    open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|source| match source {
        Errno::BUSY => VfioError::Busy(address),
        Errno::ACCESS | Errno::PERM => VfioError::Denied { path: path.to_owned() },
        source => VfioError::System { what: "opening a file in /dev/vfio", source },
    })
}
