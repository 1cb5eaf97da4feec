//! `millrace clock`: a card's clock, read, set, steered, led.
//!
//! - here: what can be asked for; `show`: how it does; `steer`: set and adjust; `follow`: leading it, by `host`: the clock of this
//!   host, by `ptp`; `compare`: how far from that it is; `moment`: times as people write them.

mod compare;
mod follow;
mod host;
mod moment;
mod ptp;
mod show;
mod steer;

use clap::{Args, Subcommand};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;

/// Options of `clock`.
#[derive(Debug, Args)]
pub struct ClockArgs {
    #[command(subcommand)]
    command: ClockCommand,
}

#[derive(Debug, Subcommand)]
enum ClockCommand {
    /// Print what the clock shows and how it does, once or every second
    Show(show::ShowArgs),
    /// Set the clock
    Set(steer::SetArgs),
    /// Move the clock, or change its speed
    Adjust(steer::AdjustArgs),
    /// Lead the clock after another one, until Ctrl-C
    Follow(follow::FollowArgs),
}

/// Runs the command.
pub fn run(shared: &Shared, args: &ClockArgs) -> Result<(), Failure> {
    match &args.command {
        ClockCommand::Show(args) => show::run(shared, args),
        ClockCommand::Set(args) => steer::set(shared, args),
        ClockCommand::Adjust(args) => steer::adjust(shared, args),
        ClockCommand::Follow(args) => follow::run(shared, args),
    }
}
