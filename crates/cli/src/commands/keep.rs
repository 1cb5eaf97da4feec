//! `millrace card --keep`: a process that keeps what machines have of its card, and starts another card when that is killed.

use std::env;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio, exit};
use std::thread;

use millrace_pci::{Keeper, KeptEnd};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::stop;

use super::card::{CardArgs, KEPT};
use crate::privileges::Who;
use crate::serve::SocketIdentity;

/// Runs the command. What is wrong with the options of the card, the first card says.
pub fn run(shared: &Shared, args: &CardArgs) -> Result<(), Failure> {
    let (options, spec) = args.to_keep(shared)?;
    let (plan, access) = args.plan()?;
    stop::install()?;
    let failed = |error: &dyn std::fmt::Display| Failure::Usage(format!("--vfio-user: {error}"));
    let user = plan.user.map(|(uid, _)| uid);
    let keeper = Keeper::listen(&options, &spec.path, spec.count, user).map_err(|error| failed(&error))?;
    for (path, (device, inode)) in keeper.sockets() {
        access.iter().try_for_each(|access| access.open(path, SocketIdentity { device, inode }, Who::Owner))?;
    }
    if args.until_eof() {
        thread::spawn(stop::with_standard_input);
    }
    // The program that is at this place by then: it may be a newer one.
    let program = program().map_err(|error| failed(&error))?;
    let launch = |socket: OwnedFd| {
        Command::new(&program).args(env::args_os().skip(1)).arg(KEPT).stdin(Stdio::from(socket)).spawn()
    };
    let ended = keeper.run(launch, stop::asked);
    // Its sockets go before the process does.
    drop(keeper);
    match ended.map_err(|error| Failure::Usage(format!("--keep: a card cannot be started: {error}")))? {
        KeptEnd::By(status) if status.success() => Ok(()),
        KeptEnd::Asked(None) => Ok(()),
        // Whoever asks this process to end may have asked the card, too, which may not have known how yet.
        KeptEnd::Asked(Some(status)) if status.success() || status.signal().is_some_and(|signal| signal != KILLED) => {
            Ok(())
        }
        // It has said why.
        KeptEnd::By(status) | KeptEnd::Asked(Some(status)) => exit(code(status)),
        KeptEnd::Failing(status) => Err(Failure::Usage(format!(
            "--keep: card after card fails, the last with {status}; there is none any more"
        ))),
    }
}

/// SIGKILL: it did not end.
const KILLED: i32 = 9;

/// Where this program is, by the name by which it was called: a link to another version counts when it is followed again.
fn program() -> std::io::Result<PathBuf> {
    match env::args_os().next().map(PathBuf::from) {
        Some(name) if name.components().count() > 1 => std::path::absolute(name),
        _ => env::current_exe(),
    }
}

/// With which this process ends, too.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(1)
}
