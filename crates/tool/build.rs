//! Says which commit is built, for `millrace --version`.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MILLRACE_COMMIT");
    // Who builds from an archive knows the commit and can say it.
    let commit = env::var("MILLRACE_COMMIT").ok().filter(|text| !text.is_empty()).or_else(commit);
    let version = env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    let known = commit.map_or_else(String::new, |commit| format!(" ({commit})"));
    println!("cargo::rustc-env=MILLRACE_VERSION={version}{known}");
}

/// The commit that is checked out, if this is a clone. Its log of commits changes with every commit and every checkout.
fn commit() -> Option<String> {
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    // An archive unpacked inside somebody else's repository is not a part of it.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
