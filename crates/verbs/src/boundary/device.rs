//! Devices and contexts: what there is, and what it can do.

use super::{guarded, minus_one, null, say};
use crate::abi::{
    self, Context, DeviceAttr, DeviceAttrEx, GID_ROCE_V1, GID_ROCE_V2, GidBytes, GidEntry, OLD_PORT_ATTR, PortAttr,
    VerbsContext,
};
use crate::address::GIDS;
use crate::config::Config;
use crate::place::{Opened, Place, profile};
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_void};
use core::mem::offset_of;
use core::ptr;
use millrace_rdma::number::Gid;
use millrace_rdma::wire::Format;
use std::sync::{Arc, OnceLock};

// SAFETY of `no_mangle` in this file: these are the names of the library that this one stands for, and nothing else in the
// program has them.

/// A device as programs see it, for as long as the process lives: contexts keep pointers to it.
struct Found {
    abi: UnsafeCell<abi::Device>,
    config: Config,
}

// SAFETY: nobody writes to it after it was made; the cell is only there because its address is handed out as `*mut`.
unsafe impl Sync for Found {}
// SAFETY: it has no thread of its own.
unsafe impl Send for Found {}

/// The devices: one, or none and a reason.
fn found() -> Option<&'static Found> {
    static FOUND: OnceLock<Option<Found>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref()
}

fn find() -> Option<Found> {
    let config = match Config::from_environment() {
        Ok(config) => config,
        Err(error) => {
            say(error);
            return None;
        }
    };
    // A port is opened with the first context, by which it is taken, and so is a place at a backend.
    if config.port.is_none()
        && config.split.is_none()
        && let Err(error) = crate::place::open_card(&config.wanted())
    {
        say(error);
        return None;
    }
    let text = |text: &str| {
        let mut chars = [0 as c_char; 64];
        for (to, from) in chars.iter_mut().zip(text.bytes().take(63)) {
            *to = from as c_char;
        }
        chars
    };
    let path = |text: &str| {
        let mut chars = [0 as c_char; 256];
        for (to, from) in chars.iter_mut().zip(text.bytes().take(255)) {
            *to = from as c_char;
        }
        chars
    };
    let abi = abi::Device {
        ops: [ptr::null(); 2],
        node_type: 1,
        transport_type: 0,
        name: text(&config.name),
        // UCX wants a character device of that name in /dev/infiniband that it may read and write (decision 59).
        dev_name: text("../null"),
        dev_path: path("/sys/class/infiniband_verbs/uverbs0"),
        ibdev_path: path(&format!("/sys/class/infiniband/{}", config.name)),
        vendor_tail: [ptr::null(); 6],
    };
    Some(Found { abi: UnsafeCell::new(abi), config })
}

/// `ibv_get_device_list`
///
/// # Safety
/// `count` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    guarded(ptr::null_mut(), || {
        let mut list: Vec<*mut abi::Device> = found().iter().map(|found| found.abi.get()).collect();
        if !count.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *count = list.len() as c_int };
        }
        // Always two places, so that `ibv_free_device_list` knows how many there are.
        list.resize(2, ptr::null_mut());
        Box::into_raw(list.into_boxed_slice()).cast()
    })
}

/// `ibv_free_device_list`
///
/// # Safety
/// `list` came from [`ibv_get_device_list`], or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut abi::Device) {
    if !list.is_null() {
        // SAFETY: two places from a box, and given back once: the caller's promise.
        drop(unsafe { Box::from_raw(list.cast::<[*mut abi::Device; 2]>()) });
    }
}

/// `ibv_get_device_name`
///
/// # Safety
/// `device` came from [`ibv_get_device_list`], or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut abi::Device) -> *const c_char {
    if device.is_null() {
        return ptr::null();
    }
    // SAFETY: devices live as long as the process.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_guid`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(_device: *mut abi::Device) -> u64 {
    guarded(0, || found().map_or(0, |found| guid(&found.config)))
}

/// The number of the device, in the order of the network. Without `mac` and `ip` it follows from the queue that a program gets, which
/// is not known before one has opened the device: until then it is that of the first queue.
fn guid(config: &Config) -> u64 {
    let address = Place::current().map_or_else(|| crate::address::Address::new(config, 0), |place| place.address());
    u64::from_ne_bytes(address.guid())
}

/// `ibv_get_device_index`: the kernel does not count this device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(_device: *mut abi::Device) -> c_int {
    -1
}

/// An open context: what programs see, and what is behind it.
#[repr(C)]
pub(super) struct ContextObject {
    abi: UnsafeCell<VerbsContext>,
    pub opened: Arc<Opened>,
}

impl ContextObject {
    /// The object behind the pointer that a program has.
    ///
    /// # Safety
    /// `context` came from [`ibv_open_device`] and was not closed.
    pub unsafe fn of<'c>(context: *mut Context) -> &'c Self {
        let outer = context.wrapping_byte_sub(offset_of!(VerbsContext, context)).cast::<Self>();
        // SAFETY: contexts are only made by `ibv_open_device`, inside of this object and at this distance from its beginning.
        unsafe { &*outer }
    }
}

/// `ibv_open_device`
///
/// # Safety
/// `device` came from [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut abi::Device) -> *mut Context {
    guarded(ptr::null_mut(), || {
        let Some(found) = found().filter(|found| found.abi.get() == device) else { return null(libc::ENODEV) };
        let opened = match Opened::new(&found.config) {
            Ok(opened) => opened,
            Err(error) => {
                say(&error);
                return null(error.errno());
            }
        };
        let context = Context {
            device,
            ops: super::work::context_ops(),
            cmd_fd: -1,
            async_fd: opened.events.fd(),
            num_comp_vectors: 1,
            mutex: abi::Mutex([0; 40]),
            abi_compat: usize::MAX,
        };
        let abi = VerbsContext {
            query_port: Some(query_port),
            advise_mr: ptr::null(),
            alloc_null_mr: ptr::null(),
            counters: [ptr::null(); 4],
            device_memory: [ptr::null(); 3],
            flow_actions: [ptr::null(); 3],
            modify_qp_rate_limit: ptr::null(),
            alloc_parent_domain: ptr::null(),
            thread_domains: [ptr::null(); 2],
            modify_cq: ptr::null(),
            post_srq_ops: ptr::null(),
            work_queues: [ptr::null(); 5],
            query_rt_values: ptr::null(),
            create_cq_ex: Some(super::polling::create_cq_ex),
            private: ptr::null(),
            query_device_ex: Some(query_device_ex),
            flows: [ptr::null(); 4],
            open_qp: ptr::null(),
            create_qp_ex: Some(super::pair::create_qp_ex),
            get_srq_num: Some(super::pair::get_srq_num),
            create_srq_ex: Some(super::pair::create_srq_ex),
            open_xrcd: ptr::null(),
            close_xrcd: ptr::null(),
            placeholder: 0,
            size: size_of::<VerbsContext>(),
            context,
        };
        let object = Box::into_raw(Box::new(ContextObject { abi: UnsafeCell::new(abi), opened: Arc::new(opened) }));
        // SAFETY: just made; only an address is taken.
        unsafe { &raw mut (*(*object).abi.get()).context }
    })
}

/// `ibv_close_device`
///
/// # Safety
/// `context` came from [`ibv_open_device`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    guarded(libc::EIO, || {
        let outer = context.wrapping_byte_sub(offset_of!(VerbsContext, context)).cast::<ContextObject>();
        // SAFETY: made by `ibv_open_device` as a box, and given back once: the caller's promise.
        drop(unsafe { Box::from_raw(outer) });
        0
    })
}

/// `ibv_query_device`
///
/// # Safety
/// `context` is open, and `attr` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let context = unsafe { ContextObject::of(context) };
        // SAFETY: the caller's promise.
        unsafe { attr.write(profile::device(&context.opened)) };
        0
    })
}

unsafe extern "C" fn query_device_ex(
    context: *mut Context,
    _input: *const c_void,
    attr: *mut DeviceAttrEx,
    size: usize,
) -> c_int {
    guarded(libc::EIO, || {
        if size < size_of::<DeviceAttr>() {
            return libc::EINVAL;
        }
        // SAFETY: the caller's promise.
        let context = unsafe { ContextObject::of(context) };
        let ours = profile::device_ex(&context.opened);
        let len = size.min(size_of::<DeviceAttrEx>());
        // SAFETY: `attr` has `size` bytes (the caller's promise), and no more of ours are read than there are.
        unsafe {
            ptr::write_bytes(attr.cast::<u8>(), 0, size);
            ptr::copy_nonoverlapping((&raw const ours).cast::<u8>(), attr.cast::<u8>(), len);
        }
        0
    })
}

/// `ibv_query_port`: for old programs, whose structure is shorter.
///
/// # Safety
/// `context` is open, and `attr` has room for 48 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { query_port(context, port, attr, OLD_PORT_ATTR) }
}

unsafe extern "C" fn query_port(context: *mut Context, port: u8, attr: *mut PortAttr, size: usize) -> c_int {
    guarded(libc::EIO, || {
        if port != 1 {
            return libc::EINVAL;
        }
        // SAFETY: the caller's promise.
        let context = unsafe { ContextObject::of(context) };
        let ours = profile::port(&context.opened);
        let len = size.min(size_of::<PortAttr>());
        // SAFETY: `attr` has `size` bytes (the caller's promise), and no more of ours are read than there are.
        unsafe {
            ptr::write_bytes(attr.cast::<u8>(), 0, size);
            ptr::copy_nonoverlapping((&raw const ours).cast::<u8>(), attr.cast::<u8>(), len);
        }
        0
    })
}

/// Entry `index` of the table of GIDs.
unsafe fn gid(context: *mut Context, port: u32, index: i64) -> Result<(Gid, Format), i32> {
    // SAFETY: the caller's promise.
    let context = unsafe { ContextObject::of(context) };
    let index = usize::try_from(index).map_err(|_| libc::EINVAL)?;
    if port != 1 {
        return Err(libc::EINVAL);
    }
    context.opened.place.address().gid(index).ok_or(libc::EINVAL)
}

/// `ibv_query_gid`
///
/// # Safety
/// `context` is open, and `to` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, to: *mut GidBytes) -> c_int {
    // SAFETY: the caller's promise.
    guarded(-1, || match unsafe { gid(context, port.into(), index.into()) } {
        Ok((gid, _)) => {
            // SAFETY: the caller's promise.
            unsafe { to.write(GidBytes(gid.0)) };
            0
        }
        Err(error) => minus_one(error),
    })
}

fn roce(format: Format) -> u32 {
    if format == Format::RoceV1 { GID_ROCE_V1 } else { GID_ROCE_V2 }
}

/// `ibv_query_gid_type`, which counts from 0: RoCE v1, RoCE v2.
///
/// # Safety
/// `context` is open, and `to` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(context: *mut Context, port: u8, index: u32, to: *mut u32) -> c_int {
    // SAFETY: the caller's promise.
    guarded(-1, || match unsafe { gid(context, port.into(), index.into()) } {
        Ok((_, format)) => {
            // SAFETY: the caller's promise.
            unsafe { to.write(roce(format) - GID_ROCE_V1) };
            0
        }
        Err(error) => minus_one(error),
    })
}

/// `_ibv_query_gid_ex`
///
/// # Safety
/// `context` is open, and `entry` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut Context,
    port: u32,
    index: u32,
    entry: *mut GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    guarded(libc::EIO, || {
        if flags != 0 || size < size_of::<GidEntry>() {
            return libc::EOPNOTSUPP;
        }
        // SAFETY: the caller's promise.
        match unsafe { gid(context, port, index.into()) } {
            Ok((gid, format)) => {
                let ours = GidEntry { gid: GidBytes(gid.0), index, port, gid_type: roce(format), interface: 0 };
                // SAFETY: the caller's promise; there is room, see above.
                unsafe { entry.write(ours) };
                0
            }
            Err(error) => error,
        }
    })
}

/// `_ibv_query_gid_table`: how many entries were written.
///
/// # Safety
/// `context` is open, and `entries` has room for `most` of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut Context,
    entries: *mut GidEntry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    guarded(-(libc::EIO as isize), || {
        if flags != 0 || size < size_of::<GidEntry>() {
            return -(libc::EOPNOTSUPP as isize);
        }
        let count = GIDS.min(most);
        for index in 0..count {
            let entry = entries.wrapping_byte_add(index * size);
            // SAFETY: the caller's promise: `index` is below `most`.
            let error = unsafe { _ibv_query_gid_ex(context, 1, index as u32, entry, 0, size) };
            if error != 0 {
                return -(error as isize);
            }
        }
        count as isize
    })
}

/// `ibv_query_pkey`: one partition, which everybody is in.
///
/// # Safety
/// `pkey` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(_context: *mut Context, port: u8, index: c_int, pkey: *mut u16) -> c_int {
    if port != 1 || index != 0 {
        return minus_one(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { pkey.write(0xffff) };
    0
}

/// `ibv_get_pkey_index`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(_context: *mut Context, port: u8, pkey: u16) -> c_int {
    if port == 1 && pkey == 0xffff { 0 } else { minus_one(libc::EINVAL) }
}

/// `ibv_get_sysfs_path`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: there are no files about this device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_read_sysfs_file(
    _folder: *const c_char,
    _file: *const c_char,
    _to: *mut c_char,
    _size: usize,
) -> c_int {
    minus_one(libc::ENOENT)
}

/// `ibv_import_device`: nothing is shared with other processes that way.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(_fd: c_int) -> *mut Context {
    null(libc::EOPNOTSUPP)
}

/// `ibv_fork_init`: nothing has to be done. A child has no contexts (see [`Opened`]).
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`: it is not needed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    const UNNEEDED: c_int = 2;
    UNNEEDED
}

/// `ibv_dontfork_range`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_first: *mut c_void, _len: usize) -> c_int {
    0
}

/// `ibv_dofork_range`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_first: *mut c_void, _len: usize) -> c_int {
    0
}
