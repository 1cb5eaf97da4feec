//! The benchmarks, which are started as `millrace bench`: [`args`] says what can be asked for, one file does each, and
//! [`rig`] is the card that they measure.
#![forbid(unsafe_code)]

mod agent;
mod args;
mod cacheline;
mod choice;
mod classify;
mod ends;
mod esp;
mod exchange;
mod fairness;
mod hostile;
mod latency;
mod launch;
mod lines;
mod many;
mod matrix;
mod median;
mod message;
mod nfb;
mod nodes;
mod pages;
mod peers;
mod plot;
mod ptp;
mod queues;
mod rdma;
mod rig;
mod router;
mod soak;
mod steady;
mod sync;
mod throughput;
mod turns;

use std::process::ExitCode;

use millrace_tool::failure::Failure;
use millrace_tool::grammar::Grammar;
use millrace_tool::log::LevelFilter;
use millrace_tool::options::Shared;
use millrace_tool::output::{note, put};
use millrace_tool::{clock, limits, log, manual, stop};

use args::{Bench, BenchArgs};

fn main() -> ExitCode {
    let args = args::parse();
    limits::raise();
    log::show(LevelFilter::WARN);
    match stop::install().map_err(Failure::from).and_then(|()| run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(args: BenchArgs) -> Result<(), Failure> {
    let shared = args.shared.settled();
    match &args.bench {
        Bench::Hostile(args) => hostile::run(&shared, args),
        Bench::Soak(args) => soak::run(&shared, args),
        Bench::Node(args) => nodes::process::run(args),
        Bench::MessageEnd(args) => message::end::run(args),
        Bench::MessageCable(args) => message::emulation::cable(args),
        Bench::MessageTcp(args) => message::emulation::tcp(args),
        Bench::Grammar => Ok(put(&serde_json::json!(Grammar::of(&args::command())).to_string())?),
        Bench::Man { folder } => manual::write(&manual::pages(&args::command())?, folder),
        bench => measure(&shared, rig::Cores::choose(args.cores), bench),
    }
}

fn measure(shared: &Shared, cores: rig::Cores, bench: &Bench) -> Result<(), Failure> {
    cores.pin_application();
    let _pages = shared.device.is_none().then(|| pages::HugePages::for_a_card(pages_of(bench))).flatten();
    note(format!("{}; clock: {}, {:.1} ns per reading", cores, clock::source(), clock::cost()));
    match bench {
        Bench::Sync => sync::run(shared, cores),
        Bench::Latency(args) => latency::run(shared, cores, args),
        Bench::Throughput(args) => throughput::run(shared, cores, args),
        Bench::Peers(args) => peers::run(shared, cores, args),
        Bench::Nfb(args) => nfb::run(shared, cores, args),
        Bench::Matrix(args) => matrix::run(shared, cores, args),
        Bench::Queues(args) => queues::run(shared, cores, args),
        Bench::Fairness(args) => fairness::run(shared, cores, args),
        Bench::Classify(args) => classify::run(shared, cores, args),
        Bench::Rdma(args) => rdma::run(shared, cores, args),
        Bench::Message(args) => message::run(shared, cores, args),
        Bench::Router(args) => router::run(shared, cores, args),
        Bench::Esp(args) => esp::run(shared, args),
        Bench::Agent(args) => agent::run(shared, cores, args),
        Bench::Launch(args) => launch::run(shared, cores, args),
        Bench::Clock(args) => ptp::run(shared, args),
        // Done above.
        Bench::Hostile(_)
        | Bench::Soak(_)
        | Bench::Node(_)
        | Bench::MessageEnd(_)
        | Bench::MessageCable(_)
        | Bench::MessageTcp(_)
        | Bench::Grammar
        | Bench::Man { .. } => Ok(()),
    }
}

/// How many huge pages the cards of a benchmark need.
fn pages_of(bench: &Bench) -> u64 {
    match bench {
        Bench::Matrix(args) => pages::PER_PAIR * u64::from(args.most_queues()),
        // Their queues are too small for them, or too many.
        Bench::Queues(_)
        | Bench::Fairness(_)
        | Bench::Classify(_)
        | Bench::Rdma(_)
        | Bench::Message(_)
        | Bench::Router(_)
        | Bench::Esp(_)
        | Bench::Agent(_)
        | Bench::Launch(_)
        | Bench::Clock(_) => 0,
        _ => pages::ONE_PAIR,
    }
}
