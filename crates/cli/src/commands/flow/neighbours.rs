//! `millrace flow neighbours`.

use std::net::IpAddr;

use clap::{Args, Subcommand};
use millrace::flow::FlowNeighbour;
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};

use super::change::open;

/// Options of `flow neighbours`.
#[derive(Debug, Args)]
#[command(after_help = "\
Where frames for the outer address of a tunnel go, if the rule names no MAC address:
encap_vxlan(vni=5,src=192.0.2.1,dst=192.0.2.2). The card answers ARP and neighbour
discovery for the source, and asks for the destination when the first frame goes
there. An end behind a router needs a static entry with the router's MAC address.

  static       somebody has said so
  reachable    it has answered within the last 90 seconds
  probing      it is asked whether it is still there
  asking       it is asked for the first time; up to 8 frames wait
  unreachable  it has not answered; frames are dropped (counter neighbour)

Examples:
  millrace flow neighbours
  millrace flow neighbours --json
  millrace flow neighbours add 192.0.2.2 02:00:00:00:00:02 --port 1
  millrace flow neighbours delete 192.0.2.2")]
pub struct NeighboursArgs {
    #[command(subcommand)]
    command: Option<NeighboursCommand>,
}

#[derive(Debug, Subcommand)]
enum NeighboursCommand {
    /// List them: what is done without a command
    List,
    /// Say where a neighbour is, until it is deleted
    Add {
        /// Its IP address
        address: IpAddr,
        /// Its MAC address, such as 02:00:00:00:00:02
        #[arg(value_parser = mac)]
        mac: [u8; 6],
        /// The port of the card where it is
        #[arg(long, value_name = "N", default_value_t = 0)]
        port: u32,
    },
    /// Forget a neighbour; one that frames go to is asked for again
    Delete {
        /// Its IP address
        address: IpAddr,
    },
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = || format!("'{text}' is not six bytes as 02:00:00:00:00:02");
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|byte| (byte.len() == 2).then(|| u8::from_str_radix(byte, 16).ok()).flatten()).collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(wrong)
}

/// Runs the command.
pub fn run(shared: &Shared, args: &NeighboursArgs) -> Result<(), Failure> {
    let session = open(shared)?;
    let flows = session.device.flows();
    match args.command.as_ref().unwrap_or(&NeighboursCommand::List) {
        NeighboursCommand::List => {
            let rows: Vec<Row> =
                flows.neighbours().doing(|| "cannot list the neighbours".to_owned())?.iter().map(row).collect();
            Ok(Output::new(shared.json).rows("neighbours of tunnels", &rows)?)
        }
        NeighboursCommand::Add { address, mac, port } => {
            flows.add_neighbour(*address, *mac, *port).doing(|| format!("cannot add neighbour {address}"))
        }
        NeighboursCommand::Delete { address } => {
            flows.delete_neighbour(*address).doing(|| format!("cannot delete neighbour {address}"))
        }
    }
}

fn row(neighbour: &FlowNeighbour) -> Row {
    let mac = neighbour.mac.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
    Row::new()
        .text("address", neighbour.address)
        .both("mac", mac.clone().unwrap_or_else(|| "-".to_owned()), mac)
        .both("port", neighbour.port.map_or_else(|| "-".to_owned(), |port| port.to_string()), neighbour.port)
        .text("state", neighbour.state.name())
        .number("age_s", neighbour.age_ns as f64 / 1e9, 1)
        .count("waiting", u64::from(neighbour.waiting))
}
