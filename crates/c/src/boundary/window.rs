//! Memory of other endpoints: NREAD, NWRITE, NWRITE_R and SWRITE.

use super::arguments::{array, give_new, places};
use super::block::millrace_message_block;
use super::message::{gone, millrace_message, opened};
use crate::failure::Failure;
use crate::guard;
use ::millrace_message::window::{AccessError, Remote, WindowError};
use ::millrace_message::Peer;
use core::mem::MaybeUninit;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};

/// Memory of another endpoint that this one writes and reads.
pub struct millrace_message_window(Remote);

impl From<AccessError> for Failure {
    #[cold]
    fn from(error: AccessError) -> Self {
        let errno = match error {
            AccessError::Range(_) => Errno::RANGE,
            AccessError::Unaligned => Errno::INVAL,
        };
        Self::new(errno, error.to_string())
    }
}

fn mapped(window: Option<&millrace_message_window>) -> Result<&Remote, Failure> {
    window.map(|window| &window.0).ok_or_else(|| Failure::null("window"))
}

/// Writes so many bytes, one way or another.
///
/// # Safety
/// There are so many bytes.
unsafe fn write(
    window: Option<&millrace_message_window>,
    (offset, bytes, len): (usize, *const c_void, usize),
    by: impl FnOnce(&Remote, usize, &[u8]) -> Result<(), AccessError>,
) -> c_int {
    guard::run(|| {
        // SAFETY: as the caller promises.
        let bytes = unsafe { array(bytes.cast::<u8>(), len, "bytes") }?;
        Ok(by(mapped(window)?, offset, bytes).map(|()| 0)?)
    })
}

/// By which number the endpoint that a block was allocated for finds it: for millrace_message_window(), as long as the block is neither given
/// nor freed.
#[no_mangle]
pub extern "C" fn millrace_message_block_number(
    block: Option<&millrace_message_block>,
    number: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    guard::run(|| {
        let block = block.ok_or_else(|| Failure::null("block"))?;
        number.ok_or_else(|| Failure::null("number"))?.write(block.0.number());
        Ok(0)
    })
}

/// Opens memory of peer: len bytes of the block with that number, which it has allocated for this endpoint, and whose number it has told. -ENXIO: there
/// is none.
#[no_mangle]
pub extern "C" fn millrace_message_window_open(
    endpoint: Option<&millrace_message>,
    peer: u64,
    number: u64,
    len: u64,
    window: Option<&mut MaybeUninit<*mut millrace_message_window>>,
) -> c_int {
    give_new(window, "window", || {
        let found = opened(endpoint)?.window(Peer::of_number(peer), number, len);
        found.map(millrace_message_window).map_err(|error| match error {
            WindowError::Lost => gone(),
            WindowError::Nowhere => Failure::new(Errno::NXIO, error.to_string()),
        })
    })
}

/// Writes bytes to memory of another endpoint, without a response (NWRITE). A doorbell or message of this thread arrives behind them. -ERANGE: they
/// are not in the window.
#[no_mangle]
pub unsafe extern "C" fn millrace_message_nwrite(
    window: Option<&millrace_message_window>,
    offset: usize,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { write(window, (offset, bytes, len), Remote::nwrite) }
}

/// The same with a response (NWRITE_R): when it returns, whoever looks there sees them.
#[no_mangle]
pub unsafe extern "C" fn millrace_message_nwrite_r(
    window: Option<&millrace_message_window>,
    offset: usize,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { write(window, (offset, bytes, len), Remote::nwrite_r) }
}

/// Writes whole double words, without a response (SWRITE). -EINVAL: offset or len is no multiple of 8.
#[no_mangle]
pub unsafe extern "C" fn millrace_message_swrite(
    window: Option<&millrace_message_window>,
    offset: usize,
    bytes: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { write(window, (offset, bytes, len), Remote::swrite) }
}

/// Reads bytes of memory of another endpoint (NREAD). -ERANGE: they are not in the window.
#[no_mangle]
pub unsafe extern "C" fn millrace_message_nread(
    window: Option<&millrace_message_window>,
    offset: usize,
    bytes: *mut c_void,
    len: usize,
) -> c_int {
    guard::run(|| {
        // SAFETY: so many bytes of the caller.
        let places = unsafe { places(bytes.cast::<u8>(), len, "bytes") }?;
        places.fill(MaybeUninit::new(0));
        // SAFETY: all of them have just been written.
        let to = unsafe { places.assume_init_mut() };
        Ok(mapped(window)?.nread(offset, to).map(|()| 0)?)
    })
}

/// Closes a window.
#[no_mangle]
pub extern "C" fn millrace_message_window_close(window: Option<Box<millrace_message_window>>) -> c_int {
    guard::run(|| {
        drop(window);
        Ok(0)
    })
}
