//! Queue pairs as programs see them: `struct ibv_qp_ex`. Its functions (`ibv_wr_*`) are not there yet: they are NULL.

use crate::abi::{Qp, QpEx};
use core::ptr;

/// A queue pair without functions of its own.
pub(super) fn queue_pair(base: Qp) -> QpEx {
    QpEx {
        base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        atomic_cmp_swp: None,
        atomic_fetch_add: None,
        bind_mw: None,
        local_inv: None,
        rdma_read: None,
        rdma_write: None,
        rdma_write_imm: None,
        send: None,
        send_imm: None,
        send_inv: None,
        send_tso: ptr::null(),
        set_ud_addr: None,
        set_xrc_srqn: ptr::null(),
        set_inline_data: None,
        set_inline_data_list: None,
        set_sge: None,
        set_sge_list: None,
        start: None,
        complete: None,
        abort: None,
        atomic_write: ptr::null(),
    }
}
