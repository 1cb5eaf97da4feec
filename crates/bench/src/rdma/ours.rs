//! Programs that use verbs, and the library that they use.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::Bench;
use super::cards::Cards;
use crate::peers::process::{find, run};

/// What two programs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// `write`, `read` or `send`.
    pub op: &'static str,
    /// `latency`, `bandwidth`, `rate` or `register`.
    pub measure: &'static str,
    /// Bytes.
    pub size: u64,
}

/// What they have measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line {
    /// ns one way, GB/s, millions per second, or us.
    pub value: f64,
    /// Cores used by who asks, and by the other.
    pub cpu: [f64; 2],
    /// Cores used by the card, if there is one.
    pub cpu_card: Option<f64>,
    /// How often each byte was copied by both ends and the card. None: nobody has counted.
    pub copies: Option<f64>,
    /// Of registering: us the first time.
    pub first_us: f64,
}

/// The programs in `bench/rdma`, built for this run.
pub struct Programs {
    folder: TempDir,
    library: PathBuf,
}

impl Programs {
    /// Builds them. Errors are sentences.
    pub fn build(given: Option<&Path>) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
        let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/rdma");
        let places = [given.map(Path::to_owned), Some("bench/rdma".into()), Some(built)];
        let sources = places.into_iter().flatten().find(|place| place.join("verbs.c").is_file());
        let sources = sources.ok_or("bench/rdma is not here: give --sources FOLDER")?;
        run(&find("make", "make")?, |command| {
            command.arg("-s").arg("-C").arg(&sources).arg(format!("TO={}", folder.path().display()));
        })
        .map_err(|why| format!("{why}\n(it needs cc and libibverbs-dev; scripts/setup.sh --bench installs them)"))?;
        Ok(Self { folder, library: library()? })
    }

    /// One of the programs.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// The folder with libibverbs.so.1: beside this program, or where `make install` puts it.
fn library() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|why| format!("cannot find this program: {why}"))?;
    let beside = program.parent().unwrap_or(Path::new("."));
    [beside.join("verbs"), beside.join("../lib/millrace")]
        .into_iter()
        .find(|folder| folder.join("libibverbs.so.1").exists())
        .ok_or_else(|| format!("there is no libibverbs.so.1 in {}/verbs; `make build` makes it", beside.display()))
}

/// Runs the programs over the cards. Errors are sentences.
pub fn measure(bench: &Bench, cards: &Cards, work: Work) -> Result<Line, String> {
    run_both(bench, cards, work, false)
}

/// The same, with stamps of when what happened in [`Cards::stamps`].
pub fn profile(bench: &Bench, cards: &Cards, work: Work) -> Result<Line, String> {
    run_both(bench, cards, work, true)
}

fn run_both(bench: &Bench, cards: &Cards, work: Work, has_stamps: bool) -> Result<Line, String> {
    let mut command = match &cards.namespace {
        Some(namespace) => {
            let mut command = Command::new(namespace.starter());
            command.args(namespace.prefix()).arg(bench.programs.path("verbs"));
            command
        }
        None => Command::new(bench.programs.path("verbs")),
    };
    command.args(["--op", work.op, "--measure", work.measure, "--size", &work.size.to_string()]);
    let mut words = cards.words.clone();
    for (words, file) in words.iter_mut().zip(cards.counters().iter().flatten()) {
        words.push_str(&format!(" stats={}", file.display()));
    }
    for (words, file) in words.iter_mut().zip(cards.stamps().iter().flatten().filter(|_| has_stamps)) {
        words.push_str(&format!(" profile={}", file.display()));
    }
    command.args(["--seconds", &bench.seconds.to_string(), "--first", &words[0], "--second", &words[1]]);
    if let Some(card) = cards.process() {
        command.args(["--card", &card.to_string()]);
    }
    command.env("LD_LIBRARY_PATH", &bench.programs.library).env_remove("MILLRACE_DEVICE");
    pin(&mut command, bench);
    let line = line(command)?;
    let number = |name: &str| line[name].as_f64().unwrap_or(0.0);
    Ok(Line {
        value: number("value"),
        cpu: [number("cpu_first"), number("cpu_second")],
        cpu_card: cards.process().map(|_| number("cpu_card")),
        copies: copies(cards, number("moved")),
        first_us: number("first_us"),
    })
}

/// How often each of so many bytes was copied: by both ends, which count bytes of messages, and by what moves frames, which counts
/// bytes of these.
fn copies(cards: &Cards, moved: f64) -> Option<f64> {
    let files = cards.counters()?;
    let told = files.iter().map(|file| serde_json::from_slice::<Value>(&std::fs::read(file).ok()?).ok());
    let told: Vec<Value> = told.collect::<Option<_>>()?;
    let sum = |part: &str, name: &str| told.iter().filter_map(|told| told[part][name].as_f64()).sum::<f64>();
    let by_ends: f64 = ["regions", "reached", "inline", "rings"].map(|name| sum("copied", name)).iter().sum();
    // Of what did not go in frames, nothing was copied by who moves frames.
    let by_frames = |[copied, frames]: [f64; 2]| copied / frames.max(1.0) * (frames / moved).min(1.0);
    let by_ports = by_frames([sum("copied", "port"), sum("port", "tx_bytes")]);
    (moved > 0.0).then_some(by_ends / moved + by_ports + by_frames(cards.copied()?))
}

/// The cores of both ends.
pub fn pin(command: &mut Command, bench: &Bench) {
    if let (Some(app), Some(card)) = (bench.cores.app, bench.cores.card) {
        command.args(["--cpus", &format!("{app},{card}")]);
    }
}

/// The one line that a program prints.
pub fn line(mut command: Command) -> Result<Value, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|why| format!("cannot start {command:?}: {why}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let line = output.stdout.split(|byte| *byte == b'\n').find_map(|line| serde_json::from_slice(line).ok());
    match (output.status.success(), line) {
        (true, Some(line)) => Ok(line),
        (true, None) => Err("it printed no result".to_owned()),
        (false, Some(_)) => Err("what arrived is not what was sent".to_owned()),
        (false, None) => Err(format!("it ended with {}: {}", output.status, said.trim())),
    }
}
