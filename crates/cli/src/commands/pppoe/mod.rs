//! `millrace pppoe`: a PPPoE session, and an interface of Linux for it.
//!
//! - here: what can be asked for; `connect`: carries frames and packets; `network`: the interface; `state`: the file that says which session there is; `router`: tells a
//!   router of it; `told`: what people and programs are told.

mod connect;
mod network;
mod router;
mod state;
mod told;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use millrace_port::spec::InterfaceName;
use millrace_pppoe::{Config, Method};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;

/// Options of `pppoe`.
#[derive(Debug, Args)]
pub struct PppoeArgs {
    #[command(subcommand)]
    command: PppoeCommand,
}

#[derive(Debug, Subcommand)]
enum PppoeCommand {
    /// Have a session, and an interface of Linux for its packets, until Ctrl-C
    Connect(ConnectArgs),
}

/// Options of `pppoe connect`.
#[derive(Debug, Args)]
#[command(after_help = "\
Finds an access concentrator on the interface, says who we are, and makes an interface
with the address that we are given. A session that is lost is begun again. It takes root, or
CAP_NET_RAW and CAP_NET_ADMIN; the kernel needs no PPP. What a line says is in docs/pppoe.md.

Examples:
  millrace pppoe connect --interface eth0 --user me@isp --password-file /etc/isp.password
  millrace pppoe connect --interface eth0.7 --user me@isp --password-file pw --default-route
  millrace pppoe connect --interface eth0 --mru 1500 --auth mschapv2,chap --json")]
pub struct ConnectArgs {
    /// Ethernet interface that leads to the access concentrator
    #[arg(long, value_name = "INTERFACE")]
    interface: InterfaceName,
    /// User name; without it, only who does not ask gives a session
    #[arg(long, value_name = "NAME", requires = "password_file")]
    user: Option<String>,
    /// File whose first line is the password; - is standard input
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    /// Interface to make for packets
    #[arg(long, value_name = "NAME", default_value = "ppp0")]
    name: InterfaceName,
    /// Name of the service [default: any]
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Name of the access concentrator [default: the first that answers]
    #[arg(long, value_name = "NAME")]
    ac: Option<String>,
    /// Largest packet, in bytes; above 1492 (RFC 4638) the interface needs an MTU of 8 more
    #[arg(long, value_name = "BYTES", default_value_t = millrace_pppoe::USUAL_MTU)]
    mru: u16,
    /// Ways in which we may be asked who we are, the best first: mschapv2, chap, pap
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "mschapv2,chap,pap")]
    auth: Vec<Method>,
    /// Leave IPv6 out
    #[arg(long)]
    no_ipv6: bool,
    /// Leave IPv4 out
    #[arg(long, conflicts_with = "no_ipv6")]
    no_ipv4: bool,
    /// Send by the session whatever has no better way: a default route with this METRIC, while there is a session
    #[arg(long, value_name = "METRIC", num_args = 0..=1, default_missing_value = "0", require_equals = true)]
    default_route: Option<u32>,
    /// Seconds between two questions whether the access concentrator is there
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    echo_interval: u64,
    /// Questions in a row that it may leave unanswered
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    echo_failures: u8,
    /// End when the session ends, or cannot be had
    #[arg(long)]
    once: bool,
    /// File that says which session there is [default: /run/millrace/pppoe-NAME.json]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Socket of the router that is told of the session, if one runs
    #[arg(long, value_name = "NAME", default_value = millrace_router::daemon::control::NAME)]
    router: String,
}

impl ConnectArgs {
    fn config(&self) -> Result<Config, Failure> {
        let password = match &self.password_file {
            Some(file) => state::password(file)?,
            None => Vec::new(),
        };
        let config = Config {
            user: self.user.clone().unwrap_or_default(),
            password: password.into(),
            methods: if self.user.is_some() { self.auth.clone() } else { Vec::new() },
            service: self.service.clone(),
            ac: self.ac.clone(),
            mru: self.mru,
            ipv4: !self.no_ipv4,
            ipv6: !self.no_ipv6,
            echo_interval: Duration::from_secs(self.echo_interval),
            echo_failures: self.echo_failures,
            ..Config::default()
        };
        config.check().map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(config)
    }
}

/// Runs the command.
pub fn run(shared: &Shared, args: &PppoeArgs) -> Result<(), Failure> {
    match &args.command {
        PppoeCommand::Connect(args) => connect::run(shared, args),
    }
}
