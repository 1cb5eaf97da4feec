//! How the shared library is linked.

fn main() {
    // Its name for the run-time linker. The number changes when programs have to be built again.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmillrace.so.0");
    // A plugin that is unloaded may leave threads behind that still have a text of ours to free.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
