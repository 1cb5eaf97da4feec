//! Any bytes as a frame of RDMA. The body is in `crates/fuzzing/src/rdma_wire.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::rdma_wire(input);
});
