//! The `millrace` command: [`args`] says what can be asked for, one file per command in [`commands`] does it.
#![forbid(unsafe_code)]

mod applies;
mod args;
mod bench;
mod capture;
mod clock;
mod commands;
mod config;
mod cores;
mod distribution;
mod echo;
mod failure;
mod fate;
mod host;
mod hostile;
mod idle;
mod lanes;
mod limits;
mod list;
mod log;
mod output;
mod pace;
mod place;
mod policy;
mod privileges;
mod progress;
mod send;
mod serve;
mod session;
mod soak;
mod stop;
mod traffic;

use std::env;
use std::process::ExitCode;

use args::{Cli, Command};
use commands as run;
use failure::Failure;

fn main() -> ExitCode {
    let mut cli = args::parse();
    // An empty `MILLRACE_DEVICE` names nothing, as everywhere else.
    cli.shared.device = cli.shared.device.take().filter(|name| !name.is_empty());
    limits::raise();
    log::show(log::usual(&cli.command));
    match config::complete(cli, env::args_os()).and_then(|cli| run(&cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_broken_pipe() {
                output::note(failure.to_string());
            }
            failure.exit_code()
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    // A card gives up privileges before the first thread, which Ctrl-C takes.
    if let Command::Card(args) = &cli.command {
        let prepared = commands::card::prepare(&cli.shared, args)?;
        stop::install()?;
        return commands::card::run(&cli.shared, args, prepared);
    }
    stop::install()?;
    carry_out(cli)
}

fn carry_out(cli: &Cli) -> Result<(), Failure> {
    let shared = &cli.shared;
    match &cli.command {
        // Done above.
        Command::Card(_) => Ok(()),
        Command::Clients(args) => run::clients::run(shared, args),
        Command::Locks(args) => run::locks::run(shared, args),
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
        Command::Completions(args) => run::completions::run(args),
        Command::Man(args) => run::man::run(args),
        Command::Hostile(args) => hostile::run(shared, args),
        Command::Soak(args) => soak::run(shared, args),
    }
}
