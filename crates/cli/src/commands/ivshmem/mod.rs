//! `millrace ivshmem`: memory that virtual machines share with one another and with the host.
//!
//! - here: what can be asked for; `serve`: the server; `status`: how one is; `peer`: what peers do, in machines and on the host.

mod peer;
mod serve;
mod status;
mod telling;

use clap::{Args, Subcommand};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;

/// Options of `ivshmem`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
With a path and no command, this is the server of QEMU's device ivshmem-doorbell,
until Ctrl-C. Each machine is started with

  -chardev socket,path=PATH,id=iv -device ivshmem-doorbell,chardev=iv,vectors=4

and has the memory as BAR 2 of a PCI function (1af4:1110). Root and the user who
runs the server may connect, and those of --user. docs/ivshmem.md has the rest.

Examples:
  millrace ivshmem /tmp/iv.sock
  millrace ivshmem /run/iv.sock --peers 8 --user libvirt-qemu
  millrace ivshmem status /tmp/iv.sock
  millrace ivshmem listen pci                       (in a machine)
  millrace ivshmem ring /tmp/iv.sock 0 7            (on the host)"
)]
pub struct IvshmemArgs {
    #[command(subcommand)]
    command: Option<IvshmemCommand>,
    #[command(flatten)]
    serve: serve::ServeArgs,
}

#[derive(Debug, Subcommand)]
enum IvshmemCommand {
    /// Show how a server is, and who is connected
    Status(status::StatusArgs),
    /// Show who shares the memory, in a machine too
    Peers(peer::PeersArgs),
    /// Print the doorbells and messages that come
    Listen(peer::ListenArgs),
    /// Ring doorbells of a peer
    Ring(peer::RingArgs),
    /// Send messages to a peer
    Send(peer::SendArgs),
}

/// Runs the command.
pub fn run(shared: &Shared, args: &IvshmemArgs) -> Result<(), Failure> {
    if args.command.is_some() && args.serve.has_path() {
        return Err(Failure::Usage("a socket before the command is none of its own: put it behind".into()));
    }
    match &args.command {
        None => serve::run(shared, &args.serve),
        Some(IvshmemCommand::Status(args)) => status::run(shared, args),
        Some(IvshmemCommand::Peers(args)) => peer::peers(shared, args),
        Some(IvshmemCommand::Listen(args)) => peer::listen(shared, args),
        Some(IvshmemCommand::Ring(args)) => peer::ring(args),
        Some(IvshmemCommand::Send(args)) => peer::send(args),
    }
}
