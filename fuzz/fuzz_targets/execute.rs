//! Any actions on any frame. The body is in `crates/fuzzing/src/execute.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::execute(input);
});
