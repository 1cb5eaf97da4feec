//! What C sees. `include/millrace.h` is made from the files here and `types.rs` by `make header`, so comments on public items
//! are written for people who read that header.
//!
//! The only folder of this crate with `unsafe`. Most functions need none: a pointer that is borrowed for one call and
//! may be NULL is an `Option<&T>`, one that is handed back is an `Option<Box<T>>`, a place for a result is an
//! `Option<&mut MaybeUninit<T>>`. What is left are strings and arrays. That pointers come from this library, are used
//! by one thread at a time where that is asked for, and not after they were closed, is the caller's promise, as with
//! every C library; the header says so.
#![allow(non_camel_case_types)]

mod arguments;
mod block;
mod clock;
mod device;
mod flow;
mod memory;
mod message;
mod registers;
mod rx;
mod slurpoe;
mod tx;
mod window;

use crate::device::{Memory, Opened};
use crate::failure;
use crate::queue::{Rx, Tx};
use crate::supplied::{Receiver, Sender};
use crate::tap::Tap;
use host::FlowWatch;
use std::ffi::c_char;

/// Version of this header, major number: programs have to be compiled again when it changes.
pub const MILLRACE_VERSION_MAJOR: u32 = 0;
/// Version of this header, minor number: something was added.
pub const MILLRACE_VERSION_MINOR: u32 = 1;
/// Version of this header, patch number: something was mended.
pub const MILLRACE_VERSION_PATCH: u32 = 0;
/// Version of this header as one number: major * 1000000 + minor * 1000 + patch.
pub const MILLRACE_VERSION: u32 = 1000;
/// Most packets that one burst has.
pub const MILLRACE_MAX_BURST: usize = 1024;

const _: () = {
    const fn number(text: &str) -> u32 {
        match u32::from_str_radix(text, 10) {
            Ok(number) => number,
            Err(_) => panic!("no number"),
        }
    }
    // Whoever gives the packages a new version gives it to the header too.
    assert!(MILLRACE_VERSION_MAJOR == number(env!("CARGO_PKG_VERSION_MAJOR")));
    assert!(MILLRACE_VERSION_MINOR == number(env!("CARGO_PKG_VERSION_MINOR")));
    assert!(MILLRACE_VERSION_PATCH == number(env!("CARGO_PKG_VERSION_PATCH")));
    let whole = MILLRACE_VERSION_MAJOR * 1_000_000 + MILLRACE_VERSION_MINOR * 1000 + MILLRACE_VERSION_PATCH;
    assert!(MILLRACE_VERSION == whole);
    assert!(MILLRACE_MAX_BURST == host::MAX_BURST);
};

/// An open card. Any number of threads may use it at once.
pub struct millrace_device(Opened);
/// The clock of a card. Any number of threads may use it at once.
pub struct millrace_clock(host::Clock);
/// A lock on features of a component.
pub struct millrace_component_lock(#[allow(dead_code)] host::ComponentLock);
/// An RX queue. One thread at a time.
pub struct millrace_rx(Rx);
/// A TX queue. One thread at a time.
pub struct millrace_tx(Tx);
/// What happens to the rules of a card. One thread at a time.
pub struct millrace_flow_watch(FlowWatch);
/// Frames on which rules decide. One thread at a time.
pub struct millrace_flow_tap(Tap);
/// Memory that program and card share. Any number of threads may use it at once.
pub struct millrace_memory(Memory);
/// An RX queue over buffers of the program. One thread at a time.
pub struct millrace_supplied_rx(Receiver);
/// A TX queue over buffers of the program. One thread at a time.
pub struct millrace_supplied_tx(Sender);

const _: () = {
    const fn from_any_thread<T: Sync>() {}
    const fn one_thread_at_a_time<T: Send>() {}
    // What the header promises about threads.
    from_any_thread::<millrace_device>();
    from_any_thread::<millrace_memory>();
    from_any_thread::<millrace_clock>();
    one_thread_at_a_time::<(millrace_device, millrace_component_lock, millrace_memory)>();
    one_thread_at_a_time::<(millrace_flow_watch, millrace_flow_tap)>();
    one_thread_at_a_time::<(millrace_rx, millrace_tx, millrace_supplied_rx, millrace_supplied_tx)>();
};

// Versions and errors.

/// Version of the library in use, as MILLRACE_VERSION. Never fails.
#[no_mangle]
pub extern "C" fn millrace_version() -> u32 {
    MILLRACE_VERSION
}

/// What went wrong in the last call of this thread that failed, in words that say what to do; "" if none has.
///
/// Valid until the next call of this thread that fails. Never NULL. Calls that succeed do not change it.
#[no_mangle]
pub extern "C" fn millrace_last_error() -> *const c_char {
    failure::last()
}
