//! Gives the shared library its name for the run-time linker. The number in it changes when programs have to be built
//! again.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmillrace.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
