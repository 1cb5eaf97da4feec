//! `millrace ports`: what is behind the ports of a card, and changing it while the card runs.

use clap::{Args, Subcommand};
use millrace_abi::stats::PortStats;
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::session::Session;

use crate::commands::stats::port_row;

/// Options of `ports`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without a command: a table of the ports. The queues of a port stay what they are
when something else is plugged in; programs that have them open go on. What was
there goes first: if the new one cannot be had, nothing is plugged in. Files are
looked for in the folder of the card.

Examples:
  millrace ports --device unix:/tmp/card.sock
  millrace ports plug 1 tap:mill1 --device unix:/tmp/card.sock
  millrace ports connect 0 1        what comes in at 0 goes out at 1, and back
  millrace ports connect 0 0        what comes in at 0 goes back where it came from
  millrace ports disconnect 0
  millrace ports unplug 1")]
pub struct PortsArgs {
    #[command(subcommand)]
    change: Option<Change>,
}

#[derive(Debug, Subcommand)]
enum Change {
    /// Plug something into a port, in place of what is there
    Plug {
        /// Index of the port
        port: u32,
        /// What to plug in: kind:argument[,key=value...], as for `millrace card --port`
        spec: String,
    },
    /// Take out what is plugged into a port
    Unplug {
        /// Index of the port
        port: u32,
    },
    /// Connect two ports inside the card, or one with itself
    Connect {
        /// Index of one
        one: u32,
        /// Index of the other
        other: u32,
    },
    /// Take a connection apart
    Disconnect {
        /// Index of one of the ports
        port: u32,
    },
}

/// Runs the command.
pub fn run(shared: &Shared, args: &PortsArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "nothing is left of a change")?;
    let device = &session.device;
    match &args.change {
        None => {}
        Some(Change::Plug { port, spec }) => device.plug(*port, spec).doing(|| "cannot plug it in".to_owned())?,
        Some(Change::Unplug { port }) => device.plug(*port, "none").doing(|| "cannot unplug the port".to_owned())?,
        Some(Change::Connect { one, other }) => {
            device.connect(*one, *other).doing(|| "cannot connect the ports".to_owned())?
        }
        Some(Change::Disconnect { port }) => {
            device.disconnect(*port).doing(|| "cannot disconnect the port".to_owned())?
        }
    }
    let stats = device.stats().doing(|| "cannot read the counters".to_owned())?;
    let rows: Vec<Row> = stats.ports.iter().map(row).collect();
    Ok(Output::new(shared.json).rows("ports", &rows)?)
}

fn row(port: &PortStats) -> Row {
    let connected = port.connected.map_or_else(String::new, |other| format!("port {other}"));
    port_row(port).both("connected", connected, port.connected)
}
