//! Any bytes as messages of OpenFlow. The body is in `crates/fuzzing/src/openflow.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::openflow(input);
});
