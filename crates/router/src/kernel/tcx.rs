//! Programs of BPF that look at packets at an interface without being filters of traffic control: tcx, since Linux 6.6 (`linux/bpf.h`). They are in no list of
//! rtnetlink, and no event tells of them.
//!
//! Unsafe code: one call of libbpf, for which `libbpf-rs` has no safe one.
#![allow(unsafe_code)]

use std::ptr;

use libbpf_rs::libbpf_sys::{self, BPF_TCX_EGRESS, BPF_TCX_INGRESS, bpf_prog_query_opts};

use super::shaping::Programs;

/// One is enough to know that the place is taken; who has more of them has these, too.
const MOST: usize = 16;

/// The programs at an interface of this network namespace; none where the kernel has no tcx, or does not tell.
pub fn programs(interface: u32) -> Programs {
    Programs { ingress: at(interface, BPF_TCX_INGRESS), egress: at(interface, BPF_TCX_EGRESS) }
}

fn at(interface: u32, place: libbpf_sys::bpf_attach_type) -> Vec<u32> {
    let Ok(interface) = i32::try_from(interface) else { return Vec::new() };
    let mut numbers = [0_u32; MOST];
    let mut question = bpf_prog_query_opts {
        sz: size_of::<bpf_prog_query_opts>() as libbpf_sys::size_t,
        prog_ids: numbers.as_mut_ptr(),
        attach_flags: 0,
        query_flags: 0,
        prog_attach_flags: ptr::null_mut(),
        link_ids: ptr::null_mut(),
        link_attach_flags: ptr::null_mut(),
        ..bpf_prog_query_opts::default()
    };
    question.__bindgen_anon_1.count = MOST as u32;
    // SAFETY: `question` says how long it is, and `numbers`, which it points to, has room for as many numbers as it says; both outlive the call.
    let answer = unsafe { libbpf_sys::bpf_prog_query_opts(interface, place, &mut question) };
    // More than there is room for is told by an error, and the first are there all the same.
    let is_answered = answer == 0 || answer == -(rustix::io::Errno::NOSPC.raw_os_error());
    // SAFETY: both members of the union are this number.
    let count = unsafe { question.__bindgen_anon_1.count } as usize;
    numbers.into_iter().take(if is_answered { count } else { 0 }).filter(|number| *number != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_without_programs_has_none() {
        assert_eq!((programs(1), programs(0), programs(u32::MAX)), Default::default());
    }
}
