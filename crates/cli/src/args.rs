//! The command line: what can be asked for, and the help that says so.

use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use millrace_tool::applies::{self, Uses};
use millrace_tool::options::Shared;

use crate::commands::bench::BenchArgs;
use crate::commands::{
    agent, card, clients, clock, completions, explain, flow, forward, generate, ivshmem, locks, loopback_hw, man,
    message, metrics, pktgen, ports, pppoe, rdma, read, receive, regs, router, schedule, send, socket, split, stats,
    transmit, verbs, workers,
};

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

/// What a command uses that moves frames through queues, besides their sizes.
const QUEUES: &[&str] = &["device", "queue", "engine", "mode", "count", "burst", "poll", "json"];

/// Commands and the shared options that they use; those that are not here use all.
const USES: &Uses = &[
    (&["card"], &["engine", "poll", "json"]),
    (&["ports"], &["device", "json"]),
    (&["workers"], &["device", "json"]),
    (&["schedule"], &["device", "json"]),
    (&["clients"], &["device", "json"]),
    (&["locks"], &["device", "json"]),
    // With `--device embedded`, an engine is one of the card that is made.
    (&["info"], &["device", "engine", "json"]),
    (&["tree"], &["device", "engine", "json"]),
    (&["regs"], &["device", "engine", "json"]),
    (&["stats"], &["device", "queue", "count", "json"]),
    (&["metrics"], &["device"]),
    (&["clock", "show"], &["device", "count", "json"]),
    (&["clock", "set"], &["device"]),
    (&["clock", "adjust"], &["device"]),
    (&["clock", "follow", "ptp"], &["device", "queue", "json"]),
    (&["clock"], &["device", "json"]),
    (&["read"], QUEUES),
    (&["receive"], QUEUES),
    (&["transmit"], QUEUES),
    (&["send"], &["device", "queue", "size", "count", "json"]),
    (&["loopback"], QUEUES),
    (&["forward"], &["device", "queue", "engine", "count", "burst", "poll", "json"]),
    (&["verbs"], &["device"]),
    (&["rdma"], &["count", "json"]),
    (&["split", "serve"], &["count", "json"]),
    (&["split", "drive"], &["count", "json"]),
    (&["split"], &["json"]),
    (&["message", "listen"], &["count", "json"]),
    (&["message", "send"], &["count", "json"]),
    (&["message", "latency"], &["count", "json"]),
    (&["message"], &["json"]),
    (&["socket"], &[]),
    (&["ivshmem", "listen"], &["count", "json"]),
    (&["ivshmem", "ring"], &[]),
    (&["ivshmem", "send"], &[]),
    (&["ivshmem"], &["json"]),
    (&["pppoe"], &["json"]),
    (&["agent", "status"], &["device", "json"]),
    (&["agent"], &["device"]),
    // Before the others: it has a `--mode` of its own.
    (&["router", "start"], &["json"]),
    (&["router", "status"], &["count", "json"]),
    (&["router", "watch"], &["count", "json"]),
    (&["router", "stop"], &[]),
    (&["router", "on"], &[]),
    (&["router", "off"], &[]),
    (&["router", "only"], &[]),
    (&["router", "add"], &[]),
    (&["router", "remove"], &[]),
    (&["router", "flush"], &[]),
    (&["router", "ipsec", "stop"], &[]),
    (&["router", "sa", "add"], &[]),
    (&["router", "sa", "del"], &[]),
    (&["router", "sa", "flush"], &[]),
    (&["router"], &["json"]),
    (&["demo"], &["json"]),
    (&["explain"], &["device", "queue", "count", "json"]),
    // The first that fits counts.
    (&["flow", "check"], &["json"]),
    (&["flow", "add"], &["device", "json"]),
    (&["flow", "delete"], &["device", "json"]),
    (&["flow", "replace"], &["device", "json"]),
    (&["flow", "list"], &["device", "json"]),
    (&["flow", "modify"], &["device", "json"]),
    (&["flow", "neighbours"], &["device", "json"]),
    (&["flow"], &["device", "count", "json"]),
    (&["completions"], &[]),
    (&["man"], &[]),
];

/// Send and receive packets through a software accelerator card, with the kernel off the data path.
#[derive(Debug, Parser)]
#[command(name = "millrace", version = millrace_tool::VERSION, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Options that mean the same everywhere.
    #[command(flatten)]
    pub shared: Shared,
}

/// What `--count` counts where that is not frames.
const COUNTS: &[(&[&str], &str)] = &[
    (&["clock", "show"], LOOKS),
    (&["rdma", "qps"], LOOKS),
    (&["rdma", "regions"], LOOKS),
    (&["rdma", "iotlb"], LOOKS),
    (&["rdma", "stats"], LOOKS),
    (&["split", "serve"], "Connections to serve, such as 1 [default: until Ctrl-C]"),
    (&["split", "drive"], "Operations of each size and kind, such as 1000 [default: 100]"),
    (&["ivshmem", "listen"], "Doorbells and messages to take, such as 1000 or 1e6 [default: until Ctrl-C]"),
    (&["message", "listen"], "Senders to listen to, such as 1 [default: until Ctrl-C]"),
    (&["message", "send"], "Messages to send, such as 1000, 10M or 1e6 [default: 1000]"),
    (&["message", "latency"], "Messages to send there and back, such as 1000, 10M or 1e6"),
    (&["router", "status"], LOOKS),
    (&["router", "watch"], "How often to look"),
    (&["rdma", "capture"], "Packets to capture, such as 1000, 10k or 1e6"),
];
const LOOKS: &str = "How often to look, with --watch";

/// The whole command line, each command with the options that it uses.
pub fn command() -> clap::Command {
    let root = applies::narrowed(Cli::command(), USES);
    COUNTS.iter().fold(root, |root, (path, help)| applies::reworded(root, path, "count", help))
}

/// What was asked for; ends the process with an explanation when that makes no sense.
pub fn parse() -> Cli {
    let mut command = command();
    let matches = command.get_matches_mut();
    let parsed = applies::check(&mut command, &matches, USES).and_then(|()| Cli::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| error.exit())
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
    /// Show or change when the queues of a port may send: gates, classes, rates
    Schedule(schedule::ScheduleArgs),
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
    /// Read, set, adjust or lead the clock of a card
    Clock(clock::ClockArgs),
    /// Tell Prometheus what a card counts
    Metrics(metrics::MetricsArgs),
    /// Send structured frames
    Generate(generate::GenerateArgs),
    /// Receive frames and count them
    Read(read::ReadArgs),
    /// Receive frames into a pcap file
    Receive(receive::ReceiveArgs),
    /// Send the frames of a pcap file
    Transmit(transmit::TransmitArgs),
    /// Send frames at the times that they are told, and say what became of each
    Send(send::SendArgs),
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
    /// Explain what rules do with the packets of a capture
    Explain(explain::ExplainArgs),
    /// Program the classifier of a card: which frames go where
    Flow(flow::FlowArgs),
    /// Run a program that is written for verbs (RDMA, UCX, MPI) over a card
    Verbs(verbs::VerbsArgs),
    /// Show queue pairs, regions and counters of verbs programs
    Rdma(rdma::RdmaArgs),
    /// Let programs in guests use an RDMA engine outside, by memory that they grant: Xen, or processes
    Split(split::SplitArgs),
    /// Send messages between programs of this host, by name; measure what they cost
    Message(message::MessageArgs),
    /// Share memory, doorbells and messages between virtual machines and the host (ivshmem)
    Ivshmem(ivshmem::IvshmemArgs),
    /// Run a TCP program whose connections on this host go through shared memory
    Socket(socket::SocketArgs),
    /// Have a PPPoE session, where the kernel has no PPP
    Pppoe(pppoe::PppoeArgs),
    /// Make a Linux router faster: what Linux does with a flow is done for the rest of it without Linux
    Router(router::RouterArgs),
    /// Serve the flow table of a card to OpenFlow controllers
    Agent(agent::AgentArgs),
    /// Measure, with the program millrace-bench
    #[command(disable_help_flag = true)]
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
    /// Misbehave (for benchmarks and tests), with the program millrace-bench
    #[command(hide = true, disable_help_flag = true)]
    Hostile(BenchArgs),
    /// Kill programs and scribble on memory for a long time (see `make soak`), with the program millrace-bench
    #[command(hide = true, disable_help_flag = true)]
    Soak(BenchArgs),
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

    fn parse(line: &str) -> Result<(), String> {
        let mut root = command();
        let matches = root.try_get_matches_from_mut(line.split(' ')).map_err(|error| error.to_string())?;
        applies::check(&mut root, &matches, USES).map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_command_ignores_is_refused_wherever_it_stands() {
        for line in [
            "millrace info --size 64",
            "millrace --size 64 info",
            "millrace ports plug 0 null --count 3",
            "millrace card --device embedded",
            "millrace transmit x.pcap --size 100",
            "millrace demo --queue 3",
        ] {
            let refused = parse(line).expect_err(line);
            assert!(refused.contains("has no use for --"), "{refused}");
        }
    }

    #[test]
    fn what_it_uses_is_taken_wherever_it_stands() {
        for line in [
            "millrace --json --device embedded info",
            "millrace ports --device unix:/x plug 0 null",
            "millrace stats --watch --count 3 --queue 0",
            "millrace generate --size 64 --count 3 --burst 5 --poll --mode direct",
            "millrace card --poll --engine sze",
        ] {
            parse(line).expect(line);
        }
    }

    #[test]
    fn help_shows_what_can_be_said() {
        let mut root = command();
        root.build();
        let mut help = |path: &[&str]| {
            let command = path.iter().fold(&mut root, |command, name| command.find_subcommand_mut(name).unwrap());
            command.render_long_help().to_string()
        };
        let (info, plug, generate) = (help(&["info"]), help(&["ports", "plug"]), help(&["generate"]));
        assert!(info.contains("--device") && !info.contains("--size") && !info.contains("--count"), "{info}");
        let (send, table) = (help(&["message", "send"]), help(&["message", "table"]));
        assert!(
            send.contains("--count <N>") && send.contains("Messages to send") && !send.contains("--device"),
            "{send}"
        );
        assert!(!table.contains("--count <N>"), "{table}");
        assert!(plug.contains("--device") && !plug.contains("--burst"), "{plug}");
        assert!(applies::ALL.iter().all(|option| generate.contains(&format!("--{option}"))), "{generate}");
    }

    #[test]
    fn every_name_is_one() {
        let root = command();
        for option in applies::ALL.iter().chain(USES.iter().flat_map(|(_, used)| used.iter())) {
            assert!(root.get_arguments().any(|arg| arg.get_id() == option), "{option}");
        }
    }

    #[test]
    fn what_is_behind_bench_is_for_the_benchmarks() {
        for line in
            ["millrace bench --help", "millrace bench latency --plot x", "millrace --json bench --app-cpu 0 sync"]
        {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert!(matches!(cli.command, Command::Bench(_)), "{line}");
        }
    }
}
