//! Any bytes as messages of netlink. The body is in `crates/fuzzing/src/netlink.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::netlink(input);
});
