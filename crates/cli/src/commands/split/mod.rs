//! `millrace split`: the split driver, by which programs in guests use an RDMA engine outside.
//!
//! - here: what can be asked for, and the backend; `ends`: an endpoint that serves memory, and one that reads and writes it.

mod ends;

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand};
use millrace_split::memory::MemoryDoor;
use millrace_split::xen::XenDoor;
use millrace_split::{Backend, Door, Error, GuestCounts, Limits, Report, Right, Rights};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::stop;
use std::path::PathBuf;

/// Options of `split`.
#[derive(Debug, Args)]
pub struct SplitArgs {
    #[command(subcommand)]
    command: SplitCommand,
}

#[derive(Debug, Subcommand)]
enum SplitCommand {
    /// Be the side outside: serve programs of guests
    Backend(BackendArgs),
    /// Open memory to other endpoints of a backend
    Serve(ends::ServeArgs),
    /// Write to and read from the memory of an endpoint, and count what that takes
    Drive(ends::DriveArgs),
}

/// Options of `split backend`.
#[derive(Debug, Args)]
#[command(after_help = "\
Serves programs of guests until Ctrl-C: those that call at a socket of this host, and
with --xen, in domain 0 of Xen, those of all other domains. Prints who comes, and of
who leaves what was counted. Guests do not see each other's memory, but for what they
have registered and given the key of (docs/split.md).

Examples:
  millrace split backend --socket /run/millrace/split.sock
  millrace split backend --xen --socket /run/millrace/split.sock --json
  millrace split backend --xen --pages 4096 --allow memory,connect")]
pub struct BackendArgs {
    /// Serve programs of this host that call at this socket, and run as the same user; may be repeated
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// Serve programs of other domains of Xen; this is to be domain 0
    #[arg(long)]
    xen: bool,
    /// Programs at a time
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().guests, value_parser = clap::value_parser!(u16).range(1..=1024).map(usize::from))]
    guests: usize,
    /// Pages of 4 KiB that one program may have mapped
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().pages, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pages: u64,
    /// What guests may do: memory, connect, tell, engine [default: all of it]
    #[arg(long, value_name = "RIGHT,...", value_delimiter = ',', value_parser = right)]
    allow: Vec<Right>,
}

fn right(name: &str) -> Result<Right, String> {
    let found = Right::ALL.iter().find(|(_, own)| *own == name).map(|(right, _)| *right);
    found.ok_or_else(|| "expected memory, connect, tell or engine".to_owned())
}

/// Runs the command.
pub fn run(shared: &Shared, args: &SplitArgs) -> Result<(), Failure> {
    match &args.command {
        SplitCommand::Backend(args) => backend(shared, args),
        SplitCommand::Serve(args) => ends::serve(shared, args),
        SplitCommand::Drive(args) => ends::drive(shared, args),
    }
}

/// What the library refuses.
fn refused(error: Error) -> Failure {
    Failure::Found(error.to_string())
}

fn backend(shared: &Shared, args: &BackendArgs) -> Result<(), Failure> {
    let mut doors: Vec<Box<dyn Door>> = Vec::new();
    for path in &args.socket {
        doors.push(Box::new(MemoryDoor::at(path.clone()).map_err(refused)?));
    }
    if args.xen {
        doors.push(Box::new(XenDoor::open().map_err(refused)?));
    }
    if doors.is_empty() {
        return Err(Failure::Usage("nobody could come: say --socket PATH, --xen, or both".to_owned()));
    }
    let rights = if args.allow.is_empty() { Rights::default() } else { Rights::of(&args.allow) };
    let limits = Limits { guests: args.guests, pages: args.pages, rights, ..Limits::default() };
    let output = Output::new(shared.json);
    let mut told = Ok(());
    Backend::new(limits, doors).run(&stop::asked, |report| {
        let done = tell(output, report);
        if done.is_err() {
            told = done;
            stop::ask();
        }
    });
    told
}

fn tell(output: Output, report: &Report) -> Result<(), Failure> {
    match report {
        Report::Came { name, address } if output.is_json() => {
            let row = Row::new().tag("event", "came").text("guest", name).text("address", address);
            output.rows("", &[row])?;
        }
        Report::Came { name, address } => output.text(&format!("{name} has come: {address}\n"))?,
        Report::Left { name, address, was_put_out, counts } if output.is_json() => {
            let row = Row::new().tag("event", "left").text("guest", name).text("address", address);
            let row = row.text("why", if *was_put_out { "put out" } else { "ended" });
            output.rows("", &[counted(row, counts)])?;
        }
        Report::Left { name, address, was_put_out, counts } => {
            let why = if *was_put_out { "was put out" } else { "has ended" };
            let GuestCounts { requests, transport, pages, .. } = counts;
            let text = format!(
                "{name} {why}: {address}; {requests} requests, {pages} pages mapped, {} times woken, {} system calls\n",
                transport.heard, transport.system_calls
            );
            output.text(&text)?;
        }
    }
    Ok(())
}

fn counted(row: Row, counts: &GuestCounts) -> Row {
    let GuestCounts { transport, requests, refused, faults, pages, taken, copied, packets } = *counts;
    row.count("requests", requests)
        .count("refused", refused)
        .count("faults", faults)
        .count("pages", pages)
        .count("system_calls", transport.system_calls)
        .count("hypercalls", transport.hypercalls)
        .count("rung", transport.rung)
        .count("heard", transport.heard)
        .count("taken", taken)
        .count("copied_bytes", copied)
        .count("packets", packets)
}
