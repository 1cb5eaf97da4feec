//! What changes a router that runs.

use clap::Args;
use millrace_router::daemon::parts::Parts;
use millrace_router::daemon::pattern::Pattern;
use millrace_router::daemon::protocol::{Answer, Request};
use millrace_tool::failure::Failure;
use millrace_tool::output::note;

use super::{Which, refused, strange};

/// Options of what needs no others.
#[derive(Debug, Args)]
pub struct Named {
    #[command(flatten)]
    which: Which,
}

/// Options of `router on` and `router off`.
#[derive(Debug, Args)]
#[command(after_help = "\
Off leaves the programs where they are, and they let every packet through. What
connections there are go on: Linux has known of them all the time.

Examples:
  millrace router off
  millrace router on
  millrace router off --interface eth1
  millrace router on --interface 'eth*'")]
pub struct SwitchArgs {
    /// Only at this interface, or those that fit
    #[arg(long, value_name = "NAME")]
    interface: Option<Pattern>,
    #[command(flatten)]
    which: Which,
}

/// Options of `router only`.
#[derive(Debug, Args)]
#[command(after_help = "\
The parts: fdb (frames between ports of a bridge), vlan (tags), pppoe (sessions),
ipv4, ipv6 (routing), nat (translation; alone it means both versions of IP, too),
tos (a DSCP that Linux sets); all. What needs another part goes through Linux.

Examples:
  millrace router only fdb,nat
  millrace router only all")]
pub struct OnlyArgs {
    /// Parts, with commas between them
    #[arg(value_name = "PARTS")]
    parts: Parts,
    #[command(flatten)]
    which: Which,
}

/// Options of `router add` and `router remove`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millrace router add eth2,eth3
  millrace router add 'veth*'
  millrace router remove eth2")]
pub struct InterfacesArgs {
    /// Names, with commas between them; `*` and `?` stand for letters
    #[arg(value_name = "NAMES", value_delimiter = ',', required = true)]
    interfaces: Vec<Pattern>,
    #[command(flatten)]
    which: Which,
}

fn ask(which: &Which, request: Request) -> Result<(), Failure> {
    match which.connect()?.ask(request).map_err(|error| refused(&error))? {
        Answer::Done => Ok(()),
        _ => Err(strange()),
    }
}

/// Ends the router.
pub fn stop(args: &Named) -> Result<(), Failure> {
    ask(&args.which, Request::Stop)
}

/// Forgets all rules.
pub fn flush(args: &Named) -> Result<(), Failure> {
    ask(&args.which, Request::Flush)
}

/// Switches it on or off.
pub fn switch(on: bool, args: &SwitchArgs) -> Result<(), Failure> {
    ask(&args.which, Request::Switch { on, interface: args.interface.clone() })
}

/// Leaves only these parts on.
pub fn only(args: &OnlyArgs) -> Result<(), Failure> {
    ask(&args.which, Request::Only(args.parts))
}

/// Takes more interfaces.
pub fn add(args: &InterfacesArgs) -> Result<(), Failure> {
    ask(&args.which, Request::Add(args.interfaces.clone()))?;
    let Answer::Status(status) = args.which.connect()?.ask(Request::Status).map_err(|error| refused(&error))? else {
        return Err(strange());
    };
    let names = args.interfaces.iter().map(ToString::to_string);
    names.filter(|name| status.awaited.contains(name)).for_each(|name| awaited(&name));
    Ok(())
}

/// Says that a name fits nothing: it may be a later interface's, or a mistake.
pub fn awaited(name: &str) {
    note(format!("there is no interface {name} yet; it is taken when it comes"));
}

/// Leaves interfaces alone.
pub fn remove(args: &InterfacesArgs) -> Result<(), Failure> {
    ask(&args.which, Request::Remove(args.interfaces.clone()))
}
