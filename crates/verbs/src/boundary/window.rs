//! Memory windows.

use super::memory::{PdObject, errno};
use super::pair::QpObject;
use super::{code, guarded, null};
use crate::abi::{Mw, MwBind, MwBindInfo, Pd, Qp, send_flags};
use crate::place::Place;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint};
use core::ptr;
use millrace_rdma::memory::{Binding, WindowType};
use millrace_rdma::number::Key;
use millrace_rdma::work::{Access, Data, Flags, Operation, Request};
use std::sync::Arc;

/// `IBV_MW_TYPE_1`, `IBV_MW_TYPE_2`.
const ONE: c_int = 1;
const TWO: c_int = 2;
/// Bits of a key of type 2 that the owner chooses (`ibv_inc_rkey`).
const TAG_BITS: u32 = 8;
/// Bits of access that a window may have.
const ACCESS: u32 = 0x3f;

#[repr(C)]
struct MwObject {
    abi: UnsafeCell<Mw>,
    place: Arc<Place>,
}

/// `alloc_mw` of a context.
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut Pd, mw_type: c_int) -> *mut Mw {
    guarded(ptr::null_mut(), || {
        let kind = match mw_type {
            ONE => WindowType::One,
            TWO => WindowType::Two,
            _ => return null(libc::EINVAL),
        };
        // SAFETY: the caller's promise.
        let (object, context) = unsafe { (PdObject::of(pd), (*pd).context) };
        let made = object.place.with(|running| {
            if let Some(card) = &mut running.card {
                return card.create_window(object.domain, kind);
            }
            let reach = running.engine.memory();
            let domain = reach.domain(object.domain).ok_or(libc::EINVAL)?;
            reach.regions.allocate_window(domain, kind).map_err(|error| errno(&error))
        });
        match made {
            Ok(key) => {
                let abi = UnsafeCell::new(Mw { context, pd, rkey: key.value(), handle: key.value(), mw_type });
                Box::into_raw(Box::new(MwObject { abi, place: object.place.clone() })).cast()
            }
            Err(error) => null(error),
        }
    })
}

/// `dealloc_mw` of a context.
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut Mw) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: windows are only made by `alloc_mw`, as the beginning of this object.
        let (object, key) = unsafe { (&*mw.cast::<MwObject>(), Key::new((*mw).rkey)) };
        let done = object.place.with(|running| match &mut running.card {
            Some(card) => card.destroy_window(key),
            None => running.engine.memory().regions.free_window(key).map_err(|error| errno(&error)),
        });
        if done.is_ok() {
            // SAFETY: made as a box, and given back once: the caller's promise.
            drop(unsafe { Box::from_raw(mw.cast::<MwObject>()) });
        }
        code(done)
    })
}

/// What a window of type 1 is to open, in the order of the queue pair's requests; its new key is in it at once.
pub(super) unsafe extern "C" fn bind_mw(qp: *mut Qp, mw: *mut Mw, bind: *mut MwBind) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let (object, window, bind) = unsafe { (QpObject::of(qp), &mut *mw, &*bind) };
        if window.mw_type != ONE {
            return libc::EINVAL;
        }
        let flags = Flags {
            signaled: bind.send_flags & send_flags::SIGNALED != 0,
            solicited: bind.send_flags & send_flags::SOLICITED != 0,
            fence: bind.send_flags & send_flags::FENCE != 0,
        };
        let done = object.opened.place.moving(false, |running| {
            let old = Key::new(window.rkey);
            let rkey = match &mut running.card {
                Some(card) => card.next_window_key(old)?,
                None => running.engine.memory().regions.next_window_key(old).map_err(|error| errno(&error))?,
            };
            // SAFETY: the caller's promise.
            let operation = unsafe { binding(rkey, &bind.info) };
            let request = Request { id: bind.wr_id, operation, data: Data::Pieces(&[]), flags, target: None };
            let posted = running.post_send(object.number, &request);
            if posted.is_err() {
                match &mut running.card {
                    Some(card) => card.forget_window_key(rkey),
                    None => running.engine.memory().regions.forget_window_key(rkey),
                }
            }
            posted.map(|()| rkey)
        });
        code(done.map(|rkey| window.rkey = rkey.value()))
    })
}

/// What a request of type 2 opens; EINVAL for other windows, which have a call of their own, and for a key that is not the window's
/// in all bits but the lower eight.
///
/// # Safety
/// The window, and the region that `info` names, are there or NULL.
pub(super) unsafe fn bind_two(mw: *const Mw, rkey: u32, info: &MwBindInfo) -> Result<Operation, i32> {
    // SAFETY: the caller's promise.
    match unsafe { mw.as_ref() } {
        Some(window) if window.mw_type == TWO && window.rkey >> TAG_BITS == rkey >> TAG_BITS => {
            // SAFETY: the caller's promise.
            Ok(unsafe { binding(Key::new(rkey), info) })
        }
        _ => Err(libc::EINVAL),
    }
}

/// # Safety
/// The region that `info` names is there, or NULL: a window is bound to a region, or with no bytes to none.
unsafe fn binding(rkey: Key, info: &MwBindInfo) -> Operation {
    // SAFETY: the caller's promise.
    let region = unsafe { info.mr.as_ref() }.map_or(Key::default(), |region| Key::new(region.lkey));
    let access: c_uint = info.access & ACCESS;
    Operation::Bind(Binding { rkey, region, address: info.addr, len: info.length, access: Access(access) })
}
