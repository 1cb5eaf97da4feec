//! `millrace flow capture`: the frames that meet a rule, as they come.

use std::fs::File;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use clap::Args;
use millrace::flow::{FlowFrame, FlowTap, FlowTapWants};
use millrace_flow::field::LOCAL;
use millrace_port::pcap::{CaptureTime, Writer};
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::Output;
use millrace_tool::stop;
use serde::Serialize;

use super::change::open;
use super::line;
use crate::commands::explain::live::{Missed, WAIT, say_what_is_heard};
use crate::commands::stats::time_of_day;

/// Options of `flow capture`.
#[derive(Debug, Args)]
#[command(after_help = "\
A line for each frame that meets the rule, as it came in: when, where, what it is,
and who gets it. The number of a rule is in `millrace flow stats`. Nothing stops for
this: what comes faster than --rate, or than this command reads, is not shown, and it
says how much. It takes the right capture, since frames of others are seen.

Examples:
  millrace flow capture 17
  millrace flow capture cookie=0x10/0xf0 --count 100 --pcap seen.pcap
  millrace flow capture 17 --after --pcap sent.pcap
  millrace flow capture all --json")]
pub struct CaptureArgs {
    /// Number of a rule, cookie=VALUE[/MASK], expired (the time to live was at its end), or all
    #[arg(value_name = "RULE")]
    which: String,
    /// Write the frames to this capture; lines are not printed then
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Frames as they are after all actions
    #[arg(long)]
    after: bool,
    /// Most frames per second
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Most bytes of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 16384, value_parser = clap::value_parser!(u32).range(14..=16384))]
    snap: u32,
}

/// A frame as JSON.
#[derive(Serialize)]
struct Seen<'a> {
    command: &'static str,
    #[serde(flatten)]
    frame: &'a FlowFrame,
    line: String,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &CaptureArgs) -> Result<(), Failure> {
    let wants = wants(&args.which)?;
    let session = open(shared)?;
    let flows = session.device.flows();
    if let FlowTapWants::Rule(number) = wants {
        let rules = flows.list("").doing(|| "cannot list the rules".to_owned())?;
        if !rules.iter().any(|entry| entry.rule.is_some_and(|counts| counts.number == number)) {
            let text = format!("there is no rule {number}; `millrace flow stats` has the numbers");
            return Err(Failure::Found(text));
        }
    }
    let doing = || "cannot listen to frames".to_owned();
    let mut written = args.pcap.as_ref().map(|path| stop::at_once(|| Writer::create(path))).transpose()?;
    let tap = FlowTap { wants, snap: args.snap, after: args.after, rate: args.rate };
    let mut listener = flows.tap(tap).doing(doing)?;
    say_what_is_heard(&session.device)?;
    let (mut left, mut missed) = (shared.count.unwrap_or(u64::MAX), Missed::default());
    while left > 0 && !stop::asked() {
        let heard = listener.next(WAIT).doing(doing)?;
        missed.tell(shared, &heard)?;
        if heard.frames.is_empty() {
            // Whoever looks at the file while nothing comes sees everything that came.
            written.iter_mut().try_for_each(Writer::flush)?;
        }
        for frame in heard.frames.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            show(shared, frame, written.as_mut())?;
            left -= 1;
        }
    }
    written.iter_mut().try_for_each(Writer::flush)?;
    if shared.count.is_some() && left > 0 { Err(Failure::Interrupted) } else { Ok(()) }
}

fn show(shared: &Shared, frame: &FlowFrame, written: Option<&mut Writer<File>>) -> Result<(), Failure> {
    if let Some(written) = written {
        written.write(CaptureTime::from_nanos(frame.time_ns), &frame.bytes)?;
        return Ok(());
    }
    let output = Output::new(shared.json);
    let line = line::of(&frame.bytes, frame.len as usize);
    output.text(&format!("{} {line} {}\n", when_and_where(frame), who(frame)))?;
    output.object(&Seen { command: "flow", frame, line })?;
    Ok(())
}

fn when_and_where(frame: &FlowFrame) -> String {
    let time = time_of_day(UNIX_EPOCH + std::time::Duration::from_nanos(frame.time_ns));
    let time = format!("{}.{:06}", time.trim_end_matches(" UTC"), frame.time_ns / 1000 % 1_000_000);
    match frame.port {
        LOCAL => format!("{time} tx{}", frame.queue),
        port => format!("{time} port {port}"),
    }
}

fn who(frame: &FlowFrame) -> String {
    let sent: Vec<String> = frame.sent.iter().map(ToString::to_string).collect();
    if sent.is_empty() { "=> nobody".to_owned() } else { format!("=> {}", sent.join(", ")) }
}

fn wants(text: &str) -> Result<FlowTapWants, Failure> {
    let wrong = || {
        Failure::Usage(format!(
            "{text:?}: the number of a rule (see `millrace flow stats`), cookie=VALUE[/MASK], expired or all"
        ))
    };
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).map_err(|_| wrong()),
        None => text.parse().map_err(|_| wrong()),
    };
    Ok(match text.strip_prefix("cookie=") {
        Some(cookie) => {
            let (cookie, mask) = cookie.split_once('/').unwrap_or((cookie, "0xffffffffffffffff"));
            FlowTapWants::Cookie { cookie: number(cookie)?, mask: number(mask)? }
        }
        None if text == "all" => FlowTapWants::All,
        None if text == "expired" => FlowTapWants::Expired,
        None => FlowTapWants::Rule(number(text)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_frames() {
        assert_eq!(wants("17").ok(), Some(FlowTapWants::Rule(17)));
        assert_eq!(wants("all").ok(), Some(FlowTapWants::All));
        assert_eq!(wants("expired").ok(), Some(FlowTapWants::Expired));
        assert_eq!(wants("cookie=0x10/0xf0").ok(), Some(FlowTapWants::Cookie { cookie: 16, mask: 0xf0 }));
        assert_eq!(wants("cookie=3").ok(), Some(FlowTapWants::Cookie { cookie: 3, mask: u64::MAX }));
        assert!(["", "rule", "cookie=", "cookie=1/x", "-1"].iter().all(|text| wants(text).is_err()));
    }
}
