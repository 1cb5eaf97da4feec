//! The border to C: libnfb's extension ABI 1.0 (`docs/spec/nfb-card.md` §1), and the functions of libnfb that it calls back.
//!
//! Everything `unsafe` of this library is here. What libnfb promises, and all of it that is believed:
//!
//! - pointers that it hands over are valid for what the ABI says about them, and its own for the time of the call;
//! - `priv` and `bus_priv` are what `open`, `ndp_queue_open` and `bus_open_mi` gave it, and never used after the call
//!   that closes them;
//! - one queue is used by one thread at a time.
//!
//! No panic crosses: each function catches it and answers with the error that its caller understands.

use crate::device::Open;
use crate::errno;
use crate::queue::{self, Received, Rx, Slot, Tx};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::{self, NonNull};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// `struct libnfb_ext_abi_version`.
#[repr(C)]
pub struct AbiVersion {
    major: u32,
    minor: u32,
}

/// The version of the ABI that this library implements.
// SAFETY: nothing else in a program has this name: libnfb looks it up in this library alone.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static libnfb_ext_abi_version: AbiVersion = AbiVersion { major: 1, minor: 0 };

type ReadFn = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, i64) -> isize;
type WriteFn = unsafe extern "C" fn(*mut c_void, *const c_void, usize, i64) -> isize;

/// `struct libnfb_bus_ext_ops`.
#[repr(C)]
pub struct BusOps {
    read: Option<ReadFn>,
    write: Option<WriteFn>,
}

/// `struct libnfb_ext_ops`.
#[repr(C)]
pub struct Ops {
    open: Option<unsafe extern "C" fn(*const c_char, c_int, *mut *mut c_void, *mut *mut c_void) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void)>,
    bus_open_mi: Option<unsafe extern "C" fn(*mut c_void, c_int, c_int, *mut *mut c_void, *mut BusOps) -> c_int>,
    bus_close_mi: Option<unsafe extern "C" fn(*mut c_void)>,
    comp_lock: Option<unsafe extern "C" fn(*mut Component, u32) -> c_int>,
    comp_unlock: Option<unsafe extern "C" fn(*mut Component, u32)>,
    ndp_queue_open:
        Option<unsafe extern "C" fn(*mut NfbDevice, *mut c_void, c_uint, c_int, c_int, *mut *mut NdpQueue) -> c_int>,
    ndp_queue_close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

/// `struct nfb_comp`, known to libnfb alone.
pub enum Component {}
/// `struct nfb_device`, known to libnfb alone.
pub enum NfbDevice {}
/// `struct ndp_queue`, of which we know only that it begins with `priv` (trap T1).
pub enum NdpQueue {}

/// `struct ndp_packet`.
#[repr(C)]
struct Packet {
    data: *mut u8,
    header: *mut u8,
    data_length: u32,
    header_length: u16,
    flags: u16,
}

type GetFn = unsafe extern "C" fn(*mut Private, *mut Packet, c_uint) -> c_uint;
type PrivateFn = unsafe extern "C" fn(*mut Private) -> c_int;

/// `struct ndp_queue_ops`. RX and TX share the first two; `flush` is TX only.
#[repr(C)]
struct QueueOps {
    get: Option<GetFn>,
    put: Option<PrivateFn>,
    flush: Option<PrivateFn>,
    start: Option<PrivateFn>,
    stop: Option<PrivateFn>,
}

/// The functions of libnfb that an extension calls.
struct Libnfb {
    queue_create: unsafe extern "C" fn(*mut NfbDevice, c_int, c_int, c_int) -> *mut NdpQueue,
    queue_destroy: unsafe extern "C" fn(*mut NdpQueue),
    queue_set_priv: unsafe extern "C" fn(*mut NdpQueue, *mut c_void),
    queue_get_ops: unsafe extern "C" fn(*mut NdpQueue) -> *mut QueueOps,
    comp_path: unsafe extern "C" fn(*mut Component) -> *const c_char,
    comp_get_device: unsafe extern "C" fn(*mut Component) -> *const NfbDevice,
    get_fdt: unsafe extern "C" fn(*const NfbDevice) -> *const c_void,
}

/// Opens by the address of their device tree, which is how a component leads back to its open: libnfb tells an extension
/// neither the `priv` of a component's device nor the device of a `priv` (trap T21).
static OPENS: Mutex<Option<HashMap<usize, Arc<Open>>>> = Mutex::new(None);

fn with_opens<T>(change: impl FnOnce(&mut HashMap<usize, Arc<Open>>) -> T) -> T {
    change(OPENS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Runs `body`; a panic in it, which the panic hook has reported, becomes `otherwise`.
#[inline(always)]
fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

fn set_errno(number: c_int) -> c_int {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = number };
    number
}

/// Finds the functions of the libnfb that has loaded us. Not by linking to it: programs have it under several names and
/// versions, in the executable itself, or (Python) in a library that others cannot see into.
fn libnfb() -> Option<&'static Libnfb> {
    static FOUND: OnceLock<Option<Libnfb>> = OnceLock::new();
    FOUND.get_or_init(|| find_in(libc::RTLD_DEFAULT).or_else(find_among_loaded)).as_ref()
}

fn find_in(library: *mut c_void) -> Option<Libnfb> {
    // SAFETY: the types of the fields are the prototypes in libnfb's `nfb/ext.h` and `nfb/nfb.h`.
    unsafe {
        Some(Libnfb {
            queue_create: function(library, c"ndp_queue_create")?,
            queue_destroy: function(library, c"ndp_queue_destroy")?,
            queue_set_priv: function(library, c"ndp_queue_set_priv")?,
            queue_get_ops: function(library, c"ndp_queue_get_ops")?,
            comp_path: function(library, c"nfb_comp_path")?,
            comp_get_device: function(library, c"nfb_comp_get_device")?,
            get_fdt: function(library, c"nfb_get_fdt")?,
        })
    }
}

/// The function with this name, if the library has it.
///
/// # Safety
/// `library` is a handle of the dynamic loader, and `F` the type of a pointer to that very function.
unsafe fn function<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>()) };
    // SAFETY: the caller's promise, and a C string.
    let symbol = NonNull::new(unsafe { libc::dlsym(library, name.as_ptr()) })?;
    // SAFETY: the caller's promise; the sizes were compared above.
    Some(unsafe { core::mem::transmute_copy::<NonNull<c_void>, F>(&symbol) })
}

/// Looks into every library of the process, also those that were loaded for one user only.
fn find_among_loaded() -> Option<Libnfb> {
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, names: *mut c_void) -> c_int {
        // SAFETY: the loader's description of a library, valid for this call, and the vector given below.
        let (name, names) = unsafe { ((*info).dlpi_name, &mut *names.cast::<Vec<std::ffi::CString>>()) };
        if !name.is_null() {
            // SAFETY: the loader's name of the library, a C string.
            names.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        0
    }
    let mut names: Vec<std::ffi::CString> = Vec::new();
    // SAFETY: `note` has the type asked for and does not call the loader.
    unsafe { libc::dl_iterate_phdr(Some(note), ptr::from_mut(&mut names).cast()) };
    names.iter().filter(|name| !name.is_empty()).find_map(|name| {
        // SAFETY: a library that is loaded already; its constructors do not run again.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        // The handle is kept, and the library with it: we shall call into it.
        NonNull::new(library).and_then(|library| find_in(library.as_ptr()))
    })
}

/// Gives libnfb the functions of this extension. 1: it is ours.
///
/// # Safety
/// To be called by libnfb: `ops` is valid or null.
// SAFETY: as for the version above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libnfb_ext_get_ops(_devname: *const c_char, ops: *mut Ops) -> c_int {
    guarded(-libc::EIO, || {
        if libnfb().is_none() {
            eprintln!("libnfb-ext-millrace: libnfb is not in this process as a shared library; link it dynamically");
            return -libc::ENOSYS;
        }
        let all = Ops {
            open: Some(open),
            close: Some(close),
            bus_open_mi: Some(bus_open_mi),
            bus_close_mi: Some(bus_close_mi),
            comp_lock: Some(comp_lock),
            comp_unlock: Some(comp_unlock),
            ndp_queue_open: Some(ndp_queue_open),
            ndp_queue_close: Some(ndp_queue_close),
        };
        match NonNull::new(ops) {
            // SAFETY: libnfb's own struct, to be filled.
            Some(ops) => unsafe { ops.write(all) },
            None => return -libc::EINVAL,
        }
        1
    })
}

unsafe extern "C" fn open(
    devname: *const c_char,
    _oflag: c_int,
    private: *mut *mut c_void,
    fdt: *mut *mut c_void,
) -> c_int {
    let opened = guarded(Err(libc::EIO), || {
        if devname.is_null() || private.is_null() || fdt.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: a C string, checked not to be null.
        let name = unsafe { CStr::from_ptr(devname) }.to_str().map_err(|_| libc::EINVAL)?;
        let open = Arc::new(Open::new(name).map_err(|error| errno::report(name, &error))?);
        let blob = to_malloc(&open.tree).ok_or(libc::ENOMEM)?;
        with_opens(|opens| opens.insert(blob.as_ptr().addr(), open.clone()));
        let state = Box::new(Device { open, blob: blob.as_ptr().addr() });
        // SAFETY: libnfb's own pointers, checked not to be null.
        unsafe { (*private, *fdt) = (Box::into_raw(state).cast(), blob.as_ptr()) };
        Ok(())
    });
    // libnfb leaves errno as it is when an open fails (trap T15).
    opened.map_or_else(set_errno, |()| 0)
}

/// What `priv` of a device points to.
struct Device {
    open: Arc<Open>,
    blob: usize,
}

/// A copy for libnfb to `free` (trap T3).
fn to_malloc(bytes: &[u8]) -> Option<NonNull<c_void>> {
    // SAFETY: any size may be asked for; the answer is checked.
    let copy = NonNull::new(unsafe { libc::malloc(bytes.len()) })?;
    // SAFETY: `copy` is as long as `bytes` and nobody else's.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), copy.as_ptr().cast(), bytes.len()) };
    Some(copy)
}

unsafe extern "C" fn close(private: *mut c_void) {
    guarded((), || {
        if private.is_null() {
            return;
        }
        // SAFETY: came from `Box::into_raw` in `open`, and libnfb closes once.
        let device = unsafe { Box::from_raw(private.cast::<Device>()) };
        with_opens(|opens| opens.remove(&device.blob));
        // With the last user the card and all its threads end here (trap T4).
        drop(device);
    });
}

/// What `bus_priv` points to.
struct Bus {
    open: Arc<Open>,
    base: u32,
}

unsafe extern "C" fn bus_open_mi(
    private: *mut c_void,
    bus_node: c_int,
    _comp_node: c_int,
    bus_private: *mut *mut c_void,
    ops: *mut BusOps,
) -> c_int {
    guarded(libc::EIO, || {
        if private.is_null() || bus_private.is_null() || ops.is_null() {
            return libc::EINVAL;
        }
        // SAFETY: what `open` gave libnfb; libnfb does not close it during this call.
        let device = unsafe { &*private.cast::<Device>() };
        let Some(base) = device.open.bus_base(bus_node) else { return libc::ENODEV };
        let bus = Box::new(Bus { open: device.open.clone(), base });
        // SAFETY: libnfb's own memory, not initialised (trap T5), checked not to be null.
        unsafe {
            bus_private.write(Box::into_raw(bus).cast());
            ops.write(BusOps { read: Some(bus_read), write: Some(bus_write) });
        }
        0
    })
}

unsafe extern "C" fn bus_close_mi(bus_private: *mut c_void) {
    guarded((), || {
        if !bus_private.is_null() {
            // SAFETY: came from `Box::into_raw` in `bus_open_mi`, and libnfb closes once.
            drop(unsafe { Box::from_raw(bus_private.cast::<Bus>()) });
        }
    });
}

/// The address of an access, or -1 with errno set.
fn bus_address(bus: &Bus, offset: i64) -> Option<u32> {
    u32::try_from(offset).ok().and_then(|offset| bus.base.checked_add(offset))
}

fn bus_result(result: Result<(), millrace::Error>, count: usize) -> isize {
    match result {
        Ok(()) => count as isize,
        Err(error) => {
            set_errno(errno::of(&error));
            -1
        }
    }
}

unsafe extern "C" fn bus_read(bus: *mut c_void, buffer: *mut c_void, count: usize, offset: i64) -> isize {
    guarded(-1, || {
        if count == 0 {
            return 0;
        }
        // SAFETY: what `bus_open_mi` gave libnfb.
        let bus = unsafe { &*bus.cast::<Bus>() };
        let Some(address) = bus_address(bus, offset).filter(|_| !buffer.is_null()) else {
            set_errno(libc::EFAULT);
            return -1;
        };
        let mut bytes = vec![0; count];
        let result = bus.open.device.read(address, &mut bytes);
        // SAFETY: libnfb's buffer of `count` bytes, perhaps not initialised.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), count) };
        bus_result(result, count)
    })
}

unsafe extern "C" fn bus_write(bus: *mut c_void, buffer: *const c_void, count: usize, offset: i64) -> isize {
    guarded(-1, || {
        // nfb-bus begins with this, perhaps behind the end of a component and with no buffer (trap T10).
        if count == 0 {
            return 0;
        }
        // SAFETY: what `bus_open_mi` gave libnfb.
        let bus = unsafe { &*bus.cast::<Bus>() };
        let Some(address) = bus_address(bus, offset).filter(|_| !buffer.is_null()) else {
            set_errno(libc::EFAULT);
            return -1;
        };
        // SAFETY: libnfb's buffer of `count` bytes.
        let bytes = unsafe { core::slice::from_raw_parts(buffer.cast::<u8>(), count) };
        bus_result(bus.open.device.write(address, bytes), count)
    })
}

/// The open and the path of a component.
fn component(component: *mut Component) -> Option<(Arc<Open>, String)> {
    let libnfb = libnfb().filter(|_| !component.is_null())?;
    // SAFETY: a component of libnfb's, given to libnfb's functions; the path is a C string of the component's.
    let (fdt, path) = unsafe {
        let device = (libnfb.comp_get_device)(component);
        ((libnfb.get_fdt)(device), CStr::from_ptr((libnfb.comp_path)(component)))
    };
    let open = with_opens(|opens| opens.get(&fdt.addr()).cloned())?;
    Some((open, path.to_string_lossy().into_owned()))
}

unsafe extern "C" fn comp_lock(comp: *mut Component, features: u32) -> c_int {
    guarded(-libc::EIO, || match component(comp) {
        Some((open, path)) => open.lock(&path, features),
        None => -libc::ENODEV,
    })
}

unsafe extern "C" fn comp_unlock(comp: *mut Component, features: u32) {
    guarded((), || {
        if let Some((open, path)) = component(comp) {
            open.unlock(&path, features);
        }
    });
}

/// What `priv` of a queue points to. The first member leads to itself: libnfb closes with this pointer where the ABI says
/// `struct ndp_queue *`, whose first member is this pointer too; from either, one step leads here (trap T1).
#[repr(C)]
struct Private {
    this: *mut Private,
    queue: *mut NdpQueue,
    half: Half,
}

enum Half {
    Rx(Rx),
    Tx(Tx),
}

unsafe extern "C" fn ndp_queue_open(
    device: *mut NfbDevice,
    private: *mut c_void,
    index: c_uint,
    direction: c_int,
    flags: c_int,
    result: *mut *mut NdpQueue,
) -> c_int {
    guarded(libc::EIO, || {
        let Some(libnfb) = libnfb().filter(|_| !private.is_null() && !result.is_null()) else { return libc::EINVAL };
        // SAFETY: what `open` gave libnfb; libnfb does not close it during this call.
        let open = unsafe { &*private.cast::<Device>() };
        let flags = if open.open.direct { queue::DIRECT } else { flags };
        let (half, ops) = match open_half(&open.open, index, direction, flags) {
            Ok(both) => both,
            Err(error) => return queue::refused(index, direction, flags, &error),
        };
        // SAFETY: libnfb's own function; -1 is "no NUMA node".
        let queue = unsafe { (libnfb.queue_create)(device, -1, direction, index as c_int) };
        if queue.is_null() {
            return libc::ENOMEM;
        }
        let private = Box::into_raw(Box::new(Private { this: ptr::null_mut(), queue, half }));
        // SAFETY: the box just made, and the queue that libnfb just made, with its ops.
        unsafe {
            (*private).this = private;
            (libnfb.queue_set_priv)(queue, private.cast());
            (libnfb.queue_get_ops)(queue).write(ops);
            result.write(queue);
        }
        0
    })
}

fn open_half(open: &Open, index: u32, direction: c_int, flags: c_int) -> Result<(Half, QueueOps), millrace::Error> {
    let (start, stop) = (Some(start as PrivateFn), Some(stop as PrivateFn));
    Ok(match direction {
        0 => {
            let half = Half::Rx(Rx::open(&open.device, index, flags)?);
            (half, QueueOps { get: Some(rx_get), put: Some(rx_put), flush: None, start, stop })
        }
        _ => {
            let half = Half::Tx(Tx::open(&open.device, index, flags)?);
            (half, QueueOps { get: Some(tx_get), put: Some(tx_put), flush: Some(tx_flush), start, stop })
        }
    })
}

unsafe extern "C" fn ndp_queue_close(either: *mut c_void) -> c_int {
    guarded(libc::EIO, || {
        let Some(libnfb) = libnfb().filter(|_| !either.is_null()) else { return libc::EINVAL };
        // SAFETY: `Private`, which leads to itself, or the queue, whose first member leads there.
        let private = unsafe { Box::from_raw(*either.cast::<*mut Private>()) };
        let queue = private.queue;
        drop(private);
        // SAFETY: made in `ndp_queue_open`; libnfb never touches it again (trap T2).
        unsafe { (libnfb.queue_destroy)(queue) };
        0
    })
}

/// The queue behind `priv`.
///
/// # Safety
/// `private` came from `ndp_queue_open`, is not closed, and used by this thread alone.
#[inline(always)]
unsafe fn half<'a>(private: *mut Private) -> &'a mut Half {
    // SAFETY: the caller's promise.
    unsafe { &mut (*private).half }
}

unsafe extern "C" fn start(private: *mut Private) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: libnfb's promise.
        match unsafe { half(private) } {
            Half::Rx(rx) => rx.start(),
            Half::Tx(tx) => tx.start(),
        }
    })
}

unsafe extern "C" fn stop(private: *mut Private) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: libnfb's promise.
        match unsafe { half(private) } {
            Half::Rx(rx) => rx.stop(),
            Half::Tx(tx) => tx.finish(),
        }
        0
    })
}

unsafe extern "C" fn rx_get(private: *mut Private, packets: *mut Packet, count: c_uint) -> c_uint {
    guarded(0, || {
        // SAFETY: libnfb's promise.
        let Half::Rx(rx) = (unsafe { half(private) }) else { return 0 };
        let each = |i, packet: Received| {
            let Received { data, header, data_len, header_len, flags } = packet;
            let filled = Packet {
                data: data.cast_mut(),
                header: header.cast_mut(),
                data_length: data_len as u32,
                header_length: header_len as u16,
                flags: u16::from(flags & 0xf),
            };
            // SAFETY: the caller's array of `count` packets, of which `i` is one.
            unsafe { packets.add(i).write(filled) };
        };
        rx.get(count as usize, each) as c_uint
    })
}

unsafe extern "C" fn rx_put(private: *mut Private) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: libnfb's promise.
        if let Half::Rx(rx) = unsafe { half(private) } {
            rx.put();
        }
        0
    })
}

unsafe extern "C" fn tx_get(private: *mut Private, packets: *mut Packet, count: c_uint) -> c_uint {
    guarded(0, || {
        // SAFETY: libnfb's promise.
        let Half::Tx(tx) = (unsafe { half(private) }) else { return 0 };
        // `flags` and the pointers may be uninitialised (trap T7): only the lengths are read, and one by one.
        let wanted = |i| {
            // SAFETY: the caller's array of `count` packets, of which `i` is one.
            unsafe { ((*packets.add(i)).data_length, (*packets.add(i)).header_length) }
        };
        let each = |i, slot: Slot| {
            // SAFETY: as above.
            unsafe {
                (&raw mut (*packets.add(i)).data).write(slot.data);
                (&raw mut (*packets.add(i)).header).write(slot.header);
            }
        };
        tx.get(count as usize, wanted, each) as c_uint
    })
}

unsafe extern "C" fn tx_put(private: *mut Private) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: libnfb's promise.
        if let Half::Tx(tx) = unsafe { half(private) } {
            tx.put();
        }
        0
    })
}

unsafe extern "C" fn tx_flush(private: *mut Private) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: libnfb's promise.
        if let Half::Tx(tx) = unsafe { half(private) } {
            tx.flush();
        }
        0
    })
}
