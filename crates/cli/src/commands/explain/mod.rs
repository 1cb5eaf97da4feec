//! `millrace explain`: what rules do with the packets of a capture, and why: rules of a file, or of a card that runs.
//!
//! - `card`: the rules of a card; - `explainer`: one frame, by rules; - `link`: frames of packets of other links; `live`: frames that a card gets; - `report`: what is printed.

mod card;
mod explainer;
mod link;
pub mod live;
mod report;

use std::fs::File;
use std::path::PathBuf;

use clap::Args;
use millrace_flow::explain::BETTER;
use millrace_flow::version::{Limits, Writer};
use millrace_port::pcap::{self, Packets};
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
IP, Linux cooked, PPP, HDLC, frame relay, IEEE 802.11, tags of switch chips) get
one; of what carries nothing that has an EtherType, and of packets longer than a
frame can be, it is said why they are skipped.
Frames are really changed, so what is said of later tables, and of what goes out
where, is so. Meters go by the times of the capture, every frame is sampled, and
where encap_vxlan asks for a neighbour its address is zeros.

Several files of rules are transactions one after the other: the first makes
version 1. --table says which version is asked; the last one otherwise.

How files of rules are written: docs/classifier.md, `millrace flow check --help`.

Examples:
  millrace explain in.pcap --rules rules.txt
  millrace explain in.pcap --rules rules.txt --packet 3,7-9 --better 100
  millrace explain in.pcap --rules before.txt --rules change.txt --table 1
  echo 'tcp,tcp_dst=80,actions=queue:3' | millrace explain in.pcap --rules -
  millrace explain in.pcap --rules rules.txt --summary --write out.pcap
  millrace explain in.pcap --card                 by the rules of the card that runs
  millrace explain in.pcap --card --table 17      as they were in version 17
  millrace explain --live --count 10              frames that come to the card now
  millrace explain --live --queue 3 --rate 10     those that queue 3 gets")]
pub struct ExplainArgs {
    /// Capture to read
    #[arg(required_unless_present = "live")]
    file: Option<PathBuf>,
    /// File of rules, RSS groups and meters; - is standard input. Several are versions 1, 2, ...
    #[arg(long, value_name = "FILE", required_unless_present_any = ["card", "live"], conflicts_with = "card")]
    rules: Vec<PathBuf>,
    /// Explain by the rules of the card that runs (--device says which)
    #[arg(long)]
    card: bool,
    /// Explain the frames that rules of the card decide on just now: all, or those of --port, or those that --queue gets
    #[arg(long, conflicts_with_all = ["file", "rules", "card", "table", "packet", "write"])]
    live: bool,
    /// With --live, most frames per second; what is beyond is counted
    #[arg(long, value_name = "N", default_value_t = 100, requires = "live",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Version of the tables: so many of the files of rules, 0 is none; or of the card's rules, of which the last 4,096 can be had
    /// [default: the newest]
    #[arg(long, value_name = "VERSION")]
    table: Option<u64>,
    /// Port at which the packets come in [default: 0; with --live all]
    #[arg(long, value_name = "N")]
    port: Option<u32>,
    /// How many RX queues the card has: rules that name others are refused [default: any queue may be named]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    queues: Option<u32>,
    /// Packets to explain, counted from 1, such as 3,7-9 [default: all]
    #[arg(long, value_name = "LIST")]
    packet: Option<Picked>,
    /// Write what is sent, to whomever, to this capture
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// How many better rules that did not match are named in each table
    #[arg(long, value_name = "N", default_value_t = BETTER)]
    better: usize,
    /// Print only how many packets each rule and queue had
    #[arg(long)]
    summary: bool,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &ExplainArgs) -> Result<(), Failure> {
    if args.live {
        return live::run(shared, args);
    }
    if shared.queue.is_some() || shared.count.is_some() {
        return Err(Failure::Usage(
            "--queue and --count are for --live; --packet picks packets of a capture".to_owned(),
        ));
    }
    let Some(file) = &args.file else { return Err(Failure::Usage("which capture?".to_owned())) };
    let (writer, card) = match args.card {
        true => card::tables(shared, args.table, args.queues)?,
        false => (stop::at_once(|| tables(args))?, None),
    };
    let mut packets = Packets::open(file)?;
    let mut explainer = Explainer::new(writer, args.port.unwrap_or(0), args.better).on_card(card);
    let mut report = Report::new(Output::new(shared.json), !args.summary);
    let mut written = args.write.as_ref().map(pcap::Writer::create).transpose()?;
    let damage = explain_all(&mut packets, args.packet.as_ref(), &mut explainer, &mut report, written.as_mut())?;
    if let Some(written) = &mut written {
        written.flush()?;
    }
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

/// The tables of the version that is asked. Files behind it are read as well: what is wrong in them should be said.
fn tables(args: &ExplainArgs) -> Result<Writer, Failure> {
    let last = args.rules.len() as u64;
    let asked = args.table.unwrap_or(last);
    if asked > last {
        return Err(Failure::Usage(format!("--table {asked}: there are versions 0 to {last}, one for each --rules")));
    }
    let mut writer = Writer::new(1, Limits::default());
    for (version, path) in (1..).zip(&args.rules) {
        if version <= asked {
            rules::add(&mut writer, path, args.queues)?;
        } else {
            rules::load(path, args.queues)?;
        }
    }
    Ok(writer)
}

/// Explains the packets that were picked, and returns what keeps the rest of the file from being read.
fn explain_all<R: std::io::Read>(
    packets: &mut Packets<R>,
    picked: Option<&Picked>,
    explainer: &mut Explainer,
    report: &mut Report,
    mut written: Option<&mut pcap::Writer<File>>,
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
                    Ok(frame) => {
                        let explained = explainer.explain(frame, time_ns);
                        if let Some(written) = &mut written {
                            explained.sent.iter().try_for_each(|sent| written.write(packet.time, &sent.bytes))?;
                        }
                        report.packet(head, &explained)?;
                    }
                    Err(why) => report.skip(head, &why)?,
                }
            }
            Ok(None) => return Ok(None),
            Err(error) => report.skip(Head { number, ..Head::default() }, &error.to_string())?,
        }
    }
    Ok(None)
}
