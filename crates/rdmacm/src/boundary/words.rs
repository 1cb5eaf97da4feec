//! What is only said: names of events, devices, options of vendors; and multicast, which is refused.

use super::{call, make, say};
use crate::abi::{Context, Ece};
use crate::cma::CmId;
use crate::state;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;

/// `rdma_event_str`
#[unsafe(no_mangle)]
pub extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    let names = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ];
    names.get(event as usize).unwrap_or(&c"UNKNOWN EVENT").as_ptr()
}

/// `rdma_get_devices`: a list of one, that ends with NULL.
///
/// # Safety
/// `count` may be written to, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut Context {
    make(|| {
        let context = state::lock()?.card()?.context();
        crate::thread::wake();
        if !count.is_null() {
            // SAFETY: the caller's promise.
            unsafe { count.write(1) };
        }
        Ok(Box::into_raw(Box::new([context, ptr::null_mut()])).cast())
    })
}

/// `rdma_free_devices`
///
/// # Safety
/// `list` came from [`rdma_get_devices`], or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut Context) {
    if !list.is_null() {
        // SAFETY: two places from a box, and given back once: the caller's promise.
        drop(unsafe { Box::from_raw(list.cast::<[*mut Context; 2]>()) });
    }
}

/// `rdma_set_local_ece`: there is nothing of vendors to agree on.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_set_local_ece(_id: *mut CmId, _ece: *const Ece) -> c_int {
    call(|| Err(libc::EOPNOTSUPP))
}

/// `rdma_get_remote_ece`
///
/// # Safety
/// `ece` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(_id: *mut CmId, ece: *mut Ece) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ece.write(Ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    0
}

fn no_groups() -> c_int {
    call(|| {
        say("multicast groups are not supported (docs/rdma.md)");
        Err(libc::EOPNOTSUPP)
    })
}

/// `rdma_join_multicast`: there are no groups.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_join_multicast(_id: *mut CmId, _address: *const c_void, _context: *mut c_void) -> c_int {
    no_groups()
}

/// `rdma_join_multicast_ex`: there are no groups.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_join_multicast_ex(_id: *mut CmId, _attr: *const c_void, _context: *mut c_void) -> c_int {
    no_groups()
}

/// `rdma_leave_multicast`: there are no groups.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_leave_multicast(_id: *mut CmId, _address: *const c_void) -> c_int {
    no_groups()
}
