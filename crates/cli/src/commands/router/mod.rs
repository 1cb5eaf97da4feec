//! `millrace router`: a fast path beside Linux's forwarding.
//!
//! - here: what can be asked for; `start`: the daemon; `status`: how it is, once or again and again; `rules`: what it has; `why`: why a flow is
//!   fast or not, `linux`: what Linux says of one without a rule; `change`: switch, add, remove, end; `shadow`: what was compared;
//! - `ipsec`: a gateway of IPsec; `sa`: its associations and policies.

mod change;
mod ipsec;
mod linux;
mod rules;
mod sa;
mod shadow;
pub mod start;
mod status;
mod why;

use clap::{Args, Subcommand};
use millrace_router::daemon::client::{Client, Error};
use millrace_router::daemon::control;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::stop::at_once;

/// Options of `router`.
#[derive(Debug, Args)]
pub struct RouterArgs {
    #[command(subcommand)]
    pub command: RouterCommand,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum RouterCommand {
    /// Start the fast path of this network namespace, and look after it until Ctrl-C
    Start(start::StartArgs),
    /// End the router of this network namespace: everything goes through Linux
    Stop(change::Named),
    /// Say how it is: interfaces, rules, what sends packets to Linux
    Status(status::StatusArgs),
    /// Switch it on, everywhere or at some interfaces
    On(change::SwitchArgs),
    /// Switch it off: within a second every packet goes through Linux, and no connection breaks
    Off(change::SwitchArgs),
    /// Do only some of its work
    Only(change::OnlyArgs),
    /// Take more interfaces
    Add(change::InterfacesArgs),
    /// Leave interfaces alone
    Remove(change::InterfacesArgs),
    /// Forget all rules: each flow is tried again
    Flush(change::Named),
    /// List its rules
    Rules(rules::RulesArgs),
    /// Say why a flow is fast, or is not
    Why(why::WhyArgs),
    /// Say what comparing packets with Linux's has found, and change how many are compared
    Shadow(shadow::ShadowArgs),
    /// Show a table of what it does, every second
    Watch(status::WatchArgs),
    /// Be a gateway of IPsec where the kernel has no ESP: start it, say how it is, end it
    Ipsec(ipsec::IpsecArgs),
    /// List, add and delete associations and policies of IPsec
    Sa(sa::SaArgs),
}

/// Which router.
#[derive(Clone, Debug, Args)]
pub struct Which {
    /// Abstract name of the router's socket, for a second one in the same network namespace
    #[arg(long, value_name = "NAME", default_value = control::NAME)]
    pub socket: String,
}

impl Which {
    fn connect(&self) -> Result<Client, Failure> {
        Client::connect(&self.socket).map_err(|error| refused(&error))
    }
}

/// What the router refuses, or that there is none.
fn refused(error: &Error) -> Failure {
    Failure::Found(error.to_string())
}

/// It says something that nobody asked for.
fn strange() -> Failure {
    refused(&Error::Strange)
}

/// Runs the command. What asks the router and is done then is ended by Ctrl-C there and then, also while the router does not answer.
pub fn run(shared: &Shared, args: &RouterArgs) -> Result<(), Failure> {
    match &args.command {
        RouterCommand::Start(args) => start::run(shared, args),
        RouterCommand::Stop(args) => at_once(|| change::stop(args)),
        RouterCommand::Status(args) => status::run(shared, args),
        RouterCommand::On(args) => at_once(|| change::switch(true, args)),
        RouterCommand::Off(args) => at_once(|| change::switch(false, args)),
        RouterCommand::Only(args) => at_once(|| change::only(args)),
        RouterCommand::Add(args) => at_once(|| change::add(args)),
        RouterCommand::Remove(args) => at_once(|| change::remove(args)),
        RouterCommand::Flush(args) => at_once(|| change::flush(args)),
        RouterCommand::Rules(args) => at_once(|| rules::run(shared, args)),
        RouterCommand::Why(args) => at_once(|| why::run(shared, args)),
        RouterCommand::Shadow(args) => at_once(|| shadow::run(shared, args)),
        RouterCommand::Watch(args) => status::watch(shared, args),
        RouterCommand::Ipsec(args) => ipsec::run(shared, args),
        RouterCommand::Sa(args) => at_once(|| sa::run(shared, args)),
    }
}
