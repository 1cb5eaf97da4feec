//! What our `librdmacm.so.1` needs beyond verbs, under names of our own (node `MILLRACE_1`): the queue pair of the general service
//! interface, and address handles without waiting.

use super::pair::{create, create_ah_now};
use super::{guarded, null};
use crate::abi::{Ah, AhAttr, Pd, Qp, QpInitAttr};
use core::ffi::c_int;
use core::ptr;

/// As `ibv_create_qp`, for datagrams, with the number 1. There is one in a process.
///
/// # Safety
/// As `ibv_create_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millrace_create_general_qp(pd: *mut Pd, init: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: the caller's promise.
    guarded(ptr::null_mut(), || unsafe { create(pd, &mut *init, true) }.unwrap_or_else(null))
}

/// As `ibv_create_ah`, but does not wait for the MAC address: EAGAIN while it is not known. It is asked for unless `asks` is 0.
///
/// # Safety
/// As `ibv_create_ah`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millrace_create_ah_now(pd: *mut Pd, attr: *const AhAttr, asks: c_int) -> *mut Ah {
    // SAFETY: the caller's promise.
    guarded(ptr::null_mut(), || unsafe { create_ah_now(pd, attr, asks != 0) })
}
