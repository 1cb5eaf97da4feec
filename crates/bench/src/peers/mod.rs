//! `millrace bench peers`: the same work done by Millrace and by others, measured in turns, round by round, so that a
//! machine that gets slower or faster meanwhile does so for all. What is printed are medians.
//!
//! * [`rings`]: one application and one card, against DPDK's ways to do that, a bare ring and a cache line.
//! * [`floor`]: the round trip of a frame, against that of a cache line.
//! * [`many_rings`]: a thousand queue pairs, against as many bare rings.
//! * [`switches`]: frames between two vhost-user sockets, against OVS-DPDK and `dpdk-testpmd`; [`rules`] are those of the first two.
//! * [`interfaces`]: frames from and to veth interfaces by AF_XDP, against `dpdk-testpmd`.

mod floor;
mod flows;
pub mod forwarder;
mod interfaces;
mod many_rings;
mod metric;
pub mod namespace;
mod ovs;
pub mod process;
mod programs;
mod rings;
pub mod rules;
pub mod samples;
mod setting;
pub mod source;
pub mod start;
pub mod switches;
mod testpmd;
pub mod traffic;

use std::path::PathBuf;

use clap::Args;
use millrace_abi::queue::Engine;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::Output;
use millrace_tool::progress::Steps;
use millrace_tool::stop;

use crate::choice::engines;
use crate::rig::Cores;
use metric::{Field, Metric};
use programs::Programs;
use setting::Bench;

/// Options of `bench peers`.
#[derive(Debug, Args)]
#[command(after_help = "\
rtt_p50 is the median round trip: lower is better, also of the ratios. tx, rx
and both are rates from program to card, from card to program, and out and back:
higher is better, also of the ratios. The ratios are Millrace's value divided by
that of the better DPDK peer, and by that of the bare ring. Senders write all
bytes of every frame, receivers read every line. Without DPDK (Debian packages
dpdk and libdpdk-dev) its columns are empty.

rtt_floor is the median round trip of a frame of --size bytes (64) with --engine
(dd), beside that of a cache line. queues_1000 are frames of 64 bytes out and
back on a thousand busy queue pairs, beside as many bare rings, and on eight.

forward_mpps_64 and forward_mpps_1518 are millions of frames per second from one
vhost-user socket to another, one way, on one core; classified_mpps_64 the same
with 100,000 flows through 1,000 rules with nine masks, which Open vSwitch has as
well, until the rate stays and then for the time of a measurement. reflect_rtt_p50 is the median round trip of
one frame that comes back at the socket it went in by. The
others are OVS-DPDK (openvswitch-switch-dpdk) and dpdk-testpmd (dpdk-dev); they
need root and huge pages, which are reserved for the time of the run. The three
of af_xdp are frames of 64 bytes per second received from, sent to and forwarded
between veth interfaces in a network namespace of the benchmark's own (root).

Right before and after each sample the round trip of a cache line between the
two cores is measured, and shown on standard error. A sample during which it
changed by more than a fifth is taken again, three times at most. The medians
are those of the rounds at one distance: near (below 240 ns) or far, whichever
was whole more often; count says how many rounds these are, cacheline_ns what
the distance was.

The programs in bench/peers are looked for in --peers FOLDER, in
$MILLRACE_PEERS, in ./bench/peers and where this program was built.

Examples:
  millrace bench peers
  millrace bench peers --rounds 9 --seconds 2 --json
  millrace bench peers --metric rtt_p50 --engine sze
  millrace bench peers --metric forward_mpps_64,reflect_rtt_p50")]
pub struct PeersArgs {
    /// What to measure
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = Metric::ALL.map(Metric::word))]
    metric: Vec<Metric>,
    /// How often to measure everything
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    seconds: f64,
    /// Folder with run.sh and the programs
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
}

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &PeersArgs) -> Result<(), Failure> {
    let engine = match engines(shared)[..] {
        [engine] => engine,
        _ => Some(Engine::Medusa),
    };
    let mode = shared.mode();
    let mut bench = Bench { shared, cores, engine, mode, seconds: args.seconds, absent: Vec::new() };
    let of = |field: Field| args.metric.iter().copied().filter(move |metric| metric.field() == field);
    let wanted = |field: Field| of(field).next().is_some();
    let needed = wanted(Field::Rings) || wanted(Field::Queues);
    let programs = Programs::find(args.peers.as_deref(), needed)?;
    let mut rings = rings::Comparison::new(of(Field::Rings));
    let mut floor = floor::Comparison::new(wanted(Field::Floor), &bench)?;
    let mut many = many_rings::Comparison::new(wanted(Field::Queues), &bench);
    let mut switches = switches::Comparison::new(of(Field::Switches));
    let mut interfaces = interfaces::Comparison::new(of(Field::Interfaces));
    let steps = Steps::new("peers, round", u64::from(args.rounds));
    for _ in 0..args.rounds {
        steps.next("");
        if stop::asked() {
            break;
        }
        rings.measure(&mut bench, &programs)?;
        if let Some(floor) = &mut floor {
            floor.measure(&bench)?;
        }
        if let Some(many) = &mut many {
            many.measure(&mut bench, &programs)?;
        }
        switches.measure(&mut bench);
        interfaces.measure(&mut bench);
    }
    drop(steps);
    let engine = engine.map_or_else(String::new, |engine| engine.to_string());
    let output = Output::new(shared.json);
    let rounds = args.rounds;
    let tables = [
        (format!("medians of up to {rounds} rounds, {engine} {mode}"), rings.rows(&engine, mode)),
        ("a frame beside a cache line".to_owned(), floor.iter().map(|floor| floor.row(&bench)).collect()),
        ("many queue pairs beside bare rings".to_owned(), many.iter().map(|many| many.row()).collect()),
        (format!("medians of up to {rounds} rounds, vhost-user"), switches.rows()),
        (format!("medians of up to {rounds} rounds, AF_XDP on veth"), interfaces.rows()),
    ];
    for (title, rows) in tables.iter().filter(|(_, rows)| !rows.is_empty()) {
        output.rows(title, rows)?;
    }
    if stop::asked() { Err(Failure::Interrupted) } else { switches.check().and(interfaces.check()) }
}
