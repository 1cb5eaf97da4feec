//! Any bytes as requests to the engine in the card. The body is in `crates/fuzzing/src/rdma_served.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::rdma_served(input);
});
