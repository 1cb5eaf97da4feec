//! Rings of a virtio driver. The body is in `crates/fuzzing/src/virtio.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::virtio(input);
});
