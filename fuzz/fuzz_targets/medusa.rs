//! Descriptors, headers and pointers of Medusa. The body is in `crates/fuzzing/src/rings.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::medusa(input);
});
