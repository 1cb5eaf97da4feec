//! Any bytes as QUIC traffic. The body is in `crates/fuzzing/src/quic.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::quic(input);
});
