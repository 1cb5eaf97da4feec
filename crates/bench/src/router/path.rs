//! Who forwards: Linux, or `millrace router` beside it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use millrace_tool::programs;
use serde_json::Value;
use tempfile::TempDir;

use super::lab::{LEFT, Lab, RIGHT};
use crate::peers::process::Process;

/// Who forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Path {
    /// Linux alone.
    Kernel,
    /// `millrace router`, as XDP.
    Xdp,
    /// `millrace router`, at tc.
    Tc,
    /// `millrace router`, as XDP, switched off.
    Off,
}

impl Path {
    pub fn word(self) -> &'static str {
        match self {
            Path::Kernel => "kernel",
            Path::Xdp => "xdp",
            Path::Tc => "tc",
            Path::Off => "off",
        }
    }

    /// Whether this command has what it takes.
    pub fn is_there(self) -> bool {
        self == Path::Kernel || has_router()
    }

    /// Whether packets are to go without Linux.
    pub fn is_fast(self) -> bool {
        matches!(self, Path::Xdp | Path::Tc)
    }

    /// Options of `millrace router start`.
    fn options(self) -> &'static [&'static str] {
        match self {
            Path::Kernel | Path::Xdp => &["--mode", "xdp"],
            Path::Tc => &["--mode", "tc"],
            Path::Off => &["--mode", "xdp", "--off"],
        }
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
    _process: Process,
    program: PathBuf,
    /// For what it says.
    _folder: TempDir,
}

impl Router {
    /// Starts it, on or off. The error is a sentence.
    pub fn start(lab: &Lab, path: Path) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
        let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
        let program = programs::beside(programs::MILLRACE).map_err(|why| format!("where is millrace? {why}"))?;
        let mut process = Process::start("millrace router", lab.router.starter(), folder.path(), |command| {
            command.args(lab.router.prefix()).arg(&program).args(["router", "start", "--interfaces"]);
            command.arg(format!("{LEFT},{RIGHT}")).args(path.options());
        })?;
        process.wait_until("its status", || ask(lab, &program, &["status"]).is_some())?;
        Ok(Self { _process: process, program, _folder: folder })
    }

    /// What `millrace router WORDS --json` prints, line by line.
    pub fn ask(&self, lab: &Lab, words: &[&str]) -> Result<Vec<Value>, String> {
        ask(lab, &self.program, words).ok_or_else(|| format!("`millrace router {}` does not answer", words.join(" ")))
    }

    /// How many packets were fast.
    pub fn fast(&self, lab: &Lab) -> Result<u64, String> {
        let status = self.ask(lab, &["status"])?;
        let fast = status.first().and_then(|status| status["fast"].as_u64());
        fast.ok_or_else(|| "`millrace router status` does not say how many packets were fast".to_owned())
    }
}

fn ask(lab: &Lab, program: &PathBuf, words: &[&str]) -> Option<Vec<Value>> {
    let mut command = Command::new(lab.router.starter());
    command.args(lab.router.prefix()).arg(program).arg("router").args(words).arg("--json");
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>().collect::<Result<_, _>>().ok()
}
