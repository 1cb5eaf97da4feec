//! Any bytes as frames for a PPPoE client. The body is in `crates/fuzzing/src/pppoe.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::pppoe(input);
});
