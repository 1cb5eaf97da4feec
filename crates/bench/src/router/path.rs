//! Who forwards: Linux, or `millrace router` beside it.

use std::process::{Command, Stdio};

use millrace_tool::programs;
use serde_json::Value;
use tempfile::TempDir;

use super::lab::{LEFT, Lab, RIGHT};
use crate::peers::process::{Process, run};

/// Who forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Path {
    /// Linux alone.
    Kernel,
    /// `millrace router`, by BPF.
    Xdp,
    /// `millrace router`, switched off.
    Off,
}

impl Path {
    pub fn word(self) -> &'static str {
        match self {
            Path::Kernel => "kernel",
            Path::Xdp => "xdp",
            Path::Off => "off",
        }
    }

    /// Whether this command has what it takes.
    pub fn is_there(self) -> bool {
        self == Path::Kernel || has_router()
    }
}

/// Whether `millrace router` is there.
fn has_router() -> bool {
    let Ok(program) = programs::beside(programs::MILLRACE) else { return false };
    let asked = Command::new(program)
        .args(["router", "--help"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    asked.is_ok_and(|status| status.success())
}

/// `millrace router` in the router's namespace, until it is dropped.
pub struct Router {
    process: Process,
    program: std::path::PathBuf,
    folder: TempDir,
}

impl Router {
    /// Starts it, on or off. The error is a sentence.
    pub fn start(lab: &Lab, path: Path) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
        let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
        let program = programs::beside(programs::MILLRACE).map_err(|why| format!("where is millrace? {why}"))?;
        let process = Process::start("millrace router", lab.router.starter(), folder.path(), |command| {
            command.args(lab.router.prefix()).arg(&program).args(["router", "start", "--interfaces"]);
            command.arg(format!("{LEFT},{RIGHT}")).env("XDG_RUNTIME_DIR", folder.path());
        })?;
        let mut router = Self { process, program, folder };
        let (program, folder) = (router.program.clone(), router.folder.path().to_owned());
        let asks = || status(lab, &program, &folder).is_some();
        router.process.wait_until("its status", asks)?;
        if path == Path::Off {
            run(lab.router.starter(), |command| {
                command.args(lab.router.prefix()).arg(&router.program).args(["router", "off"]);
                command.env("XDG_RUNTIME_DIR", router.folder.path());
            })?;
        }
        Ok(router)
    }

    /// What it says of itself.
    pub fn status(&self, lab: &Lab) -> Option<Value> {
        status(lab, &self.program, self.folder.path())
    }

    /// How many packets were fast.
    pub fn fast(&self, lab: &Lab) -> Option<u64> {
        let status = self.status(lab)?;
        // Packets that each interface took, and of these how many without Linux.
        Some(status["interfaces"].as_array()?.iter().filter_map(|interface| interface["packets"][1].as_u64()).sum())
    }
}

fn status(lab: &Lab, program: &std::path::Path, folder: &std::path::Path) -> Option<Value> {
    let mut command = Command::new(lab.router.starter());
    command.args(lab.router.prefix()).arg(program).args(["router", "status", "--json"]);
    command.env("XDG_RUNTIME_DIR", folder).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    serde_json::from_slice(&output.stdout).ok()
}
