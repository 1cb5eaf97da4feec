//! Queue pairs and shared receive queues of identifiers.

use super::{IdObject, call};
use crate::abi::{
    CompChannel, Context, Cq, Pd, Qp, QpAttr, QpInitAttr, QpInitAttrEx, Srq, SrqInitAttr, SrqInitAttrEx, VerbsContext,
    qp_mask,
};
use crate::card::{
    DATAGRAM, datagrams_ready, errno, ibv_create_comp_channel, ibv_create_cq, ibv_create_qp, ibv_destroy_comp_channel,
    ibv_destroy_cq, ibv_destroy_qp, ibv_modify_qp, vector,
};
use crate::cma::{CmId, UDP_QKEY};
use crate::state;
use core::ffi::c_int;
use core::mem::{self, offset_of};
use core::ptr;
use millrace_rdma::cm::connection::Terms;

unsafe extern "C" {
    fn ibv_create_srq(pd: *mut Pd, attr: *mut SrqInitAttr) -> *mut Srq;
    fn ibv_destroy_srq(srq: *mut Srq) -> c_int;
}

/// States of a queue pair.
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
const ERROR: u32 = 6;
/// What others may do: WRITE, READ, atomic operations, as far as keys allow it.
const ALLOWED: u32 = 2 | 4 | 8;
/// Pause that a sender makes when this end is not ready: 0.64 ms.
const NOT_READY: u8 = 12;

/// What a queue pair is told on its way to a state, and which of it counts.
pub(super) fn attributes(to: u32, terms: &Terms, is_datagram: bool) -> Option<(QpAttr, u32)> {
    use qp_mask::{
        MAX_DEST_RD_ATOMIC, MAX_RD_ATOMIC, MIN_RNR_TIMER, PATH, PATH_MTU, PKEY_INDEX, PORT, QKEY, RECEIVE_PSN, REMOTE,
        RETRY_COUNT, RNR_RETRY, SEND_PSN, STATE, TIMEOUT,
    };
    // SAFETY: all zeros are such a structure.
    let mut attr: QpAttr = unsafe { mem::zeroed() };
    (attr.qp_state, attr.port_num) = (to, 1);
    let is_reliable = !terms.unreliable;
    let mask = match (to, is_datagram) {
        (INIT, true) => {
            attr.qkey = UDP_QKEY;
            PKEY_INDEX | PORT | QKEY
        }
        (RTR, true) => 0,
        (RTS, true) => SEND_PSN,
        (INIT, false) => {
            attr.access = ALLOWED;
            PKEY_INDEX | PORT | qp_mask::ACCESS
        }
        (RTR, false) => {
            attr.ah_attr = vector(terms.peer, terms.hop_limit, terms.traffic_class);
            attr.path_mtu = terms.mtu.into();
            attr.dest_qp_num = terms.remote_qpn.value();
            attr.rq_psn = terms.receive_psn.value();
            attr.max_dest_rd_atomic = terms.responder_resources;
            attr.min_rnr_timer = NOT_READY;
            let reliable = if is_reliable { MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER } else { 0 };
            PATH | PATH_MTU | REMOTE | RECEIVE_PSN | reliable
        }
        (RTS, false) => {
            attr.sq_psn = terms.send_psn.value();
            attr.max_rd_atomic = terms.initiator_depth;
            (attr.timeout, attr.retry_cnt, attr.rnr_retry) =
                (terms.ack_timeout, terms.retry_count, terms.rnr_retry_count);
            let reliable = if is_reliable { TIMEOUT | RETRY_COUNT | RNR_RETRY | MAX_RD_ATOMIC } else { 0 };
            SEND_PSN | reliable
        }
        _ => return None,
    };
    Some((attr, mask | STATE))
}

/// # Safety
/// `qp` is a queue pair.
unsafe fn modify(qp: *mut Qp, to: u32, terms: &Terms) -> Result<(), i32> {
    let (mut attr, mask) = attributes(to, terms, false).ok_or(libc::EINVAL)?;
    // SAFETY: the caller's promise.
    match unsafe { ibv_modify_qp(qp, &mut attr, mask as c_int) } {
        0 => Ok(()),
        error => Err(error),
    }
}

/// The queue pair of an identifier can receive and send from now on.
///
/// # Safety
/// `id` is an identifier with one.
pub(super) unsafe fn connect(id: *mut CmId, terms: &Terms) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    unsafe { [INIT, RTR, RTS].into_iter().try_for_each(|to| modify((*id).qp, to, terms)) }
}

/// The queue pair of an identifier, if there is one, does nothing any more.
///
/// # Safety
/// `id` is an identifier.
pub(super) unsafe fn to_error(id: *mut CmId) {
    // SAFETY: the caller's promise; all zeros are such a structure.
    unsafe {
        if !(*id).qp.is_null() && (*id).qp_type != DATAGRAM {
            let mut attr: QpAttr = mem::zeroed();
            attr.qp_state = ERROR;
            ibv_modify_qp((*id).qp, &mut attr, qp_mask::STATE as c_int);
        }
    }
}

/// A completion queue of the identifier's own, with a channel.
///
/// # Safety
/// `id` is an identifier with a device.
unsafe fn queue(id: *mut CmId, entries: u32) -> Result<(*mut CompChannel, *mut Cq), i32> {
    // SAFETY: the caller's promise.
    unsafe {
        let channel = ibv_create_comp_channel((*id).verbs);
        if channel.is_null() {
            return Err(errno());
        }
        let entries = c_int::try_from(entries.max(1)).map_err(|_| libc::EINVAL)?;
        let cq = ibv_create_cq((*id).verbs, entries, id.cast(), channel, 0);
        if cq.is_null() {
            let error = errno();
            ibv_destroy_comp_channel(channel);
            return Err(error);
        }
        Ok((channel, cq))
    }
}

/// # Safety
/// Both are of this library, and used by nobody any more; NULL is neither.
unsafe fn drop_queue(channel: &mut *mut CompChannel, cq: &mut *mut Cq) {
    // SAFETY: the caller's promise.
    unsafe {
        if !cq.is_null() {
            ibv_destroy_cq(mem::replace(cq, ptr::null_mut()));
        }
        if !channel.is_null() {
            ibv_destroy_comp_channel(mem::replace(channel, ptr::null_mut()));
        }
    }
}

/// Completion queues for who names none.
///
/// # Safety
/// `id` is an identifier with a device.
unsafe fn give_queues(id: *mut CmId, attr: &mut QpInitAttr) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    unsafe {
        let object = IdObject::of(id);
        if attr.recv_cq.is_null() {
            let srq_depth = if attr.srq.is_null() { attr.cap.max_recv_wr } else { attr.cap.max_recv_wr.max(4096) };
            ((*id).recv_cq_channel, (*id).recv_cq) = queue(id, srq_depth)?;
            attr.recv_cq = (*id).recv_cq;
            object.with_extra(|extra| extra.made_receive_queue = true);
        }
        if attr.send_cq.is_null() {
            ((*id).send_cq_channel, (*id).send_cq) = queue(id, attr.cap.max_send_wr)?;
            attr.send_cq = (*id).send_cq;
            object.with_extra(|extra| extra.made_send_queue = true);
        }
        Ok(())
    }
}

/// # Safety
/// `id` is an identifier whose queue pair is gone.
unsafe fn drop_queues(id: *mut CmId) {
    // SAFETY: the caller's promise.
    unsafe {
        let extra = |extra: &mut super::Extra| {
            (mem::take(&mut extra.made_send_queue), mem::take(&mut extra.made_receive_queue))
        };
        let (send, receive) = IdObject::of(id).with_extra(extra);
        if send {
            drop_queue(&mut (*id).send_cq_channel, &mut (*id).send_cq);
        }
        if receive {
            drop_queue(&mut (*id).recv_cq_channel, &mut (*id).recv_cq);
        }
    }
}

/// A queue pair for an identifier, by `make`, and on its way as far as it can be.
///
/// # Safety
/// `id` is an identifier; what `attr` names is there.
unsafe fn create(
    id: *mut CmId,
    attr: &mut QpInitAttr,
    make: impl FnOnce(&mut QpInitAttr) -> *mut Qp,
) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    unsafe {
        if (*id).verbs.is_null() || !(*id).qp.is_null() {
            return Err(libc::EINVAL);
        }
        if attr.srq.is_null() {
            attr.srq = (*id).srq;
        }
        let mut made = give_queues(id, attr);
        if made.is_ok() {
            let qp = make(attr);
            made = if qp.is_null() { Err(errno()) } else { Ok(()) };
            (*id).qp = qp;
        }
        if made.is_ok() {
            made = match attr.qp_type {
                DATAGRAM => datagrams_ready((*id).qp, UDP_QKEY),
                _ => modify((*id).qp, INIT, &Terms::default()),
            };
        }
        if made.is_err() {
            rdma_destroy_qp(id);
        }
        made
    }
}

/// `rdma_create_qp`
///
/// # Safety
/// `id` is one; what `init` names is there, and `pd`, unless it is NULL; `init` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(id: *mut CmId, pd: *mut Pd, init: *mut QpInitAttr) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { create_pair(id, pd, &mut *init) })
}

/// # Safety
/// As [`rdma_create_qp`].
pub(super) unsafe fn create_pair(id: *mut CmId, pd: *mut Pd, init: &mut QpInitAttr) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    unsafe {
        let pd = if pd.is_null() { (*id).pd } else { pd };
        create(id, init, |init| ibv_create_qp(pd, init))?;
        (*id).pd = pd;
    }
    Ok(())
}

/// `rdma_create_qp_ex`
///
/// # Safety
/// As [`rdma_create_qp`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut CmId, init: *mut QpInitAttrEx) -> c_int {
    const DOMAIN: u32 = 1;
    // SAFETY: the caller's promise; the beginning of the structure is the one without extension.
    call(|| unsafe {
        if (*init).comp_mask & DOMAIN == 0 || (*init).pd.is_null() {
            (*init).comp_mask |= DOMAIN;
            (*init).pd = (*id).pd;
        }
        let context = (*id).verbs;
        create(id, &mut *init.cast(), |_| create_extended(context, init))?;
        (*id).pd = (*init).pd;
        Ok(())
    })
}

/// # Safety
/// `context` is open, and `init` as for `ibv_create_qp_ex`.
unsafe fn create_extended(context: *mut Context, init: *mut QpInitAttrEx) -> *mut Qp {
    let outer = context.wrapping_byte_sub(offset_of!(VerbsContext, context)).cast::<VerbsContext>();
    // SAFETY: contexts of our libibverbs are inside of such a structure.
    match unsafe { (*outer).create_qp_ex } {
        // SAFETY: the caller's promise.
        Some(create) => unsafe { create(context, init) },
        None => ptr::null_mut(),
    }
}

/// `rdma_destroy_qp`
///
/// # Safety
/// `id` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut CmId) {
    // SAFETY: the caller's promise.
    unsafe {
        if !(*id).qp.is_null() {
            ibv_destroy_qp(mem::replace(&mut (*id).qp, ptr::null_mut()));
        }
        drop_queues(id);
    }
}

/// `rdma_create_srq`
///
/// # Safety
/// `id` is one; `pd` is one or NULL; `attr` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(id: *mut CmId, pd: *mut Pd, attr: *mut SrqInitAttr) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe {
        let pd = if pd.is_null() { (*id).pd } else { pd };
        if pd.is_null() || !(*id).srq.is_null() {
            return Err(libc::EINVAL);
        }
        let srq = ibv_create_srq(pd, attr);
        if srq.is_null() {
            return Err(errno());
        }
        ((*id).srq, (*id).pd) = (srq, pd);
        Ok(())
    })
}

/// `rdma_create_srq_ex`: the basic kind.
///
/// # Safety
/// As [`rdma_create_srq`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut CmId, attr: *mut SrqInitAttrEx) -> c_int {
    const TYPE: u32 = 1;
    const DOMAIN: u32 = 2;
    // SAFETY: the caller's promise; the beginning of the structure is the one without extension.
    unsafe {
        let is_basic = (*attr).comp_mask & TYPE == 0 || (*attr).srq_type == 0;
        if (*attr).comp_mask & !(TYPE | DOMAIN) != 0 || !is_basic {
            return call(|| Err(libc::EOPNOTSUPP));
        }
        let pd = if (*attr).comp_mask & DOMAIN == 0 { ptr::null_mut() } else { (*attr).pd };
        rdma_create_srq(id, pd, attr.cast())
    }
}

/// `rdma_destroy_srq`
///
/// # Safety
/// `id` is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut CmId) {
    // SAFETY: the caller's promise.
    unsafe {
        if !(*id).srq.is_null() {
            ibv_destroy_srq(mem::replace(&mut (*id).srq, ptr::null_mut()));
        }
    }
}

/// `rdma_init_qp_attr`: what a queue pair that the program makes ready itself is to be told for the state in `attr`.
///
/// # Safety
/// `id` is one; both others may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(id: *mut CmId, attr: *mut QpAttr, mask: *mut c_int) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (object, to) = unsafe { (IdObject::of(id), (*attr).qp_state) };
        let mut state = state::lock()?;
        let (connection, is_datagram) = {
            let one = state.one(object.handle)?;
            (one.connection, one.is_datagram)
        };
        let terms = match connection {
            Some(connection) => state.manager.terms(connection).ok_or(libc::ENOTCONN)?,
            None if to == INIT || is_datagram => Terms::default(),
            None => return Err(libc::ENOTCONN),
        };
        let (found, bits) = attributes(to, &terms, is_datagram).ok_or(libc::EINVAL)?;
        // SAFETY: the caller's promise.
        unsafe {
            attr.write(found);
            mask.write(bits as c_int);
        }
        Ok(())
    })
}
