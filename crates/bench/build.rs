//! Compiles the BPF programs of `bench router`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "bpf/router.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-env-changed=CLANG");
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where")).join("router.bpf.o");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let compiled = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-c", SOURCE, "-o"])
        .arg(&object)
        .status();
    match compiled {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} cannot compile {SOURCE}: {status}"),
        Err(why) => panic!("cannot run {clang} ({why}): apt-get install clang, or scripts/setup.sh --build"),
    }
}
