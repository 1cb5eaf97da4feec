//! Any bytes as messages of connection management. The body is in `crates/fuzzing/src/rdma_cm.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::rdma_cm(input);
});
