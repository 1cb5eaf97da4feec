//! `millrace bench nfb`: the bursts of ndp-tool through the extension library for libnfb, beside the host library.
//!
//! Both do the same against the same card: take slots for 64 frames, write all their bytes, put them back, flush. The
//! program that goes through the library is `bench/nfb/burst.c`, in C as NFB programs are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use millrace_abi::queue::{Engine, Mode, QueueId};
use millrace_tool::failure::Failure;
use millrace_tool::list::Sizes;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::progress::Steps;
use millrace_tool::stop;

use crate::choice::{engines, first_queue};
use crate::median::median;
use crate::rig::{Cores, Rig, run_on_all_cores};
use crate::throughput::{self, transmit};

/// Frames per call, as in the C program.
const BURST: usize = 64;

/// Options of `bench nfb`.
#[derive(Debug, Args)]
#[command(after_help = "\
Millions of frames per second one way, in bursts of 64: `host` through the host
library, `nfb` through libnfb-ext-millrace.so with the user-space flag of
libnfb, `nfb_shared` without it (the default of NFB programs: each writer has
a ring of its own; not on DD, whose queues belong to one program). `ratio` is
nfb / host. Measured in turns, medians.

Examples:
  millrace bench nfb
  millrace bench nfb --engine medusa --size 64,1518 --rounds 9 --json")]
pub struct NfbArgs {
    /// How often to measure everything
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    seconds: f64,
    /// The extension library [default: beside this program]
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Folder with run.sh and burst.c [default: bench/nfb]
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
}

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &NfbArgs) -> Result<(), Failure> {
    let through = Through { library: library(args)?, script: script(args)?, cores, seconds: args.seconds };
    let sizes = shared.size.clone().unwrap_or_else(|| Sizes::one(64));
    let engines = engines(shared);
    let steps = Steps::new("nfb", engines.len() as u64 * sizes.entries().count() as u64 * u64::from(args.rounds));
    let mut rows = Vec::new();
    for engine in engines {
        for size in sizes.entries() {
            let mut samples = Samples::new(engine, size.largest());
            for _ in 0..args.rounds {
                if stop::asked() {
                    return Err(Failure::Interrupted);
                }
                steps.next("");
                samples.measure(shared, &through)?;
            }
            rows.push(samples.row());
        }
    }
    drop(steps);
    Output::new(shared.json).rows(&format!("medians of {} rounds", args.rounds), &rows)?;
    Ok(())
}

/// All values for one engine and size, one per round.
struct Samples {
    engine: Option<Engine>,
    size: u32,
    host: Vec<f64>,
    nfb: Vec<f64>,
    nfb_shared: Vec<f64>,
}

impl Samples {
    fn new(engine: Option<Engine>, size: u32) -> Self {
        Self { engine, size, host: Vec::new(), nfb: Vec::new(), nfb_shared: Vec::new() }
    }

    fn measure(&mut self, shared: &Shared, through: &Through) -> Result<(), Failure> {
        let card = Rig::start(shared, through.cores, self.engine, "null")?;
        let rig = card.in_mode(Mode::Direct);
        let (queue, size) = (first_queue(shared), Sizes::one(self.size));
        let session = rig.session()?;
        let extent = throughput::Extent { count: u64::MAX, seconds: through.seconds };
        let flow = transmit(&session, queue, &size, BURST, extent)?;
        if flow.lost > 0 && !stop::asked() {
            return Err(Failure::Found(format!("{} packets lost: such a measurement is none", flow.lost)));
        }
        self.host.push(flow.mpps());
        let device = session.device.name().to_owned();
        let can_be_shared = session.engine(QueueId::tx(queue))? != Engine::Dd;
        drop(session);
        self.nfb.push(through.measure(&device, "direct", self.size, queue)?);
        if can_be_shared {
            self.nfb_shared.push(through.measure(&device, "shared", self.size, queue)?);
        }
        card.end()
    }

    fn row(&self) -> Row {
        let (host, nfb) = (median(&self.host), median(&self.nfb));
        Row::new()
            .tag("bench", "nfb")
            .text("engine", self.engine.map_or_else(String::new, |engine| engine.to_string()))
            .count("size", u64::from(self.size))
            .count("rounds", self.host.len() as u64)
            .maybe("host", host, 3)
            .maybe("nfb", nfb, 3)
            .maybe("nfb_shared", median(&self.nfb_shared), 3)
            .maybe("ratio", host.zip(nfb).map(|(host, nfb)| nfb / host), 3)
    }
}

/// The way through the extension library.
struct Through {
    library: PathBuf,
    script: PathBuf,
    cores: Cores,
    seconds: f64,
}

impl Through {
    /// Millions of frames per second.
    fn measure(&self, device: &str, way: &str, size: u32, queue: u32) -> Result<f64, Failure> {
        let mut command = Command::new(&self.script);
        command.arg(&self.library).args([device, way, &size.to_string()]);
        command.args([self.seconds.to_string(), queue.to_string()]);
        command.args(self.cores.app.map(|core| core.to_string()));
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        let failed = |source| Failure::File { doing: "cannot run", path: self.script.clone(), source };
        let output = run_on_all_cores(command).map_err(failed)?;
        if stop::asked() {
            return Err(Failure::Interrupted);
        }
        if !output.status.success() {
            return Err(Failure::Found(format!("{} ended with {}", self.script.display(), output.status)));
        }
        let value = serde_json::from_slice::<serde_json::Value>(&output.stdout).ok();
        value
            .and_then(|value| value["mpps"].as_f64())
            .ok_or_else(|| Failure::Found(format!("{} did not say how fast it was", self.script.display())))
    }
}

fn library(args: &NfbArgs) -> Result<PathBuf, Failure> {
    let beside = |name| env::current_exe().ok().and_then(|program| Some(program.parent()?.join(name)));
    let names = ["libnfb-ext-millrace.so", "libnfb_ext_millrace.so"];
    let places = args.library.clone().into_iter().chain(names.into_iter().filter_map(beside));
    let found = places.into_iter().find(|place| place.is_file());
    found.and_then(|place| place.canonicalize().ok()).ok_or_else(|| {
        Failure::Usage("libnfb-ext-millrace.so is not beside this program; `make build`, or give --library".to_owned())
    })
}

fn script(args: &NfbArgs) -> Result<PathBuf, Failure> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/nfb");
    let places = args.programs.clone().into_iter().chain(["bench/nfb".into(), built]);
    let found = places.map(|place| place.join("run.sh")).find(|script| script.is_file());
    found
        .and_then(|script| script.canonicalize().ok())
        .ok_or_else(|| Failure::Usage("bench/nfb is not here; give --programs FOLDER".to_owned()))
}
