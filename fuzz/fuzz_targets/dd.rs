//! Descriptors of DD. The body is in `crates/ring/src/fuzzing.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_ring::fuzzing::dd(input);
});
