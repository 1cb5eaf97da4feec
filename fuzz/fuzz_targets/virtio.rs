//! Rings of a virtio driver. The body is in `crates/ring/src/virtio/fuzzing.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_ring::virtio::fuzzing::virtio(input);
});
