//! Messages and descriptors of a program that is not what it should be. The body is in
//! `crates/driver/tests/driver_message/body.rs`, shared with the test that has a short run of it.
#![no_main]

#[path = "../../crates/driver/tests/driver_message/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    body::driver_message(input);
});
