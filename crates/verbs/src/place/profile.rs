//! What programs are told of the device.

use super::Opened;
use crate::abi::{DeviceAttr, DeviceAttrEx, PortAttr};
use crate::address::GIDS;
use core::ffi::c_char;
use millrace_rdma::engine::Options;

/// `enum ibv_device_cap_flags`: the states of a queue pair can be told, a system image number, RNR NAK, resizing of shared receive
/// queues is not there; local invalidation; memory windows of types 1 and 2B (of a queue pair and its protection domain).
const CAPABILITIES: u32 = 1 << 7 | 1 << 11 | 1 << 12 | 1 << 17 | 1 << 21 | 1 << 24;

/// Answers of the device's own are compared in the order of the processor: `IBV_ATOMIC_HCA`.
const ATOMIC_WITHIN_DEVICE: i32 = 1;

pub(crate) fn device(opened: &Opened) -> DeviceAttr {
    let place = &opened.place;
    let Options { max_queue_pairs, max_requests, max_completions, max_objects, max_pieces, max_rd_atomic, .. } =
        place.options();
    let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let mut fw_ver = [0 as c_char; 64];
    for (to, from) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from as c_char;
    }
    let guid = u64::from_ne_bytes(place.address().guid());
    let reads = i32::from(max_rd_atomic);
    DeviceAttr {
        fw_ver,
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: 1 << 47,
        page_size_cap: 0xffff_ffff_ffff_f000,
        vendor_id: place.config().vendor,
        vendor_part_id: place.config().part,
        hw_ver: 0,
        max_qp: number(max_queue_pairs),
        max_qp_wr: number(max_requests),
        device_cap_flags: CAPABILITIES,
        max_sge: number(max_pieces),
        max_sge_rd: number(max_pieces),
        max_cq: number(max_objects),
        max_cqe: number(max_completions),
        max_mr: number(super::MAX_REGIONS),
        max_pd: number(max_objects),
        max_qp_rd_atom: reads,
        max_ee_rd_atom: 0,
        max_res_rd_atom: reads * number(max_queue_pairs),
        max_qp_init_rd_atom: reads,
        max_ee_init_rd_atom: 0,
        atomic_cap: ATOMIC_WITHIN_DEVICE,
        max_ee: 0,
        max_rdd: 0,
        max_mw: number(super::MAX_REGIONS),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: number(super::MAX_REGIONS),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: number(max_objects),
        max_srq_wr: number(max_requests),
        max_srq_sge: number(max_pieces),
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
    }
}

pub(crate) fn device_ex(opened: &Opened) -> DeviceAttrEx {
    DeviceAttrEx {
        orig_attr: device(opened),
        comp_mask: 0,
        rest: [0; 5],
        device_cap_flags_ex: CAPABILITIES.into(),
        rest2: [0; 13],
        xrc_odp_caps: 0,
        phys_port_cnt_ex: 1,
    }
}

/// An Ethernet port with a carrier.
pub(crate) fn port(opened: &Opened) -> PortAttr {
    const DOWN: u32 = 1;
    const ACTIVE: u32 = 4;
    const DISABLED: u8 = 3;
    const LINK_UP: u8 = 5;
    const ETHERNET: u8 = 2;
    /// Communication is set up by connection management; GIDs are made of IP addresses.
    const CAPABILITIES: u32 = 1 << 16 | 1 << 26;
    let place = &opened.place;
    let is_down = place.with(|running| Ok(running.is_down())).unwrap_or(true);
    PortAttr {
        state: if is_down { DOWN } else { ACTIVE },
        max_mtu: mtu_code(4096),
        active_mtu: mtu_code(place.mtu()),
        gid_tbl_len: GIDS as i32,
        port_cap_flags: CAPABILITIES,
        max_msg_sz: place.options().max_message,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        // Four lanes of 25 Gbit/s: a legal code for what no code fits.
        active_width: 2,
        active_speed: 32,
        phys_state: if is_down { DISABLED } else { LINK_UP },
        link_layer: ETHERNET,
        ..PortAttr::default()
    }
}

/// 1 to 5 for 256 to 4096 bytes.
pub(crate) fn mtu_code(mtu: u16) -> u32 {
    match mtu {
        ..512 => 1,
        512..1024 => 2,
        1024..2048 => 3,
        2048..4096 => 4,
        4096.. => 5,
    }
}

/// The bytes for such a code.
pub(crate) fn mtu_of_code(code: u32) -> Option<u16> {
    (1..=5).contains(&code).then(|| 128 << code)
}
