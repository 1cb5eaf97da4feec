//! Work requests and completions.

use super::{Ah, Mr, Mw, layout};
use core::ffi::{c_int, c_uint, c_void};

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(crate) struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *const Sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RdmaWr {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AtomicWr {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UdWr {
    pub ah: *mut Ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// What belongs to the opcode.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union WrKind {
    pub rdma: RdmaWr,
    pub atomic: AtomicWr,
    pub ud: UdWr,
}

/// `struct ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MwBindInfo {
    pub mr: *mut Mr,
    pub addr: u64,
    pub length: u64,
    pub access: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BindWr {
    pub mw: *mut Mw,
    pub rkey: u32,
    pub info: MwBindInfo,
}

/// `struct ibv_mw_bind`.
#[repr(C)]
pub(crate) struct MwBind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub info: MwBindInfo,
}

/// `struct ibv_send_wr`.
#[repr(C)]
pub(crate) struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *const Sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: c_uint,
    /// Immediate data as they stand in the header, or the key to invalidate.
    pub imm_data: u32,
    pub wr: WrKind,
    pub xrc_srqn: u64,
    pub bind: BindWr,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `struct ibv_data_buf`.
#[repr(C)]
pub(crate) struct DataBuf {
    pub addr: *mut c_void,
    pub length: usize,
}

/// `struct ibv_grh`: the first 40 bytes of a datagram's buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Grh(pub [u8; 40]);

layout!(Sge: 16 { addr: 0, length: 8, lkey: 12 });
layout!(RecvWr: 32 { next: 8, sg_list: 16, num_sge: 24 });
layout!(SendWr: 128 { next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, imm_data: 36, wr: 40, xrc_srqn: 72, bind: 80 });
layout!(AtomicWr: 32 { compare_add: 8, swap: 16, rkey: 24 });
layout!(RdmaWr: 16 { rkey: 8 });
layout!(UdWr: 16 { remote_qpn: 8, remote_qkey: 12 });
layout!(MwBindInfo: 32 { addr: 8, length: 16, access: 24 });
layout!(MwBind: 48 { send_flags: 8, info: 16 });
layout!(Wc: 48 { status: 8, opcode: 12, vendor_err: 16, byte_len: 20, imm_data: 24, qp_num: 28, src_qp: 32, wc_flags: 36, pkey_index: 40, slid: 42,
    sl: 44, dlid_path_bits: 45 });

pub(crate) mod opcode {
    pub const WRITE: u32 = 0;
    pub const WRITE_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_IMM: u32 = 3;
    pub const READ: u32 = 4;
    pub const COMPARE_SWAP: u32 = 5;
    pub const FETCH_ADD: u32 = 6;
    pub const LOCAL_INVALIDATE: u32 = 7;
    pub const BIND: u32 = 8;
    pub const SEND_INVALIDATE: u32 = 9;
}

pub(crate) mod send_flags {
    pub const FENCE: u32 = 1;
    pub const SIGNALED: u32 = 2;
    pub const SOLICITED: u32 = 4;
    pub const INLINE: u32 = 8;
}

pub(crate) mod wc_flags {
    pub const GRH: u32 = 1;
    pub const IMMEDIATE: u32 = 2;
    pub const INVALIDATED: u32 = 8;
}
