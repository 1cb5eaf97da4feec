//! Names of numbers, and codes of rates.

use core::ffi::{CStr, c_char, c_int};

/// The name, or what stands for a number without one.
fn name(names: &[&'static CStr], number: c_int, unknown: &'static CStr) -> *const c_char {
    usize::try_from(number).ok().and_then(|number| names.get(number)).unwrap_or(&unknown).as_ptr()
}

// SAFETY of `no_mangle` in this file: these are the names of the library that this one stands for, and nothing else in the
// program has them.

/// `ibv_wc_status_str`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(&NAMES, status, c"unknown")
}

/// `ibv_event_type_str`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    name(&NAMES, event, c"unknown")
}

/// `ibv_node_type_str`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node: c_int) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(&NAMES, node, c"unknown")
}

/// `ibv_port_state_str`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    const NAMES: [&CStr; 6] = [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    name(&NAMES, state, c"invalid state")
}

/// Codes of static rates: the code, in multiples of 2.5 Gbit/s (0: none), in Mbit/s (volume 1, 9.11.1).
const RATES: [(c_int, c_int, c_int); 22] = [
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
    (19, 0, 28_125),
    (20, 0, 50_000),
    (21, 0, 400_000),
    (22, 0, 600_000),
    (23, 0, 800_000),
];

/// `ibv_rate_to_mult`: -1 for a rate that is no multiple.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|(code, times, _)| *code == rate && *times > 0).map_or(-1, |(_, times, _)| *times)
}

/// `mult_to_ibv_rate`: 0, the highest rate, for what has no code.
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(times: c_int) -> c_int {
    RATES.iter().find(|(_, each, _)| times > 0 && *each == times).map_or(0, |(code, ..)| *code)
}

/// `ibv_rate_to_mbps`: -1 for what is no code.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(.., mbps)| *mbps)
}

/// `mbps_to_ibv_rate`: 0, the highest rate, for what has no code.
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|(.., each)| *each == mbps).map_or(0, |(code, ..)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_name_are_unknown() {
        // SAFETY: what these functions return are strings of this program.
        let text = |text: *const c_char| unsafe { CStr::from_ptr(text) }.to_str().unwrap();
        assert_eq!(text(ibv_wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(text(ibv_wc_status_str(-1)), "unknown");
        assert_eq!(text(ibv_event_type_str(99)), "unknown");
        assert_eq!(text(ibv_port_state_str(4)), "active");
        assert_eq!(
            (ibv_rate_to_mult(3), mult_to_ibv_rate(4), ibv_rate_to_mbps(15), mbps_to_ibv_rate(1)),
            (4, 3, 25_781, 0)
        );
        assert_eq!((ibv_rate_to_mult(11), mult_to_ibv_rate(0)), (-1, 0));
    }
}
