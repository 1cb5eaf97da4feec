//! `millrace explain`: what rules do with the packets of a capture, and why. No card is needed.
//!
//! - `explainer`: one frame, by rules; - `link`: frames of packets of other links; - `report`: what is printed.

mod explainer;
mod link;
mod report;

use std::path::PathBuf;

use clap::Args;
use millrace_flow::explain::BETTER;
use millrace_port::pcap::Packets;
use millrace_tool::failure::Failure;
use millrace_tool::list::Picked;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, note};
use millrace_tool::stop;

use crate::rules;
use explainer::Explainer;
use report::{Head, Report};

/// Options of `explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
For each packet: the fields that rules can match; table after table the rule
that won, and of each better rule the first field by which it did not match; the
hash and queue of RSS groups; what is done, and what becomes of the packet: drop,
forward (ports only) or process (the host). At the end, how many packets each
rule and each queue had.

The capture is pcap or pcapng. Packets of links without an Ethernet header (raw
IP, Linux cooked) get one with made up addresses; those of links that carry
something else, and packets longer than a frame can be, are said to be skipped.
After decap_vxlan it goes on within the tunnel; after other actions that change
which headers come first it says that it does not.

How files of rules are written: docs/classifier.md, `millrace flow check --help`.

Examples:
  millrace explain in.pcap --rules rules.txt
  millrace explain in.pcap --rules rules.txt --packet 3,7-9 --better 100
  echo 'tcp,tcp_dst=80,actions=queue:3' | millrace explain in.pcap --rules -
  millrace explain in.pcap --rules rules.txt --summary --json")]
pub struct ExplainArgs {
    /// Capture to read
    file: PathBuf,
    /// File of rules, RSS groups and meters; - is standard input
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
    /// Port at which the packets come in
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u32,
    /// How many RX queues the card has: rules that name others are refused [default: any queue may be named]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    queues: Option<u32>,
    /// Packets to explain, counted from 1, such as 3,7-9 [default: all]
    #[arg(long, value_name = "LIST")]
    packet: Option<Picked>,
    /// How many better rules that did not match are named in each table
    #[arg(long, value_name = "N", default_value_t = BETTER)]
    better: usize,
    /// Print only how many packets each rule and queue had
    #[arg(long)]
    summary: bool,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &ExplainArgs) -> Result<(), Failure> {
    let (_, writer) = stop::at_once(|| rules::load(&args.rules, args.queues))?;
    let mut packets = Packets::open(&args.file)?;
    let mut explainer = Explainer::new(writer, args.port, args.better);
    let mut report = Report::new(Output::new(shared.json), !args.summary);
    let damage = explain_all(&mut packets, args.packet.as_ref(), &mut explainer, &mut report)?;
    report.summary(&explainer.rules())?;
    if report.skipped() > 0 {
        note(format!("skipped {} of {} packets: no frames that a card could get", report.skipped(), report.packets()));
    }
    match damage {
        // What could be read has been explained, but that is not all that was asked for.
        Some(damage) => Err(Failure::Found(damage)),
        None if stop::asked() => Err(Failure::Interrupted),
        None => Ok(()),
    }
}

/// Explains the packets that were picked, and returns what keeps the rest of the file from being read.
fn explain_all<R: std::io::Read>(
    packets: &mut Packets<R>,
    picked: Option<&Picked>,
    explainer: &mut Explainer,
    report: &mut Report,
) -> Result<Option<String>, Failure> {
    let mut made = Vec::new();
    let mut number = 0;
    while !stop::asked() && picked.is_none_or(|picked| picked.last() > number) {
        number += 1;
        let packet = match packets.next_packet() {
            Ok(None) => return Ok(None),
            Err(error) if error.ends_stream() => return Ok(Some(error.to_string())),
            other => other,
        };
        if picked.is_some_and(|picked| !picked.contains(number)) {
            continue;
        }
        match packet {
            Ok(Some(packet)) => {
                let (time_ns, len) = (packet.time.nanos(), packet.data.len());
                let head = Head { number, time_ns, len, link: packet.link };
                match link::frame(&packet, &mut made) {
                    Ok(frame) => report.packet(head, &explainer.explain(frame, time_ns))?,
                    Err(why) => report.skip(head, &why)?,
                }
            }
            Ok(None) => return Ok(None),
            Err(error) => report.skip(Head { number, ..Head::default() }, &error.to_string())?,
        }
    }
    Ok(None)
}
