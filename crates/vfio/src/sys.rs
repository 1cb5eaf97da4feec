//! Calls to Linux's VFIO. The only file of this crate that may use `unsafe`; numbers and layouts are those of `linux/vfio.h`.

use core::ffi::c_ulong;
use millrace_dma::Window;
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::CString;

/// The number of a call: these say neither direction nor size in it.
const fn call(number: u8) -> c_ulong {
    (b';' as c_ulong) << 8 | (100 + number) as c_ulong
}

const GET_API_VERSION: c_ulong = call(0);
const SET_IOMMU: c_ulong = call(2);
const GROUP_GET_STATUS: c_ulong = call(3);
const GROUP_SET_CONTAINER: c_ulong = call(4);
const GROUP_GET_DEVICE: c_ulong = call(6);
const DEVICE_GET_REGION_INFO: c_ulong = call(8);
const DEVICE_GET_IRQ_INFO: c_ulong = call(9);
const DEVICE_SET_IRQS: c_ulong = call(10);
const MAP_DMA: c_ulong = call(13);
const UNMAP_DMA: c_ulong = call(14);

/// The second version of the interface to an IOMMU of x86.
const TYPE1V2: c_ulong = 3;
const GROUP_VIABLE: u32 = 1;
const READ_AND_WRITE: u32 = 3;
/// Eventfds follow, and an interrupt signals them.
const EVENTFD_TRIGGER: u32 = 1 << 2 | 1 << 5;

/// Calls a driver with words that it reads and writes, of which the first says how many bytes there are.
fn ioctl(fd: impl AsFd, number: c_ulong, words: &mut [u32]) -> Result<u32, Errno> {
    words[0] = (words.len() * 4) as u32;
    // SAFETY: the driver reads and writes what the first word says at most, which is there; it keeps no pointer to it.
    returned(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number, words.as_mut_ptr()) })
}

fn returned(done: i32) -> Result<u32, Errno> {
    u32::try_from(done).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}

fn low(number: u64) -> u32 {
    number as u32
}

fn high(number: u64) -> u32 {
    (number >> 32) as u32
}

fn both(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The version of the interface; there is only 0.
pub fn api_version(container: impl AsFd) -> Result<u32, Errno> {
    // SAFETY: takes no argument.
    returned(unsafe { libc::ioctl(container.as_fd().as_raw_fd(), GET_API_VERSION) })
}

/// Whether all devices of the group are VFIO's.
pub fn is_viable(group: impl AsFd) -> Result<bool, Errno> {
    let mut words = [0; 2];
    ioctl(group, GROUP_GET_STATUS, &mut words)?;
    Ok(words[1] & GROUP_VIABLE != 0)
}

/// Puts the group into a container, whose IOMMU is then set.
pub fn join(group: impl AsFd, container: impl AsFd) -> Result<(), Errno> {
    let (group, container) = (group.as_fd(), container.as_fd());
    let number = container.as_raw_fd();
    // SAFETY: reads one number.
    returned(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, &raw const number) })?;
    // SAFETY: takes a number.
    returned(unsafe { libc::ioctl(container.as_raw_fd(), SET_IOMMU, TYPE1V2) }).map(drop)
}

/// The device of that name in the group.
pub fn device(group: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    // SAFETY: reads a text that ends with a zero byte.
    let fd = returned(unsafe { libc::ioctl(group.as_fd().as_raw_fd(), GROUP_GET_DEVICE, name.as_ptr()) })?;
    // SAFETY: opened just now, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Where a region lies in the file of the device, and its length.
pub fn region(device: impl AsFd, index: u32) -> Result<(u64, u64), Errno> {
    let mut words = [0, 0, index, 0, 0, 0, 0, 0];
    ioctl(device, DEVICE_GET_REGION_INFO, &mut words)?;
    Ok((both(words[6], words[7]), both(words[4], words[5])))
}

/// How many interrupts of a kind there are.
pub fn interrupts(device: impl AsFd, index: u32) -> Result<u32, Errno> {
    let mut words = [0, 0, index, 0];
    ioctl(device, DEVICE_GET_IRQ_INFO, &mut words)?;
    Ok(words[3])
}

/// Sets what interrupts from `first` on signal: eventfds, or nothing.
pub fn set_interrupts(device: impl AsFd, index: u32, first: u32, events: &[Option<&OwnedFd>]) -> Result<(), Errno> {
    let mut words = vec![0, EVENTFD_TRIGGER, index, first, events.len() as u32];
    words.extend(events.iter().map(|event| event.map_or(u32::MAX, |event| event.as_raw_fd() as u32)));
    ioctl(device, DEVICE_SET_IRQS, &mut words).map(drop)
}

/// Maps memory for the device. The system holds on to its pages until it is unmapped, whatever becomes of the window.
pub fn map(container: impl AsFd, memory: &Window, iova: u64) -> Result<(), Errno> {
    let len = memory.len() as u64;
    let at = memory.span(0, memory.len()).ok_or(Errno::INVAL)?.as_ptr().expose_provenance() as u64;
    let mut words = [0, READ_AND_WRITE, low(at), high(at), low(iova), high(iova), low(len), high(len)];
    ioctl(container, MAP_DMA, &mut words).map(drop)
}

/// Takes memory away from the device.
pub fn unmap(container: impl AsFd, iova: u64, len: u64) -> Result<(), Errno> {
    let mut words = [0, 0, low(iova), high(iova), low(len), high(len)];
    ioctl(container, UNMAP_DMA, &mut words).map(drop)
}
