//! `millrace message ethernet`: an interface of Linux whose frames are messages.

use std::num::NonZeroU16;
use std::time::Duration;

use clap::Args;
use millrace_message::endpoint::{Config, Endpoint, Peer};
use millrace_port::spec::{InterfaceName, InterfaceSpec};
use millrace_port::tap::TapPort;
use millrace_tool::ethernet::{Carried, Frame, carry};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::stop;

use super::refused;
use super::serve::{UserArgs, named};
use super::talk::{LOOK, PATIENCE};

/// Options of `message ethernet`.
#[derive(Debug, Args)]
#[command(after_help = "\
One end opens the endpoint NAME, the other one calls it (--call). Each has a tap
interface, which it makes, or which is there already and nobody uses; what Linux sends
by the one comes in by the other, each frame as a message. It takes root or CAP_NET_ADMIN. The
interface may be moved to another network namespace afterwards; its MTU is what
`ip link set INTERFACE mtu N` says, up to 16369, at both ends. The end that was called goes on
with the next caller, the one that calls ends with the other one.

For programs that speak TCP and cannot do otherwise: messages by the API are many times as fast.

Examples:
  millrace message ethernet office --interface mill0
  millrace message ethernet office --interface mill1 --call
  ip address add 10.1.1.1/24 dev mill0; ip link set mill0 mtu 9000")]
pub struct EthernetArgs {
    /// Name of the endpoint: letters, digits, '.', '_' and '-'; with --call also USER/NAME
    name: String,
    /// Tap interface of this end
    #[arg(long, value_name = "INTERFACE")]
    interface: InterfaceName,
    /// Call the endpoint, which the other end opens
    #[arg(long, conflicts_with_all = ["user", "anybody"])]
    call: bool,
    #[command(flatten)]
    users: UserArgs,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &EthernetArgs) -> Result<(), Failure> {
    let spec = InterfaceSpec { name: args.interface.clone(), queues: NonZeroU16::MIN };
    let tap = TapPort::open(&spec).map_err(|error| Failure::Found(error.to_string()))?;
    let mut tap = tap.into_iter().next().ok_or_else(|| Failure::Found("the interface has no queue".to_owned()))?;
    // A cable has two ends.
    let config = Config { peers: 1, ..Config::default() };
    if args.call {
        let endpoint = Endpoint::of_buffers(config).map_err(refused)?;
        let peer = endpoint.connect(&named(&args.name)?, PATIENCE).map_err(refused)?;
        plugged(shared, args, &endpoint, peer, &mut tap)?;
        return if stop::asked() { Ok(()) } else { Err(Failure::Found(format!("{} is gone", args.name))) };
    }
    let config = Config { name: Some(args.name.clone()), users: args.users.users()?, ..config };
    let endpoint = Endpoint::of_buffers(config).map_err(refused)?;
    while !stop::asked() {
        if let Some(peer) = endpoint.accept(LOOK) {
            plugged(shared, args, &endpoint, peer, &mut tap)?;
        }
    }
    Ok(())
}

/// Carries frames until the other end is gone, or Ctrl-C; says how many.
fn plugged(
    shared: &Shared,
    args: &EthernetArgs,
    endpoint: &Endpoint<Frame>,
    peer: Peer,
    tap: &mut TapPort,
) -> Result<(), Failure> {
    note(format!("{} is plugged into {}", args.interface, args.name));
    let carried = carry(endpoint, peer, tap).map_err(Failure::Found)?;
    endpoint.leave(peer);
    // What has ended with it.
    while endpoint.next(Duration::ZERO).is_some() {}
    Ok(Output::new(shared.json).rows("message ethernet", &[row(args, &carried)])?)
}

fn row(args: &EthernetArgs, carried: &Carried) -> Row {
    Row::new()
        .tag("command", "message ethernet")
        .text("interface", &args.interface)
        .text("name", &args.name)
        .count("sent", carried.sent)
        .count("sent_bytes", carried.sent_bytes)
        .count("received", carried.received)
        .count("received_bytes", carried.received_bytes)
        .count("dropped", carried.dropped)
}
