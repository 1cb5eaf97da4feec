//! Any text as rules. The body is in `crates/fuzzing/src/language.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::language(input);
});
