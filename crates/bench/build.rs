//! Compiles the BPF programs of `bench router` with clang. Without it the crate is built all the same, and that benchmark says why it
//! cannot run.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "bpf/router.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-env-changed=CLANG");
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where")).join("router.bpf.o");
    let problem = compile(&object).err();
    if let Some(problem) = &problem {
        fs::write(&object, []).expect("OUT_DIR can be written to");
        println!("cargo:warning=bench router is left out: {problem}");
    }
    println!("cargo:rustc-env=ROUTER_BENCH_PROBLEM={}", problem.unwrap_or_default());
}

/// The error is one line.
fn compile(object: &Path) -> Result<(), String> {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Wextra", "-target", "bpf", "-c", SOURCE, "-o"])
        .arg(object)
        .status()
        .map_err(|why| format!("{clang} does not run ({why}); install clang and build again"))?;
    if status.success() { Ok(()) } else { Err(format!("{clang} cannot compile {SOURCE}: {status}")) }
}
