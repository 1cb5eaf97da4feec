//! `millrace card --keep`: a process that keeps what machines have of its card, and starts another card when that is killed.

use std::env;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
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
    let program = env::current_exe().map_err(|error| failed(&error))?;
    let launch = |socket: OwnedFd| {
        let mut card = Command::new(&program);
        // Ctrl-C is for the keeper, which asks the card to end: a second signal would end that at once.
        card.args(env::args_os().skip(1)).arg(KEPT).stdin(Stdio::from(socket)).process_group(0);
        card.spawn()
    };
    let ended = keeper.run(launch, stop::asked);
    // Its sockets go before the process does.
    drop(keeper);
    match ended.map_err(|error| failed(&error))? {
        KeptEnd::By(status) | KeptEnd::Asked(status) if status.success() => Ok(()),
        // It has said why.
        KeptEnd::By(status) | KeptEnd::Asked(status) => exit(code(status)),
        KeptEnd::Failing(status) => Err(Failure::Usage(format!(
            "--keep: card after card fails, the last with {status}; there is none any more"
        ))),
    }
}

/// With which this process ends, too.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(1)
}
