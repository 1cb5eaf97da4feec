//! `millrace bench rdma`: verbs programs over a card, beside what else moves bytes between processes and hosts, in turns, round by
//! round.
//!
//! * [`metric`]: what is compared, and the goals. [`cards`]: what lies between both ends. [`ours`]: programs that use verbs.
//!   [`others`]: UCX, libfabric and the system's own copy. [`slurpoe`]: other frames. [`sweep`]: all sizes, as tables and a picture. [`stages`]: what takes how long.

mod cards;
mod metric;
mod others;
mod ours;
mod slurpoe;
mod stages;
mod sweep;

use std::path::PathBuf;

use clap::Args;
use millrace_tool::cores;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};

use crate::cacheline::Trips;
use crate::median::median;
use crate::peers::samples::Samples;
use crate::rig::Cores;
use crate::turns::{self, BESIDE, Compared, OURS, PEER};
use cards::Cards;
use metric::Metric;
use ours::{Line, Programs};

/// Options of `bench rdma`.
#[derive(Debug, Args)]
#[command(after_help = "\
Two programs use verbs (libibverbs.so.1 of Millrace), each pinned to a core. The
protocol runs in their own threads; where both are on one host, bytes go straight
into the other's memory (adopt=heap). value is theirs, peer what stands beside it, ratio the
one by the other.

write_1m_to_cma     WRITE of 1 MiB in GB/s, by process_vm_writev
write_cold_to_cma   the same over 256 MiB, out of cache
read_1m_to_cma      READ of 1 MiB in GB/s, by process_vm_readv
write_1m_to_ucx     WRITE of 1 MiB in GB/s, by UCX's put_bw through shared memory
write_8_to_ucx      WRITE of 8 bytes one way in ns, by UCX's put_lat
write_8_by_card_to_cacheline WRITE of 8 bytes from a program to itself by the engine
                    in the card (place=card) on a core of its own, in ns from
                    posting until it is there, by the round trip of a cache line
send_64_to_libfabric SEND of 64 bytes one way in ns, by fi_pingpong -p shm
wire_8_to_tcp       8 bytes one way in ns over a vhost-user socket (RoCE v2, each
                    end works on its port itself), by UCX over TCP on the
                    loopback interface
wire_1m_to_tcp      the same with 1 MiB, in GB/s
veth_8_to_tcp       8 bytes one way in ns with AF_XDP at both ends of a veth, by UCX
                    over TCP on a veth (root)
writes_per_s        WRITEs of 8 bytes on one host, in millions per second
loss_goodput        1 MiB over the wire of wire_1m_to_tcp, which loses 1 % of all
                    frames one way, by the same without loss; go_back_n beside it
register_1m_again_us registering 1 MiB that was registered before, in us; first,
                    a copy and mlock() of as much beside it
app_cpu_percent     what a program takes of a core while the engine in the card
                    writes 1 GiB for it and it sleeps on a completion channel;
                    the same with the engine in its own threads beside it
slurpoe_to_roce     WRITE of 8 bytes in ns until it is acknowledged, by SLURPoE's API
                    over the wire of wire_8_to_tcp, in frames of SLURPoE; by the
                    same in frames of RoCE v2. Two threads of one process
slurpoe_1m_to_roce  the same with 1 MiB, in GB/s, 4096 bytes in a packet;
                    payload_8192 beside it, which only SLURPoE has

UCX is Debian's ucx-utils, fi_pingpong libfabric-bin; without them their columns
are empty. The programs are in bench/rdma and are built with cc, make and
libibverbs-dev when they are needed.

--sweep measures WRITE, READ and SEND at many sizes, on one host and over a wire,
and TCP beside them; --svg FILE draws it.

cpu_app and cpu_target are the cores that both programs use, cpu_card that of the
card. copies is how often each byte was copied on its way, as programs and card
have counted it, packets that were sent again included. The engine in the card
does not count.

--stages takes a SEND apart by stamps of both ends, one SEND on its way at a time:
post      ibv_post_send takes it; by the ring of one host it is also sent then
doorbell  until the engine begins; by the ring of one host, until the other is woken
engine    until its packets are with the port, and the other is told
wire      until the other end has the packet that ends it
deliver   until that is in memory, with its completion
poll      until ibv_poll_cq returns it

Examples:
  millrace bench rdma
  millrace bench rdma --metric write_8_to_ucx,writes_per_s --rounds 9 --json
  millrace bench rdma --sweep --svg rdma.svg
  millrace bench rdma --stages --json")]
pub struct RdmaArgs {
    /// What to measure
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = Metric::ALL.map(Metric::word))]
    metric: Vec<Metric>,
    /// How often to measure everything
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    seconds: f64,
    /// Measure all sizes instead
    #[arg(long)]
    sweep: bool,
    /// Draw the sweep
    #[arg(long, value_name = "FILE", requires = "sweep")]
    svg: Option<PathBuf>,
    /// Measure what takes how long in one SEND instead
    #[arg(long, conflicts_with = "sweep")]
    stages: bool,
    /// Folder with the sources of the programs [default: bench/rdma, or where this program was built]
    #[arg(long, value_name = "FOLDER")]
    sources: Option<PathBuf>,
}

/// What a benchmark stands on.
struct Bench {
    cores: Cores,
    seconds: f64,
    programs: Programs,
}

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &RdmaArgs) -> Result<(), Failure> {
    // The programs pin themselves.
    cores::unpin();
    let programs = Programs::build(args.sources.as_deref()).map_err(Failure::Found)?;
    let bench = Bench { cores, seconds: args.seconds, programs };
    if args.sweep {
        return sweep::run(shared, &bench, args.svg.as_deref());
    }
    if args.stages {
        return stages::run(shared, &bench);
    }
    let mut all: Vec<Samples<3, Metric>> = args.metric.iter().map(|&metric| Samples::new(metric)).collect();
    let mut lines: Vec<Vec<Line>> = vec![Vec::new(); all.len()];
    let failed = turns::take("rdma", cores, args.rounds, &mut all, |at, metric, column| {
        measure(&bench, metric, column, &mut lines[at])
    });
    let rows: Vec<Row> = all.iter().zip(&lines).map(|(samples, lines)| row(samples, lines)).collect();
    Output::new(shared.json).rows(&format!("medians of up to {} rounds", args.rounds), &rows)?;
    turns::end(failed)
}

/// WRITE of so many bytes on one host in GB/s: what moves bytes with nothing around it. Errors are sentences.
pub fn raw_write(cores: Cores, seconds: f64, size: u64) -> Result<f64, String> {
    let bench = Bench { cores, seconds, programs: Programs::build(None)? };
    let cards = Cards::start(&bench, Metric::Write1mToCma.cards())?;
    ours::measure(&bench, &cards, ours::Work { op: "write", measure: "bandwidth", size }).map(|line| line.value)
}

/// One sample. `None`: this metric has no such column. What else our programs have measured is added to `lines`. Errors are sentences.
fn measure(bench: &Bench, metric: Metric, column: usize, lines: &mut Vec<Line>) -> Result<Option<f64>, String> {
    let (work, cards) = (metric.work(), metric.cards());
    if matches!(metric.peer(), metric::Peer::Frames) {
        return metric.frames(column).map(|frames| slurpoe::measure(bench, frames, work)).transpose();
    }
    match column {
        OURS => {
            let line = ours::measure(bench, &Cards::start(bench, cards)?, work)?;
            lines.push(line);
            Ok(Some(line.value))
        }
        PEER => match metric.peer() {
            metric::Peer::Other(other) => others::measure(bench, other, work).map(Some),
            metric::Peer::Cards(cards) => {
                ours::measure(bench, &Cards::start(bench, cards)?, work).map(|line| Some(line.value))
            }
            metric::Peer::First => {
                ours::measure(bench, &Cards::start(bench, cards)?, work).map(|line| Some(line.first_us))
            }
            metric::Peer::Frames => Ok(None),
            metric::Peer::Line => Ok(Trips::make(bench.cores, bench.seconds).map(|trips| trips.distance())),
        },
        _ => match metric.beside() {
            Some(cards) => ours::measure(bench, &Cards::start(bench, cards)?, work).map(|line| Some(line.value)),
            None => Ok(None),
        },
    }
}

fn row(samples: &Samples<3, Metric>, lines: &[Line]) -> Row {
    let middle = |of: fn(&Line) -> Option<f64>| median(&lines.iter().filter_map(of).collect::<Vec<f64>>());
    let (metric, chosen) = (samples.metric, samples.choose());
    let (work, decimals) = (metric.work(), metric.decimals());
    let row = Row::new()
        .tag("bench", "rdma")
        .text("metric", metric.word())
        .text("op", work.op)
        .count("size", work.size)
        .tag("placement", metric.cards().placement())
        .tag("wire", metric.cards().word())
        .text("unit", metric.unit())
        .maybe("millrace", chosen.values[OURS], decimals)
        .maybe("peer", chosen.values[PEER], decimals)
        .text("peer_is", metric.column(PEER))
        .maybe("ratio", chosen.ratio(OURS, PEER), 3)
        .text("goal", metric.goal())
        .maybe("go_back_n", chosen.values[BESIDE].filter(|_| metric == Metric::LossGoodput), decimals)
        .maybe("payload_8192", chosen.values[BESIDE].filter(|_| metric == Metric::Slurpoe1mToRoce), decimals)
        .maybe("cpu_app", middle(|line| Some(line.cpu[0])), 2)
        .maybe("cpu_target", middle(|line| Some(line.cpu[1])), 2)
        .maybe("cpu_card", middle(|line| line.cpu_card), 2)
        .maybe("copies", middle(|line| line.copies), 2);
    chosen.end(row)
}
