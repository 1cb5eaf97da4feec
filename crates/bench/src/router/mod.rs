//! `millrace bench router`: packets through a router, by Linux alone and by Millrace beside it, in turns.
//!
//! * [`lab`]: three network namespaces, of which [`place`] puts threads into one. [`work`]: what the router does, and the packets.
//! * [`inline`]: generator and sink, which are BPF ([`program`]). [`path`]: who forwards. [`cell`]: one kind of traffic by everybody.
//! * [`stand_in`]: the engine alone, for what the kernel at hand has no interfaces for.
//! * [`streams`]: iperf3. [`delay`]: how soon a flow is fast. [`figure`]: what goals are set for.

mod cell;
mod delay;
mod figure;
mod inline;
mod lab;
mod path;
mod place;
mod program;
mod stand_in;
mod streams;
mod work;

use clap::Args;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::progress::Steps;
use millrace_tool::{cores, stop};

use crate::rig::Cores;
use cell::Cell;
use delay::Delays;
use path::Path;
use streams::{Kind, Stream};
use work::{MOST_FLOWS, Protocol, Traffic, Work};

/// Options of `bench router`.
#[derive(Debug, Args)]
#[command(after_help = "\
Three network namespaces of the benchmark's own, joined by veth: a source, a
router and a sink. The source injects frames, the sink counts and drops them in
XDP, and the router is in between, all of it inline on one core, so that the
router is what limits and nothing is lost: a loss is an error. Needs root.

path   kernel: Linux alone. xdp and tc: millrace router there. off: as xdp, switched
       off. alone: generator and sink on a wire of their own
work   route: no conntrack. snat: masquerade. dnat: to the sink's address.
       vlan: out of a VLAN into another one. pppoe: into a session. esp: see
       millrace bench esp
flows  differ in their source port, from 40,000 on also in an address
ns     what a packet takes; ns_net and ratio_net are without generator and sink

vlan and pppoe have no peer: kernels without 8021q and PPP are common, and this
one may be such. They are measured by the router's program alone, beside route by
the same (vlan_to_route, pppoe_to_route): interfaces of another kind have the
addresses, and rules are put in force without Linux having shown the same. Nor
has esp a peer in a kernel without ESP: its measure is the bare cipher.

Beside one core that sends, two are measured (1,000 flows), and iperf3 with
packets of 1400 bytes, whose ends share the cores with the router.

metric                 value
nat_64, nat_1400, nat_64_100000  snat by xdp, by the kernel's rate; 1 and 100,000 flows
tcp_1400_gain_percent  how much faster frames of 1400 bytes go with the router
iperf3_*_gain_percent  the same by iperf3, with offloads off
flows_100000_to_1      rate of 100,000 flows by that of one, 64 bytes
vlan_to_route, pppoe_to_route  rate by that of route, in turns with it, 64 bytes
two_cores_to_one       rate of two cores by that of one, 64 bytes, 1,000 flows
rule_delay_p99_ms      from a flow's answer to its first fast packet, 2,000 begin a second
off_cost_percent       how much slower Linux is with the router switched off

Examples:
  millrace bench router
  millrace bench router --work snat --frame 64 --flows 1,100000 --rounds 9 --json")]
pub struct RouterArgs {
    /// What the router does
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["route", "snat", "dnat", "vlan", "pppoe", "esp"])]
    work: Vec<Asked>,
    /// Bytes of a frame, without FCS
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [64, 1400], value_parser = clap::value_parser!(u16).range(64..=1514))]
    frame: Vec<u16>,
    /// How many flows
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 1_000, 100_000], value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_FLOWS)))]
    flows: Vec<u32>,
    /// Who forwards [default: kernel, and xdp where millrace router is there]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    path: Vec<Path>,
    /// How often to measure everything
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2)]
    seconds: f64,
    /// Only what one core sends, and no figures
    #[arg(long)]
    only_cells: bool,
    /// Only how long new flows are slow
    #[arg(long, conflicts_with = "only_cells")]
    only_new_flows: bool,
}

/// What the router can be asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Asked {
    /// Routing alone; conntrack is not there
    Route,
    /// The source's address becomes the router's (masquerade)
    Snat,
    /// The router's address becomes the sink's
    Dnat,
    /// Routing from one VLAN into another one
    Vlan,
    /// Routing into a session of PPPoE
    Pppoe,
    /// Packets into a tunnel of ESP, in user space
    Esp,
}

impl Asked {
    /// What the router does in a lab.
    fn work(self) -> Option<Work> {
        match self {
            Asked::Route => Some(Work::Route),
            Asked::Snat => Some(Work::Snat),
            Asked::Dnat => Some(Work::Dnat),
            Asked::Vlan => Some(Work::Vlan),
            Asked::Pppoe => Some(Work::Pppoe),
            Asked::Esp => None,
        }
    }
}

/// What is measured, and with what.
struct Plan<'args> {
    args: &'args RouterArgs,
    paths: Vec<Path>,
    cores: Vec<usize>,
}

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &RouterArgs) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::Found("network namespaces and BPF need root; run this as root".to_owned()));
    }
    cores::unpin();
    let asked = if args.path.is_empty() { vec![Path::Kernel, Path::Xdp] } else { args.path.clone() };
    let (paths, missing): (Vec<Path>, Vec<Path>) = asked.into_iter().partition(|path| path.is_there());
    for path in missing {
        note(format!("{}: there is no `millrace router` here", path.word()));
    }
    let plan = Plan { args, paths, cores: cores.app.into_iter().chain(cores.card).collect() };
    plan.measure(shared)
}

impl Plan<'_> {
    fn measure(&self, shared: &Shared) -> Result<(), Failure> {
        let output = Output::new(shared.json);
        if self.args.only_new_flows {
            let delays = self.delays()?;
            let figures = figure::figures(&[], &[], None, None, &[], delays.as_ref());
            let known = figures.iter().filter(|figure| figure.is_known());
            return self.print(&output, &known.map(figure::Figure::row).collect::<Vec<_>>());
        }
        let kinds = self.kinds();
        let more = if self.args.only_cells { 2 } else { 5 + Kind::ALL.len() };
        let steps = Steps::new("router", (kinds.len() + more) as u64);
        let mut single = Vec::new();
        for traffic in kinds {
            steps.next(describe(traffic));
            single.push(self.cell(traffic, &self.paths, 1)?);
        }
        steps.next("vlan and pppoe");
        let beside = self.beside_route()?;
        steps.next("esp");
        let esp = self.esp()?;
        if self.args.only_cells {
            drop(steps);
            self.print(&output, &single.iter().chain(&beside).flat_map(Cell::rows).collect::<Vec<_>>())?;
            return self.print(&output, &esp);
        }
        let traffic = |work, flows| Traffic { work, protocol: Protocol::Udp, size: 64, flows };
        steps.next("two cores");
        let double = match self.cores.len() {
            2 => Some(self.cell(traffic(Work::Snat, 1_000), &self.paths, 2)?),
            _ => None,
        };
        steps.next("switched off");
        let off = match Path::Off.is_there() {
            true => Some(self.cell(traffic(Work::Route, 1), &[Path::Kernel, Path::Off], 1)?),
            false => None,
        };
        steps.next("new flows");
        let delays = self.delays()?;
        let mut streams = Vec::new();
        for kind in Kind::ALL {
            steps.next(format!("iperf3, {}", kind.protocol.word()));
            streams.push(Stream::measure(kind, &self.paths, self.args.rounds.min(3)).map_err(Failure::Found)?);
            interrupted()?;
        }
        drop(steps);
        let cells = single.iter().chain(&beside).chain(&double).chain(&off);
        self.print(&output, &cells.flat_map(Cell::rows).collect::<Vec<_>>())?;
        self.print(&output, &streams.iter().flat_map(Stream::rows).collect::<Vec<_>>())?;
        self.print(&output, &esp)?;
        let figures = figure::figures(&single, &beside, off.as_ref(), double.as_ref(), &streams, delays.as_ref());
        self.print(&output, &figures.iter().map(figure::Figure::row).collect::<Vec<_>>())
    }

    /// What one core sends.
    fn kinds(&self) -> Vec<Traffic> {
        let mut kinds = Vec::new();
        for work in self.args.work.iter().filter_map(|asked| asked.work()).filter(|work| !work.is_encapsulated()) {
            for size in &self.args.frame {
                kinds.extend(self.args.flows.iter().map(|flows| Traffic {
                    work,
                    protocol: Protocol::Udp,
                    size: *size,
                    flows: *flows,
                }));
            }
            if work == Work::Snat && !self.args.only_cells {
                kinds.push(Traffic { work, protocol: Protocol::Tcp, size: 1400, flows: 1 });
            }
        }
        kinds
    }

    /// One flow through the engine alone: route, and beside it what has no peer in the kernel. Nothing if that was not asked for.
    fn beside_route(&self) -> Result<Vec<Cell>, Failure> {
        let asked = self.args.work.iter().filter_map(|asked| asked.work()).filter(|work| work.is_encapsulated());
        let works: Vec<Work> = std::iter::once(Work::Route).chain(asked).collect();
        if works.len() == 1 || !self.paths.contains(&Path::Xdp) {
            return Ok(Vec::new());
        }
        note("vlan, pppoe: the router's program alone, beside route by the same; no row by the kernel");
        let kinds: Vec<Traffic> =
            works.iter().map(|work| Traffic { work: *work, protocol: Protocol::Udp, size: 64, flows: 1 }).collect();
        let core = self.cores.first().copied().unwrap_or(0);
        let cells = Cell::measure_engine(&kinds, core, self.args.rounds, self.args.seconds).map_err(Failure::Found)?;
        interrupted()?;
        Ok(cells)
    }

    /// A packet into a tunnel beside the bare cipher, on one core.
    fn esp(&self) -> Result<Vec<Row>, Failure> {
        if !self.args.work.contains(&Asked::Esp) {
            return Ok(Vec::new());
        }
        let (rounds, seconds) = (self.args.rounds, self.args.seconds);
        let core = self.cores.first().copied();
        let measure = move || {
            core.map_or(Ok(()), cores::pin).map_err(Failure::Found)?;
            crate::esp::beside_the_cipher(rounds, seconds)
        };
        let row = std::thread::spawn(measure).join();
        let row = row.map_err(|_| Failure::Found("a thread of the benchmark has panicked".to_owned()))??;
        interrupted()?;
        Ok(vec![row])
    }

    fn delays(&self) -> Result<Option<Delays>, Failure> {
        let fast = self.paths.iter().find(|path| path.is_fast());
        let delays = fast.map(|path| Delays::measure(*path, &self.cores).map_err(Failure::Found)).transpose()?;
        interrupted()?;
        Ok(delays)
    }

    fn cell(&self, traffic: Traffic, paths: &[Path], cores: usize) -> Result<Cell, Failure> {
        let cores = &self.cores[..cores.min(self.cores.len())];
        let cell = Cell::measure(traffic, paths, cores, self.args.rounds, self.args.seconds).map_err(Failure::Found)?;
        interrupted()?;
        Ok(cell)
    }

    fn print(&self, output: &Output, rows: &[Row]) -> Result<(), Failure> {
        if rows.is_empty() {
            return Ok(());
        }
        Ok(output.rows(&format!("medians of {} rounds", self.args.rounds), rows)?)
    }
}

fn interrupted() -> Result<(), Failure> {
    if stop::asked() { Err(Failure::Interrupted) } else { Ok(()) }
}

fn describe(traffic: Traffic) -> String {
    let Traffic { work, protocol, size, flows } = traffic;
    format!("{}, {}, {size} bytes, {flows} flows", work.word(), protocol.word())
}
