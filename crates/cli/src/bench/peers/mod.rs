//! `millrace bench peers`: the same work done by Millrace and by others, measured in turns, round by round, so that a
//! machine that gets slower or faster meanwhile does so for all. What is printed are medians.
//!
//! * [`rings`]: one application and one card, against DPDK's ways to do that, a bare ring and a cache line.
//! * [`switches`]: frames between two vhost-user sockets, against OVS-DPDK and `dpdk-testpmd`.
//! * [`interfaces`]: frames from and to veth interfaces by AF_XDP, against `dpdk-testpmd`.

mod forwarder;
mod interfaces;
mod namespace;
mod ovs;
mod process;
mod rings;
mod source;
mod switches;
mod testpmd;

use std::path::PathBuf;

use clap::Args;
use millrace_abi::queue::{Engine, Mode};

use super::engines;
use super::rig::Cores;
use crate::args::Shared;
use crate::failure::Failure;
use crate::output::{Output, Row, note};
use crate::progress::Steps;
use crate::stop;

/// Options of `bench peers`.
#[derive(Debug, Args)]
#[command(after_help = "\
rtt_p50 is the median round trip: lower is better, also of the ratios. The
other two of the first three are rates one way: higher is better, also of the
ratios. The ratios are Millrace's value divided by that of the better DPDK peer,
and by that of the bare ring. Senders write all bytes of every frame. Without
DPDK (Debian packages dpdk and libdpdk-dev) its columns are empty.

forward_mpps_64 and forward_mpps_1518 are millions of frames per second from one
vhost-user socket to another, one way, on one core; reflect_rtt_p50 is the
median round trip of one frame that comes back at the socket it went in by. The
others are OVS-DPDK (openvswitch-switch-dpdk) and dpdk-testpmd (dpdk-dev); they
need root and huge pages, which are reserved for the time of the run. The three
of af_xdp are frames of 64 bytes per second received from, sent to and forwarded
between veth interfaces in a network namespace of the benchmark's own (root).

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

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Metric {
    /// Median round trip of 64 bytes, in ns.
    RttP50,
    /// Millions of frames of 64 bytes per second, one way.
    #[value(name = "tx_mpps_64")]
    TxMpps64,
    /// Gigabits per second in frames of 1518 bytes, one way.
    #[value(name = "tx_gbps_1518")]
    TxGbps1518,
    /// Millions of frames of 64 bytes per second between two vhost-user sockets.
    #[value(name = "forward_mpps_64")]
    ForwardMpps64,
    /// Millions of frames of 1518 bytes per second between two vhost-user sockets.
    #[value(name = "forward_mpps_1518")]
    ForwardMpps1518,
    /// Median round trip through a vhost-user socket, in ns.
    ReflectRttP50,
    /// Millions of frames of 64 bytes per second received by AF_XDP from a veth interface.
    AfXdpRxMpps,
    /// Millions of frames of 64 bytes per second sent by AF_XDP to a veth interface.
    AfXdpTxMpps,
    /// Millions of frames of 64 bytes per second from one veth interface to another by AF_XDP.
    AfXdpForwardMpps,
}

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Rings,
    Switches,
    Interfaces,
}

impl Metric {
    const ALL: [Metric; 9] = [
        Metric::RttP50,
        Metric::TxMpps64,
        Metric::TxGbps1518,
        Metric::ForwardMpps64,
        Metric::ForwardMpps1518,
        Metric::ReflectRttP50,
        Metric::AfXdpRxMpps,
        Metric::AfXdpTxMpps,
        Metric::AfXdpForwardMpps,
    ];

    fn word(self) -> &'static str {
        match self {
            Metric::RttP50 => "rtt_p50",
            Metric::TxMpps64 => "tx_mpps_64",
            Metric::TxGbps1518 => "tx_gbps_1518",
            Metric::ForwardMpps64 => "forward_mpps_64",
            Metric::ForwardMpps1518 => "forward_mpps_1518",
            Metric::ReflectRttP50 => "reflect_rtt_p50",
            Metric::AfXdpRxMpps => "af_xdp_rx_mpps",
            Metric::AfXdpTxMpps => "af_xdp_tx_mpps",
            Metric::AfXdpForwardMpps => "af_xdp_forward_mpps",
        }
    }

    fn size(self) -> u16 {
        match self {
            Metric::TxGbps1518 | Metric::ForwardMpps1518 => 1518,
            _ => 64,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Metric::RttP50 | Metric::ReflectRttP50 => "ns",
            Metric::TxGbps1518 => "Gbit/s",
            _ => "Mpps",
        }
    }

    fn is_time(self) -> bool {
        self.unit() == "ns"
    }

    /// Decimals of a value.
    fn decimals(self) -> usize {
        if self.is_time() { 1 } else { 3 }
    }

    fn field(self) -> Field {
        match self {
            Metric::RttP50 | Metric::TxMpps64 | Metric::TxGbps1518 => Field::Rings,
            Metric::ForwardMpps64 | Metric::ForwardMpps1518 | Metric::ReflectRttP50 => Field::Switches,
            Metric::AfXdpRxMpps | Metric::AfXdpTxMpps | Metric::AfXdpForwardMpps => Field::Interfaces,
        }
    }

    /// The fields that every row of results begins with.
    fn row(self, rounds: usize) -> Row {
        Row::new()
            .tag("bench", "peers")
            .text("metric", self.word())
            .text("unit", self.unit())
            .count("size", u64::from(self.size()))
            .count("count", rounds as u64)
    }
}

/// What all measurements of a run have in common.
struct Bench<'a> {
    shared: &'a Shared,
    cores: Cores,
    engine: Option<Engine>,
    mode: Mode,
    seconds: f64,
    /// Who cannot be measured here; everybody else has been told why.
    absent: Vec<&'static str>,
}

impl Bench<'_> {
    fn is_absent(&self, peer: &str) -> bool {
        self.absent.contains(&peer)
    }

    /// Says why a peer is not measured, now and in the rounds to come.
    fn leave_out(&mut self, peer: &'static str, why: impl std::fmt::Display) {
        if !self.is_absent(peer) {
            note(format!("{peer} is left out: {why}"));
            self.absent.push(peer);
        }
    }
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
    let mut rings = rings::Comparison::new(of(Field::Rings), args.peers.as_deref())?;
    let mut switches = switches::Comparison::new(of(Field::Switches));
    let mut interfaces = interfaces::Comparison::new(of(Field::Interfaces));
    let steps = Steps::new("peers, round", u64::from(args.rounds));
    for _ in 0..args.rounds {
        steps.next("");
        if !stop::asked() {
            rings.measure(&mut bench)?;
            switches.measure(&mut bench);
            interfaces.measure(&mut bench);
        }
    }
    drop(steps);
    let engine = engine.map_or_else(String::new, |engine| engine.to_string());
    let output = Output::new(shared.json);
    let rounds = args.rounds;
    let tables = [
        (format!("medians of {rounds} rounds, {engine} {mode}"), rings.rows(&engine, mode)),
        (format!("medians of {rounds} rounds, vhost-user"), switches.rows()),
        (format!("medians of {rounds} rounds, AF_XDP on veth"), interfaces.rows()),
    ];
    for (title, rows) in tables.iter().filter(|(_, rows)| !rows.is_empty()) {
        output.rows(title, rows)?;
    }
    if stop::asked() { Err(Failure::Interrupted) } else { switches.check().and(interfaces.check()) }
}
