//! What C gives, as Rust wants it, and the other way round.

use super::millrace_device;
use crate::device::Opened;
use crate::failure::Failure;
use crate::guard;
use core::mem::MaybeUninit;
use core::slice;
use std::ffi::{c_char, c_int, CStr, CString};

/// Writes a result to the caller's place.
pub(super) fn give<T>(
    place: Option<&mut MaybeUninit<T>>,
    name: &str,
    value: impl FnOnce() -> Result<T, Failure>,
) -> c_int {
    guard::run(|| {
        place.ok_or_else(|| Failure::null(name))?.write(value()?);
        Ok(0)
    })
}

/// Hands a new object to the caller; NULL when there is none.
pub(super) fn give_new<T>(
    place: Option<&mut MaybeUninit<*mut T>>,
    name: &str,
    value: impl FnOnce() -> Result<T, Failure>,
) -> c_int {
    guard::run(|| {
        let place = place.ok_or_else(|| Failure::null(name))?;
        let place = place.write(core::ptr::null_mut());
        *place = Box::into_raw(Box::new(value()?));
        Ok(0)
    })
}

/// The device of a call.
pub(super) fn opened(device: Option<&millrace_device>) -> Result<&Opened, Failure> {
    device.map(|device| &device.0).ok_or_else(|| Failure::null("device"))
}

/// A C string of the caller.
pub(super) unsafe fn string<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: not NULL; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(format!("{name} is not UTF-8: {}", text.to_string_lossy())))
}

/// An array of the caller, to be read.
#[inline(always)]
pub(super) unsafe fn array<'a, T>(first: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if first.is_null() || !is_possible::<T>(count) {
        return if count == 0 { Ok(&[]) } else { Err(bad_array(first.is_null(), count, name)) };
    }
    // SAFETY: not NULL and no more bytes than there can be; the rest is the caller's promise.
    Ok(unsafe { slice::from_raw_parts(first, count) })
}

/// An array of the caller, to be written.
#[inline(always)]
pub(super) unsafe fn places<'a, T>(
    first: *mut T,
    count: usize,
    name: &str,
) -> Result<&'a mut [MaybeUninit<T>], Failure> {
    if first.is_null() || !is_possible::<T>(count) {
        return if count == 0 { Ok(&mut []) } else { Err(bad_array(first.is_null(), count, name)) };
    }
    // SAFETY: not NULL and no more bytes than there can be; places need not hold anything; the rest is the caller's
    // promise.
    Ok(unsafe { slice::from_raw_parts_mut(first.cast(), count) })
}

#[inline(always)]
fn is_possible<T>(count: usize) -> bool {
    count <= isize::MAX as usize / size_of::<T>()
}

#[cold]
fn bad_array(is_null: bool, count: usize, name: &str) -> Failure {
    if is_null {
        Failure::null(name)
    } else {
        Failure::invalid(format!("{name} cannot have {count} elements"))
    }
}

/// Hands a string to the caller; NULL when there is none.
pub(super) fn give_text(
    place: Option<&mut MaybeUninit<*mut c_char>>,
    text: impl FnOnce() -> Result<CString, Failure>,
) -> c_int {
    guard::run(|| {
        let place = place.ok_or_else(|| Failure::null("text"))?.write(core::ptr::null_mut());
        *place = text()?.into_raw();
        Ok(0)
    })
}
