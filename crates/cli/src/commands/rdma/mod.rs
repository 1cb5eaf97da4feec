//! `millrace rdma`: what verbs programs of this user are doing, as they say themselves.

mod capture;
mod program;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, printable};
use millrace_tool::stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use serde_json::{Map, Value};

use program::{Program, Question, ask_engine, engines, names};

/// The longest answer.
const LONGEST: usize = 128 << 10;
/// How long an answer may take, in seconds.
const PATIENCE: i64 = 1;

const WHO: &str = "\
Verbs programs of this user are asked; those with helper=off are not, nor those of
another network namespace. For programs with place=card their card answers.";

/// Options of `rdma`.
#[derive(Debug, Args)]
#[command(after_help = WHO)]
pub struct RdmaArgs {
    /// What to show
    #[command(subcommand)]
    what: What,
}

/// Whom to ask, and how often.
#[derive(Debug, Args)]
struct Asked {
    /// Only the process with this number
    #[arg(long, value_name = "PID")]
    pid: Option<u64>,
    /// Again every second, until Ctrl-C or --count
    #[arg(long)]
    watch: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show queue pairs
    #[command(after_help = "\
At most 128 queue pairs of a process are shown, and standard error says how many
more there are.

Examples:
  millrace rdma qps
  millrace rdma qps --pid 4711 --watch --count 10")]
    Qps(Asked),
    /// Show registered memory
    #[command(after_help = "\
At most 128 regions of a process are shown, and standard error says how many more
there are. The lkey of a region that others may reach is its rkey, too, and is not
shown. docs/rdma.md says what stands under `way`.

Examples:
  millrace rdma regions
  millrace rdma regions --pid 4711 --json")]
    Regions(Asked),
    /// Show the table behind keys: entries, refusals, memory that was taken away
    #[command(after_help = "\
docs/rdma.md explains the counters. Programs with place=card share the table of
their card, which counts for all of them together.

Examples:
  millrace rdma iotlb --pid 4711")]
    Iotlb(Asked),
    /// Show counters of transport, frames and port
    #[command(after_help = "\
Programs with place=card are counted by their card, for all of them together, under
the number of the card's process. docs/rdma.md explains the counters.

Examples:
  millrace rdma stats
  millrace rdma stats --watch --count 10")]
    Stats(Asked),
    /// Write packets into a file, for tshark or Wireshark
    #[command(after_help = "\
Packets of all programs are written, those of programs that start later too, until
Ctrl-C, --count or --seconds; with --pid until the program ends. What one program
sends and another one takes is there once. What goes to another program of this
host without a frame is written as the frame that it would have been; requests that
need no packet (WRITE, READ into memory of this host) are only counted. Programs
with place=card are not captured: their card has the packets. No program waits for
this: what comes faster than it is read is dropped and counted. One capture of a
program at a time.

Examples:
  millrace rdma capture out.pcap --pid 4711 --seconds 5
  millrace rdma capture - | tshark -r -")]
    Capture(CaptureArgs),
}

/// Options of `rdma capture`.
#[derive(Debug, Args)]
struct CaptureArgs {
    /// The capture to write; - is standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only the process with this number
    #[arg(long, value_name = "PID")]
    pid: Option<u64>,
    /// How long to capture
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.001..1e6).contains(number));
    number.ok_or_else(|| "expected a number of seconds above 0".to_owned())
}

/// What tables are about.
#[derive(Clone, Copy)]
enum Table {
    Qps,
    Regions,
    Iotlb,
    Stats,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &RdmaArgs) -> Result<(), Failure> {
    let (table, asked) = match &args.what {
        What::Qps(asked) => (Table::Qps, asked),
        What::Regions(asked) => (Table::Regions, asked),
        What::Iotlb(asked) => (Table::Iotlb, asked),
        What::Stats(asked) => (Table::Stats, asked),
        What::Capture(CaptureArgs { file, pid, seconds }) => {
            return capture::run(shared, &capture::Wanted { file, pid: *pid, seconds: *seconds });
        }
    };
    if !asked.watch && shared.count.is_some() {
        return Err(Failure::Usage("--count says how often to look, and so needs --watch".to_owned()));
    }
    let mut looks = if asked.watch { shared.count.unwrap_or(u64::MAX) } else { 1 };
    loop {
        look(shared, table, asked.pid)?;
        looks -= 1;
        if looks == 0 {
            return Ok(());
        }
        for _ in 0..10 {
            if stop::asked() {
                return if shared.count.is_some() { Err(Failure::Interrupted) } else { Ok(()) };
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn look(shared: &Shared, table: Table, pid: Option<u64>) -> Result<(), Failure> {
    let (mut rows, mut is_there) = (Vec::new(), false);
    let mut take = |who: u64, told: &Value| {
        if pid.is_none_or(|wanted| wanted == who) {
            is_there = true;
            add(&mut rows, table, who, told);
        }
    };
    for name in names()? {
        // It may have ended meanwhile, or be of another version.
        if let Ok(Some((who, told))) = ask(&name) {
            take(who, &told);
        }
    }
    for path in engines()? {
        // It may have ended meanwhile, be another user's, or another version's.
        let _ = ask_engine(&path, |who, told| take(who, &told));
    }
    if let Some(pid) = pid.filter(|_| !is_there) {
        return Err(Failure::Found(format!(
            "process {pid} is no verbs program of this user that answers, nor a card with an engine; `millrace rdma qps` shows those that do"
        )));
    }
    let title = match table {
        Table::Qps => "queue pairs",
        Table::Regions => "regions",
        Table::Iotlb => "iotlb",
        Table::Stats => "counters",
    };
    Ok(Output::new(shared.json).rows(title, &rows)?)
}

/// What the process at that socket says, and its number. `None`: it is another user's, or says nothing that can be read.
fn ask(name: &str) -> Result<Option<(u64, Value)>, Errno> {
    let Some(program) = Program::call(name)? else { return Ok(None) };
    program.ask(Question::Tell)?;
    let Program { pid, socket } = program;
    poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&Timespec { tv_sec: PATIENCE, tv_nsec: 0 }))?;
    let mut answer = vec![0; LONGEST];
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    Ok(serde_json::from_slice(&answer[..len]).ok().map(|told| (pid, told)))
}

fn add(rows: &mut Vec<Row>, table: Table, pid: u64, told: &Value) {
    let listed = |name: &str| told[name].as_array().cloned().unwrap_or_default();
    match table {
        Table::Qps => {
            rows.extend(listed("qps").iter().map(|pair| self::pair(pid, pair)));
            note_omitted(pid, &told["qps_omitted"], "queue pairs");
        }
        Table::Regions => {
            rows.extend(listed("regions").iter().map(|region| self::region(pid, region)));
            note_omitted(pid, &told["regions_omitted"], "regions");
        }
        Table::Iotlb => counters(rows, pid, "iotlb", told["iotlb"].as_object()),
        Table::Stats => ["transport", "served", "connections", "frames", "port", "copied"]
            .iter()
            .for_each(|part| counters(rows, pid, part, told["stats"][part].as_object())),
    }
}

/// An answer has room for so many; that there are more is said where tables are not.
fn note_omitted(pid: u64, omitted: &Value, what: &str) {
    if let Some(count @ 1..) = omitted.as_u64() {
        eprintln!("millrace: process {pid} has {count} more {what}, which are not shown");
    }
}

fn words(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default(), &[])
}

fn pair(pid: u64, pair: &Value) -> Row {
    Row::new()
        .count("pid", pid)
        .maybe_count("qp", pair["qp"].as_u64())
        .text("service", words(&pair["service"]))
        .text("state", words(&pair["state"]))
        .maybe_count("remote_qp", pair["remote_qp"].as_u64())
        .text("destination", words(&pair["destination"]))
        .maybe_count("send_psn", pair["send_psn"].as_u64())
        .maybe_count("receive_psn", pair["receive_psn"].as_u64())
        .maybe_count("mtu", pair["mtu"].as_u64())
}

fn region(pid: u64, region: &Value) -> Row {
    const RIGHTS: [&str; 6] =
        ["local-write", "remote-write", "remote-read", "remote-atomic", "window-bind", "zero-based"];
    let access = region["access"].as_u64().unwrap_or_default();
    let rights =
        RIGHTS.iter().enumerate().filter(|(bit, _)| access >> bit & 1 == 1).map(|(_, name)| (*name).to_owned());
    Row::new()
        .count("pid", pid)
        .text("lkey", words(&region["lkey"]))
        .maybe_count("domain", region["domain"].as_u64())
        .maybe_count("bytes", region["bytes"].as_u64())
        .list("access", rights.collect())
        .text("way", words(&region["way"]))
        .maybe_count("shared_bytes", region["shared_bytes"].as_u64())
        .maybe_count("windows", region["windows"].as_u64())
        .text("gone", if region["gone"] == true { "yes" } else { "no" })
}

fn counters(rows: &mut Vec<Row>, pid: u64, part: &str, all: Option<&Map<String, Value>>) {
    rows.extend(all.into_iter().flatten().map(|(name, value)| {
        Row::new()
            .count("pid", pid)
            .text("part", part)
            .text("counter", printable(name, &[]))
            .maybe_count("value", value.as_u64())
    }));
}
