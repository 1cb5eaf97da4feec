//! Programs of others with two ends, a server and a client, each pinned to its core.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::peers::namespace::Namespace;
use crate::peers::process::{Process, find};
use crate::rig::Cores;

/// How long the client tries to reach the server.
const PATIENCE: Duration = Duration::from_secs(5);

/// A program with a server and a client; what the client's last line says.
pub struct Pair {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Of each end.
    pub environment: [Vec<(&'static str, String)>; 2],
    pub namespaces: Option<[Namespace; 2]>,
    pub server: String,
}

impl Pair {
    /// The command of one end, pinned to its core.
    fn command(&self, cores: Cores, end: usize) -> (PathBuf, Vec<String>) {
        let mut words: Vec<String> = Vec::new();
        if let Some(namespaces) = &self.namespaces {
            words.push(namespaces[end].starter().display().to_string());
            words.extend(namespaces[end].prefix().map(str::to_owned));
        }
        if let Some(core) = [cores.card, cores.app][end] {
            words.extend(["taskset".to_owned(), "-c".to_owned(), core.to_string()]);
        }
        words.push(self.program.display().to_string());
        (PathBuf::from(words.remove(0)), words)
    }

    /// Runs both ends to their end. Returns the last line of the client.
    pub fn run(&self, cores: Cores) -> Result<String, String> {
        let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
        let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
        let (program, words) = self.command(cores, 0);
        let program = if program.is_absolute() { program } else { find(&program.display().to_string(), "util-linux")? };
        let start = || {
            Process::start("server", &program, folder.path(), |command| {
                command.args(&words).args(&self.arguments).envs(self.environment[0].iter().cloned());
            })
        };
        let mut server = start()?;
        let begin = Instant::now();
        loop {
            let (program, words) = self.command(cores, 1);
            let mut command = Command::new(program);
            command.args(words).args(&self.arguments).arg(&self.server).envs(self.environment[1].iter().cloned());
            let output = command.stdin(Stdio::null()).output().map_err(|why| format!("cannot start it: {why}"))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let last = text.lines().rev().find(|line| line.split_whitespace().count() > 4).map(str::to_owned);
            match last.filter(|_| output.status.success()) {
                Some(last) => return Ok(last),
                // The server may not listen yet, or have ended: where the port was in use a moment ago it does.
                None if begin.elapsed() < PATIENCE => {
                    if server.check().is_err() {
                        server = start()?;
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
                // UCX says its errors on standard output.
                None => {
                    let said = [text.trim(), String::from_utf8_lossy(&output.stderr).trim()].concat();
                    let ended = server.check().err().map_or_else(String::new, |why| format!("; {why}"));
                    let last = said.lines().last().unwrap_or_default();
                    return Err(format!("{}: {last}{ended}", self.program.display()));
                }
            }
        }
    }
}

/// A number of a line of words.
pub fn field(line: &str, at: usize) -> Result<f64, String> {
    let word = line.split_whitespace().nth(at).and_then(|word| word.parse().ok());
    word.ok_or_else(|| format!("what is this: {line}"))
}

/// Rounds that take about as long as they should.
pub fn iterations(seconds: f64, each_ns: f64) -> String {
    ((seconds * 1e9 / each_ns) as u64).clamp(10, 20_000_000).to_string()
}
