//! `millrace bench`: one file per benchmark, and [`rig`] with the card that they measure.

mod fairness;
pub mod latency;
mod lines;
mod many;
mod matrix;
mod nfb;
mod pages;
mod peers;
mod plot;
mod queues;
pub mod rig;
mod sync;
mod throughput;

use clap::{Args, Subcommand};
use millrace_abi::queue::{Engine, Mode, QueueId};

use crate::args::Shared;
use crate::failure::Failure;
use crate::output::note;
use crate::{clock, cores};

/// Options of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each benchmark starts a card process of its own that polls on one core, and
runs the application on another, unless --device names a card. Without --engine
and --mode it measures all of them.

Examples:
  millrace bench sync
  millrace bench latency --engine medusa --count 100k --plot latency.svg
  millrace bench throughput --size 64,1518 --json
  millrace bench peers
  millrace bench matrix --svg matrix.svg
  millrace bench queues
  millrace bench nfb
  millrace bench fairness --metric flooded_share")]
pub struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
    #[command(flatten)]
    cores: CoreArgs,
}

/// Where card and application run.
#[derive(Clone, Copy, Debug, Args)]
pub struct CoreArgs {
    /// Core for the application [default: the first this program may use]
    #[arg(long, global = true, value_name = "CORE")]
    app_cpu: Option<usize>,
    /// Core for the card [default: the second]
    #[arg(long, global = true, value_name = "CORE")]
    card_cpu: Option<usize>,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// What sending and receiving one packet costs, step by step
    Sync,
    /// How long the round trip of one packet takes
    Latency(latency::LatencyArgs),
    /// How many packets and bits per second go through
    Throughput(throughput::ThroughputArgs),
    /// The same work done by DPDK, by a bare ring and by a cache line
    Peers(peers::PeersArgs),
    /// Throughput and latency by number of queues and packet size
    Matrix(matrix::MatrixArgs),
    /// What queues cost, configured and active, up to thousands
    Queues(queues::QueuesArgs),
    /// The bursts of NFB programs through the extension library for libnfb
    Nfb(nfb::NfbArgs),
    /// What one program notices of others that are hostile, flooded or many
    Fairness(fairness::FairnessArgs),
}

/// Runs the command.
pub fn run(shared: &Shared, args: &BenchArgs) -> Result<(), Failure> {
    let cores = rig::Cores::choose(args.cores);
    cores.pin_application();
    let _pages = shared.device.is_none().then(|| pages::HugePages::for_a_card(args.bench.pages())).flatten();
    note(format!("{}; clock: {}, {:.1} ns per reading", cores, clock::source(), clock::cost()));
    match &args.bench {
        Bench::Sync => sync::run(shared, cores),
        Bench::Latency(args) => latency::run(shared, cores, args),
        Bench::Throughput(args) => throughput::run(shared, cores, args),
        Bench::Peers(args) => peers::run(shared, cores, args),
        Bench::Nfb(args) => nfb::run(shared, cores, args),
        Bench::Matrix(args) => matrix::run(shared, cores, args),
        Bench::Queues(args) => queues::run(shared, cores, args),
        Bench::Fairness(args) => fairness::run(shared, cores, args),
    }
}

impl Bench {
    /// How many huge pages its cards need.
    fn pages(&self) -> u64 {
        match self {
            Bench::Matrix(args) => pages::PER_PAIR * u64::from(args.most_queues()),
            // Their queues are too small for them, or too many.
            Bench::Queues(_) | Bench::Fairness(_) => 0,
            _ => pages::ONE_PAIR,
        }
    }
}

/// The engines to measure: the one asked for, or all. A card that was given with `--device` has the engine it has.
fn engines(shared: &Shared) -> Vec<Option<Engine>> {
    match (shared.engine_of(QueueId::tx(first_queue(shared))), &shared.device) {
        (Some(engine), _) => vec![Some(engine)],
        (None, Some(_)) => vec![None],
        (None, None) => Engine::ALL.map(Some).to_vec(),
    }
}

/// The modes to measure: the one asked for, or those that the engine has.
fn modes(shared: &Shared, engine: Option<Engine>) -> Vec<Mode> {
    let has = |mode: &Mode| engine.is_none_or(|engine| engine.has(*mode));
    let all = || [Mode::Mediated, Mode::Direct].into_iter().filter(has).collect();
    shared.mode.map_or_else(all, |mode| vec![mode])
}

/// The queue pair to measure: benchmarks take one.
fn first_queue(shared: &Shared) -> u32 {
    shared.queues().indices()[0]
}

/// The middle one, or the mean of the two in the middle.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

impl CoreArgs {
    fn or_first_two(self) -> (Option<usize>, Option<usize>) {
        let allowed = cores::allowed();
        (self.app_cpu.or(allowed.first().copied()), self.card_cpu.or(allowed.get(1).copied()))
    }
}
