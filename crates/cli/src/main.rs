//! The `millrace` command: [`args`] says what can be asked for, one file per command in [`commands`] does it.
#![forbid(unsafe_code)]

mod args;
mod capture;
mod commands;
mod config;
mod fate;
mod pace;
mod policy;
mod privileges;
mod rules;
mod serve;

use std::env;
use std::process::ExitCode;

use millrace_tool::failure::Failure;
use millrace_tool::log::LevelFilter;
use millrace_tool::{limits, log, stop};

use args::{Cli, Command};
use commands as run;

fn main() -> ExitCode {
    let mut cli = args::parse();
    cli.shared = cli.shared.settled();
    // Another program begins here: its limits and signals are those that it was started with.
    if let Command::Verbs(args) = &cli.command {
        return end(commands::verbs::run(&cli.shared, args));
    }
    if let Command::Socket(args) = &cli.command {
        return commands::socket::run(args).unwrap_or_else(|failure| failure.report());
    }
    limits::raise();
    log::show(usual_log(&cli.command));
    end(config::complete(cli, env::args_os()).and_then(|cli| run(&cli)))
}

fn end(done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// What of the log a command shows unless told otherwise. Whoever runs a card wants to know who uses it, and of a router what
/// happens to its interfaces.
fn usual_log(command: &Command) -> LevelFilter {
    if matches!(command, Command::Card(_) | Command::Router(_)) { LevelFilter::INFO } else { LevelFilter::WARN }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    match &cli.command {
        // What another program is to do begins there.
        Command::Bench(_) => commands::bench::run(Some("bench"), env::args_os()),
        Command::Hostile(_) | Command::Soak(_) => commands::bench::run(None, env::args_os()),
        // A card gives up privileges before the first thread, which Ctrl-C takes.
        Command::Card(args) => {
            if args.wants_keeper() {
                return commands::keep::run(&cli.shared, args);
            }
            let prepared = commands::card::prepare(&cli.shared, args)?;
            stop::install()?;
            commands::card::run(&cli.shared, args, prepared)
        }
        _ => {
            stop::install()?;
            carry_out(cli)
        }
    }
}

fn carry_out(cli: &Cli) -> Result<(), Failure> {
    let shared = &cli.shared;
    match &cli.command {
        // Done above.
        Command::Card(_)
        | Command::Verbs(_)
        | Command::Socket(_)
        | Command::Bench(_)
        | Command::Hostile(_)
        | Command::Soak(_) => Ok(()),
        Command::Clients(args) => run::clients::run(shared, args),
        Command::Locks(args) => run::locks::run(shared, args),
        Command::Ports(args) => run::ports::run(shared, args),
        Command::Schedule(args) => run::schedule::run(shared, args),
        Command::Workers(args) => run::workers::run(shared, args),
        Command::Info => run::info::run(shared),
        Command::Tree { dtb } => run::tree::run(shared, dtb.as_deref()),
        Command::Regs(args) => run::regs::run(shared, args),
        Command::Stats(args) => run::stats::run(shared, args),
        Command::Generate(args) => run::generate::run(shared, args),
        Command::Read(args) => run::read::run(shared, args),
        Command::Receive(args) => run::receive::run(shared, args),
        Command::Transmit(args) => run::transmit::run(shared, args),
        Command::Send(args) => run::send::run(shared, args),
        Command::Loopback => run::loopback::run(shared),
        Command::Forward(args) => run::forward::run(shared, args),
        Command::LoopbackHw(args) => run::loopback_hw::run(shared, args),
        Command::Pktgen(args) => run::pktgen::run(shared, args),
        Command::Explain(args) => run::explain::run(shared, args),
        Command::Flow(args) => run::flow::run(shared, args),
        Command::Rdma(args) => run::rdma::run(shared, args),
        Command::Split(args) => run::split::run(shared, args),
        Command::Ivshmem(args) => run::ivshmem::run(shared, args),
        Command::Message(args) => run::message::run(shared, args),
        Command::Pppoe(args) => run::pppoe::run(shared, args),
        Command::Router(args) => run::router::run(shared, args),
        Command::Metrics(args) => run::metrics::run(shared, args),
        Command::Clock(args) => run::clock::run(shared, args),
        Command::Agent(args) => run::agent::run(shared, args),
        Command::Demo => run::demo::run(shared),
        Command::Completions(args) => run::completions::run(args, &args::command()),
        Command::Man(args) => run::man::run(args, &args::command()),
    }
}
