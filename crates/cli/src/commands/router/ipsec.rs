//! `millrace router ipsec`: a gateway of IPsec in user space.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::{ArgAction, Args, Subcommand};
use millrace_port::spec::InterfaceName;
use millrace_router::daemon::choice::Place;
use millrace_router::daemon::client::{Client, Error};
use millrace_router::daemon::ipsec::{self, Answer, Request, Status};
use millrace_router::daemon::options as router;
use millrace_router::daemon::pattern::Pattern;
use millrace_router::daemon::router::Router;
use millrace_router::daemon::{control, protocol};
use millrace_router::user::gateway::{Gateway, Notice, Options, StartError};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::stop;

use super::{refused, strange};

/// Options of `router ipsec`.
#[derive(Debug, Args)]
pub struct IpsecArgs {
    #[command(subcommand)]
    command: IpsecCommand,
}

#[derive(Debug, Subcommand)]
enum IpsecCommand {
    /// Start a gateway of this network namespace, until Ctrl-C
    Start(StartArgs),
    /// Say how it is: packets, and why some did not pass
    Status(Gate),
    /// End it: its interface goes, and its rules of nft
    Stop(Gate),
}

/// Which gateway.
#[derive(Clone, Debug, Args)]
pub struct Gate {
    /// Abstract name of the gateway's socket, for a second one in the same network namespace
    #[arg(long, value_name = "NAME", default_value = ipsec::NAME)]
    socket: String,
}

impl Gate {
    pub(super) fn connect(&self) -> Result<Client, Failure> {
        Client::connect(&self.socket).map_err(|error| match error {
            Error::Nobody(name) => Failure::Found(format!(
                "no gateway runs in this network namespace (nobody listens at @{name}); `millrace router ipsec start` starts one"
            )),
            error => refused(&error),
        })
    }
}

/// Asks, and takes the answer if it is about IPsec.
pub(super) fn ask(client: &mut Client, request: Request) -> Result<Answer, Failure> {
    match client.ask(protocol::Request::Ipsec(request)).map_err(|error| refused(&error))? {
        protocol::Answer::Ipsec(answer) => Ok(answer),
        _ => Err(strange()),
    }
}

/// Options of `router ipsec start`.
#[derive(Debug, Args)]
#[command(after_help = "\
Makes a tunnel interface. What Linux routes into it is encrypted as the policies
say, and sent by Linux's other routes; ESP from the network, bare or in UDP port
4500, is decrypted, checked against the policies, and comes out of the interface,
from where Linux forwards, filters and translates it. The kernel needs no ESP.

Associations and policies are in the words of `ip xfrm`, from a file that `ip
-batch` would take, too, or from `millrace router sa add`. Packets in the clear that
a policy wants protected are refused by a table of nft that the gateway owns. It
stays if the gateway is killed, and goes when it is ended.

With --interfaces, packets that Linux has shown the way of go without Linux: by
XDP, AF_XDP and the rules of `millrace router`, whose commands ask this one, too.

It needs root, or CAP_NET_ADMIN and CAP_NET_RAW, and nft. See docs/ipsec.md.

Examples:
  millrace router ipsec start --file /etc/millrace/ipsec.conf --address 10.1.0.1
  ip route add 10.2.0.0/16 dev ipsec0 src 10.1.0.1
  millrace router ipsec start --file ipsec.conf --interfaces eth0,eth1
  millrace router status; millrace router why 10.2.0.7")]
struct StartArgs {
    /// Associations and policies to begin with, in the words of `ip xfrm`
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Name of the tunnel interface
    #[arg(long, value_name = "NAME", default_value = "ipsec0")]
    interface: InterfaceName,
    /// Addresses of the tunnel interface, with commas between them: what this host itself sends
    /// into it has them
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',')]
    address: Vec<IpAddr>,
    /// The longest packet that Linux gives to the tunnel interface; what ESP adds must fit in
    /// the way to the other gateway
    #[arg(long, value_name = "BYTES", default_value_t = 1400, value_parser = clap::value_parser!(u16).range(576..))]
    mtu: u16,
    /// Whether to refuse packets in the clear that a policy wants protected: nft or off
    #[arg(long, value_name = "HOW", default_value = "nft", value_parser = guard, action = ArgAction::Set)]
    guard: bool,
    /// Interfaces between which packets go without Linux, those to and from the tunnel too: the
    /// router (millrace router start) runs as a part of the gateway
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 1..)]
    interfaces: Vec<Pattern>,
    /// Abstract name of that router's socket
    #[arg(long, value_name = "NAME", default_value = control::NAME)]
    router: String,
    /// Mark protected packets, for a rule of routing that keeps them out of the tunnel interface
    #[arg(long, value_name = "NUMBER")]
    mark: Option<u32>,
    #[command(flatten)]
    gate: Gate,
    /// End when standard input ends
    #[arg(long)]
    until_eof: bool,
}

fn guard(word: &str) -> Result<bool, &'static str> {
    match word {
        "nft" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected nft or off"),
    }
}

/// Runs the command.
pub fn run(shared: &Shared, args: &IpsecArgs) -> Result<(), Failure> {
    match &args.command {
        IpsecCommand::Start(args) => start(shared, args),
        IpsecCommand::Status(gate) => match stop::at_once(|| ask(&mut gate.connect()?, Request::Status))? {
            Answer::Status(status) => show(shared, &status),
            _ => Err(strange()),
        },
        IpsecCommand::Stop(gate) => stop::at_once(|| ask(&mut gate.connect()?, Request::Stop)).map(drop),
    }
}

fn start(shared: &Shared, args: &StartArgs) -> Result<(), Failure> {
    let options = Options {
        interface: args.interface.clone(),
        mtu: args.mtu,
        addresses: args.address.clone(),
        file: args.file.clone(),
        guard: args.guard,
        mark: args.mark,
        socket: args.gate.socket.clone(),
    };
    let mut gateway = Gateway::start(options).map_err(|error| match error {
        StartError::Control(control::Error::Taken { name, who }) => Failure::Usage(format!(
            "a gateway runs in this network namespace already, or something else has the name @{name}{}; `millrace router ipsec status` asks it, `--socket` names another",
            who.map_or_else(String::new, |who| format!(" ({who})"))
        )),
        StartError::Control(error) => Failure::Usage(error.to_string()),
        error => Failure::Found(error.to_string()),
    })?;
    let output = Output::new(shared.json);
    let status = gateway.status();
    let row = Row::new()
        .tag("event", "ready")
        .count("pid", status.pid.into())
        .text("interface", &status.interface)
        .count("associations", status.associations)
        .count("policies", status.policies)
        .text("guard", &status.guard);
    output.rows("ipsec", &[row])?;
    note(&status.ike);
    if args.until_eof {
        thread::spawn(stop::with_standard_input);
    }
    let result = match args.interfaces.is_empty() {
        true => gateway.run(stop::asked, |notice| tell(&output, &notice)),
        false => match with_router(args, &mut gateway, &output) {
            Ok(result) => result,
            // It has not begun.
            Err(failure) => return gateway.end().map_err(|error| Failure::Found(error.to_string())).and(Err(failure)),
        },
    };
    match result {
        Ok(()) => gateway.end().map_err(|error| Failure::Found(error.to_string())),
        Err(error) => Err(Failure::Found(match gateway.guard() {
            Some(table) => format!(
                "{error}; what policies want protected is still refused in the clear: start the gateway again, or `nft delete table inet {table}`"
            ),
            None => error.to_string(),
        })),
    }
}

/// Runs the gateway with a router beside it, each in a thread of its own. Without the gateway there is no router; without the router the gateway goes on.
fn with_router(args: &StartArgs, gateway: &mut Gateway, output: &Output) -> Result<Result<(), StartError>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Found(error.to_string());
    let options = router::Options {
        interfaces: args.interfaces.clone(),
        place: Some(Place::Xdp),
        socket: args.router.clone(),
        tunnel: Some(args.interface.to_string()),
        ..router::Options::default()
    };
    let mut router = Router::start(options).map_err(|error| failed(&error))?;
    for interface in router.status().interfaces.iter().filter(|interface| interface.off.is_some()) {
        note(format!("{} is not fast: {}", interface.name, interface.why.as_deref().unwrap_or_default()));
    }
    gateway.serve(router.engine()).map_err(|error| failed(&error))?;
    let is_over = AtomicBool::new(false);
    Ok(thread::scope(|scope| {
        let beside = scope.spawn(|| {
            if let Err(error) = router.run(|| is_over.load(Ordering::Relaxed)) {
                note(format!("the router has ended, and all packets go by Linux: {error}"));
            }
            // Its programs go before the gateway does.
            drop(router);
        });
        let result = gateway.run(stop::asked, |notice| tell(output, &notice));
        is_over.store(true, Ordering::Relaxed);
        let _ = beside.join();
        result
    }))
}

/// What happened, as a line of JSON or a note.
fn tell(output: &Output, notice: &Notice) {
    if output.is_json() {
        let row = match notice {
            Notice::End { destination, spi, reqid, is_over, used } => Row::new()
                .tag("event", "life")
                .text("destination", destination)
                .count("spi", (*spi).into())
                .count("reqid", (*reqid).into())
                .text("life", if *is_over { "hard" } else { "soft" })
                .count("packets", used.0)
                .count("bytes", used.1),
            Notice::Moved { destination, spi, source, port, is_followed } => Row::new()
                .tag("event", "moved")
                .text("destination", destination)
                .count("spi", (*spi).into())
                .text("source", source)
                .count("port", (*port).into())
                .text("followed", is_followed),
        };
        // Who does not listen misses nothing that the counters do not have.
        let _ = output.rows("ipsec", &[row]);
        return;
    }
    note(match notice {
        Notice::End { destination, spi, is_over: true, .. } => {
            format!("SPI {spi:#x} to {destination} is over: its packets are refused until there is another")
        }
        Notice::End { destination, spi, .. } => format!("SPI {spi:#x} to {destination} should be renewed"),
        Notice::Moved { destination, spi, source, port, is_followed } => {
            let followed = if *is_followed { "; packets go there now" } else { "" };
            format!("SPI {spi:#x} to {destination} comes from {source} port {port} now{followed}")
        }
    });
}

fn show(shared: &Shared, status: &Status) -> Result<(), Failure> {
    let output = Output::new(shared.json);
    if output.is_json() {
        return Ok(output.object(status)?);
    }
    let row = Row::new()
        .text("interface", &status.interface)
        .count("associations", status.associations)
        .count("policies", status.policies)
        .count("sealed", status.sealed.0)
        .count("opened", status.opened.0)
        .maybe_count("fast_sealed", status.fast.map(|fast| fast.1))
        .maybe_count("fast_opened", status.fast.map(|fast| fast.0))
        .number("uptime_s", status.uptime_s, 0)
        .text("guard", &status.guard);
    output.rows("ipsec", &[row])?;
    let drops = status
        .drops
        .iter()
        .map(|(way, name, count)| Row::new().text("way", way).text("reason", name).count("packets", *count));
    let drops: Vec<_> = drops.collect();
    if !drops.is_empty() {
        output.rows("dropped", &drops)?;
    }
    Ok(output.text(&format!("{}\n", status.ike))?)
}
