//! What C sees. `include/millrace.h` is made from this file and `types.rs` by `make header`, so comments on public items
//! are written for people who read that header.
//!
//! With `slurpoe.rs` the only file of this crate with `unsafe`. Most functions need none: a pointer that is borrowed for one call and
//! may be NULL is an `Option<&T>`, one that is handed back is an `Option<Box<T>>`, a place for a result is an
//! `Option<&mut MaybeUninit<T>>`. What is left are strings and arrays. That pointers come from this library, are used
//! by one thread at a time where that is asked for, and not after they were closed, is the caller's promise, as with
//! every C library; the header says so.
#![allow(non_camel_case_types)]

use crate::burst;
use crate::device::{joiners, wishes, Memory, Opened};
use crate::failure::{self, Failure};
use crate::flow;
use crate::guard;
use crate::queue::{Rx, Tx};
use crate::supplied::{Receiver, Sender};
use crate::types::{millrace_flow_done, millrace_flow_keys_done, millrace_packet, millrace_received};
use core::mem::MaybeUninit;
use core::slice;
use core::time::Duration;
use host::{Device, FlowWatch, IdleRx, IdleTx, Iova, QueueId, RxQueue, TxQueue};
use std::ffi::{c_char, c_int, c_void, CStr, CString};

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
/// A lock on features of a component.
pub struct millrace_component_lock(#[allow(dead_code)] host::ComponentLock);
/// An RX queue. One thread at a time.
pub struct millrace_rx(Rx);
/// A TX queue. One thread at a time.
pub struct millrace_tx(Tx);
/// What happens to the rules of a card. One thread at a time.
pub struct millrace_flow_watch(FlowWatch);
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
    one_thread_at_a_time::<(millrace_device, millrace_component_lock, millrace_memory, millrace_flow_watch)>();
    one_thread_at_a_time::<(millrace_rx, millrace_tx, millrace_supplied_rx, millrace_supplied_tx)>();
};

/// Writes a result to the caller's place.
pub(crate) fn give<T>(
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
pub(crate) fn give_new<T>(
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
fn opened(device: Option<&millrace_device>) -> Result<&Opened, Failure> {
    device.map(|device| &device.0).ok_or_else(|| Failure::null("device"))
}

/// A C string of the caller.
pub(crate) unsafe fn string<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: not NULL; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(format!("{name} is not UTF-8: {}", text.to_string_lossy())))
}

/// An array of the caller, to be read.
#[inline(always)]
pub(crate) unsafe fn array<'a, T>(first: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if first.is_null() || !is_possible::<T>(count) {
        return if count == 0 { Ok(&[]) } else { Err(bad_array(first.is_null(), count, name)) };
    }
    // SAFETY: not NULL and no more bytes than there can be; the rest is the caller's promise.
    Ok(unsafe { slice::from_raw_parts(first, count) })
}

/// An array of the caller, to be written.
#[inline(always)]
pub(crate) unsafe fn places<'a, T>(
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

// The device.

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

// Rules: which frames go to which queues and ports. Their language is in docs/classifier.md.

/// Hands a string to the caller; NULL when there is none.
fn give_text(place: Option<&mut MaybeUninit<*mut c_char>>, text: impl FnOnce() -> Result<CString, Failure>) -> c_int {
    guard::run(|| {
        let place = place.ok_or_else(|| Failure::null("text"))?.write(core::ptr::null_mut());
        *place = text()?.into_raw();
        Ok(0)
    })
}

/// Does changes to the rules of the card, all of them or none. Frames that come in after it returns meet the new version.
///
/// changes: one on a line: "add RULE", "modify FILTER,actions=...", "delete FILTER", "delete group=N", "delete meter=N"; what
/// begins with none of these words is added: a rule, a group, a meter or miss, as text or JSON. # begins a comment.
/// flags: MILLRACE_FLOW_..., or 0.
/// done: where to put what was done, or NULL.
///
/// Returns 0; -EINVAL: an argument is NULL, or a change cannot be, which the text names, from 1 on; -EACCES: this program has
/// not the right `configure:rules`, or a rule or group is somebody else's; -EDQUOT: too many rules; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_change(
    device: Option<&millrace_device>,
    changes: *const c_char,
    flags: u32,
    done: Option<&mut MaybeUninit<millrace_flow_done>>,
) -> c_int {
    guard::run(|| {
        // SAFETY: the caller's promise.
        let changes = unsafe { string(changes, "changes") }?;
        let committed = flow::change(&opened(device)?.device, changes, flags)?;
        if let Some(done) = done {
            done.write(millrace_flow_done {
                version: committed.version,
                added: committed.added,
                modified: committed.modified,
                removed: committed.removed,
            });
        }
        Ok(0)
    })
}

/// The rules that a filter means, as a JSON array: each has "line", "owner", and "rule" with what it has had. With an empty
/// filter miss, groups and meters come before them.
///
/// json: where to put the string, NULL after an error. To be freed with millrace_free_string().
///
/// Returns 0; -EINVAL: an argument is NULL, or the filter cannot be; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_list_json(
    device: Option<&millrace_device>,
    filter: *const c_char,
    json: Option<&mut MaybeUninit<*mut c_char>>,
) -> c_int {
    give_text(json, || {
        // SAFETY: the caller's promise.
        let filter = unsafe { string(filter, "filter") }?;
        flow::json(&opened(device)?.device.flows().list(filter)?)
    })
}

/// What becomes of a frame that comes in at a port, and why, in words.
///
/// frame, len: the frame without FCS; at most 16384 bytes.
/// version: of the rules; UINT64_MAX is the newest.
/// text: where to put the string, NULL after an error. To be freed with millrace_free_string().
///
/// Returns 0; -EINVAL: an argument is NULL, or the frame is too long; -ENOENT: that version is not kept any more; -ENODEV: the
/// card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_explain(
    device: Option<&millrace_device>,
    frame: *const c_void,
    len: usize,
    port: u32,
    version: u64,
    text: Option<&mut MaybeUninit<*mut c_char>>,
) -> c_int {
    give_text(text, || {
        // SAFETY: the caller's promise.
        let frame: &[u8] = unsafe { array(frame.cast(), len, "frame") }?;
        let version = (version != u64::MAX).then_some(version);
        flow::text(opened(device)?.device.flows().explain(frame, port, version, flow::BETTER)?.text)
    })
}

/// Hands over keys of QUIC connections, so that a group with `keys` can steer by their streams. The card forgets them with their
/// connection, with the group, and when the device is closed or the program ends; nobody can read them from it.
///
/// group: the number of a QUIC group.
/// log: lines of SSLKEYLOGFILE; secrets that are not of packets behind the handshake are passed over.
/// done: where to put what became of them, or NULL.
///
/// Returns 0, also when secrets were not taken, which done says; -EINVAL: an argument is NULL, or the group takes no keys;
/// -ENOENT: there is no such group; -EACCES: this program has not the right `configure:rules`, or the group is somebody else's;
/// -EDQUOT: too many, each connection with keys counts as a rule; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_keys(
    device: Option<&millrace_device>,
    group: u32,
    log: *const c_char,
    done: Option<&mut MaybeUninit<millrace_flow_keys_done>>,
) -> c_int {
    guard::run(|| {
        // SAFETY: the caller's promise.
        let log = unsafe { string(log, "log") }?;
        let keys = opened(device)?.device.flows().hand_over_keys(group, log)?;
        if let Some(done) = done {
            done.write(millrace_flow_keys_done {
                taken: keys.taken,
                unknown: keys.unknown,
                full: keys.full,
                foreign: keys.foreign,
                malformed: keys.malformed,
                connections: keys.connections,
            });
        }
        Ok(0)
    })
}

/// Watches what happens to the rules of the card from now on. Of the watches of one device, the last one alone is woken.
///
/// watch: where to put it, NULL after an error. To be closed with millrace_flow_watch_close().
///
/// Returns 0; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_watch_open(
    device: Option<&millrace_device>,
    watch: Option<&mut MaybeUninit<*mut millrace_flow_watch>>,
) -> c_int {
    give_new(watch, "watch", || Ok(millrace_flow_watch(opened(device)?.device.flows().watch()?)))
}

/// What has happened since the last call, as JSON: {"events": [...], "lost": N, ...}; waits at most timeout_ns for something.
/// An event has "kind" (added, modified, removed), "line", "owner", "version", "time_ns", and of a rule that has gone "reason"
/// (idle, hard, delete, owner-gone) and "rule" with what it has had. lost is how many events this program was too slow for.
///
/// json: where to put the string, NULL after an error. To be freed with millrace_free_string().
///
/// Returns 0, also when nothing has happened; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_watch_next(
    watch: Option<&mut millrace_flow_watch>,
    timeout_ns: u64,
    json: Option<&mut MaybeUninit<*mut c_char>>,
) -> c_int {
    give_text(json, || {
        let watch = watch.ok_or_else(|| Failure::null("watch"))?;
        flow::json(&watch.0.next(Duration::from_nanos(timeout_ns))?)
    })
}

/// Ends a watch; NULL has ended already.
///
/// Returns 0.
#[no_mangle]
pub extern "C" fn millrace_flow_watch_close(watch: Option<Box<millrace_flow_watch>>) -> c_int {
    guard::run(|| {
        drop(watch);
        Ok(0)
    })
}

// Registers.

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

// Locks.

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

// Receiving.

/// Opens RX queue number index. Packets come after millrace_rx_start().
///
/// flags: 0 or those of enum millrace_open_flags. rx: where to put the queue, NULL after an error. To be closed with
/// millrace_rx_close().
///
/// Returns 0; -EBUSY: somebody else has the queue, and the text says who; -EACCES: this program may not use the queue, or
/// not share it like that; -EDQUOT: this user, or this program, has as much as it may have; -ENOENT: there is no such queue; -EINVAL: an
/// argument is NULL, or the flags do not go together, or the queue's engine has no such mode; -ENOMEM: no memory for it;
/// -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_rx_open(
    device: Option<&millrace_device>,
    index: u32,
    flags: u32,
    rx: Option<&mut MaybeUninit<*mut millrace_rx>>,
) -> c_int {
    give_new(rx, "rx", || {
        let (mode, sharing) = wishes(flags)?;
        let options = opened(device)?.device.rx(index).mode(mode).sharing(sharing);
        let idle = joiners(flags).into_iter().fold(options, host::RxOptions::joiners).open()?;
        Ok(millrace_rx(Rx::new(QueueId::rx(index), idle)))
    })
}

/// Starts the queue: from now on packets arrive.
///
/// Returns 0; -EINVAL: rx is NULL, or started already; -ENODEV: the card is gone. After any other error the queue can
/// only be closed.
#[no_mangle]
pub extern "C" fn millrace_rx_start(rx: Option<&mut millrace_rx>) -> c_int {
    guard::with(rx.map(|rx| &mut rx.0), |rx| rx.start(IdleRx::start).map(|()| 0))
}

/// Takes up to count packets (at most MILLRACE_MAX_BURST). Never waits, and makes no system call in direct mode.
///
/// packets: where to describe them. They stay where they are until millrace_rx_burst_put(), so several bursts can be
/// taken before one put; a mediated queue yields nothing more until then.
///
/// Returns how many were taken, 0 if there are none; -EINVAL: an argument is NULL; -ESHUTDOWN: the queue is not
/// started; -EIO: the card has stopped it, and the text says why; -ESTALE: it went on without us, because we fell
/// behind; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_rx_burst_get(
    rx: Option<&mut millrace_rx>,
    packets: *mut millrace_packet,
    count: usize,
) -> c_int {
    guard::with(rx.map(|rx| &mut rx.0), |rx| {
        // SAFETY: the caller gives `count` places, or NULL.
        let places = unsafe { places(packets, count.min(MILLRACE_MAX_BURST), "packets") }?;
        Ok(burst::receive(rx.running()?, places)? as c_int)
    })
}

/// Gives all packets back that were taken. Without any it does nothing.
///
/// Returns 0; -EINVAL: rx is NULL; -ESHUTDOWN: the queue is not started.
#[no_mangle]
pub extern "C" fn millrace_rx_burst_put(rx: Option<&mut millrace_rx>) -> c_int {
    guard::with(rx.map(|rx| &mut rx.0), |rx| {
        rx.running()?.release();
        Ok(0)
    })
}

/// Waits until there are packets beyond those taken, at most timeout_ns nanoseconds. Spins for some microseconds, then
/// sleeps without missing one. Signals do not end it.
///
/// Returns 1: there are; 0: none came; otherwise as millrace_rx_burst_get().
#[no_mangle]
pub extern "C" fn millrace_rx_wait(rx: Option<&mut millrace_rx>, timeout_ns: u64) -> c_int {
    guard::with(rx.map(|rx| &mut rx.0), |rx| Ok(rx.running()?.wait(Duration::from_nanos(timeout_ns))?.into()))
}

/// How much a queue opened with MILLRACE_OPEN_SHARED_DROP has skipped because this program was too slow, since it was
/// started: packets, or units of 8 bytes (SZE).
///
/// Returns 0; -EINVAL: an argument is NULL; -ESHUTDOWN: the queue is not started.
#[no_mangle]
pub extern "C" fn millrace_rx_lost(rx: Option<&mut millrace_rx>, lost: Option<&mut MaybeUninit<u64>>) -> c_int {
    guard::with(rx.map(|rx| &mut rx.0), |rx| {
        lost.ok_or_else(|| Failure::null("lost"))?.write(rx.running()?.lost());
        Ok(0)
    })
}

/// Stops the queue; it can be started again. Packets that were not taken are lost, and pointers to those that were
/// become invalid.
///
/// Returns 0; -EINVAL: rx is NULL; -ESHUTDOWN: the queue is not started; -ENODEV: the card is gone. After the last one
/// the queue can only be closed.
#[no_mangle]
pub extern "C" fn millrace_rx_stop(rx: Option<&mut millrace_rx>) -> c_int {
    guard::with(rx.map(|rx| &mut rx.0), |rx| rx.stop(RxQueue::stop).map(|()| 0))
}

/// Stops the queue if it is started, and closes it; NULL is closed already. rx is invalid afterwards, whatever is
/// returned.
///
/// Returns 0; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_rx_close(rx: Option<Box<millrace_rx>>) -> c_int {
    guard::run(|| {
        rx.map_or(Ok(()), |rx| rx.0.close(IdleRx::close, RxQueue::close))?;
        Ok(0)
    })
}

// Sending.

/// Opens TX queue number index. Packets go after millrace_tx_start().
///
/// flags: 0 or those of enum millrace_open_flags. tx: where to put the queue, NULL after an error. To be closed with
/// millrace_tx_close().
///
/// Returns as millrace_rx_open().
#[no_mangle]
pub extern "C" fn millrace_tx_open(
    device: Option<&millrace_device>,
    index: u32,
    flags: u32,
    tx: Option<&mut MaybeUninit<*mut millrace_tx>>,
) -> c_int {
    give_new(tx, "tx", || {
        let (mode, sharing) = wishes(flags)?;
        let idle = opened(device)?.device.tx(index).mode(mode).sharing(sharing).open()?;
        Ok(millrace_tx(Tx::new(QueueId::tx(index), idle)))
    })
}

/// Starts the queue.
///
/// Returns 0; -EINVAL: tx is NULL, or started already; -ENODEV: the card is gone. After any other error the queue can
/// only be closed.
#[no_mangle]
pub extern "C" fn millrace_tx_start(tx: Option<&mut millrace_tx>) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| tx.start(IdleTx::start).map(|()| 0))
}

/// Longest frame that can be sent here, in bytes without FCS.
///
/// Returns it; -EINVAL: tx is NULL; -ESHUTDOWN: the queue is not started.
#[no_mangle]
pub extern "C" fn millrace_tx_longest(tx: Option<&mut millrace_tx>) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| Ok(tx.running()?.longest() as c_int))
}

/// Takes one slot for each of count lengths (bytes without FCS), all or none. Never waits, and makes no system call in
/// direct mode.
///
/// packets: where to describe the count slots. What is in a slot is what lay there before; write all of it, and then
/// call millrace_tx_burst_put(). Several bursts can be taken before one put. What was taken is sent: it cannot be
/// given back unsent.
///
/// Returns count, or 0 if there is no room for all of them now: call millrace_tx_flush() or millrace_tx_wait();
/// -EINVAL: an argument is NULL; -E2BIG: more than MILLRACE_MAX_BURST, or than the ring has; -EMSGSIZE: a frame is
/// longer than millrace_tx_longest(); -ESHUTDOWN: the queue is not started; -EIO: the card has stopped it, and the
/// text says why; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_tx_burst_get(
    tx: Option<&mut millrace_tx>,
    lengths: *const u16,
    packets: *mut millrace_packet,
    count: usize,
) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| {
        // SAFETY: the caller gives `count` lengths, or NULL.
        let lengths = unsafe { array(lengths, count, "lengths") }?;
        // SAFETY: the caller gives `count` places, or NULL.
        let places = unsafe { places(packets, count, "packets") }?;
        Ok(if burst::send(tx.running()?, lengths, places)? { count as c_int } else { 0 })
    })
}

/// All slots that were taken have been written: they will be sent, at the latest at the next millrace_tx_flush().
///
/// Returns 0; -EINVAL: tx is NULL; -ESHUTDOWN: the queue is not started; in mediated mode also -ENODEV: the card is
/// gone.
#[no_mangle]
pub extern "C" fn millrace_tx_burst_put(tx: Option<&mut millrace_tx>) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| {
        tx.running()?.commit()?;
        Ok(0)
    })
}

/// Sends everything now that was taken, put or not.
///
/// Returns 0; -EINVAL: tx is NULL; -ESHUTDOWN: the queue is not started; -EIO: the card has stopped it, and the text
/// says why; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_tx_flush(tx: Option<&mut millrace_tx>) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| {
        tx.running()?.flush()?;
        Ok(0)
    })
}

/// Flushes, and waits until the card has taken at least a quarter of the ring, or everything, at most timeout_ns
/// nanoseconds. Signals do not end it.
///
/// Returns 1: there is room; 0: the time is over; otherwise as millrace_tx_flush().
#[no_mangle]
pub extern "C" fn millrace_tx_wait(tx: Option<&mut millrace_tx>, timeout_ns: u64) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| Ok(tx.running()?.wait(Duration::from_nanos(timeout_ns))?.into()))
}

/// Flushes, waits up to a second until the card has taken everything, and stops the queue; it can be started again.
///
/// Returns 0; -EINVAL: tx is NULL; -ESHUTDOWN: the queue is not started; -ETIMEDOUT: the card did not take everything,
/// and the rest is lost; -ENODEV: the card is gone. After the last two the queue can only be closed.
#[no_mangle]
pub extern "C" fn millrace_tx_stop(tx: Option<&mut millrace_tx>) -> c_int {
    guard::with(tx.map(|tx| &mut tx.0), |tx| tx.stop(TxQueue::stop).map(|()| 0))
}

/// Stops the queue if it is started, as millrace_tx_stop() does, and closes it; NULL is closed already. tx is invalid
/// afterwards, whatever is returned.
///
/// Returns 0; -ETIMEDOUT: the card did not take everything, and the rest is lost; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_tx_close(tx: Option<Box<millrace_tx>>) -> c_int {
    guard::run(|| {
        tx.map_or(Ok(()), |tx| tx.0.close(IdleTx::close, TxQueue::close))?;
        Ok(0)
    })
}

// Memory of the program, for queues over buffers of its own.

/// Allocates size bytes of memory, all zero, which the card can reach too.
///
/// memory: where to put it, NULL after an error. To be closed with millrace_memory_close().
///
/// Returns 0; -EINVAL: an argument is NULL, or size is 0; -ENOMEM: there is not so much; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_memory_open(
    device: Option<&millrace_device>,
    size: usize,
    memory: Option<&mut MaybeUninit<*mut millrace_memory>>,
) -> c_int {
    give_new(memory, "memory", || Ok(millrace_memory(Memory::new(&opened(device)?.device, size)?)))
}

/// Where the program finds the first byte; NULL for NULL. Valid until the memory is closed.
#[no_mangle]
pub extern "C" fn millrace_memory_data(memory: Option<&millrace_memory>) -> *mut c_void {
    memory.map_or(core::ptr::null_mut(), |memory| memory.0.data().cast())
}

/// Where the card finds the first byte: what is posted to a queue; 0 for NULL.
#[no_mangle]
pub extern "C" fn millrace_memory_iova(memory: Option<&millrace_memory>) -> u64 {
    memory.map_or(0, |memory| memory.0.iova())
}

/// Takes the memory away from the card and frees it; NULL is closed already. Close first the queues that have buffers
/// in it. memory is invalid afterwards, whatever is returned.
///
/// Returns 0; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_memory_close(memory: Option<Box<millrace_memory>>) -> c_int {
    guard::run(|| {
        memory.map_or(Ok(()), |memory| memory.0.close())?;
        Ok(0)
    })
}

/// Opens RX queue number index (Medusa only, direct, for this opener alone) and starts it, with a ring of so many
/// descriptors (a power of two) for buffers that the program posts.
///
/// rx: where to put the queue, NULL after an error. To be closed with millrace_supplied_rx_close().
///
/// Returns as millrace_rx_open().
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_open(
    device: Option<&millrace_device>,
    index: u32,
    descriptors: u32,
    rx: Option<&mut MaybeUninit<*mut millrace_supplied_rx>>,
) -> c_int {
    give_new(rx, "rx", || {
        let queue = opened(device)?.device.rx(index).open_supplied(descriptors)?;
        Ok(millrace_supplied_rx(Receiver::new(queue)))
    })
}

/// The supplied RX queue of a call.
fn receiver(rx: Option<&mut millrace_supplied_rx>) -> Result<&mut Receiver, Failure> {
    rx.map(|rx| &mut rx.0).ok_or_else(|| Failure::null("rx"))
}

/// Gives the card a buffer of len bytes at iova. It sees it after millrace_supplied_rx_flush(), and puts exactly one
/// packet into each buffer, in the order of posting.
///
/// Returns 1: posted; 0: the ring is full; -EINVAL: rx is NULL.
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_post(rx: Option<&mut millrace_supplied_rx>, iova: u64, len: u16) -> c_int {
    guard::run(|| Ok(receiver(rx)?.queue.post(Iova::new(iova), len).into()))
}

/// Tells the card of posted buffers and of packets released.
///
/// Returns 0, or -EINVAL: rx is NULL.
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_flush(rx: Option<&mut millrace_supplied_rx>) -> c_int {
    guard::run(|| {
        receiver(rx)?.queue.flush();
        Ok(0)
    })
}

/// Describes up to count packets, the first that were not released, in the order in which their buffers were posted.
///
/// Returns how many were described; -EINVAL: an argument is NULL; -EIO: the card has stopped the queue, and the text
/// says why; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_peek(
    rx: Option<&mut millrace_supplied_rx>,
    packets: *mut millrace_received,
    count: usize,
) -> c_int {
    guard::run(|| {
        // SAFETY: the caller gives `count` places, or NULL.
        let places = unsafe { places(packets, count, "packets") }?;
        Ok(receiver(rx)?.peek(places)? as c_int)
    })
}

/// Releases the first count packets: their buffers are the program's again.
///
/// Returns 0; -EINVAL: rx is NULL, or the last peek has not found so many.
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_release(rx: Option<&mut millrace_supplied_rx>, count: u32) -> c_int {
    guard::run(|| receiver(rx)?.release(count).map(|()| 0))
}

/// Waits for a packet that was not released, at most timeout_ns nanoseconds. Signals do not end it.
///
/// Returns 1: there is one; 0: none came; otherwise as millrace_supplied_rx_peek().
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_wait(rx: Option<&mut millrace_supplied_rx>, timeout_ns: u64) -> c_int {
    guard::run(|| Ok(receiver(rx)?.queue.wait(Duration::from_nanos(timeout_ns))?.into()))
}

/// Stops and closes the queue; NULL is closed already. The card is done with all buffers when this returns. rx is
/// invalid afterwards, whatever is returned.
///
/// Returns 0; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_supplied_rx_close(rx: Option<Box<millrace_supplied_rx>>) -> c_int {
    guard::run(|| {
        rx.map_or(Ok(()), |rx| rx.0.queue.close())?;
        Ok(0)
    })
}

/// Opens TX queue number index (Medusa only, direct, for this opener alone) and starts it, with a ring of so many
/// descriptors (a power of two) for buffers that the program posts.
///
/// tx: where to put the queue, NULL after an error. To be closed with millrace_supplied_tx_close().
///
/// Returns as millrace_rx_open().
#[no_mangle]
pub extern "C" fn millrace_supplied_tx_open(
    device: Option<&millrace_device>,
    index: u32,
    descriptors: u32,
    tx: Option<&mut MaybeUninit<*mut millrace_supplied_tx>>,
) -> c_int {
    give_new(tx, "tx", || {
        Ok(millrace_supplied_tx(Sender(opened(device)?.device.tx(index).open_supplied(descriptors)?)))
    })
}

/// The supplied TX queue of a call.
fn sender(tx: Option<&mut millrace_supplied_tx>) -> Result<&mut Sender, Failure> {
    tx.map(|tx| &mut tx.0).ok_or_else(|| Failure::null("tx"))
}

/// Queues the len bytes at iova for sending. The card sees them after millrace_supplied_tx_flush().
///
/// Returns 1: queued; 0: the ring is full; -EINVAL: tx is NULL.
#[no_mangle]
pub extern "C" fn millrace_supplied_tx_post(tx: Option<&mut millrace_supplied_tx>, iova: u64, len: u16) -> c_int {
    guard::run(|| Ok(sender(tx)?.0.post(Iova::new(iova), len).into()))
}

/// Sends everything posted.
///
/// Returns 0, or -EINVAL: tx is NULL.
#[no_mangle]
pub extern "C" fn millrace_supplied_tx_flush(tx: Option<&mut millrace_supplied_tx>) -> c_int {
    guard::run(|| {
        sender(tx)?.0.flush();
        Ok(0)
    })
}

/// How many more buffers the card is done with since the last call, in the order of posting.
///
/// Returns it; -EINVAL: tx is NULL; -EIO: the card has stopped the queue, and the text says why; -ENODEV: the card is
/// gone.
#[no_mangle]
pub extern "C" fn millrace_supplied_tx_completed(tx: Option<&mut millrace_supplied_tx>) -> c_int {
    guard::run(|| Ok(sender(tx)?.0.completed()? as c_int))
}

/// Stops and closes the queue, whether all was sent or not; NULL is closed already. The card is done with all buffers
/// when this returns. tx is invalid afterwards, whatever is returned.
///
/// Returns 0; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_supplied_tx_close(tx: Option<Box<millrace_supplied_tx>>) -> c_int {
    guard::run(|| {
        tx.map_or(Ok(()), |tx| tx.0 .0.close())?;
        Ok(0)
    })
}
