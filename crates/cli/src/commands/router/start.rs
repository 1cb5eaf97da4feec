//! `millrace router start`: the daemon of the router.

use std::path::PathBuf;
use std::thread;

use clap::Args;
use millrace_router::daemon::options::{OnDeath, Options, Share, Where};
use millrace_router::daemon::parts::Parts;
use millrace_router::daemon::pattern::Pattern;
use millrace_router::daemon::protocol::{Interface, Status};
use millrace_router::daemon::router::{Router, StartError};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::stop;

use super::change::awaited;

/// Options of `router start`.
#[derive(Debug, Args)]
#[command(after_help = "\
Packets that Linux forwards between these interfaces go without Linux once it has
shown what it does with each flow. Everything that configures the router stays
Linux's: ip, nft, conntrack, routing daemons. Other packets, and other interfaces,
notice nothing. See docs/router.md.

It runs until Ctrl-C, SIGTERM or `millrace router stop`; its programs go with it. If
it is killed, they stay, and see within a second that nobody looks after them
(--on-death); the next start takes their place. It needs root, or CAP_NET_ADMIN,
CAP_BPF and CAP_PERFMON. A router belongs to the network namespace that it is
started in.

Places: xdp is before Linux has made a packet of a frame, and fastest where frames
come one by one; tc takes large segments as they are. auto chooses. Cards that take
VLAN tags off frames hide them from XDP: `ethtool -K eth0 rxvlan off`.

Examples:
  millrace router start --interfaces eth0,eth1
  millrace router start --interfaces 'eth*,wlan0' --on-death keep --shadow 1/64
  ip netns exec r millrace router start --interfaces left,right --mode xdp
  millrace router start --config /etc/millrace/router.toml")]
pub struct StartArgs {
    /// Interfaces between which packets are forwarded, those that come later too; `*` and `?`
    /// stand for letters
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 1..)]
    pub interfaces: Vec<Pattern>,
    /// Where the program is: auto, xdp or tc
    // By another name within: commands that use cards have a `mode` that means something else.
    #[arg(id = "place", long = "mode", value_name = "PLACE", default_value = "auto")]
    mode: Where,
    /// What becomes of the rules if the router is killed: flush (Linux does everything within a
    /// second) or keep (they stay for a minute at most, in which a next start can take over)
    #[arg(long, value_name = "WHAT", default_value = "flush")]
    on_death: OnDeath,
    /// Share of packets that is compared with what Linux makes of them: off, all, or such as 1/1024
    #[arg(long, value_name = "SHARE", default_value = "1/1024")]
    shadow: Share,
    /// Do only this work: fdb, vlan, pppoe, ipv4, ipv6, nat, tos, fragment, icmp, multicast, with commas between them
    #[arg(long, value_name = "PARTS", default_value = "all")]
    only: Parts,
    /// Start switched off; `millrace router on` switches it on
    #[arg(long)]
    off: bool,
    /// Room for rules of IPv4, a power of two; there is a quarter of that for IPv6
    #[arg(long, value_name = "N", default_value_t = 1 << 18, value_parser = room)]
    rules: u32,
    /// Abstract name of the socket, for a second router in the same network namespace
    #[arg(long, value_name = "NAME", default_value = millrace_router::daemon::control::NAME)]
    socket: String,
    /// Group that may look (status, rules, why), besides root and whoever runs the router
    #[arg(long, value_name = "GROUP", value_parser = group)]
    group: Option<u32>,
    /// Take options from this file, too; behind a - it need not be there
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub config: Option<PathBuf>,
    /// End when standard input ends
    #[arg(long)]
    until_eof: bool,
}

fn room(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number: &u32| number.is_power_of_two() && (4096..=1 << 24).contains(number));
    number.ok_or_else(|| "expected a power of two from 4096 to 16777216".to_owned())
}

fn group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let found = nix::unistd::Group::from_name(text).map_err(|error| error.to_string())?;
    found.map(|group| group.gid.as_raw()).ok_or_else(|| "there is no such group".to_owned())
}

impl StartArgs {
    /// How the router is to be.
    pub fn options(&self) -> Result<Options, Failure> {
        if self.interfaces.is_empty() {
            return Err(Failure::Usage(
                "--interfaces says between which interfaces packets are forwarded, such as eth0,eth1".to_owned(),
            ));
        }
        Ok(Options {
            interfaces: self.interfaces.clone(),
            place: self.mode.0,
            on_death: self.on_death,
            compare: self.shadow.0,
            parts: self.only,
            is_on: !self.off,
            socket: self.socket.clone(),
            group: self.group,
            rules: self.rules,
            tunnel: None,
        })
    }
}

/// Runs the command.
pub fn run(shared: &Shared, args: &StartArgs) -> Result<(), Failure> {
    let mut router = Router::start(args.options()?).map_err(|error| match error {
        StartError::Capabilities(_) | StartError::Control(_) => Failure::Usage(error.to_string()),
        _ => Failure::Found(error.to_string()),
    })?;
    announce(shared, &router.status())?;
    if args.until_eof {
        thread::spawn(stop::with_standard_input);
    }
    router.run(stop::asked).map_err(|error| Failure::Found(error.to_string()))
}

fn announce(shared: &Shared, status: &Status) -> Result<(), Failure> {
    for advice in &status.advice {
        note(format!("{}: {}", advice.what, advice.command));
    }
    status.missing.iter().for_each(note);
    let off = status.interfaces.iter().filter_map(|interface| Some((interface, interface.why.as_ref()?)));
    off.for_each(|(interface, why)| note(format!("{} is not fast: {why}", interface.name)));
    status.awaited.iter().for_each(|name| awaited(name));
    let places = |interface: &Interface| match interface.place {
        Some(place) => format!("{}:{}", interface.name, place.name()),
        None => format!("{}:off", interface.name),
    };
    let row = Row::new()
        .tag("event", "routing")
        .count("pid", status.pid.into())
        .list("interfaces", status.interfaces.iter().map(places).collect())
        .text("mode", &status.mode)
        .text("parts", status.parts.map_or_else(String::new, |parts| parts.to_string()));
    Ok(Output::new(shared.json).rows("routing", &[row])?)
}
