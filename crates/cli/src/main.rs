//! The `millrace` command: [`args`] says what can be asked for, one file per command in [`commands`] does it.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod capture;
mod clock;
mod commands;
mod cores;
mod distribution;
mod echo;
mod failure;
mod host;
mod idle;
mod lanes;
mod limits;
mod list;
mod log;
mod output;
mod pace;
mod progress;
mod send;
mod serve;
mod session;
mod stop;
mod traffic;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use commands as run;
use failure::Failure;

fn main() -> ExitCode {
    let mut cli = Cli::parse();
    // An empty `MILLRACE_DEVICE` names nothing, as everywhere else.
    cli.shared.device = cli.shared.device.take().filter(|name| !name.is_empty());
    limits::raise();
    log::show();
    match stop::install().and_then(|()| carry_out(&cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_broken_pipe() {
                output::note(failure.to_string());
            }
            failure.exit_code()
        }
    }
}

fn carry_out(cli: &Cli) -> Result<(), Failure> {
    let shared = &cli.shared;
    match &cli.command {
        Command::Card(args) => run::card::run(shared, args),
        Command::Ports(args) => run::ports::run(shared, args),
        Command::Workers(args) => run::workers::run(shared, args),
        Command::Info => run::info::run(shared),
        Command::Tree { dtb } => run::tree::run(shared, dtb.as_deref()),
        Command::Regs(args) => run::regs::run(shared, args),
        Command::Stats(args) => run::stats::run(shared, args),
        Command::Generate(args) => run::generate::run(shared, args),
        Command::Read(args) => run::read::run(shared, args),
        Command::Receive(args) => run::receive::run(shared, args),
        Command::Transmit(args) => run::transmit::run(shared, args),
        Command::Loopback => run::loopback::run(shared),
        Command::Forward(args) => run::forward::run(shared, args),
        Command::LoopbackHw(args) => run::loopback_hw::run(shared, args),
        Command::Pktgen(args) => run::pktgen::run(shared, args),
        Command::Bench(args) => bench::run(shared, args),
        Command::Demo => run::demo::run(shared),
    }
}
