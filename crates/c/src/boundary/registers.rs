//! Registers, and locks on features of components.

use super::arguments::{array, give, give_new, opened, places, string};
use super::{millrace_component_lock, millrace_device};
use crate::guard;
use core::mem::MaybeUninit;
use core::slice;
use core::time::Duration;
use std::ffi::{c_char, c_int, c_void};

/// Reads len bytes of registers, from this address of the card's bus on. No alignment is needed.
///
/// Returns 0; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_reg_read(
    device: Option<&millrace_device>,
    address: u32,
    to: *mut c_void,
    len: usize,
) -> c_int {
    guard::run(|| {
        // SAFETY: the caller gives `len` bytes to be written, or NULL.
        let to = unsafe { places(to.cast(), len, "to") }?;
        to.fill(MaybeUninit::new(0u8));
        // SAFETY: just filled.
        let to = unsafe { slice::from_raw_parts_mut(to.as_mut_ptr().cast(), to.len()) };
        opened(device)?.device.read(address, to)?;
        Ok(0)
    })
}

/// Writes len bytes to registers, from this address of the card's bus on. No alignment is needed.
///
/// Returns 0; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_reg_write(
    device: Option<&millrace_device>,
    address: u32,
    from: *const c_void,
    len: usize,
) -> c_int {
    guard::run(|| {
        // SAFETY: the caller gives `len` bytes to be read, or NULL.
        let from = unsafe { array(from.cast(), len, "from") }?;
        opened(device)?.device.write(address, from)?;
        Ok(0)
    })
}

/// Reads a 32-bit register.
///
/// Returns as millrace_reg_read().
#[no_mangle]
pub extern "C" fn millrace_reg_read32(
    device: Option<&millrace_device>,
    address: u32,
    value: Option<&mut MaybeUninit<u32>>,
) -> c_int {
    give(value, "value", || Ok(opened(device)?.device.read32(address)?))
}

/// Reads a 64-bit register.
///
/// Returns as millrace_reg_read().
#[no_mangle]
pub extern "C" fn millrace_reg_read64(
    device: Option<&millrace_device>,
    address: u32,
    value: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    give(value, "value", || Ok(opened(device)?.device.read64(address)?))
}

/// Writes a 32-bit register.
///
/// Returns as millrace_reg_write().
#[no_mangle]
pub extern "C" fn millrace_reg_write32(device: Option<&millrace_device>, address: u32, value: u32) -> c_int {
    guard::run(|| {
        opened(device)?.device.write32(address, value)?;
        Ok(0)
    })
}

/// Writes a 64-bit register, as one update where its two halves belong together.
///
/// Returns as millrace_reg_write().
#[no_mangle]
pub extern "C" fn millrace_reg_write64(device: Option<&millrace_device>, address: u32, value: u64) -> c_int {
    guard::run(|| {
        opened(device)?.device.write64(address, value)?;
        Ok(0)
    })
}

/// Locks features (a bit each) of a component of the card against everybody who asks for the same lock, this program
/// too. A component is what its users agree to call it: usually its path in the device tree. Waits up to timeout_ns
/// nanoseconds.
///
/// lock: where to put the lock, NULL after an error. To be ended with millrace_unlock(); it ends with the process too.
///
/// Returns 0; -EBUSY: somebody has one of the features; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_lock(
    device: Option<&millrace_device>,
    component: *const c_char,
    features: u64,
    timeout_ns: u64,
    lock: Option<&mut MaybeUninit<*mut millrace_component_lock>>,
) -> c_int {
    give_new(lock, "lock", || {
        // SAFETY: the caller gives a string, or NULL.
        let component = unsafe { string(component, "component") }?;
        let timeout = Duration::from_nanos(timeout_ns);
        Ok(millrace_component_lock(opened(device)?.device.lock(component, features, timeout)?))
    })
}

/// Ends a lock; NULL has ended already.
///
/// Returns 0.
#[no_mangle]
pub extern "C" fn millrace_unlock(lock: Option<Box<millrace_component_lock>>) -> c_int {
    guard::run(|| {
        drop(lock);
        Ok(0)
    })
}
