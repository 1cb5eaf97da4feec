//! Objects that programs hold.

use super::{CompChannel, Cond, Context, Mutex, layout};
use core::ffi::{c_int, c_void};

/// `struct ibv_pd`.
#[repr(C)]
pub(crate) struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
pub(crate) struct Mw {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub rkey: u32,
    pub handle: u32,
    pub mw_type: c_int,
}

/// `struct ibv_ah`.
#[repr(C)]
pub(crate) struct Ah {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub handle: u32,
}

/// `struct ibv_cq`.
#[repr(C)]
pub(crate) struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: Mutex,
    pub cond: Cond,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// `struct ibv_srq`.
#[repr(C)]
pub(crate) struct Srq {
    pub context: *mut Context,
    pub srq_context: *mut c_void,
    pub pd: *mut Pd,
    pub handle: u32,
    pub mutex: Mutex,
    pub cond: Cond,
    pub events_completed: u32,
}

/// `struct ibv_qp`.
#[repr(C)]
pub(crate) struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
    pub mutex: Mutex,
    pub cond: Cond,
    pub events_completed: u32,
}

layout!(Pd: 16 { context: 0, handle: 8 });
layout!(Mr: 48 { pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40 });
layout!(Mw: 32 { pd: 8, rkey: 16, handle: 20, mw_type: 24 });
layout!(Ah: 24 { pd: 8, handle: 16 });
layout!(Cq: 128 { channel: 8, cq_context: 16, handle: 24, cqe: 28, mutex: 32, cond: 72, comp_events_completed: 120, async_events_completed: 124 });
layout!(Srq: 128 { srq_context: 8, pd: 16, handle: 24, mutex: 32, cond: 72, events_completed: 120 });
layout!(Qp: 160 { qp_context: 8, pd: 16, send_cq: 24, recv_cq: 32, srq: 40, handle: 48, qp_num: 52, state: 56, qp_type: 60, mutex: 64, cond: 104,
    events_completed: 152 });
