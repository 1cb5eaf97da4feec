//! The functions that programs call, by subject.
//!
//! What is believed of programs, as the library that this one stands for believes it:
//! * a pointer to an object came from here, and is not used after its destroying function was called;
//! * a pointer to a structure of theirs is valid for the time of the call, and nobody else writes there meanwhile;
//! * one identifier is used by one thread at a time, but for its events.
//!
//! Everything else is checked. No panic crosses: it is written to standard error, and the call fails with EIO.
//!
//! Files: `ids` (channels and identifiers), `notices` (events), `connect`, `pairs` (queue pairs), `endpoint` (identifiers with all that
//! belongs to them), `names` (`rdma_getaddrinfo`), `words` (what is only said), `sockets` (what is not there).

mod connect;
mod endpoint;
mod ids;
mod names;
mod notices;
mod pairs;
mod sockets;
mod words;

use crate::abi::QpInitAttr;
use crate::cma::{CmId, EventChannel, PathRec, SockAddr};
use crate::state::{Handle, Queue};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is behind event channels, by their addresses. Not in an object of their own: programs (rping of Debian 12 is one) have threads that
/// ask a channel for events which another thread has destroyed.
static CHANNELS: Mutex<BTreeMap<usize, Arc<Queue>>> = Mutex::new(BTreeMap::new());

fn channels() -> MutexGuard<'static, BTreeMap<usize, Arc<Queue>>> {
    CHANNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is behind a channel. EBADF: it was destroyed, or is none.
fn queue_of(channel: *mut EventChannel) -> Result<Arc<Queue>, i32> {
    channels().get(&(channel as usize)).cloned().ok_or(libc::EBADF)
}

/// What this library made for an identifier, and has to destroy.
#[derive(Default)]
struct Extra {
    path: Option<Box<PathRec>>,
    /// `rdma_create_ep` of a passive end: what queue pairs of those who call are made with.
    template: Option<QpInitAttr>,
    /// Private data that `rdma_create_ep` was given.
    connect: Vec<u8>,
    made_send_queue: bool,
    made_receive_queue: bool,
}

/// An identifier: what programs see, and what is behind it.
#[repr(C)]
struct IdObject {
    abi: UnsafeCell<CmId>,
    handle: Handle,
    extra: Mutex<Extra>,
}

// SAFETY: pointers in it are the program's business, which uses an identifier from one thread at a time.
unsafe impl Sync for IdObject {}

impl IdObject {
    /// # Safety
    /// `id` was made here and not destroyed.
    unsafe fn of<'i>(id: *mut CmId) -> &'i Self {
        // SAFETY: identifiers are only made here, as the beginning of this object.
        unsafe { &*id.cast() }
    }

    fn with_extra<R>(&self, act: impl FnOnce(&mut Extra) -> R) -> R {
        act(&mut self.extra.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Runs the body of a function that C calls: 0, or -1 and why.
fn call(body: impl FnOnce() -> Result<(), i32>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(libc::EIO)) {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// The same of one that gives an object: NULL, and why.
fn make<T>(body: impl FnOnce() -> Result<*mut T, i32>) -> *mut T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(libc::EIO)).unwrap_or_else(|error| {
        set_errno(error);
        core::ptr::null_mut()
    })
}

fn set_errno(error: i32) {
    // SAFETY: the address of this thread's own variable, which lives as long as the thread.
    unsafe { *libc::__errno_location() = error };
}

/// A remark for whoever started the program: there are only numbers for errors.
pub(crate) fn say(text: impl core::fmt::Display) {
    // In one write: programs share the place where it stands.
    let program = std::env::args_os().next().unwrap_or_default();
    let program = std::path::Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
    let line = format!("librdmacm (millrace) {program}[{}]: {text}\n", std::process::id());
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
}

/// An address of a program.
///
/// # Safety
/// `address` is NULL, or as long as its family says.
unsafe fn address(address: *const c_void) -> Result<SocketAddr, i32> {
    if address.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise: every address begins with its family.
    let family = unsafe { address.cast::<u16>().read_unaligned() };
    let len = match i32::from(family) {
        libc::AF_INET => 16,
        libc::AF_INET6 => 28,
        _ => return Err(libc::EAFNOSUPPORT),
    };
    // SAFETY: the caller's promise.
    SockAddr::parse(unsafe { core::slice::from_raw_parts(address.cast(), len) }).ok_or(libc::EAFNOSUPPORT)
}

/// Private data of a program, followed by zeros, behind what is there already.
///
/// # Safety
/// `data` has `len` bytes, or is NULL.
unsafe fn private<const LEN: usize>(front: &[u8], data: *const c_void, len: u8) -> Result<[u8; LEN], i32> {
    let mut all = [0; LEN];
    all[..front.len()].copy_from_slice(front);
    if !data.is_null() {
        // SAFETY: the caller's promise.
        let data: &[u8] = unsafe { core::slice::from_raw_parts(data.cast(), len.into()) };
        all.get_mut(front.len()..front.len() + data.len()).ok_or(libc::EINVAL)?.copy_from_slice(data);
    }
    Ok(all)
}
