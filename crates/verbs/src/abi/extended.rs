//! Queue pairs and completion queues with functions of their own.

use super::{Ah, Cq, DataBuf, Mw, MwBindInfo, Nothing, Qp, Sge, layout};
use core::ffi::{c_int, c_uint, c_void};

/// `struct ibv_qp_ex`. Every queue pair is one.
#[repr(C)]
pub(crate) struct QpEx {
    pub base: Qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
    pub atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)>,
    pub local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub send: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub send_tso: Nothing,
    pub set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)>,
    pub set_xrc_srqn: Nothing,
    pub set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, usize)>,
    pub set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
    pub set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
    pub start: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
    pub abort: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub atomic_write: Nothing,
}

layout!(QpEx: 352 { comp_mask: 160, wr_id: 168, wr_flags: 176, atomic_cmp_swp: 184, rdma_write: 224, send: 240, set_ud_addr: 272,
    set_inline_data: 288, set_sge: 304, set_sge_list: 312, start: 320, complete: 328, abort: 336, atomic_write: 344 });

/// `struct ibv_cq_ex`. Every completion queue is one.
#[repr(C)]
pub(crate) struct CqEx {
    pub base: Cq,
    pub comp_mask: u32,
    pub status: u32,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut CqEx, *const u32) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(*mut CqEx)>,
    pub read_opcode: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_vendor_err: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_imm_data: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_qp_num: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(*mut CqEx) -> c_uint>,
    pub read_slid: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub read_completion_ts: Nothing,
    pub read_cvlan: Nothing,
    pub read_flow_tag: Nothing,
    pub read_tm_info: Nothing,
    pub read_completion_wallclock_ns: Nothing,
}

layout!(CqEx: 288 { comp_mask: 128, status: 132, wr_id: 136, start_poll: 144, next_poll: 152, end_poll: 160, read_opcode: 168,
    read_completion_wallclock_ns: 280 });
