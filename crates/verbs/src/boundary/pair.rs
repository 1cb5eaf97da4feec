//! Queue pairs, shared receive queues, address handles.

use super::completion::{Acks, CqObject};
use super::device::ContextObject;
use super::memory::PdObject;
use super::{code, guarded, null};
use crate::abi::{
    Ah, AhAttr, Cond, Context, Ece, GidBytes, Grh, Mutex, Pd, Qp, QpAttr, QpCap, QpEx, QpInitAttr, QpInitAttrEx, Srq,
    SrqAttr, SrqInitAttr, SrqInitAttrEx, Wc, qp_mask,
};
use crate::place::profile::{mtu_code, mtu_of_code};
use crate::place::{Opened, Place, Told};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr;
use millrace_rdma::number::{Gid, Psn, Qpn};
use millrace_rdma::transport::{Attributes, Capabilities, Init, State};
use millrace_rdma::wire::{Path, Service, flow_label_of_port, port_of_flow_label};
use millrace_rdma::work::Access;
use std::sync::Arc;

/// Acknowledgements that are sent before a queue pair is destroyed.
const FAREWELLS: usize = 2;

// SAFETY of `no_mangle` in this file: these are the names of the library that this one stands for, and nothing else in the
// program has them.

#[repr(C)]
pub(super) struct QpObject {
    pub abi: UnsafeCell<QpEx>,
    pub opened: Arc<Opened>,
    pub number: Qpn,
    pub asynchronous: Acks,
    pub session: super::extended::Session,
}

impl QpObject {
    /// # Safety
    /// `qp` was made here and not destroyed.
    #[inline]
    pub unsafe fn of<'q>(qp: *mut Qp) -> &'q Self {
        // SAFETY: queue pairs are only made here, as the beginning of this object.
        unsafe { &*qp.cast() }
    }
}

#[repr(C)]
pub(super) struct SrqObject {
    abi: UnsafeCell<Srq>,
    pub opened: Arc<Opened>,
    pub number: u32,
    pub asynchronous: Acks,
}

impl SrqObject {
    /// # Safety
    /// `srq` was made here and not destroyed.
    #[inline]
    pub unsafe fn of<'q>(srq: *mut Srq) -> &'q Self {
        // SAFETY: shared receive queues are only made here, as the beginning of this object.
        unsafe { &*srq.cast() }
    }
}

#[repr(C)]
pub(super) struct AhObject {
    abi: UnsafeCell<Ah>,
    pub path: Path,
}

impl AhObject {
    /// # Safety
    /// `ah` was made here and not destroyed.
    #[inline]
    pub unsafe fn of<'a>(ah: *mut Ah) -> &'a Self {
        // SAFETY: address handles are only made here, as the beginning of this object.
        unsafe { &*ah.cast() }
    }
}

/// The way that an address vector tells; asks for the MAC address, and waits for the answer.
fn path(place: &Place, attr: &AhAttr, pair: u32) -> Result<Path, i32> {
    way(place, attr, pair, || place.resolve(Gid(attr.dgid.0)))
}

fn way(place: &Place, attr: &AhAttr, pair: u32, resolve: impl FnOnce() -> Result<[u8; 6], i32>) -> Result<Path, i32> {
    if attr.is_global == 0 {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            super::say("a path without a GID: as with every RoCE device it needs one (ibv_rc_pingpong -g 0)")
        });
    }
    if attr.is_global == 0 || attr.port_num > 1 {
        return Err(libc::EINVAL);
    }
    let (source, format) = place.address().gid(attr.sgid_index.into()).ok_or(libc::EINVAL)?;
    let destination = Gid(attr.dgid.0);
    let label = if attr.flow_label != 0 { attr.flow_label & 0xf_ffff } else { flow_label_of_port(pair as u16) };
    Ok(Path {
        format,
        source_mac: place.address().mac,
        destination_mac: resolve()?,
        source,
        destination,
        hop_limit: if attr.hop_limit == 0 { 64 } else { attr.hop_limit },
        traffic_class: attr.traffic_class,
        flow_label: attr.flow_label & 0xf_ffff,
        source_port: port_of_flow_label(label),
    })
}

/// The address vector that tells that way.
fn vector(place: &Place, path: &Path) -> AhAttr {
    let same = |index: &u8| place.address().gid((*index).into()) == Some((path.source, path.format));
    AhAttr {
        dgid: GidBytes(path.destination.0),
        flow_label: path.flow_label,
        sgid_index: (0..4).find(same).unwrap_or(0),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: 1,
    }
}

const NO_VECTOR: AhAttr = AhAttr {
    dgid: GidBytes([0; 16]),
    flow_label: 0,
    sgid_index: 0,
    hop_limit: 0,
    traffic_class: 0,
    dlid: 0,
    sl: 0,
    src_path_bits: 0,
    static_rate: 0,
    is_global: 0,
    port_num: 0,
};

fn service(qp_type: u32) -> Result<Service, i32> {
    match qp_type {
        2 => Ok(Service::ReliableConnection),
        3 => Ok(Service::UnreliableConnection),
        4 => Ok(Service::UnreliableDatagram),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// `ibv_create_qp`
///
/// # Safety
/// All objects named are there; `init` may be written to: what was granted stands there afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, init: *mut QpInitAttr) -> *mut Qp {
    guarded(ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let attr = unsafe { &mut *init };
        if pd.is_null() || attr.send_cq.is_null() || attr.recv_cq.is_null() {
            return null(libc::EINVAL);
        }
        // SAFETY: the caller's promise.
        match unsafe { create(pd, attr, false) } {
            Ok(qp) => qp,
            Err(error) => null(error),
        }
    })
}

/// Bytes inline that every send queue has: more than was asked for, as hardware grants. There are programs that ask for none, and send some.
const LEAST_INLINE: u32 = 64;

/// Why there is no queue pair, once: the number that programs get is the same for many reasons.
fn say_limit(why: impl std::fmt::Display) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| super::say(format_args!("no queue pair was made: {why} (`ibv_devinfo -v` shows the limits)")));
}

/// A queue pair; that of the general service interface if `general`.
///
/// # Safety
/// All objects named are there.
pub(super) unsafe fn create(pd: *mut Pd, attr: &mut QpInitAttr, general: bool) -> Result<*mut Qp, i32> {
    // SAFETY: the caller's promise.
    let (domain, send, receive) = unsafe { (PdObject::of(pd), CqObject::of(attr.send_cq), CqObject::of(attr.recv_cq)) };
    // SAFETY: the caller's promise.
    let context = unsafe { (*pd).context };
    // SAFETY: the same: a domain is there as long as its context.
    let opened = unsafe { ContextObject::of(context) }.opened.clone();
    // SAFETY: the caller's promise.
    let shared = (!attr.srq.is_null()).then(|| unsafe { SrqObject::of(attr.srq) }.number);
    let init = Init {
        service: service(attr.qp_type)?,
        general,
        domain: domain.domain,
        send_queue: send.number,
        receive_queue: receive.number,
        shared_receive_queue: shared,
        capabilities: Capabilities {
            send_requests: attr.cap.max_send_wr,
            receive_requests: if shared.is_some() { 0 } else { attr.cap.max_recv_wr },
            send_pieces: attr.cap.max_send_sge,
            receive_pieces: attr.cap.max_recv_sge,
            inline: attr.cap.max_inline_data.max(if attr.cap.max_send_wr > 0 { LEAST_INLINE } else { 0 }),
        },
        signal_all: attr.sq_sig_all != 0,
        context: 0,
    };
    let (number, granted) = opened.place.with_room(|running| match &mut running.card {
        Some(card) => card.create_pair(&init),
        None => running.engine.create_qp(&init).map_err(|error| {
            use millrace_rdma::engine::Error;
            // libfabric asks for more and more bytes inline until it is refused: that is no complaint.
            if matches!(error, Error::Limit(_) | Error::Range(_)) && error != Error::Range("inline") {
                say_limit(error);
            }
            error.errno()
        }),
    }).inspect_err(|errno| {
        if opened.place.config().is_outside() && matches!(*errno, libc::ENOMEM | libc::EDQUOT) {
            say_limit("the engine outside gives a program no more queue pairs, or memory for them: 1,024 at most (docs/rdma.md)");
        }
    })?;
    attr.cap = caps(&granted);
    let base = Qp {
        context,
        qp_context: attr.qp_context,
        pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        handle: number.value(),
        qp_num: number.value(),
        state: 0,
        qp_type: attr.qp_type,
        mutex: Mutex([0; 40]),
        cond: Cond([0; 48]),
        events_completed: 0,
    };
    let abi = UnsafeCell::new(super::extended::queue_pair(base));
    let object = Box::into_raw(Box::new(QpObject {
        abi,
        opened: opened.clone(),
        number,
        asynchronous: Acks::default(),
        session: Default::default(),
    }));
    opened.place.with(|running| {
        running.pairs.insert(number, Told { events: opened.events.clone(), object: object as u64 });
        Ok(())
    })?;
    Ok(object.cast())
}

fn caps(granted: &Capabilities) -> QpCap {
    QpCap {
        max_send_wr: granted.send_requests,
        max_recv_wr: granted.receive_requests,
        max_send_sge: granted.send_pieces,
        max_recv_sge: granted.receive_pieces,
        max_inline_data: granted.inline,
    }
}

/// `create_qp_ex` of a context: what is asked for beyond `ibv_create_qp` is a list of operations.
pub(super) unsafe extern "C" fn create_qp_ex(_context: *mut Context, init: *mut QpInitAttrEx) -> *mut Qp {
    const DOMAIN: u32 = 1;
    const OPERATIONS: u32 = 1 << 6;
    /// All but segmentation of TCP and atomic writes.
    const KNOWN: u64 = 0x3ff;
    guarded(ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let attr = unsafe { &mut *init };
        let operations = if attr.comp_mask & OPERATIONS != 0 { attr.send_ops_flags } else { 0 };
        if attr.comp_mask & !(DOMAIN | OPERATIONS) != 0 || operations & !KNOWN != 0 {
            return null(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & DOMAIN == 0 {
            return null(libc::EINVAL);
        }
        // SAFETY: the beginning is the structure without extension.
        unsafe { ibv_create_qp(attr.pd, init.cast()) }
    })
}

/// `ibv_qp_to_qp_ex`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_qp_to_qp_ex(qp: *mut Qp) -> *mut QpEx {
    qp.cast()
}

/// What a program tells, as the engine wants it.
fn attributes(place: &Place, number: u32, attr: &QpAttr, mask: u32) -> Result<Attributes, i32> {
    const KNOWN: u32 = (1 << 21) - 1;
    const REFUSED: u32 = qp_mask::ALTERNATE_PATH | qp_mask::CAPABILITIES | qp_mask::RATE;
    if mask & !KNOWN != 0 || mask & REFUSED != 0 {
        return Err(libc::EINVAL);
    }
    // With no other path, migrated is the only state of migration there is.
    if mask & qp_mask::MIGRATION != 0 && attr.path_mig_state > 1 {
        return Err(libc::EINVAL);
    }
    fn told<T>(mask: u32, bit: u32, value: T) -> Option<T> {
        (mask & bit != 0).then_some(value)
    }
    let state_of = |bit: u32, code: u32| told(mask, bit, code).map(state).transpose();
    let way = told(mask, qp_mask::PATH, ()).map(|()| path(place, &attr.ah_attr, number)).transpose()?;
    if let Some(way) = &way {
        place.meet(way.destination_mac);
    }
    let path_mtu = told(mask, qp_mask::PATH_MTU, ())
        .map(|()| mtu_of_code(attr.path_mtu).filter(|mtu| *mtu <= place.mtu()).ok_or(libc::EINVAL));
    Ok(Attributes {
        state: state_of(qp_mask::STATE, attr.qp_state)?,
        current_state: state_of(qp_mask::CUR_STATE, attr.cur_qp_state)?,
        access: told(mask, qp_mask::ACCESS, Access(attr.access & 0xe)),
        pkey_index: told(mask, qp_mask::PKEY_INDEX, attr.pkey_index),
        port: told(mask, qp_mask::PORT, attr.port_num),
        qkey: told(mask, qp_mask::QKEY, attr.qkey),
        path: way,
        path_mtu: path_mtu.transpose()?,
        remote: told(mask, qp_mask::REMOTE, Qpn::new(attr.dest_qp_num)),
        receive_psn: told(mask, qp_mask::RECEIVE_PSN, Psn::new(attr.rq_psn)),
        send_psn: told(mask, qp_mask::SEND_PSN, Psn::new(attr.sq_psn)),
        max_rd_atomic: told(mask, qp_mask::MAX_RD_ATOMIC, attr.max_rd_atomic),
        max_dest_rd_atomic: told(mask, qp_mask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic),
        min_rnr_timer: told(mask, qp_mask::MIN_RNR_TIMER, attr.min_rnr_timer),
        timeout: told(mask, qp_mask::TIMEOUT, attr.timeout),
        retry_count: told(mask, qp_mask::RETRY_COUNT, attr.retry_cnt),
        rnr_retry: told(mask, qp_mask::RNR_RETRY, attr.rnr_retry),
        notify_drained: told(mask, qp_mask::NOTIFY, attr.en_sqd_async_notify != 0),
    })
}

fn state(code: u32) -> Result<State, i32> {
    Ok(match code {
        0 => State::Reset,
        1 => State::Init,
        2 => State::ReadyToReceive,
        3 => State::ReadyToSend,
        4 => State::Drained,
        5 => State::SendError,
        6 => State::Error,
        _ => return Err(libc::EINVAL),
    })
}

/// `ibv_modify_qp`
///
/// # Safety
/// `qp` is a queue pair, and `attr` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let (object, attr) = unsafe { (QpObject::of(qp), &*attr) };
        let place = &object.opened.place;
        let done = attributes(place, object.number.value(), attr, mask as u32).and_then(|told| {
            place.moving(false, |running| {
                if let Some(card) = &mut running.card {
                    return card.modify_pair(object.number, &told);
                }
                if matches!(told.state, Some(State::Error | State::Reset)) {
                    // What the other end has done has ended well, although nobody has looked since.
                    running.progress(place.now());
                    running.settle();
                }
                running.sessions.forget_ways();
                let state = running.engine.modify_qp(object.number, &told).map_err(|error| error.errno())?;
                if state == State::Reset {
                    running.sessions.forget(object.number);
                }
                running.fail_lost_pairs(place.now());
                let is = running.engine.query_qp(object.number).ok().and_then(|query| query.attributes.state);
                if is == Some(state) { Ok(state) } else { Err(libc::EIO) }
            })
        });
        if let Ok(state) = done {
            // SAFETY: programs look at the state only when no call changes it.
            unsafe { (*qp).state = state as u32 };
        }
        code(done.map(drop))
    })
}

/// `ibv_query_qp`
///
/// # Safety
/// `qp` is a queue pair, and both places may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(qp: *mut Qp, attr: *mut QpAttr, _mask: c_int, init: *mut QpInitAttr) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) };
        let place = &object.opened.place;
        let asked = place.with(|running| match &mut running.card {
            Some(card) => card.query_pair(object.number),
            None => running.engine.query_qp(object.number).map_err(|error| error.errno()),
        });
        let query = match asked {
            Ok(query) => query,
            Err(error) => return error,
        };
        let told = &query.attributes;
        let cap = caps(&query.init.capabilities);
        let state = told.state.unwrap_or_default() as u32;
        // SAFETY: the caller's promise.
        unsafe {
            (*qp).state = state;
            attr.write(QpAttr {
                qp_state: state,
                cur_qp_state: state,
                path_mtu: told.path_mtu.map_or(0, mtu_code),
                path_mig_state: 0,
                qkey: told.qkey.unwrap_or(0),
                rq_psn: told.receive_psn.map_or(0, Psn::value),
                sq_psn: told.send_psn.map_or(0, Psn::value),
                dest_qp_num: told.remote.map_or(0, Qpn::value),
                access: told.access.map_or(0, |access| access.0),
                cap,
                ah_attr: told.path.as_ref().map_or(NO_VECTOR, |path| vector(place, path)),
                alt_ah_attr: NO_VECTOR,
                pkey_index: told.pkey_index.unwrap_or(0),
                alt_pkey_index: 0,
                en_sqd_async_notify: told.notify_drained.unwrap_or(false).into(),
                sq_draining: query.draining.into(),
                max_rd_atomic: told.max_rd_atomic.unwrap_or(0),
                max_dest_rd_atomic: told.max_dest_rd_atomic.unwrap_or(0),
                min_rnr_timer: told.min_rnr_timer.unwrap_or(0),
                port_num: told.port.unwrap_or(0),
                timeout: told.timeout.unwrap_or(0),
                retry_cnt: told.retry_count.unwrap_or(0),
                rnr_retry: told.rnr_retry.unwrap_or(0),
                alt_port_num: 0,
                alt_timeout: 0,
                rate_limit: 0,
            });
            let Qp { qp_context, send_cq, recv_cq, srq, qp_type, .. } = &*qp;
            init.write(QpInitAttr {
                qp_context: *qp_context,
                send_cq: *send_cq,
                recv_cq: *recv_cq,
                srq: *srq,
                cap,
                qp_type: *qp_type,
                sq_sig_all: query.init.signal_all.into(),
            });
        }
        0
    })
}

/// `ibv_destroy_qp`
///
/// # Safety
/// `qp` is a queue pair, and is not used afterwards if this returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::of(qp) };
        let (number, address) = (object.number, qp as u64);
        say_farewell(&object.opened.place, number);
        let done = object.opened.place.with(|running| {
            match &mut running.card {
                Some(card) => card.destroy_pair(number)?,
                None => {
                    running.engine.destroy_qp(number).map_err(|error| error.errno())?;
                    running.sessions.forget(number);
                }
            }
            if let Some(told) = running.pairs.remove(&number) {
                told.events.forget(|event| event.element == address);
            }
            Ok(())
        });
        if done.is_ok() {
            object.asynchronous.wait();
            // SAFETY: made as a box, and given back once: the caller's promise.
            drop(unsafe { Box::from_raw(qp.cast::<QpObject>()) });
        }
        code(done)
    })
}

/// The last acknowledgement may have been lost on the wire, and nobody will say it again: so it is said more often before.
fn say_farewell(place: &Place, number: Qpn) {
    for _ in 0..FAREWELLS {
        if place.moving(false, |running| Ok(running.engine.acknowledge_again(number))) != Ok(true) {
            return;
        }
    }
}

/// `ibv_query_qp_data_in_order`: the last byte is stored last, and that is all.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_qp: *mut Qp, _opcode: c_int, _flags: u32) -> c_int {
    0
}

/// `ibv_query_ece`: both ends find out by themselves what they have in common.
///
/// # Safety
/// `ece` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut Qp, ece: *mut Ece) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ece.write(Ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    0
}

/// `ibv_set_ece`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_ece(_qp: *mut Qp, _ece: *mut Ece) -> c_int {
    libc::EOPNOTSUPP
}

/// `ibv_attach_mcast`: there are no groups.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_attach_mcast(_qp: *mut Qp, _gid: *const GidBytes, _lid: u16) -> c_int {
    libc::EOPNOTSUPP
}

/// `ibv_detach_mcast`: there are no groups.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_detach_mcast(_qp: *mut Qp, _gid: *const GidBytes, _lid: u16) -> c_int {
    libc::EOPNOTSUPP
}

/// `ibv_create_srq`
///
/// # Safety
/// `pd` is a protection domain; `init` may be written to: what was granted stands there afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut Pd, init: *mut SrqInitAttr) -> *mut Srq {
    guarded(ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let (domain, attr, context) = unsafe { (PdObject::of(pd), &mut *init, (*pd).context) };
        // SAFETY: a domain is there as long as its context.
        let opened = unsafe { ContextObject::of(context) }.opened.clone();
        let made = opened.place.with_room(|running| {
            if let Some(card) = &mut running.card {
                return card.create_shared(domain.domain, attr.attr.max_wr, attr.attr.max_sge);
            }
            let made = running.engine.create_srq(domain.domain, attr.attr.max_wr, attr.attr.max_sge);
            let number = made.map_err(|error| error.errno())?;
            Ok((number, running.engine.query_srq(number).map_err(|error| error.errno())?))
        });
        let (number, query) = match made {
            Ok(made) => made,
            Err(error) => return null(error),
        };
        attr.attr = SrqAttr { max_wr: query.depth, max_sge: query.pieces, srq_limit: 0 };
        let abi = UnsafeCell::new(Srq {
            context,
            srq_context: attr.srq_context,
            pd,
            handle: number,
            mutex: Mutex([0; 40]),
            cond: Cond([0; 48]),
            events_completed: 0,
        });
        let object =
            Box::into_raw(Box::new(SrqObject { abi, opened: opened.clone(), number, asynchronous: Acks::default() }));
        let told = opened.place.with(|running| {
            running.shared.insert(number, Told { events: opened.events.clone(), object: object as u64 });
            Ok(())
        });
        told.map_or_else(null, |()| object.cast())
    })
}

/// `create_srq_ex` of a context: the basic kind.
pub(super) unsafe extern "C" fn create_srq_ex(_context: *mut Context, init: *mut SrqInitAttrEx) -> *mut Srq {
    guarded(ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let attr = unsafe { &*init };
        if attr.comp_mask & !3 != 0 || (attr.comp_mask & 1 != 0 && attr.srq_type != 0) {
            return null(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & 2 == 0 || attr.pd.is_null() {
            return null(libc::EINVAL);
        }
        // SAFETY: the beginning is the structure without extension.
        unsafe { ibv_create_srq(attr.pd, init.cast()) }
    })
}

/// `get_srq_num` of a context.
pub(super) unsafe extern "C" fn get_srq_num(srq: *mut Srq, to: *mut u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { to.write(SrqObject::of(srq).number) };
    0
}

/// `ibv_modify_srq`: the limit; the depth stays.
///
/// # Safety
/// `srq` is a shared receive queue, and `attr` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut Srq, attr: *mut SrqAttr, mask: c_int) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let (object, attr) = unsafe { (SrqObject::of(srq), &*attr) };
        if mask != 2 {
            return libc::EOPNOTSUPP;
        }
        code(object.opened.place.moving(false, |running| match &mut running.card {
            Some(card) => card.set_limit(object.number, attr.srq_limit),
            None => running.engine.set_srq_limit(object.number, attr.srq_limit).map_err(|error| error.errno()),
        }))
    })
}

/// `ibv_query_srq`
///
/// # Safety
/// `srq` is a shared receive queue, and `attr` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut Srq, attr: *mut SrqAttr) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let object = unsafe { SrqObject::of(srq) };
        let asked = object.opened.place.with(|running| match &mut running.card {
            Some(card) => card.query_shared(object.number),
            None => running.engine.query_srq(object.number).map_err(|error| error.errno()),
        });
        match asked {
            Ok(query) => {
                // SAFETY: the caller's promise.
                unsafe { attr.write(SrqAttr { max_wr: query.depth, max_sge: query.pieces, srq_limit: query.limit }) };
                0
            }
            Err(error) => error,
        }
    })
}

/// `ibv_destroy_srq`
///
/// # Safety
/// `srq` is a shared receive queue, and is not used afterwards if this returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let object = unsafe { SrqObject::of(srq) };
        let address = srq as u64;
        let done = object.opened.place.with(|running| {
            match &mut running.card {
                Some(card) => card.destroy_shared(object.number)?,
                None => running.engine.destroy_srq(object.number).map_err(|error| error.errno())?,
            }
            if let Some(told) = running.shared.remove(&object.number) {
                told.events.forget(|event| event.element == address);
            }
            Ok(())
        });
        if done.is_ok() {
            object.asynchronous.wait();
            // SAFETY: made as a box, and given back once: the caller's promise.
            drop(unsafe { Box::from_raw(srq.cast::<SrqObject>()) });
        }
        code(done)
    })
}

/// `ibv_create_ah`
///
/// # Safety
/// `pd` is a protection domain, and `attr` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut Pd, attr: *mut AhAttr) -> *mut Ah {
    guarded(ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let (domain, attr, context) = unsafe { (PdObject::of(pd), &*attr, (*pd).context) };
        path(&domain.place, attr, 0).map_or_else(null, |path| handle(context, pd, path))
    })
}

fn handle(context: *mut Context, pd: *mut Pd, path: Path) -> *mut Ah {
    Box::into_raw(Box::new(AhObject { abi: UnsafeCell::new(Ah { context, pd, handle: 0 }), path })).cast()
}

/// As [`ibv_create_ah`], but does not wait for the MAC address: EAGAIN while it is not known. It is asked for only where `asks` says so.
///
/// # Safety
/// `pd` is a protection domain, and `attr` may be read.
pub(super) unsafe fn create_ah_now(pd: *mut Pd, attr: *const AhAttr, asks: bool) -> *mut Ah {
    // SAFETY: the caller's promise.
    let (domain, attr, context) = unsafe { (PdObject::of(pd), &*attr, (*pd).context) };
    let place = &domain.place;
    let resolve = || place.look_up(Gid(attr.dgid.0), asks)?.ok_or(libc::EAGAIN);
    way(place, attr, 0, resolve).map_or_else(null, |path| handle(context, pd, path))
}

/// `ibv_init_ah_from_wc`: the way back to the sender of a datagram, from the 40 bytes before it.
///
/// # Safety
/// `context` is open; `wc` and `grh` may be read, and `attr` written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut Context,
    port: u8,
    wc: *mut Wc,
    grh: *mut Grh,
    attr: *mut AhAttr,
) -> c_int {
    const GRH: u32 = 1;
    guarded(-1, || {
        // SAFETY: the caller's promise.
        let (place, wc, grh) = unsafe { (&ContextObject::of(context).opened.place, &*wc, (*grh).0) };
        if wc.wc_flags & GRH == 0 || port != 1 {
            return super::minus_one(libc::EINVAL);
        }
        let mut gids = [[0; 16]; 2];
        let is_ipv4 = grh[20] == 0x45 && wc.sl & 3 == 2;
        let (class, label, hops) = if is_ipv4 {
            for (gid, at) in gids.iter_mut().zip([32, 36]) {
                gid[10..12].fill(0xff);
                gid[12..].copy_from_slice(&grh[at..at + 4]);
            }
            (grh[21], 0, grh[28])
        } else {
            gids[0].copy_from_slice(&grh[8..24]);
            gids[1].copy_from_slice(&grh[24..40]);
            let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
            ((word >> 20) as u8, word & 0xf_ffff, grh[7])
        };
        let v2 = wc.sl & 3 != 0;
        let own = |index: &u8| {
            place
                .address()
                .gid((*index).into())
                .is_some_and(|(gid, format)| gid.0 == gids[1] && v2 == (format == millrace_rdma::wire::Format::RoceV2))
        };
        let Some(sgid_index) = (0..4).find(own) else { return super::minus_one(libc::ENOENT) };
        let ours = AhAttr {
            dgid: GidBytes(gids[0]),
            flow_label: label,
            sgid_index,
            hop_limit: if hops == 0 { 64 } else { hops },
            traffic_class: class,
            is_global: 1,
            port_num: port,
            ..NO_VECTOR
        };
        // SAFETY: the caller's promise.
        unsafe { attr.write(ours) };
        0
    })
}

/// `ibv_create_ah_from_wc`
///
/// # Safety
/// As [`ibv_create_ah`] and [`ibv_init_ah_from_wc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(pd: *mut Pd, wc: *mut Wc, grh: *mut Grh, port: u8) -> *mut Ah {
    let mut attr = NO_VECTOR;
    // SAFETY: the caller's promise.
    unsafe {
        match ibv_init_ah_from_wc((*pd).context, port, wc, grh, &mut attr) {
            0 => ibv_create_ah(pd, &mut attr),
            _ => ptr::null_mut(),
        }
    }
}

/// `ibv_destroy_ah`: requests that were posted with it have the way by themselves.
///
/// # Safety
/// `ah` is an address handle, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut Ah) -> c_int {
    // SAFETY: made as a box, and given back once: the caller's promise.
    drop(unsafe { Box::from_raw(ah.cast::<AhObject>()) });
    0
}

/// `ibv_resolve_eth_l2_from_gid`
///
/// # Safety
/// `context` is open, `attr` may be read, the six bytes at `mac` and `vlan` (or NULL) written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut Context,
    attr: *mut AhAttr,
    mac: *mut u8,
    vlan: *mut u16,
) -> c_int {
    const NO_VLAN: u16 = 0xffff;
    guarded(libc::EIO, || {
        // SAFETY: the caller's promise.
        let (place, attr) = unsafe { (&ContextObject::of(context).opened.place, &*attr) };
        match place.resolve(Gid(attr.dgid.0)) {
            Ok(found) => {
                // SAFETY: the caller's promise.
                unsafe {
                    ptr::copy_nonoverlapping(found.as_ptr(), mac, 6);
                    if !vlan.is_null() {
                        vlan.write(NO_VLAN);
                    }
                }
                0
            }
            Err(error) => error,
        }
    })
}

macro_rules! refuse {
    ($($name:ident)*) => {$(
        /// Structures of the kernel's connection manager (`rdma_ucm`), which does not know this device: nobody has any.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_to: *mut c_void, _from: *mut c_void) {
            super::say(concat!(stringify!($name), " is not supported: there is no kernel connection manager for this device"));
        }
    )*};
}

refuse! { ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern }
