//! What drivers of vendors (libmlx5, libefa) want to find when they are loaded: programs such as perftest are linked with them,
//! and do not start when one of these names is missing. The drivers say when they are loaded that they are there
//! (`verbs_register_driver_34`); as they are never given a device, they never call the others. If one does, it is told that
//! the kernel has no such call (ENOSYS).
//!
//! The names and their number, 34, are those of rdma-core 39 to 56.

use super::null;
use core::ffi::{c_char, c_int, c_void};

// SAFETY of `no_mangle` in this file: these are the names of the library that this one stands for, and nothing else in the
// program has them. The functions look at no argument, so whatever they are called with is right.

/// Whether objects may be destroyed whose device is gone: a variable, not a function.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static verbs_allow_disassociate_destroy: u8 = 0;

/// A driver says that it is there.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_register_driver_34(_driver: *const c_void) {}

/// A driver writes into the log of the library, which has none.
#[unsafe(no_mangle)]
pub extern "C" fn __verbs_log() {}

/// A driver sets functions of a context that it has made; it cannot have made one.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_set_ops() {}

/// A driver gives up a context that it has made; it cannot have made one.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_uninit_context() {}

/// A driver wants to write the name of an opcode into its log, which is not written.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wr_opcode_str() -> *const c_char {
    c"unknown".as_ptr()
}

/// Functions that fail.
macro_rules! refuse {
    ($($name:ident)*) => {$(
        /// Not supported: there is no kernel to be asked.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            libc::ENOSYS
        }
    )*};
}

/// Functions that give no object.
macro_rules! refuse_object {
    ($($name:ident)*) => {$(
        /// Not supported: there is no kernel to be asked.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> *mut c_void {
            null(libc::ENOSYS)
        }
    )*};
}

refuse_object! { _verbs_init_and_alloc_context verbs_open_device }

refuse! {
    __ioctl_final_num_attrs
    execute_ioctl
    ibv_cmd_advise_mr
    ibv_cmd_alloc_dm
    ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd
    ibv_cmd_create_ah
    ibv_cmd_create_counters
    ibv_cmd_create_cq
    ibv_cmd_create_cq_ex
    ibv_cmd_create_cq_ex2
    ibv_cmd_create_flow
    ibv_cmd_create_flow_action_esp
    ibv_cmd_create_qp
    ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table
    ibv_cmd_create_srq
    ibv_cmd_create_srq_ex
    ibv_cmd_create_wq
    ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd
    ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters
    ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp
    ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast
    ibv_cmd_free_dm
    ibv_cmd_get_context
    ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp
    ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq
    ibv_cmd_modify_wq
    ibv_cmd_open_qp
    ibv_cmd_open_xrcd
    ibv_cmd_poll_cq
    ibv_cmd_post_recv
    ibv_cmd_post_send
    ibv_cmd_post_srq_recv
    ibv_cmd_query_context
    ibv_cmd_query_device_any
    ibv_cmd_query_mr
    ibv_cmd_query_port
    ibv_cmd_query_qp
    ibv_cmd_query_srq
    ibv_cmd_read_counters
    ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr
    ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr
    ibv_cmd_resize_cq
    ibv_read_ibdev_sysfs_file
    verbs_init_cq
}
