//! Compiles the program for the kernel with clang, and makes the reasons of `bpf/steps.h` a part of the crate.
//!
//! Without clang the crate is built all the same: what says so then is the engine, when it is asked to start.
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out);
    std::fs::write(out.join("reasons.rs"), reasons()).expect("OUT_DIR can be written to");
    let object = out.join("router.bpf.o");
    let problem = if cfg!(feature = "bpf") { compile(&object).err() } else { Some("without the feature `bpf`".into()) };
    if let Some(problem) = &problem {
        std::fs::write(&object, []).expect("OUT_DIR can be written to");
        println!("cargo:warning=the router's engine in the kernel is left out: {problem}");
    }
    println!("cargo:rustc-env=ROUTER_PROBLEM={}", problem.unwrap_or_default().lines().next().unwrap_or_default());
}

/// The program for the kernel, or why there is none.
fn compile(object: &Path) -> Result<(), String> {
    let headers = std::env::var("DEP_BPF_INCLUDE").map_err(|_| "libbpf-sys does not say where its headers are")?;
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    // Where asm/types.h is, which Debian keeps in a folder of the architecture.
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let output = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wno-unknown-attributes"])
        .arg(format!("-I{headers}"))
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .args(["-c", "bpf/router.bpf.c", "-o"])
        .arg(object)
        .output()
        .map_err(|error| format!("{clang} does not run ({error}); install clang and build again"))?;
    if output.status.success() {
        return Ok(());
    }
    for line in String::from_utf8_lossy(&output.stderr).lines().take(20) {
        println!("cargo:warning={line}");
    }
    Err(format!("{clang} does not compile it; see the warnings of the build"))
}

/// One `enum` and its tables, from the lines `REASON(NAME, STEP, "sentence")`.
fn reasons() -> String {
    let text = std::fs::read_to_string("bpf/steps.h").expect("bpf/steps.h is a part of the crate");
    let lines: Vec<(String, String, &str)> = text.lines().filter_map(reason).collect();
    assert!(lines.len() > 20, "bpf/steps.h has lines of reasons");
    let (mut variants, mut list, mut names, mut steps, mut sentences) =
        (String::new(), String::new(), String::new(), String::new(), String::new());
    for (at, (name, step, sentence)) in lines.iter().enumerate() {
        let variant = camel(name);
        let _ = writeln!(variants, "    /// {}.\n    {variant} = {at},", capital(sentence));
        let _ = write!(list, "Self::{variant}, ");
        let _ = write!(names, "{:?}, ", name.to_lowercase().replace('_', "-"));
        let _ = write!(steps, "Step::{}, ", camel(step));
        let _ = write!(sentences, "{sentence:?}, ");
    }
    let count = lines.len();
    format!(
        "/// Why a packet goes to Linux (or, the first of them, does not).\n\
         #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]\n#[repr(u8)]\npub enum Reason {{\n{variants}}}\n\n\
         impl Reason {{\n    /// All of them; the place of each is its number.\n    pub const ALL: [Self; {count}] = [{list}];\n}}\n\
         const NAMES: [&str; {count}] = [{names}];\nconst STEPS: [Step; {count}] = [{steps}];\n\
         const SENTENCES: [&str; {count}] = [{sentences}];\n"
    )
}

fn reason(line: &str) -> Option<(String, String, &str)> {
    let inside = line.trim().strip_prefix("REASON(")?.trim_end_matches(['\\', ' ']).strip_suffix(')')?;
    let (name, rest) = inside.split_once(", ")?;
    let (step, sentence) = rest.split_once(", ")?;
    Some((name.into(), step.into(), sentence.trim_matches('"')))
}

fn camel(name: &str) -> String {
    name.split('_').map(|word| capital(&word.to_lowercase())).collect()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().collect::<String>() + letters.as_str()).unwrap_or_default()
}
