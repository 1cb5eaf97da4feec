//! Any bytes as packets of ESP, as messages of XFRM and as text. The body is in `crates/fuzzing/src/esp.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    millrace_fuzzing::esp(input);
});
