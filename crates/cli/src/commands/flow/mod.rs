//! `millrace flow`: rules of the classifier, in files and in a card that runs.
//!
//! - here: what can be asked for; `change`: add, delete, replace; `list`: list and stats; `watch`: what happens;
//!   `capture`: frames that meet a rule, `line`: one on a line; `keys`: keys of QUIC connections; `neighbours`: those of tunnels.

mod capture;
mod change;
mod keys;
mod line;
mod list;
mod neighbours;
mod watch;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::Output;
use millrace_tool::stop;

use crate::rules;

/// Options of `flow`.
#[derive(Debug, Args)]
pub struct FlowArgs {
    #[command(subcommand)]
    command: FlowCommand,
}

#[derive(Debug, Subcommand)]
enum FlowCommand {
    /// Check a file of rules, and print it in normal form
    #[command(after_help = "\
A line is a rule, an RSS group, a meter, or what becomes of packets that nothing
matches; # begins a comment. Rules are written as ovs-ofctl has them. A line that
begins with { is JSON, as --json prints it. Errors name line and column; with one
the exit code is 1 and nothing is printed.

  miss=normal                              or drop, or punt
  group=1,rss,queues=0-7,fields=5tuple,symmetric
  group=2,rss,queues=(0-3,6),tcp4=2tuple,inner,key=0x6d5a...
  meter=1,rate=10Mbit,burst=64k            bytes; rate=10kpps,burst=100: packets;
                                           remark=1: marked (AF11 to AF12), not dropped
  table=0,priority=100,tcp,nw_dst=10.0.0.0/8,tcp_dst=80,actions=meter:1,rss:1
  table=0,priority=50,dl_vlan=5,actions=pop_vlan,goto_table:1

Examples:
  millrace flow check rules.txt
  millrace flow check rules.txt --queues 8 --json >rules.json
  millrace flow check - <rules.json")]
    Check {
        /// File of rules; - is standard input
        file: PathBuf,
        /// How many RX queues the card has: rules that name others are refused [default: any queue may be named]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
        queues: Option<u32>,
    },
    /// Add rules, groups and meters to a card, all or none
    Add(change::AddArgs),
    /// Delete rules of a card
    Delete(change::DeleteArgs),
    /// Make a file all that the card keeps: what is there already stays as it is
    Replace(change::ReplaceArgs),
    /// List rules, groups and meters of a card, as a file of rules
    List(list::ListArgs),
    /// Print what the rules of a card have had, once or every second
    Stats(list::StatsArgs),
    /// Print what happens to the rules of a card, until Ctrl-C
    Watch(watch::WatchArgs),
    /// Show frames that meet a rule as they come, or write them to a capture, until Ctrl-C
    Capture(capture::CaptureArgs),
    /// Give rules of a card other actions: their counters go on
    Modify(change::ModifyArgs),
    /// Hand over keys of QUIC connections from a file of SSLKEYLOGFILE, as it grows, until Ctrl-C
    Keys(keys::KeysArgs),
    /// List, add and delete neighbours of tunnels
    Neighbours(neighbours::NeighboursArgs),
}

/// Runs the command.
pub fn run(shared: &Shared, args: &FlowArgs) -> Result<(), Failure> {
    match &args.command {
        FlowCommand::Check { file, queues } => check(shared, file, *queues),
        FlowCommand::Add(args) => change::add(shared, args),
        FlowCommand::Delete(args) => change::delete(shared, args),
        FlowCommand::Replace(args) => change::replace(shared, args),
        FlowCommand::List(args) => list::list(shared, args),
        FlowCommand::Stats(args) => list::stats(shared, args),
        FlowCommand::Watch(args) => watch::run(shared, args),
        FlowCommand::Capture(args) => capture::run(shared, args),
        FlowCommand::Modify(args) => change::modify(shared, args),
        FlowCommand::Keys(args) => keys::run(shared, args),
        FlowCommand::Neighbours(args) => neighbours::run(shared, args),
    }
}

fn check(shared: &Shared, file: &std::path::Path, queues: Option<u32>) -> Result<(), Failure> {
    let (rules, _) = stop::at_once(|| rules::load(file, queues))?;
    let output = Output::new(shared.json);
    rules.items().try_for_each(|item| output.object(item))?;
    Ok(output.text(&rules.to_string())?)
}
