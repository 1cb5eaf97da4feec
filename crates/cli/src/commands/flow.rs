//! `millrace flow`: rules of the classifier. So far it checks files of them.

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
  meter=1,rate=10Mbit,burst=64k            bytes; rate=10kpps,burst=100: packets
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
}

/// Runs the command.
pub fn run(shared: &Shared, args: &FlowArgs) -> Result<(), Failure> {
    let FlowCommand::Check { file, queues } = &args.command;
    let (rules, _) = stop::at_once(|| rules::load(file, *queues))?;
    let output = Output::new(shared.json);
    rules.items().try_for_each(|item| output.object(item))?;
    Ok(output.text(&rules.to_string())?)
}
