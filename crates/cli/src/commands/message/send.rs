//! `millrace message send`: messages, or a file, to somebody who listens or receives.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use millrace_message::Scheme;
use millrace_message::control::MOST_EAGER;
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::stop;

use super::talk::{Call, DATA, END, SEEN, Tally, What, depth, heard, said};

/// Bytes of a message of a file.
const PART: u64 = 1 << 20;
/// Messages without --count.
const COUNT: u64 = 1000;

/// Options of `message send`.
#[derive(Debug, Args)]
#[command(after_help = "\
Sends --count messages of --bytes bytes to the endpoint NAME, or a file in messages of
1 MiB, to `millrace message listen` or `receive`, and waits until all have arrived.
One that is not there yet is waited for, for 5 seconds. With a file, and with
--check, both sides add up the bytes (CRC-32), and the sums have to be the same.
USER/NAME is the endpoint of another user, who has to let this one in. With --rail
other hosts are asked too, if this one has no such endpoint; HOST:NAME is only there.

Examples:
  millrace message send solver --bytes 1MiB --count 1000
  millrace message send solver results.bin
  tar c folder | millrace message send solver -
  millrace message send solver --bytes 64KiB --by zero-copy --json
  millrace message send b:solver results.bin --rail unix:/run/millrace/card.sock
  millrace message send solver results.bin --card=/run/millrace/card.sock")]
pub struct SendArgs {
    /// Endpoint to send to
    name: String,
    /// File to send; - is standard input
    #[arg(conflicts_with_all = ["bytes", "check"])]
    file: Option<PathBuf>,
    /// Bytes of a message [default: 64]
    #[arg(long, value_name = "BYTES", value_parser = super::bytes)]
    bytes: Option<u64>,
    /// Which way messages go [default: what is fastest here, see `millrace message explain`]
    #[arg(long, value_name = "WAY", value_parser = scheme, conflicts_with = "card")]
    by: Option<Scheme>,
    /// Add up the bytes of messages at both sides
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    rails: super::RailArgs,
    #[command(flatten)]
    card: super::side::CardArgs,
}

fn scheme(text: &str) -> Result<Scheme, String> {
    let found = Scheme::ALL.into_iter().find(|scheme| scheme.name() == text);
    found.ok_or_else(|| "expected eager, one-copy or zero-copy".to_owned())
}

/// Where messages come from.
enum Source {
    Pattern { left: u64, size: u64 },
    File(Box<dyn Read>, PathBuf),
}

impl Source {
    /// The next message, in the memory of one before. `None`: there is none.
    fn next(&mut self, number: u64, mut buffer: Vec<u8>) -> Result<Option<Vec<u8>>, Failure> {
        match self {
            Self::Pattern { left: 0, .. } => Ok(None),
            Self::Pattern { left, size } => {
                *left -= 1;
                if buffer.is_empty() && *size > 0 {
                    buffer = (0..*size).map(|at| (at ^ at >> 8) as u8).collect();
                }
                let len = buffer.len().min(8);
                buffer[..len].copy_from_slice(&number.to_le_bytes()[..len]);
                Ok(Some(buffer))
            }
            Self::File(file, path) => {
                buffer.clear();
                let failed = |source| Failure::File { doing: "cannot read", path: path.clone(), source };
                stop::at_once(|| file.take(PART).read_to_end(&mut buffer)).map_err(failed)?;
                Ok((!buffer.is_empty()).then_some(buffer))
            }
        }
    }
}

fn open(path: &Path) -> Result<Box<dyn Read>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    let opened = stop::at_once(|| File::open(path));
    let opened = opened.map_err(|source| Failure::File { doing: "cannot read", path: path.to_owned(), source })?;
    Ok(Box::new(opened))
}

/// Runs the command.
pub fn run(shared: &Shared, args: &SendArgs) -> Result<(), Failure> {
    if args.file.is_some() && shared.count.is_some() {
        return Err(Failure::Usage("a file is sent once: leave out --count".to_owned()));
    }
    let size = args.file.as_ref().map_or(args.bytes.unwrap_or(64), |_| PART);
    if args.by == Some(Scheme::Eager) && size > MOST_EAGER as u64 {
        return Err(Failure::Usage(format!(
            "--by eager: messages have {MOST_EAGER} bytes at most, and these have {size}: leave out --by, or send shorter ones by --bytes"
        )));
    }
    let what = if args.check || args.file.is_some() { What::Check } else { What::Count };
    let mut source = match &args.file {
        Some(path) => Source::File(open(path)?, path.clone()),
        None => Source::Pattern { left: shared.count.unwrap_or(COUNT), size },
    };
    let call = Call::begin(&args.name, (&args.rails, &args.card), size, what)?;
    let (mut flying, mut free) = (VecDeque::new(), vec![Vec::new(); depth(size)]);
    let (mut tally, start) = (Tally::default(), Moment::now());
    let mut is_cut;
    loop {
        let buffer = match free.pop() {
            Some(buffer) => Ok(buffer),
            None => call.wait(flying.pop_front().expect("what is not free is on its way")).map(|ended| ended.buffer),
        };
        is_cut = stop::asked();
        let next = match buffer {
            _ if is_cut => None,
            buffer => source.next(tally.messages, buffer?)?,
        };
        let Some(message) = next else { break };
        tally.add(&message, what);
        flying.push_back(call.endpoint.send(call.peer, DATA, message, args.by)?);
    }
    if is_cut && args.file.is_some() {
        // The other end learns that it is not all of it.
        return Err(Failure::Interrupted);
    }
    let seen = call.post(SEEN)?;
    call.endpoint.send(call.peer, END, said(tally.words()), None)?;
    let seen = match call.wait(seen) {
        Err(Failure::Interrupted) => {
            is_cut = true;
            call.wait_a_while(seen)?
        }
        other => other?,
    };
    let seconds = start.seconds();
    let row = Row::new()
        .tag("command", "message send")
        .text("to", &args.name)
        .cell("bytes_each", millrace_tool::output::Cell::Count(size))
        .count("messages", tally.messages)
        .count("bytes", tally.bytes)
        .number("seconds", seconds, 6)
        .number("mps", tally.messages as f64 / seconds / 1e6, 4)
        .number("gbps", tally.bytes as f64 * 8.0 / seconds / 1e9, 3);
    let row = sum(row, what, tally.words()[2]);
    Output::new(shared.json).rows("message send", &[row])?;
    if heard(&seen.buffer) != Some(tally.words()) {
        return Err(Failure::Found(format!("{} has received something else than was sent", args.name)));
    }
    if is_cut { Err(Failure::Interrupted) } else { Ok(()) }
}

/// The column of a sum.
pub fn sum(row: Row, what: What, sum: u64) -> Row {
    let sum = (what == What::Check).then(|| format!("{sum:08x}"));
    row.cell("crc32", sum.map_or(millrace_tool::output::Cell::Missing, millrace_tool::output::Cell::Text))
}
