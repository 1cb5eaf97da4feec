//! Any bytes as a frame. The body is in `crates/fuzzing/src/parse.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::parse(input);
});
