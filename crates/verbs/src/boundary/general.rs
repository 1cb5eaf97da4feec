//! What our `librdmacm.so.1` needs beyond verbs, under names of our own (node `MILLRACE_1`): the queue pair of the general service
//! interface, address handles without waiting, and what the programs of a card have to agree on because they share that queue pair; and whether the card is there.

use super::device::ContextObject;
use super::pair::{create, create_ah_now};
use super::{guarded, null};
use crate::abi::{Ah, AhAttr, Context, Pd, Qp, QpInitAttr};
use core::ffi::c_int;
use core::ptr;
use millrace_rdma::cm::address::ServiceId;

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

/// Numbers of connections that this process may use, once it has the queue pair: the lowest, and how many of the lower bits are its choice.
///
/// # Safety
/// `context` is open, and both may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millrace_general_ids(context: *mut Context, first: *mut u32, bits: *mut u8) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let opened = unsafe { &ContextObject::of(context).opened };
        match opened.place.with(|running| Ok(running.card.as_ref().map_or((0, 32), |card| card.ids()))) {
            Ok(ids) => {
                // SAFETY: the caller's promise.
                unsafe { (*first, *bits) = ids };
                0
            }
            Err(error) => error,
        }
    })
}

/// Whether the card of a device has gone, so that nothing goes by its queue pair 1 any more. Then its completion queues have events.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millrace_has_gone(context: *mut Context) -> c_int {
    guarded(1, || {
        // SAFETY: the caller's promise.
        let opened = unsafe { &ContextObject::of(context).opened };
        opened.place.with(|running| Ok(running.is_down())).map_or(1, c_int::from)
    })
}

/// Calls of a service are for this process from now on, or no longer. EADDRINUSE: they are another's, which has the same address.
///
/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millrace_offer_service(context: *mut Context, service: u64, offers: c_int) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let opened = unsafe { &ContextObject::of(context).opened };
        let service = ServiceId(service);
        let done = opened.place.with(|running| match &mut running.card {
            Some(card) if offers != 0 => card.offer(service),
            Some(card) => card.withdraw(service),
            None => Ok(()),
        });
        done.err().unwrap_or(0)
    })
}
