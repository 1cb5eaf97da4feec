//! `millrace socket`: becomes a TCP program with `libmillrace-socket.so` preloaded, or runs it and says what went through memory.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use clap::Args;
use millrace_tool::failure::Failure;
use millrace_tool::output::{grouped, note};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

/// The library, as it is installed, and as Cargo names it.
const LIBRARIES: [&str; 2] = ["libmillrace-socket.so", "libmillrace_socket.so"];

/// What the library reads (docs/socket.md).
const VARIABLE: &str = "MILLRACE_STREAMS";

const HELP: &str = "\
The program has libmillrace-socket.so preloaded, and so have the programs that
it starts. A TCP connection to another program of this host and user that has
it, too, goes through shared memory; all others stay with the kernel, unchanged.
Words of MILLRACE_STREAMS and libraries of LD_PRELOAD that are there stay.

With --stats the program is a child of this command, which waits for it, hands
on SIGTERM and SIGHUP, and ends with its exit code. Standard output is the
program's: what is said of connections goes to standard error. Programs that
are linked statically, run with raised rights (setuid), or make system calls
past the C library (Go) do not use the library.

Examples:
  millrace socket redis-server --save \"\" &
  millrace socket --stats redis-benchmark -t get,set -q
  millrace socket --set ring=4194304 iperf3 -s
  millrace socket --set log=/tmp/connections.json nginx";

/// Options of `socket`.
#[derive(Clone, Debug, Args)]
#[command(after_help = HELP)]
pub struct SocketArgs {
    /// Say at the end how many connections went through memory, and why others did not
    #[arg(long)]
    stats: bool,
    /// A word for MILLRACE_STREAMS, such as ring=4194304, spin=0, log=FILE; may be repeated
    #[arg(long, value_name = "WORD", value_parser = word)]
    set: Vec<String>,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A word that the library takes (`crates/socket/src/config.rs`), which would only say so and go on without.
fn word(text: &str) -> Result<String, &'static str> {
    if text.contains([' ', ',', '\t', '\n']) {
        return Err("a word has no blanks and no commas");
    }
    let is_right = match text.split_once('=') {
        None => text == "off",
        Some(("ring", bytes)) => match bytes.parse::<u64>() {
            Ok(bytes) if bytes.is_power_of_two() && (4096..=64 << 20).contains(&bytes) => true,
            _ => return Err("a ring has a power of two of bytes, from 4096 to 67108864 (64 MiB)"),
        },
        Some(("spin", time)) => match time.parse::<u64>() {
            Ok(0..=1_000_000) => true,
            _ => return Err("spin is a number of microseconds, up to 1000000"),
        },
        Some((key, file)) => ["stats", "log"].contains(&key) && !file.is_empty(),
    };
    if is_right {
        Ok(text.to_owned())
    } else {
        Err("the words are off, stats=FILE, log=FILE, ring=BYTES, spin=MICROSECONDS")
    }
}

/// Becomes the program, or runs it; its exit code.
pub fn run(args: &SocketArgs) -> Result<ExitCode, Failure> {
    let library = library(&env::current_exe()?)?;
    let (program, arguments) = args.program.split_first().expect("the grammar asks for a program");
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", behind(&library, env::var_os("LD_PRELOAD").as_deref()));
    let told = args.stats.then(tempfile::NamedTempFile::new).transpose()?;
    let mut words = args.set.clone();
    let mut is_off = words.iter().any(|word| word == "off");
    words.extend(told.as_ref().map(|file| format!("stats={}", file.path().display())));
    if !words.is_empty() {
        let usual = env::var(VARIABLE).ok().filter(|text| !text.is_empty());
        let all: Vec<&str> = usual.as_deref().into_iter().chain(words.iter().map(String::as_str)).collect();
        is_off |= all.iter().any(|words| words.split([' ', ',', '\t', '\n']).any(|word| word == "off"));
        command.env(VARIABLE, all.join(" "));
    }
    let Some(told) = told else {
        let source = command.exec();
        return Err(Failure::Program { path: program.into(), source });
    };
    let status = wait_for(&mut command).map_err(|source| Failure::Program { path: program.into(), source })?;
    let text = std::fs::read_to_string(told.path())?;
    if is_off {
        note(
            "the library is off (the word off of MILLRACE_STREAMS, or --set off): all connections were the kernel's, and were not counted",
        );
    } else {
        describe(&text).into_iter().for_each(note);
    }
    Ok(code_of(status))
}

/// Runs it to its end. What a terminal sends to both (Ctrl-C) is its matter; what is sent to this process only is handed on.
fn wait_for(command: &mut Command) -> std::io::Result<ExitStatus> {
    let mut signals = SigSet::empty();
    [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .for_each(|signal| signals.add(signal));
    // The program is started first: it would begin with these signals blocked, too.
    let mut child = command.spawn()?;
    signals.thread_block()?;
    let process = Pid::from_raw(child.id().cast_signed());
    std::thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            if matches!(signal, Signal::SIGTERM | Signal::SIGHUP) {
                let _ = kill(process, signal);
            }
        }
    });
    child.wait()
}

/// As shells say it.
fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// The library: beside this command where it was built, in `lib` where it was installed.
fn library(command: &Path) -> Result<PathBuf, Failure> {
    let installed = command.parent().and_then(Path::parent).map(|prefix| prefix.join("lib").join(LIBRARIES[0]));
    let places: Vec<PathBuf> = LIBRARIES.iter().map(|name| command.with_file_name(name)).chain(installed).collect();
    places.iter().find(|place| place.exists()).cloned().ok_or_else(|| {
        let looked: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        Failure::Found(format!(
            "the socket library is not there: neither {} exists; `make build` makes it, `make install` installs it",
            looked.join(" nor ")
        ))
    })
}

/// The library, behind those that are preloaded already.
fn behind(library: &Path, others: Option<&OsStr>) -> OsString {
    let mut all = OsString::new();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        all.push(others);
        all.push(":");
    }
    all.push(library);
    all
}

/// What the processes of a program have said.
#[derive(Default)]
struct Program {
    processes: u64,
    connections: u64,
    met: u64,
    kernel: BTreeMap<String, u64>,
    sent: u64,
    received: u64,
    trouble: BTreeMap<&'static str, u64>,
}

impl Program {
    fn add(&mut self, line: &serde_json::Value) {
        let value = |name: &str| line[name].as_u64().unwrap_or(0);
        self.processes += 1;
        self.connections += value("connections") + value("kept");
        self.met += value("met") + value("kept");
        (self.sent, self.received) = (self.sent + value("sent"), self.received + value("received"));
        for name in ["malformed", "stray", "refused"] {
            *self.trouble.entry(name).or_default() += value(name);
        }
        for (reason, count) in line["kernel"].as_object().into_iter().flatten() {
            *self.kernel.entry(reason.clone()).or_default() += count.as_u64().unwrap_or(0);
        }
    }

    fn describe(&self, name: &str) -> String {
        let mut text = format!("{name}: {} of {} connections through memory", self.met, self.connections);
        if self.processes > 1 {
            text += &format!(" ({} processes)", self.processes);
        }
        text += &format!(", {} bytes sent, {} received", grouped(self.sent), grouped(self.received));
        let kernel = self.kernel.iter().filter(|(_, count)| **count > 0);
        let kernel: Vec<_> = kernel.map(|(reason, count)| format!("{count} {reason}")).collect();
        if !kernel.is_empty() {
            text += &format!("; by the kernel: {} (docs/socket.md says what that means)", kernel.join(", "));
        }
        for (what, count) in self.trouble.iter().filter(|(_, count)| **count > 0) {
            text += &format!("; {what}: {count}");
        }
        text
    }
}

/// A line for each program that has had connections.
fn describe(told: &str) -> Vec<String> {
    let mut programs = BTreeMap::<String, Program>::new();
    for line in told.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()) {
        let name = line["program"].as_str().unwrap_or("?").to_owned();
        programs.entry(name).or_default().add(&line);
    }
    if programs.is_empty() {
        return vec![
            "no process that has ended had TCP connections by the C library: static programs, setuid programs and Go do not use \
             the library, and processes that were killed say nothing"
                .to_owned(),
        ];
    }
    programs.iter().map(|(name, program)| program.describe(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_behind_those_that_are_there() {
        let library = Path::new("/a/lib.so");
        assert_eq!(behind(library, None), "/a/lib.so");
        assert_eq!(behind(library, Some(OsStr::new(""))), "/a/lib.so");
        assert_eq!(behind(library, Some(OsStr::new("/b.so:/c.so"))), "/b.so:/c.so:/a/lib.so");
    }

    #[test]
    fn a_library_that_is_missing_is_named_with_all_places() {
        let empty = tempfile::tempdir().unwrap();
        let command = empty.path().join("bin/millrace");
        let said = library(&command).unwrap_err().to_string();
        assert!(said.contains("bin/libmillrace-socket.so") && said.contains("lib/libmillrace-socket.so"), "{said}");
        let installed = empty.path().join("lib/libmillrace-socket.so");
        std::fs::create_dir_all(installed.parent().unwrap()).unwrap();
        std::fs::write(&installed, "").unwrap();
        assert_eq!(library(&command).unwrap(), installed);
    }

    #[test]
    fn words_are_those_of_the_library() {
        assert!(word("ring=4096").is_ok() && word("off").is_ok() && word("log=/tmp/l").is_ok());
        assert!(word("rings=4096").is_err() && word("log=/tmp/a b").is_err() && word("").is_err());
        assert!(word("ring=5000").is_err_and(|why| why.contains("power of two")));
        assert!(word("spin=-1").is_err_and(|why| why.contains("microseconds")));
        assert!(word("off=1").is_err() && word("stats=").is_err() && word("spin=0").is_ok());
    }

    #[test]
    fn programs_are_added_up() {
        let line = |met: u64, alone: u64| {
            format!(
                r#"{{"process":1,"program":"p","connections":{},"met":{met},"kept":0,"sent":1000,"received":2,"stray":0,"kernel":{{"alone":{alone},"remote":0}}}}"#,
                met + alone
            )
        };
        assert_eq!(
            describe(&format!("{}\n{}\n", line(3, 1), line(2, 0))),
            [
                "p: 5 of 6 connections through memory (2 processes), 2,000 bytes sent, 4 received; by the kernel: 1 alone (docs/socket.md says what that means)"
            ]
        );
        assert!(describe("")[0].contains("no process"));
    }
}
