//! Connections: called, accepted, refused, left.

use super::notices::complete;
use super::{IdObject, call, pairs, private};
use crate::card::DATAGRAM;
use crate::cma::{CmId, ConnParam, UDP_QKEY};
use crate::state::{self, Locked, errno_of};
use core::ffi::{c_int, c_void};
use core::ptr;
use millrace_rdma::cm::address::{IpHeader, ServiceId};
use millrace_rdma::cm::connection::{Call, Offer};
use millrace_rdma::cm::message::service_status;
use millrace_rdma::number::{Psn, Qpn};

/// As many as the device can have (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
const AS_MANY: u8 = 255;
/// `IBV_QPT_UC`.
const UNRELIABLE: u32 = 3;
/// `IBV_EVENT_COMM_EST`.
const ESTABLISHED: u32 = 4;

const DEFAULT: ConnParam = ConnParam {
    private_data: ptr::null(),
    private_data_len: 0,
    responder_resources: AS_MANY,
    initiator_depth: AS_MANY,
    flow_control: 1,
    retry_count: 7,
    rnr_retry_count: 7,
    srq: 0,
    qp_num: 0,
};

/// # Safety
/// `param` may be read, or is NULL.
unsafe fn param(param: *const ConnParam) -> ConnParam {
    // SAFETY: the caller's promise.
    if param.is_null() { DEFAULT } else { unsafe { *param } }
}

/// What is said of the queue pair of an identifier, or of that of the program's own.
///
/// # Safety
/// `id` is an identifier.
unsafe fn offer(state: &mut Locked, id: *mut CmId, param: &ConnParam, most: (u8, u8)) -> Offer {
    let psn = Psn::new(state.manager.random());
    let limit = state.card.as_ref().map_or(0, |card| card.most_reads);
    // SAFETY: the caller's promise.
    let (number, shared) = unsafe {
        let qp = (*id).qp;
        if qp.is_null() { (param.qp_num, param.srq != 0) } else { ((*qp).qp_num, !(*qp).srq.is_null()) }
    };
    Offer {
        qpn: Qpn::new(number),
        psn,
        responder_resources: param.responder_resources.min(limit).min(most.0),
        initiator_depth: param.initiator_depth.min(limit).min(most.1),
        flow_control: param.flow_control != 0,
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        shared_receive: shared,
    }
}

/// `rdma_connect`
///
/// # Safety
/// `id` is one; `conn_param` may be read, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut CmId, conn_param: *const ConnParam) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe {
        dial(id, &param(conn_param))?;
        complete(id)
    })
}

/// # Safety
/// `id` is an identifier, and the private data of `param` are there.
unsafe fn dial(id: *mut CmId, param: &ConnParam) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    let object = unsafe { IdObject::of(id) };
    let mut state = state::lock()?;
    let one = state.usable(object.handle)?;
    let (Some((peer, target)), Some(own), None) = (one.peer, one.own, one.connection) else { return Err(libc::EINVAL) };
    let (space, is_datagram) = (one.space, one.is_datagram);
    let (ack_timeout, traffic_class) = (one.ack_timeout, one.traffic_class);
    let service = ServiceId::new(space, target.port());
    let header = IpHeader { source_port: own.port(), source: own.ip(), destination: target.ip() }.build();
    // What `rdma_create_ep` was given, where the program says nothing now.
    let connect = object.with_extra(|extra| extra.connect.clone());
    let (data, len) = match (param.private_data.is_null(), u8::try_from(connect.len())) {
        (true, Ok(len)) if len > 0 => (connect.as_ptr().cast(), len),
        _ => (param.private_data, param.private_data_len),
    };
    let now = state.now();
    let connection = if is_datagram {
        // SAFETY: the caller's promise.
        let private = unsafe { private(&header, data, len)? };
        state.manager.inquire(now, peer, service, private)
    } else {
        // SAFETY: the same.
        let private = unsafe { private(&header, data, len)? };
        // SAFETY: the same.
        let offer = unsafe { offer(&mut state, id, param, (AS_MANY, AS_MANY)) };
        // SAFETY: the same.
        let unreliable = unsafe { !(*id).qp.is_null() && (*(*id).qp).qp_type == UNRELIABLE };
        let (own, guid, mtu) = match &state.card {
            Some(card) => (state.gid(peer.index), card.guid, card.mtu),
            None => return Err(libc::EINVAL),
        };
        let call = Call { peer, own, guid, service, offer, unreliable, mtu, ack_timeout, traffic_class, private };
        state.manager.connect(now, &call)
    };
    state.own(object.handle, connection.map_err(errno_of)?);
    state.step();
    drop(state);
    crate::thread::wake();
    Ok(())
}

/// `rdma_accept`
///
/// # Safety
/// `id` is one; `conn_param` may be read, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut CmId, conn_param: *const ConnParam) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe {
        let param = param(conn_param);
        if (*id).qp_type == DATAGRAM {
            return answer(id, service_status::VALID, &param);
        }
        accept(id, &param)?;
        complete(id)
    })
}

/// # Safety
/// As [`dial`].
unsafe fn accept(id: *mut CmId, param: &ConnParam) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    let object = unsafe { IdObject::of(id) };
    let mut state = state::lock()?;
    let connection = state.connection(object.handle)?;
    let most = state.one(object.handle)?.depths;
    let guid = state.card.as_ref().map_or(0, |card| card.guid);
    // SAFETY: the same.
    let (private, offer) =
        unsafe { (private(&[], param.private_data, param.private_data_len)?, offer(&mut state, id, param, most)) };
    state.manager.offer(connection, &offer).map_err(errno_of)?;
    let terms = state.manager.terms(connection).ok_or(libc::ENOTCONN)?;
    // SAFETY: the same. It may wait, so not under the lock.
    unsafe {
        if !(*id).qp.is_null() {
            drop(state);
            let made = pairs::connect(id, &terms);
            state = state::lock()?;
            // The card may have gone meanwhile, and with it the connection.
            state.connection(object.handle)?;
            if let Err(error) = made {
                let now = state.now();
                state.disown(connection);
                state.manager.destroy(now, connection);
                state.step();
                return Err(error);
            }
        }
    }
    let now = state.now();
    state.manager.accept(now, connection, guid, &offer, private).map_err(errno_of)?;
    state.step();
    drop(state);
    crate::thread::wake();
    Ok(())
}

/// The answer to a request for a datagram service.
///
/// # Safety
/// As [`dial`].
unsafe fn answer(id: *mut CmId, status: u8, param: &ConnParam) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    let object = unsafe { IdObject::of(id) };
    let mut state = state::lock()?;
    let connection = state.connection(object.handle)?;
    // SAFETY: the same.
    let (private, number) = unsafe {
        let number = if (*id).qp.is_null() { param.qp_num } else { (*(*id).qp).qp_num };
        (private(&[], param.private_data, param.private_data_len)?, number)
    };
    let now = state.now();
    state.manager.answer(now, connection, status, Qpn::new(number), UDP_QKEY, private).map_err(errno_of)?;
    state.step();
    drop(state);
    crate::thread::wake();
    Ok(())
}

/// `rdma_reject`
///
/// # Safety
/// `id` is one, and `data` has `len` bytes or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut CmId, data: *const c_void, len: u8) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) };
        // SAFETY: the same.
        if unsafe { (*id).qp_type } == DATAGRAM {
            let param = ConnParam { private_data: data, private_data_len: len, ..DEFAULT };
            // SAFETY: the same.
            return unsafe { answer(id, service_status::REJECTED, &param) };
        }
        // SAFETY: the same.
        let private = unsafe { private(&[], data, len)? };
        let mut state = state::lock()?;
        let connection = state.connection(object.handle)?;
        let now = state.now();
        state.manager.reject(now, connection, private).map_err(errno_of)?;
        state.disown(connection);
        state.step();
        Ok(())
    })
}

/// `rdma_reject_ece`
///
/// # Safety
/// As [`rdma_reject`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(id: *mut CmId, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { rdma_reject(id, data, len) }
}

/// `rdma_disconnect`
///
/// # Safety
/// `id` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut CmId) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let object = unsafe {
            pairs::to_error(id);
            IdObject::of(id)
        };
        let mut state = state::lock()?;
        let connection = state.connection(object.handle)?;
        let now = state.now();
        state.manager.disconnect(now, connection).map_err(errno_of)?;
        state.step();
        drop(state);
        crate::thread::wake();
        // SAFETY: the same.
        unsafe { complete(id) }
    })
}

/// `rdma_establish`: the program has made its own queue pair ready after the answer has come.
///
/// # Safety
/// `id` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut CmId) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (object, has_pair) = unsafe { (IdObject::of(id), !(*id).qp.is_null()) };
        if has_pair {
            return Err(libc::EINVAL);
        }
        let mut state = state::lock()?;
        let connection = state.connection(object.handle)?;
        let now = state.now();
        state.manager.ready(now, connection).map_err(errno_of)?;
        state.step();
        Ok(())
    })
}

/// `rdma_notify`: something was received before the other end has said that it is ready.
///
/// # Safety
/// `id` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut CmId, event: u32) -> c_int {
    call(|| {
        if event != ESTABLISHED {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) };
        let mut state = state::lock()?;
        let connection = state.connection(object.handle)?;
        state.manager.heard(connection).map_err(errno_of)?;
        state.step();
        Ok(())
    })
}
