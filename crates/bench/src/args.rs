//! The command line of the benchmarks.

use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use millrace_tool::applies::{self, Uses};
use millrace_tool::options::Shared;

use crate::agent::AgentArgs;
use crate::classify::ClassifyArgs;
use crate::esp::EspArgs;
use crate::fairness::FairnessArgs;
use crate::hostile::HostileArgs;
use crate::latency::LatencyArgs;
use crate::launch::LaunchArgs;
use crate::matrix::MatrixArgs;
use crate::message::MessageArgs;
use crate::message::emulation::{CableArgs, TcpArgs};
use crate::message::end::EndArgs;
use crate::nfb::NfbArgs;
use crate::nodes::process::NodeArgs;
use crate::peers::PeersArgs;
use crate::ptp::ClockArgs;
use crate::queues::QueuesArgs;
use crate::rdma::RdmaArgs;
use crate::rig::CoreArgs;
use crate::router::RouterArgs;
use crate::soak::SoakArgs;
use crate::throughput::ThroughputArgs;

/// Benchmarks and the shared options that they use; those that are not here use all.
const USES: &Uses = &[
    (&["sync"], &["device", "queue", "engine", "mode", "size", "count", "json"]),
    (&["latency"], &["device", "queue", "engine", "mode", "size", "count", "json"]),
    (&["throughput"], &["device", "queue", "engine", "mode", "size", "count", "burst", "json"]),
    (&["matrix"], &["device", "engine", "size", "json"]),
    (&["queues"], &["device", "engine", "json"]),
    (&["nfb"], &["device", "queue", "engine", "size", "json"]),
    (&["classify"], &["engine", "size", "json"]),
    (&["rdma"], &["json"]),
    (&["message"], &["json"]),
    (&["router"], &["json"]),
    (&["esp"], &["size", "json"]),
    (&["agent"], &["engine", "json"]),
    (&["launch"], &["json"]),
    (&["clock"], &["json"]),
    (&["message-end"], &[]),
    (&["message-cable"], &[]),
    (&["message-tcp"], &[]),
    (&["node"], &[]),
    (&["grammar"], &[]),
    (&["man"], &[]),
];

/// Measure
#[derive(Debug, Parser)]
#[command(name = "millrace-bench", bin_name = "millrace bench", version = millrace_tool::VERSION)]
#[command(
    arg_required_else_help = true,
    after_help = "\
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
  millrace bench fairness --metric flooded_share
  millrace bench classify
  millrace bench rdma
  millrace bench message
  millrace bench router
  millrace bench esp
  millrace bench agent
  millrace bench launch
  millrace bench clock"
)]
pub struct BenchArgs {
    /// What to do.
    #[command(subcommand)]
    pub bench: Bench,
    /// Where card and application run.
    #[command(flatten)]
    pub cores: CoreArgs,
    /// Options that mean the same everywhere.
    #[command(flatten)]
    pub shared: Shared,
}

/// A benchmark, or what benchmarks and tests need.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// What sending and receiving one packet costs, step by step
    Sync,
    /// How long the round trip of one packet takes
    Latency(LatencyArgs),
    /// How many packets and bits per second go through
    Throughput(ThroughputArgs),
    /// The same work done by DPDK, by a bare ring and by a cache line
    Peers(PeersArgs),
    /// Throughput and latency by number of queues and packet size
    Matrix(MatrixArgs),
    /// What queues cost, configured and active, up to thousands
    Queues(QueuesArgs),
    /// The bursts of NFB programs through the extension library for libnfb
    Nfb(NfbArgs),
    /// What one program notices of others that are hostile, flooded or many
    Fairness(FairnessArgs),
    /// What looking up a frame's rule costs, and how fast rules change meanwhile
    Classify(ClassifyArgs),
    /// Verbs programs beside UCX, libfabric, TCP and the system's own copy
    Rdma(RdmaArgs),
    /// Messages between programs beside UCX, Open MPI, a cache line and the bare move
    Message(MessageArgs),
    /// Packets through a router, by Linux alone and by Millrace beside it
    Router(RouterArgs),
    /// ESP of the router beside the bare cipher
    Esp(EspArgs),
    /// Flow modifications of an OpenFlow controller while frames pass
    Agent(AgentArgs),
    /// How late frames with launch times leave, beside a bare spin and beside a sleep
    Launch(LaunchArgs),
    /// How far a card's clock is from its PTP master, beside what ptp4l reaches
    Clock(ClockArgs),
    /// Misbehave (for benchmarks and tests)
    #[command(hide = true)]
    Hostile(HostileArgs),
    /// Kill programs and scribble on memory for a long time (see `make soak`)
    #[command(hide = true)]
    Soak(SoakArgs),
    /// Be the sender or the receiver of `bench matrix --nodes`
    #[command(hide = true)]
    Node(NodeArgs),
    /// Be the other end of `bench message`
    #[command(hide = true)]
    MessageEnd(EndArgs),
    /// Be an end of the cable of `bench message`
    #[command(hide = true)]
    MessageCable(CableArgs),
    /// Send or take by TCP for `bench message`
    #[command(hide = true)]
    MessageTcp(TcpArgs),
    /// Print the grammar, for `millrace completions`
    #[command(hide = true)]
    Grammar,
    /// Write a manual page for every benchmark, for `millrace man`
    #[command(hide = true)]
    Man {
        /// Where to
        folder: PathBuf,
    },
}

/// The whole command line, each benchmark with the options that it uses.
pub fn command() -> clap::Command {
    applies::narrowed(BenchArgs::command(), USES)
}

/// What was asked for; ends the process with an explanation when that makes no sense.
pub fn parse() -> BenchArgs {
    let mut command = command();
    let matches = command.get_matches_mut();
    let parsed = applies::check(&mut command, &matches, USES).and_then(|()| BenchArgs::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| error.exit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_tool::manual;

    fn parse(line: &str) -> Result<(), String> {
        let mut root = command();
        let matches = root.try_get_matches_from_mut(line.split(' ')).map_err(|error| error.to_string())?;
        applies::check(&mut root, &matches, USES).map_err(|error| error.to_string())
    }

    #[test]
    fn the_grammar_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_name_is_one() {
        let root = command();
        for option in USES.iter().flat_map(|(_, used)| used.iter()) {
            assert!(root.get_arguments().any(|arg| arg.get_id() == option), "{option}");
        }
        for (path, _) in USES {
            assert!(root.find_subcommand(path[0]).is_some(), "{path:?}");
        }
    }

    #[test]
    fn what_a_benchmark_ignores_is_refused_wherever_it_stands() {
        let refused = parse("millrace-bench --poll sync").unwrap_err();
        assert!(refused.contains("`millrace bench sync` has no use for --poll"), "{refused}");
        parse("millrace-bench --count 100 latency --size 64").unwrap();
        assert!(parse("millrace-bench fairness --rounds 0").is_err());
    }

    #[test]
    fn there_is_a_page_for_every_benchmark_and_for_nothing_else() {
        let pages = manual::pages(&command()).unwrap();
        let has = |name: &str| pages.iter().any(|(file, _)| file == name);
        assert!(has("millrace-bench.1"));
        for one in command().get_subcommands() {
            assert_eq!(has(&format!("millrace-bench-{}.1", one.get_name())), !one.is_hide_set(), "{}", one.get_name());
        }
        for (name, text) in &pages {
            assert!(text.contains(".TH ") && text.contains(".SH OPTIONS"), "{name}");
            assert!(text.contains("millrace bench"), "{name}");
        }
    }
}
