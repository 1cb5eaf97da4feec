//! Devices and contexts.

use super::{
    Cq, CqEx, CqInitAttrEx, DeviceAttr, DeviceAttrEx, Mw, MwBind, PortAttr, Qp, QpInitAttrEx, RecvWr, SendWr, Srq,
    SrqInitAttrEx, Wc, layout,
};
use crate::abi::Pd;
use core::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`, and behind it what vendors' libraries (libmlx5, libefa) look at in a device that they did not make:
/// the word behind the structure would be their own table of functions, and is NULL here.
#[repr(C)]
pub(crate) struct Device {
    pub ops: [*const c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
    pub vendor_tail: [*const c_void; 6],
}

layout!(Device: 712 { node_type: 16, transport_type: 20, name: 24, dev_name: 88, dev_path: 152, ibdev_path: 408, vendor_tail: 664 });

pub(crate) type Nothing = *const c_void;

/// `struct ibv_context_ops`; what is `Nothing` was a function of very old programs.
#[repr(C)]
pub(crate) struct ContextOps {
    pub query_device: Option<unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int>,
    pub query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int>,
    pub old_regions: [Nothing; 5],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_int) -> *mut Mw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    pub old_create_cq: Nothing,
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    pub old_queues: [Nothing; 7],
    pub post_srq_recv: Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub old_pairs: [Nothing; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub old_rest: [Nothing; 5],
}

/// `struct ibv_context`.
#[repr(C)]
pub(crate) struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: Mutex,
    /// All ones: a [`VerbsContext`] is around it.
    pub abi_compat: usize,
}

layout!(Context: 328 { ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280, abi_compat: 320 });
layout!(ContextOps: 256 { alloc_mw: 56, bind_mw: 64, dealloc_mw: 72, poll_cq: 88, req_notify_cq: 96, post_srq_recv: 160, post_send: 200,
    post_recv: 208 });

/// `struct verbs_context`: what came later stands before it. A function that is not there is NULL, and programs are told
/// that it is not supported without this library being asked.
#[repr(C)]
pub(crate) struct VerbsContext {
    pub query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
    pub advise_mr: Nothing,
    pub alloc_null_mr: Nothing,
    pub counters: [Nothing; 4],
    pub device_memory: [Nothing; 3],
    pub flow_actions: [Nothing; 3],
    pub modify_qp_rate_limit: Nothing,
    pub alloc_parent_domain: Nothing,
    pub thread_domains: [Nothing; 2],
    pub modify_cq: Nothing,
    pub post_srq_ops: Nothing,
    pub work_queues: [Nothing; 5],
    pub query_rt_values: Nothing,
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx>,
    pub private: Nothing,
    pub query_device_ex: Option<unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, usize) -> c_int>,
    pub flows: [Nothing; 4],
    pub open_qp: Nothing,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
    pub create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
    pub open_xrcd: Nothing,
    pub close_xrcd: Nothing,
    pub placeholder: u64,
    pub size: usize,
    pub context: Context,
}

layout!(VerbsContext: 648 { query_port: 0, advise_mr: 8, modify_qp_rate_limit: 104, modify_cq: 136, query_rt_values: 192, create_cq_ex: 200,
    private: 208, query_device_ex: 216, open_qp: 256, create_qp_ex: 264, get_srq_num: 272, create_srq_ex: 280, open_xrcd: 288, placeholder: 304,
    size: 312, context: 320 });

/// `pthread_mutex_t`, of which only the room is used.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Mutex(pub [u8; 40]);

/// `pthread_cond_t`, of which only the room is used.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Cond(pub [u8; 48]);

/// `union ibv_gid`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct GidBytes(pub [u8; 16]);

/// `struct ibv_gid_entry`.
#[repr(C)]
pub(crate) struct GidEntry {
    pub gid: GidBytes,
    pub index: u32,
    pub port: u32,
    /// As in [`super::GID_ROCE_V1`].
    pub gid_type: u32,
    pub interface: u32,
}

layout!(GidEntry: 32 { index: 16, port: 20, gid_type: 24, interface: 28 });

pub(crate) const GID_ROCE_V1: u32 = 1;
pub(crate) const GID_ROCE_V2: u32 = 2;

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AsyncEvent {
    /// Pointer to what it is about, or the number of the port.
    pub element: u64,
    pub event_type: c_uint,
}

layout!(AsyncEvent: 16 { element: 0, event_type: 8 });

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(crate) struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

layout!(CompChannel: 16 { fd: 8, refcnt: 12 });
