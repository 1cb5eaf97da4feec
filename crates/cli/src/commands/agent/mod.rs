//! `millrace agent`: serves the flow table of a card to OpenFlow controllers.
//!
//! - here: what can be asked for; `address`: where controllers are; `tls`, `stream`: bytes to and from one; `link`: one connection; `packets`: packets from controllers; `server`: all of them, and the card; `card`: the
//!   flow table of a card as the switch asks for it; `state`: entries that outlive the agent; `own`: the agent's own files, by its card; `status`: how the agent is; `remarks`: what is said of strangers; `vxlan`: ports that are tunnels.

mod address;
mod card;
mod link;
mod own;
mod packets;
mod remarks;
mod server;
mod state;
mod status;
mod stream;
mod tls;
mod vxlan;

use std::path::PathBuf;
use std::time::Duration;

use address::Address;
use clap::{Args, Subcommand};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;

use millrace_tool::session::Session;

/// Options of `agent`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
An OpenFlow 1.3 switch whose tables are those of the card. Port 1 of the switch is port 0 of
the card, and so on; LOCAL is the host, and queue N of LOCAL is RX queue N. Rules that a
controller sets up stay when it, or the agent, ends. What works and what not is in docs/agent.md.

Examples:
  millrace agent --listen ptcp:6653
  millrace agent --connect tcp:192.0.2.1:6653 --connect tcp:192.0.2.2:6653
  millrace agent --listen ptcp:6653:127.0.0.1 --state /var/lib/millrace/agent.state
  millrace agent --listen pssl:6653 --tls-key key.pem --tls-cert cert.pem --tls-ca ca.pem
  millrace agent --listen ptcp:6653 --vxlan vx0,ofport=10,uplink=2,local_ip=192.0.2.1,remote_ip=192.0.2.2
  millrace agent status
  ovs-ofctl -O OpenFlow13 dump-flows tcp:127.0.0.1:6653"
)]
pub struct AgentArgs {
    #[command(subcommand)]
    command: Option<AgentCommand>,
    /// Where controllers may connect: ptcp:PORT or ptcp:PORT:ADDRESS, pssl for TLS; may be repeated
    #[arg(long, value_name = "WHERE")]
    listen: Vec<Address>,
    /// A controller to connect to: tcp:ADDRESS or tcp:ADDRESS:PORT, ssl for TLS; may be repeated
    #[arg(long, value_name = "WHERE")]
    connect: Vec<Address>,
    /// Number of the switch, unique in the network [default: made of the names of host and card]
    #[arg(long, value_name = "NUMBER", value_parser = datapath)]
    datapath_id: Option<u64>,
    /// Keep entries in this file, also for a card that is started again
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Seconds without a message until a controller is asked whether it is there; it has as long to answer
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = clap::value_parser!(u16).range(1..=3600))]
    probe: u16,
    /// Most packets a second for controllers
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    packet_in_rate: u32,
    /// A port that is a VXLAN tunnel: NAME,ofport=N,uplink=PORT,local_ip=IP,remote_ip=IP; may be repeated
    #[arg(
        long,
        value_name = "PORT",
        long_help = "A port that is a VXLAN tunnel, as Open vSwitch has them: \
            NAME,ofport=N,uplink=PORT,local_ip=IP,remote_ip=IP|flow[,key=VNI|flow][,dst_port=N][,csum=true]. Its number for controllers is N; \
            packets leave at port PORT. May be repeated"
    )]
    vxlan: Vec<vxlan::Vxlan>,
    #[command(flatten)]
    tls: tls::TlsArgs,
    /// Where `millrace agent status` asks [default: beside the card's socket]
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// Show controllers, and what the switch has
    Status(status::StatusArgs),
}

/// Decimal, or hexadecimal digits behind 0x.
fn datapath(text: &str) -> Result<u64, String> {
    let number = text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16));
    number.map_err(|_| "write a number such as 42 or 0x2a".to_owned())
}

/// Runs the command.
pub fn run(shared: &Shared, args: &AgentArgs) -> Result<(), Failure> {
    if let Some(AgentCommand::Status(status)) = &args.command {
        return status::run(shared, status);
    }
    if args.listen.is_empty() && args.connect.is_empty() {
        return Err(Failure::Usage(
            "say where controllers are: --listen ptcp:6653, or --connect tcp:ADDRESS".to_owned(),
        ));
    }
    if let Some(address) = args.listen.iter().find(|address| !address.listens) {
        return Err(Failure::Usage(format!("--listen {address}: write p{address}, or --connect {address}")));
    }
    if let Some(address) = args.connect.iter().find(|address| address.listens) {
        return Err(Failure::Usage(format!("--connect {address}: this is for --listen")));
    }
    let session = Session::open_running(shared, "there is no flow table to serve")?;
    server::Server::new(args, &session.device)?.run()
}

impl AgentArgs {
    fn probe(&self) -> Duration {
        Duration::from_secs(self.probe.into())
    }
}
