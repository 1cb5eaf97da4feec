//! The device in a virtual machine, without a driver: the files of sysfs that map its registers and the memory
//! (`/sys/bus/pci/devices/0000:00:04.0/resource0` and `resource2`).
//!
//! `resource2` and not `resource2_wc`: through that one, stores may be seen by others in another order than they were made in.

use crate::endpoint::EndpointError;
use millrace_dma::{Ordering, PciResource, Window, Word32};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions, read_dir, read_to_string};
use std::path::Path;

/// Where Linux shows what is on the bus.
const DEVICES: &str = "/sys/bus/pci/devices";
/// Red Hat's, and that of the device.
const VENDOR: &str = "0x1af4";
const DEVICE: &str = "0x1110";
/// Registers of BAR 0.
const ID: usize = 8;
const DOORBELL: usize = 12;
const REGISTERS_LEN: usize = 256;
const PAGE: usize = 4096;

/// The device.
pub(crate) struct Device {
    address: String,
    doorbell: Word32,
    /// What the peer of this machine is called.
    pub called: u16,
    memory: PciResource,
    /// Locked by the one program that sends, and the one that receives.
    send: File,
    receive: File,
}

impl Device {
    /// That one, such as `0000:00:04.0` or `00:04.0`; `None`: the only one that there is.
    pub fn open(address: Option<&str>) -> Result<Self, EndpointError> {
        let address = match address {
            Some(address) => whole(address)?,
            None => only()?,
        };
        let folder = Path::new(DEVICES).join(&address);
        if !is_ivshmem(&folder) {
            return Err(EndpointError::NoDevice(address));
        }
        let failed = |step| {
            let address = address.clone();
            move |source| EndpointError::Device { address, step, source }
        };
        // Nobody else has told Linux to let the device answer.
        std::fs::write(folder.join("enable"), "1").map_err(failed("enable"))?;
        let file = |name: &str| OpenOptions::new().read(true).write(true).open(folder.join(name));
        let (send, receive) = (file("resource0").map_err(failed("open"))?, file("resource2").map_err(failed("open"))?);
        let map = |file: &File, len: usize| {
            let copy = file.try_clone().map_err(failed("open"))?;
            PciResource::map(copy.into(), len).map_err(EndpointError::Memory)
        };
        // Where the registers begin in their page.
        let bars = read_to_string(folder.join("resource")).map_err(failed("read"))?;
        let at = start(&bars, 0).ok_or(EndpointError::NoDevice(address.clone()))? % PAGE;
        let registers = map(&send, at + REGISTERS_LEN)?;
        let word =
            |offset| registers.window().word32(at + offset).map_err(|_| EndpointError::NoDevice(address.clone()));
        let (called, doorbell) = (word(ID)?.load(Ordering::Relaxed), word(DOORBELL)?);
        let called = u16::try_from(called).map_err(|_| EndpointError::NotReady(address.clone()))?;
        let len = receive.metadata().map_err(failed("read"))?.len();
        let memory = map(&receive, usize::try_from(len).unwrap_or(0))?;
        Ok(Self { doorbell, called, memory, send, receive, address })
    }

    pub fn window(&self) -> &Window {
        self.memory.window()
    }

    /// Rings the first vector of the peer that is called so: an exit from the virtual machine.
    pub fn ring(&self, called: u16) {
        // Relaxed: the processor makes stores to a device that is not cached in their order, behind those before.
        self.doorbell.store(u32::from(called) << 16, Ordering::Relaxed);
    }

    /// Nobody else of this machine may send from now on.
    pub fn lock_send(&self) -> Result<(), EndpointError> {
        self.lock(&self.send, "sends")
    }

    /// Nobody else of this machine may receive from now on.
    pub fn lock_receive(&self) -> Result<(), EndpointError> {
        self.lock(&self.receive, "receives")
    }

    fn lock(&self, file: &File, what: &'static str) -> Result<(), EndpointError> {
        let locked = flock(file, FlockOperation::NonBlockingLockExclusive);
        locked.map_err(|_| EndpointError::Locked { address: self.address.clone(), what })
    }
}

/// The address with its domain.
fn whole(address: &str) -> Result<String, EndpointError> {
    let is_known =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte));
    let address = if address.matches(':').count() == 1 { format!("0000:{address}") } else { address.to_owned() };
    if is_known(&address) && !address.contains("..") { Ok(address) } else { Err(EndpointError::NoDevice(address)) }
}

/// The only device of this kind.
fn only() -> Result<String, EndpointError> {
    let found = read_dir(DEVICES).into_iter().flatten().flatten().filter(|entry| is_ivshmem(&entry.path()));
    let mut found: Vec<_> = found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    found.sort_unstable();
    if found.len() > 1 {
        return Err(EndpointError::Several(found.join(", ")));
    }
    found.pop().ok_or(EndpointError::NoDevices)
}

fn is_ivshmem(folder: &Path) -> bool {
    let is = |name: &str, wanted: &str| read_to_string(folder.join(name)).is_ok_and(|found| found.trim() == wanted);
    is("vendor", VENDOR) && is("device", DEVICE)
}

/// Where a BAR begins, by the file `resource`: a line for each, with its first address, its last, and what it is.
fn start(bars: &str, bar: usize) -> Option<usize> {
    let first = bars.lines().nth(bar)?.split_whitespace().next()?;
    usize::from_str_radix(first.strip_prefix("0x")?, 16).ok().filter(|first| *first > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_no_paths() {
        assert_eq!(whole("00:04.0").unwrap(), "0000:00:04.0");
        assert_eq!(whole("0000:00:04.0").unwrap(), "0000:00:04.0");
        for wrong in ["", "../../x", "..", "0000:00:04.0/..", "a b"] {
            assert!(whole(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bars_begin_where_linux_says() {
        let bars = "0x00000000febf1100 0x00000000febf11ff 0x0000000000040200\n0x0 0x0 0x0\n";
        assert_eq!(
            (start(bars, 0), start(bars, 1), start(bars, 2), start("nonsense", 0)),
            (Some(0xfebf_1100), None, None, None)
        );
    }
}
