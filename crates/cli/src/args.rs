//! The command line: what can be asked for, and the help that says so.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use millrace_abi::name::{CardOptions, EngineRule, OptionError, VARIABLE};
use millrace_abi::queue::{Engine, Mode, QueueId};

use crate::applies;
use crate::bench::BenchArgs;
use crate::commands::{
    card, clients, completions, forward, generate, locks, loopback_hw, man, pktgen, ports, read, receive, regs, stats,
    transmit, workers,
};
use crate::hostile::HostileArgs;
use crate::list::{Queues, Sizes};
use crate::soak::SoakArgs;

const HEADING: &str = "Shared options";

const EXAMPLES: &str = "\
Examples:
  millrace demo                               a capture out and back, latencies
  millrace card                               a card for several programs
  millrace loopback-hw --size 64-1500         lost, reordered, damaged?
  millrace stats --watch                      what the card counts
  millrace bench latency --plot latency.svg   how long a round trip takes

Without --device and MILLRACE_DEVICE a command uses the card that was started
without --listen, if there is one: at $MILLRACE_SOCKET, in $XDG_RUNTIME_DIR or
/run. Otherwise it uses a card of its own, inside its process, that sends
everything back, or refuses where that would be of no use.

Results go to standard output, everything else to standard error. The log too:
MILLRACE_LOG=off, error, warn, info, debug or trace says how much of it; usual
is warn, and info for a card, which then tells who comes and goes.
Exit codes: 0 what was asked for happened, 1 an error, loss or corruption, 2 a
wrong command line, 130 Ctrl-C before the end.";

/// Send and receive packets through a software accelerator card, with the kernel off the data path.
#[derive(Debug, Parser)]
#[command(name = "millrace", version = env!("MILLRACE_VERSION"), after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Options that mean the same everywhere.
    #[command(flatten)]
    pub shared: Shared,
}

/// Options that mean the same in every command that takes them: [`applies`] says which do.
#[derive(Clone, Debug, Args)]
pub struct Shared {
    /// Card to use: embedded[:OPTIONS] or unix:PATH
    #[arg(long, short = 'd', global = true, env = VARIABLE, value_name = "NAME", help_heading = HEADING)]
    pub device: Option<String>,
    /// Queues, such as 0-3,5 [default: 0]
    #[arg(long, short = 'i', global = true, value_name = "LIST", help_heading = HEADING)]
    pub queue: Option<Queues>,
    /// DMA protocol of all or some queues: sze, medusa, calypte or dd, or such as sze@0-3; may be repeated
    /// [default: what the card has; medusa for a card of one's own]
    #[arg(long, short = 'e', global = true, value_name = "ENGINE", help_heading = HEADING)]
    pub engine: Vec<Engines>,
    /// Who moves the pointers: direct (this program) or mediated (the driver) [default: direct]
    #[arg(long, short = 'm', global = true, value_name = "MODE", help_heading = HEADING)]
    pub mode: Option<Mode>,
    /// Frame sizes in bytes without FCS; a range means random sizes, such as 64 or 64,512,1024-1500
    #[arg(long, short = 's', global = true, value_name = "LIST", help_heading = HEADING)]
    pub size: Option<Sizes>,
    /// Frames per queue, such as 1000, 10M or 1e6
    #[arg(long, short = 'n', global = true, value_name = "N", value_parser = count, help_heading = HEADING)]
    pub count: Option<u64>,
    /// Most frames per call to the queue, 1 to 1024
    #[arg(long, short = 'B', global = true, value_name = "N", help_heading = HEADING,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub burst: Option<u16>,
    /// Never sleep while there is nothing to do
    #[arg(long, global = true, help_heading = HEADING)]
    pub poll: bool,
    /// One JSON object per line on standard output instead of tables
    #[arg(long, global = true, help_heading = HEADING)]
    pub json: bool,
}

/// The whole command line, each command with the options that it uses.
pub fn command() -> clap::Command {
    applies::narrowed(Cli::command())
}

/// What was asked for; ends the process with an explanation when that makes no sense.
pub fn parse() -> Cli {
    let mut command = command();
    let matches = command.get_matches_mut();
    let parsed = applies::check(&mut command, &matches).and_then(|()| Cli::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| error.exit())
}

impl Shared {
    /// The queues asked for, or queue 0.
    pub fn queues(&self) -> Queues {
        self.queue.clone().unwrap_or_else(|| Queues::one(0))
    }

    /// The engines asked for.
    pub fn engine_rules(&self) -> impl Iterator<Item = EngineRule> + '_ {
        self.engine.iter().flat_map(|engines| engines.0.iter().copied())
    }

    /// The engine asked for on that queue.
    pub fn engine_of(&self, queue: QueueId) -> Option<Engine> {
        self.engine_rules().filter(|rule| rule.queues.contains(queue)).last().map(|rule| rule.engine)
    }

    /// The mode asked for, or direct mode.
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or_default()
    }

    /// The burst asked for, or `otherwise`.
    pub fn burst_or(&self, otherwise: u16) -> usize {
        usize::from(self.burst.unwrap_or(otherwise))
    }

    /// The sizes asked for, or frames of `otherwise` bytes.
    pub fn sizes_or(&self, otherwise: u32) -> Sizes {
        self.size.clone().unwrap_or_else(|| Sizes::one(otherwise))
    }
}

/// The value of one `--engine`: which engine serves which queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engines(Vec<EngineRule>);

impl Engines {
    /// One engine for all queues.
    pub fn all(engine: Engine) -> Self {
        engine.to_string().parse().expect("an engine alone is a rule")
    }
}

impl FromStr for Engines {
    type Err = OptionError;
    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut options = CardOptions::default();
        options.set("engine", Some(text))?;
        Ok(Self(options.engines))
    }
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a card that other programs use through a Unix socket
    Card(card::CardArgs),
    /// Show what is behind the ports of a card; plug, unplug, connect
    Ports(ports::PortsArgs),
    /// Show which worker serves which queues; move queues
    Workers(workers::WorkersArgs),
    /// Show who is connected to a card; end a connection
    Clients(clients::ClientsArgs),
    /// Show who holds which lock; end locks
    Locks(locks::LocksArgs),
    /// Say what the card is, which queues it has, and who has how much of it
    Info,
    /// Print the device tree of the card
    Tree {
        /// Write the flattened device tree (DTB) to this file instead
        #[arg(long, value_name = "FILE")]
        dtb: Option<PathBuf>,
    },
    /// Print every register of the card by name
    Regs(regs::RegsArgs),
    /// Print what the card has counted
    Stats(stats::StatsArgs),
    /// Send structured frames
    Generate(generate::GenerateArgs),
    /// Receive frames and count them
    Read(read::ReadArgs),
    /// Receive frames into a pcap file
    Receive(receive::ReceiveArgs),
    /// Send the frames of a pcap file
    Transmit(transmit::TransmitArgs),
    /// Send back every frame that is received
    #[command(after_help = "\
Every frame received on queue N is copied and sent on queue N, until --count
frames or Ctrl-C.

Examples:
  millrace loopback --queue 0-3
  millrace loopback --count 1000 --json")]
    Loopback,
    /// Forward frames between two queues without copying them
    Forward(forward::ForwardArgs),
    /// Send structured frames and check what comes back
    LoopbackHw(loopback_hw::LoopbackHwArgs),
    /// Send and receive real flows at a rate, and count what is lost
    Pktgen(pktgen::PktgenArgs),
    /// Measure
    Bench(BenchArgs),
    /// Show everything in half a minute
    #[command(after_help = "\
Sends a capture through a card inside this program, with every engine, compares
every byte of what comes back, and measures round trips. It takes the capture
from the folder $MILLRACE_CAPTURES, or makes one.

Examples:
  millrace demo
  millrace demo --json")]
    Demo,
    /// Print a script with which a shell completes this command
    Completions(completions::CompletionsArgs),
    /// Print or write manual pages
    Man(man::ManArgs),
    /// Misbehave (for benchmarks and tests)
    #[command(hide = true)]
    Hostile(HostileArgs),
    /// Kill programs and scribble on memory for a long time (see `make soak`)
    #[command(hide = true)]
    Soak(SoakArgs),
}

/// A whole number above 0, such as 1000, 10k, 1.5M or 1e6.
pub fn count(text: &str) -> Result<u64, String> {
    let number = millrace_port::spec::number(text).filter(|number| *number > 0);
    number.ok_or_else(|| "expected a whole number above 0, such as 1000, 10k, 1.5M or 1e6".to_owned())
}

/// The same, and 0.
pub fn count_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { count(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn shared_options_are_taken_before_and_behind_the_command() {
        for line in [
            "millrace --device unix:/x --queue 0-2,4 --json read --count 10k",
            "millrace read --json --count 10000 --queue 0,1,2,4 --device unix:/x",
        ] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(cli.shared.device.as_deref(), Some("unix:/x"));
            assert_eq!(cli.shared.queues().indices(), [0, 1, 2, 4]);
            assert_eq!((cli.shared.count, cli.shared.json), (Some(10_000), true));
        }
    }

    #[test]
    fn engines_may_differ_between_queues() {
        let cli = Cli::try_parse_from("millrace read -e medusa --engine sze@1-2".split(' ')).unwrap();
        let engines = [0, 1, 2, 3].map(|index| cli.shared.engine_of(QueueId::rx(index)).unwrap());
        assert_eq!(engines, [Engine::Medusa, Engine::Sze, Engine::Sze, Engine::Medusa]);
        let cli = Cli::try_parse_from(["millrace", "info"]).unwrap();
        assert_eq!(cli.shared.engine_of(QueueId::rx(0)), None);
        assert_eq!(Engines::all(Engine::Sze), "sze".parse().unwrap());
    }

    #[test]
    fn wrong_values_are_refused() {
        for line in [
            "millrace read --engine wood",
            "millrace read --engine sze@",
            "millrace read --mode fast",
            "millrace read --burst 0",
            "millrace read --burst 1025",
            "millrace generate --size 0",
            "millrace generate --count 0",
            "millrace generate --count 1T",
            "millrace frobnicate",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
