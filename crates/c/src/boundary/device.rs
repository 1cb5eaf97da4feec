//! The device.

use super::arguments::{give_new, opened, string};
use super::millrace_device;
use crate::device::Opened;
use crate::failure::Failure;
use crate::guard;
use core::mem::MaybeUninit;
use host::Device;
use std::ffi::{c_char, c_int, c_void, CString};

/// Opens the card with this name: "embedded", with options "embedded:port=loopback,rx=4", builds one inside this
/// process; "unix:PATH" connects to a card started with `millrace card --listen PATH`.
///
/// device: where to put the device, NULL after an error. To be closed with millrace_close().
///
/// Returns 0; -EINVAL: the name means nothing; -ENOENT, -ECONNREFUSED, -EACCES: nobody listens there, or not for us;
/// -ENOMEM, -EMFILE and others of the system: an embedded card cannot be built.
#[no_mangle]
pub extern "C" fn millrace_open(name: *const c_char, device: Option<&mut MaybeUninit<*mut millrace_device>>) -> c_int {
    give_new(device, "device", || {
        // SAFETY: the caller gives a string, or NULL.
        let name = unsafe { string(name, "name") }?;
        Ok(millrace_device(Opened::new(Device::open(name)?)?))
    })
}

/// Opens the card named by the environment variable MILLRACE_DEVICE, or an embedded loopback card if that is not set.
///
/// Otherwise as millrace_open().
#[no_mangle]
pub extern "C" fn millrace_open_default(device: Option<&mut MaybeUninit<*mut millrace_device>>) -> c_int {
    give_new(device, "device", || Ok(millrace_device(Opened::new(Device::open_default()?)?)))
}

/// Closes a device; NULL is closed already. Its queues, locks and memory may be closed before or after it: the card is
/// left with the last of them.
///
/// Returns 0.
#[no_mangle]
pub extern "C" fn millrace_close(device: Option<Box<millrace_device>>) -> c_int {
    guard::run(|| {
        drop(device);
        Ok(0)
    })
}

/// The name under which the device was opened, completed; NULL for NULL. Valid until the device is closed.
#[no_mangle]
pub extern "C" fn millrace_name(device: Option<&millrace_device>) -> *const c_char {
    device.map_or(core::ptr::null(), |device| device.0.name.as_ptr())
}

/// Process id of the card; our own if it is embedded.
///
/// Returns it, or -EINVAL for NULL.
#[no_mangle]
pub extern "C" fn millrace_card_pid(device: Option<&millrace_device>) -> c_int {
    guard::run(|| Ok(opened(device)?.device.card_pid() as c_int))
}

/// Number of RX queues: their indices begin at 0.
///
/// Returns it, or -EINVAL for NULL.
#[no_mangle]
pub extern "C" fn millrace_rx_queues(device: Option<&millrace_device>) -> c_int {
    guard::run(|| Ok(opened(device)?.device.rx_queues() as c_int))
}

/// Number of TX queues: their indices begin at 0.
///
/// Returns it, or -EINVAL for NULL.
#[no_mangle]
pub extern "C" fn millrace_tx_queues(device: Option<&millrace_device>) -> c_int {
    guard::run(|| Ok(opened(device)?.device.tx_queues() as c_int))
}

/// Shortest and longest frame of the card, in bytes without FCS. Shorter frames are padded with zeros when they are
/// sent. Either place may be NULL.
///
/// Returns 0, or -EINVAL: device is NULL.
#[no_mangle]
pub extern "C" fn millrace_frame_limits(
    device: Option<&millrace_device>,
    shortest: Option<&mut MaybeUninit<u16>>,
    longest: Option<&mut MaybeUninit<u16>>,
) -> c_int {
    guard::run(|| {
        let limits = opened(device)?.device.frame_limits();
        shortest.map(|place| place.write(limits.0));
        longest.map(|place| place.write(limits.1));
        Ok(0)
    })
}

/// The flattened device tree of the card: what libfdt reads. Valid until the device is closed.
///
/// blob: where to put the address of the first byte. len: where to put how many bytes it has.
///
/// Returns 0; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_device_tree(
    device: Option<&millrace_device>,
    blob: Option<&mut MaybeUninit<*const c_void>>,
    len: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    guard::run(|| {
        let (blob, len) = (blob.ok_or_else(|| Failure::null("blob"))?, len.ok_or_else(|| Failure::null("len"))?);
        let tree = opened(device)?.tree()?;
        blob.write(tree.as_ptr().cast());
        len.write(tree.len());
        Ok(0)
    })
}

/// All counters of the card as one JSON object, the one that `millrace stats --json` prints.
///
/// json: where to put the string, NULL after an error. To be freed with millrace_free_string().
///
/// Returns 0; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_stats_json(
    device: Option<&millrace_device>,
    json: Option<&mut MaybeUninit<*mut c_char>>,
) -> c_int {
    guard::run(|| {
        let json = json.ok_or_else(|| Failure::null("json"))?.write(core::ptr::null_mut());
        *json = opened(device)?.stats()?.into_raw();
        Ok(0)
    })
}

/// Frees a string that this library has handed out; NULL is free already.
#[no_mangle]
pub extern "C" fn millrace_free_string(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: made by `CString::into_raw` in `millrace_stats_json` or `give_text`, and handed back once: the caller's promise.
        drop(unsafe { CString::from_raw(string) });
    }
}
