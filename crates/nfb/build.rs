//! How the library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnfb-ext-millrace.so");
    // Programs open and close devices over and over, and libnfb unloads the library each time. Staying loaded costs
    // nothing, and no destructor of a thread can be unmapped before it runs.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
