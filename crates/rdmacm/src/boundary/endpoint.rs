//! Identifiers with all that belongs to them, and requests that are waited for.

use super::{IdObject, call, ids, notices, pairs};
use crate::abi::{Pd, QpInitAttr};
use crate::cma::{AddrInfo, CmEvent, CmId, event};
use core::ffi::c_int;
use core::ptr;

/// Milliseconds that an address or a way may take.
const LOOK_UP: c_int = 2000;
/// `RAI_PASSIVE`
pub(super) const PASSIVE: c_int = 1;

/// # Safety
/// As [`rdma_create_ep`].
unsafe fn create(id: *mut *mut CmId, info: &AddrInfo, pd: *mut Pd, init: *mut QpInitAttr) -> Result<(), i32> {
    let done = |code: c_int| if code == 0 { Ok(()) } else { Err(crate::card::errno()) };
    // SAFETY: the caller's promise.
    unsafe {
        let mut new = ptr::null_mut();
        done(ids::rdma_create_id(ptr::null_mut(), &mut new, ptr::null_mut(), info.port_space))?;
        let made = (|| {
            (*new).qp_type = info.qp_type as u32;
            if info.flags & PASSIVE != 0 {
                done(ids::rdma_bind_addr(new, info.src_addr.cast()))?;
                if !pd.is_null() {
                    (*new).pd = pd;
                }
                if let Some(init) = init.as_mut() {
                    init.qp_type = info.qp_type as u32;
                    IdObject::of(new).with_extra(|extra| extra.template = Some(*init));
                }
                return Ok(());
            }
            done(ids::rdma_resolve_addr(new, info.src_addr.cast(), info.dst_addr.cast(), LOOK_UP))?;
            done(ids::rdma_resolve_route(new, LOOK_UP))?;
            if let Some(init) = init.as_mut() {
                init.qp_type = info.qp_type as u32;
                pairs::create_pair(new, pd, init)?;
            }
            if info.connect_len > 0 && !info.connect.is_null() {
                let data = core::slice::from_raw_parts(info.connect.cast::<u8>(), info.connect_len);
                IdObject::of(new).with_extra(|extra| extra.connect = data.to_vec());
            }
            Ok(())
        })();
        match made {
            Ok(()) => id.write(new),
            Err(_) => rdma_destroy_ep(new),
        }
        made
    }
}

/// `rdma_create_ep`
///
/// # Safety
/// `id` may be written to; `info` came from `rdma_getaddrinfo`; `pd` is one, or NULL; `init` may be written to, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut CmId,
    info: *const AddrInfo,
    pd: *mut Pd,
    init: *mut QpInitAttr,
) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { create(id, info.as_ref().ok_or(libc::EINVAL)?, pd, init) })
}

/// `rdma_destroy_ep`
///
/// # Safety
/// `id` is one, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut CmId) {
    // SAFETY: the caller's promise.
    unsafe {
        pairs::rdma_destroy_qp(id);
        pairs::rdma_destroy_srq(id);
        ids::rdma_destroy_id(id);
    }
}

/// `rdma_get_request`
///
/// # Safety
/// `listen` is an identifier without a channel of the program's, and `to` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(listen: *mut CmId, to: *mut *mut CmId) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe {
        notices::forget(listen);
        let mut found: *mut CmEvent = ptr::null_mut();
        if notices::rdma_get_cm_event((*listen).channel, &mut found) != 0 {
            return Err(crate::card::errno());
        }
        if (*found).status != 0 || (*found).event != event::CONNECT_REQUEST {
            let error = match ((*found).event, (*found).status) {
                (event::DEVICE_REMOVAL, _) => libc::ENODEV,
                (_, status) if status < 0 => -status,
                _ => libc::EINVAL,
            };
            notices::rdma_ack_cm_event(found);
            return Err(error);
        }
        let id = (*found).id;
        if let Some(mut template) = IdObject::of(listen).with_extra(|extra| extra.template) {
            // Queue pairs of those who call share what the program has made for the one that listens.
            template.srq = if template.srq.is_null() { (*listen).srq } else { template.srq };
            if let Err(error) = pairs::create_pair(id, (*listen).pd, &mut template) {
                notices::rdma_ack_cm_event(found);
                rdma_destroy_ep(id);
                return Err(error);
            }
        }
        (*id).event = found;
        to.write(id);
        Ok(())
    })
}
