//! What objects are made with, and what is asked of them.

use super::{CompChannel, Cq, GidBytes, Pd, Srq, layout};
use core::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

/// `struct ibv_qp_init_attr_ex`, whose beginning is a [`QpInitAttr`].
#[repr(C)]
pub(crate) struct QpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut Pd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub indirection: *mut c_void,
    pub hash: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AhAttr {
    pub dgid: GidBytes,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub access: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub(crate) struct SrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
}

/// `struct ibv_srq_init_attr_ex`, whose beginning is a [`SrqInitAttr`].
#[repr(C)]
pub(crate) struct SrqInitAttrEx {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
    pub comp_mask: u32,
    pub srq_type: u32,
    pub pd: *mut Pd,
    pub xrcd: *mut c_void,
    pub cq: *mut Cq,
    pub tags: u64,
}

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
pub(crate) struct CqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut CompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut Pd,
}

/// `struct ibv_port_attr`. Old programs have room for 48 bytes only, without the last field.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct PortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// Bytes of a [`PortAttr`] of old programs.
pub(crate) const OLD_PORT_ATTR: usize = 48;

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `struct ibv_device_attr_ex`. What is in `rest` this device has not: zeros.
#[repr(C)]
pub(crate) struct DeviceAttrEx {
    pub orig_attr: DeviceAttr,
    pub comp_mask: u32,
    pub rest: [u64; 5],
    pub device_cap_flags_ex: u64,
    pub rest2: [u64; 13],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}

/// `struct ibv_ece`.
#[repr(C)]
pub(crate) struct Ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}

layout!(QpInitAttr: 64 { send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56 });
layout!(QpInitAttrEx: 136 { cap: 32, qp_type: 52, sq_sig_all: 56, comp_mask: 60, pd: 64, xrcd: 72, create_flags: 80, send_ops_flags: 128 });
layout!(AhAttr: 32 { flow_label: 16, sgid_index: 20, hop_limit: 21, traffic_class: 22, dlid: 24, sl: 26, src_path_bits: 27, static_rate: 28,
    is_global: 29, port_num: 30 });
layout!(QpAttr: 144 { cur_qp_state: 4, path_mtu: 8, path_mig_state: 12, qkey: 16, rq_psn: 20, sq_psn: 24, dest_qp_num: 28, access: 32, cap: 36,
    ah_attr: 56, alt_ah_attr: 88, pkey_index: 120, alt_pkey_index: 122, en_sqd_async_notify: 124, sq_draining: 125, max_rd_atomic: 126,
    max_dest_rd_atomic: 127, min_rnr_timer: 128, port_num: 129, timeout: 130, retry_cnt: 131, rnr_retry: 132, rate_limit: 136 });
layout!(SrqAttr: 12 { max_sge: 4, srq_limit: 8 });
layout!(SrqInitAttr: 24 { attr: 8 });
layout!(SrqInitAttrEx: 64 { attr: 8, comp_mask: 20, srq_type: 24, pd: 32, xrcd: 40, cq: 48, tags: 56 });
layout!(CqInitAttrEx: 56 { cq_context: 8, channel: 16, comp_vector: 24, wc_flags: 32, comp_mask: 40, flags: 44, parent_domain: 48 });
layout!(PortAttr: 52 { active_mtu: 8, gid_tbl_len: 12, port_cap_flags: 16, max_msg_sz: 20, pkey_tbl_len: 32, lid: 34, sm_lid: 36, active_width: 43,
    active_speed: 44, phys_state: 45, link_layer: 46, flags: 47, port_cap_flags2: 48 });
layout!(DeviceAttr: 232 { node_guid: 64, sys_image_guid: 72, max_mr_size: 80, vendor_id: 96, max_qp: 108, max_cqe: 132, atomic_cap: 164,
    max_srq: 212, max_pkeys: 224, phys_port_cnt: 227 });
layout!(DeviceAttrEx: 400 { comp_mask: 232, device_cap_flags_ex: 280, phys_port_cnt_ex: 396 });
layout!(Ece: 12 { options: 4, comp_mask: 8 });

/// Bits of `enum ibv_qp_attr_mask`.
pub(crate) mod qp_mask {
    pub const STATE: u32 = 1;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const NOTIFY: u32 = 1 << 2;
    pub const ACCESS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const PATH: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_COUNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RECEIVE_PSN: u32 = 1 << 12;
    pub const MAX_RD_ATOMIC: u32 = 1 << 13;
    pub const ALTERNATE_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SEND_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const MIGRATION: u32 = 1 << 18;
    pub const CAPABILITIES: u32 = 1 << 19;
    pub const REMOTE: u32 = 1 << 20;
    pub const RATE: u32 = 1 << 25;
}
