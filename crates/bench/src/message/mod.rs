//! `millrace bench message`: messages between two programs of one host, beside what others have, in turns, round by round.
//!
//! * [`metric`]: what is compared, and the goals. [`end`]: our two ends; [`drive`]: the one that measures; [`overlap`]: what it computes meanwhile; [`hosted`]: the same with a card.
//!   [`optimisations`]: those of the source. [`others`]: UCX and Open MPI; [`mod@sockets`]: TCP programs; [`emulation`]: TCP
//!   over an Ethernet of messages. [`sweep`]: all sizes and ways. [`figure`]: all sizes of buffers; [`source`]: the
//!   source's machine.

mod drive;
pub mod emulation;
pub mod end;
mod figure;
mod hosted;
mod metric;
mod optimisations;
mod others;
mod overlap;
mod sockets;
mod source;
mod sweep;

use std::path::PathBuf;

use clap::Args;
use millrace_tool::cores;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Cell, Output, Row};

use crate::cacheline::Trips;
use crate::median::median;
use crate::peers::samples::Samples;
use crate::rig::Cores;
use crate::turns::{self, BESIDE, Compared, OURS, PEER};
use drive::{Ends, Line};
use end::BufferArgs;
use metric::Metric;

/// Bytes of long messages.
const LARGE: u64 = 16 << 20;

/// Options of `bench message`.
#[derive(Debug, Args)]
#[command(after_help = "\
Two programs, each pinned to a core, with an endpoint each. Both look without
sleeping where messages are short. value is theirs, peer what stands beside it.

small_to_ucx        8 bytes one way in ns, by UCX's tag_lat through shared memory
doorbell_to_cacheline a doorbell one way in ns, by half the round trip of a cache line
large_to_raw        16 MiB from ordinary memory to ordinary memory in GB/s, where
                    memory that is sent again becomes shared memory (Config::adopt),
                    by WRITEs of 16 MiB of a verbs program (millrace bench rdma),
                    which does so with its memory as well
large_to_best_peer  the same, by the better of UCX's tag_bw and Open MPI
large_to_emulation  the same, by TCP over an Ethernet interface whose frames are messages
                    (millrace message ethernet), MTU 1500, between two network
                    namespaces (root)
large_to_message_mode the same, by messages of 4 KiB over the same endpoints, each of
                    which a doorbell acknowledges before the next one is sent. It goes
                    as four short ones, which is faster here than as one
regret              messages of 1 byte to 16 MiB one way in ns by the way that is
                    chosen (millrace message explain), by the fastest of all ways,
                    at the size where that is worst
overlap             how much of the transfer of 1 MiB passes while the sender
                    computes, and makes no call, in percent: (transfer alone +
                    computing alone - both together) / transfer alone. The thread
                    of a card (millrace card --message-cpu) moves it, on the core
                    of the card, to who has said before where it is to go
overlap_by_receiver the same without a card: the message goes from memory to memory
                    (zero-copy), and the receiver, which waits for it, reads it
redis_to_tcp        TCP programs with libmillrace-socket.so (docs/socket.md): requests per
                    second of redis-benchmark, SET and GET of 3 bytes by 50 connections,
                    by the same without the library
iperf_to_tcp        the same for GB/s of one connection of iperf3

UCX is Debian's ucx-utils, Open MPI openmpi-bin and libopenmpi-dev; without them their columns
are empty. Debian has redis-server, redis-tools and iperf3. cpu_send and cpu_receive are the cores that both programs use, copies is how
often each byte was copied.

--sweep measures all sizes and ways. --sweep=mtu measures 16 MiB and 1 MiB with buffers of
1 KiB to 1 MiB, with the optimisations of the source (RCIBR) and without them:
1  who waits looks for a while before it sleeps
2  buffers are asked for before bytes are copied, and for all parts at once
3  who waits does the work where it sees that there is some, instead of
   leaving it to the endpoint's own thread
source_model_gbps beside it is a model of the source's machine. --svg FILE draws it.

Examples:
  millrace bench message
  millrace bench message --metric small_to_ucx --rounds 9 --json
  millrace bench message --metric large_to_best_peer --optimisations none
  millrace bench message --sweep
  millrace bench message --sweep=mtu --seconds 0.1 --svg mtu.svg")]
pub struct MessageArgs {
    /// What to measure
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = Metric::ALL.map(Metric::word))]
    metric: Vec<Metric>,
    /// How often to measure everything
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    seconds: f64,
    /// Measure all sizes and ways instead, or all sizes of buffers
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "sizes")]
    sweep: Option<Sweep>,
    /// Smallest buffers of --sweep=mtu in bytes; the smallest ones take longest
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 10, value_parser = clap::value_parser!(u32).range(1 << 10..=1 << 20))]
    from: u32,
    /// Draw the sweep of buffers
    #[arg(long, value_name = "FILE", requires = "sweep")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    buffers: BufferArgs,
}

/// What is gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sweep {
    /// Sizes of messages, and ways.
    Sizes,
    /// Sizes of buffers, and optimisations.
    Mtu,
}

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &MessageArgs) -> Result<(), Failure> {
    cores::unpin();
    match args.sweep {
        Some(Sweep::Sizes) if args.svg.is_some() => {
            return Err(Failure::Usage("--svg draws --sweep=mtu only".to_owned()));
        }
        Some(Sweep::Sizes) => return sweep::run(shared, (cores, args.buffers), args.seconds),
        Some(Sweep::Mtu) => {
            let work = figure::Work { from: args.from, seconds: args.seconds, svg: args.svg.as_deref() };
            return figure::run(shared, (cores, args.buffers), work);
        }
        None => {}
    }
    let mut all: Vec<Samples<3, Metric>> = args.metric.iter().map(|&metric| Samples::new(metric)).collect();
    let mut lines: Vec<Vec<Line>> = vec![Vec::new(); all.len()];
    // Both columns of the regret come from one sweep.
    let (mut worst, mut fastest) = (0, None);
    let failed = turns::take("message", cores, args.rounds, &mut all, |at, metric, column| match (metric, column) {
        (Metric::Regret, OURS) => {
            let regret = sweep::regret((cores, args.buffers), args.seconds / 20.0)?;
            (fastest, worst) = (Some(regret.fastest), regret.size);
            Ok(Some(regret.chosen))
        }
        (Metric::Regret, PEER) => Ok(fastest),
        _ => measure((cores, args.buffers), args.seconds, metric, column, &mut lines[at]),
    });
    let rows: Vec<Row> =
        all.iter().zip(&lines).map(|(samples, lines)| row(samples, lines, (worst, args.buffers))).collect();
    Output::new(shared.json).rows(&format!("medians of up to {} rounds", args.rounds), &rows)?;
    turns::end(failed)
}

/// One sample. `None`: this metric has no such column, or the sample says nothing. Errors are sentences.
fn measure(
    (cores, buffers): (Cores, BufferArgs),
    seconds: f64,
    metric: Metric,
    column: usize,
    lines: &mut Vec<Line>,
) -> Result<Option<f64>, String> {
    if let Some(rate) = sockets(cores, seconds, metric, column) {
        return rate;
    }
    if column == OURS {
        let line = ours((cores, buffers), seconds, metric);
        cores::unpin();
        let line = line?;
        lines.extend(line);
        return Ok(line.map(|line| line.value));
    }
    match (metric, column) {
        (Metric::SmallToUcx, PEER) => others::ucx(cores, 8, true, seconds).map(Some),
        (Metric::DoorbellToCacheline, PEER) => Ok(Trips::make(cores, seconds).map(|trips| trips.median() / 2.0)),
        (Metric::LargeToRaw, PEER) => crate::rdma::raw_write(cores, seconds, LARGE).map(Some),
        (Metric::LargeToBestPeer, PEER) => others::ucx(cores, LARGE, false, seconds).map(Some),
        (Metric::LargeToEmulation, PEER) => emulation::measure(cores, seconds).map(Some),
        (Metric::LargeToMessageMode, PEER) => {
            let mail = Ends::start(cores, buffers).and_then(|ends| ends.mail(LARGE as usize, seconds));
            cores::unpin();
            mail.map(|line| Some(line.value))
        }
        (Metric::Overlap | Metric::OverlapByReceiver, PEER) => Ok(Some(100.0)),
        (Metric::LargeToBestPeer, BESIDE) => others::mpi(cores, LARGE, seconds).map(Some),
        _ => Ok(None),
    }
}

/// A sample of our two ends. `None`: it says nothing, because the cores were another's.
fn ours((cores, buffers): (Cores, BufferArgs), seconds: f64, metric: Metric) -> Result<Option<Line>, String> {
    let size = metric.size() as usize;
    if metric == Metric::Overlap {
        return hosted::measure(cores, size, seconds);
    }
    let is_large = !matches!(metric, Metric::SmallToUcx | Metric::DoorbellToCacheline);
    let ends = Ends::start(cores, if is_large { buffers.adopting() } else { buffers })?;
    match metric {
        Metric::SmallToUcx => ends.latency(8, None, seconds).map(Some),
        Metric::DoorbellToCacheline => ends.bells(seconds).map(Some),
        Metric::OverlapByReceiver => ends.overlap(size, seconds),
        _ => {
            let line = ends.bandwidth(size, None, seconds);
            ends.tell_what_was_not_adopted();
            line.map(Some)
        }
    }
}

/// A sample of TCP programs; `None`: it is none of theirs.
fn sockets(cores: Cores, seconds: f64, metric: Metric, column: usize) -> Option<Result<Option<f64>, String>> {
    let measure = match metric {
        Metric::RedisToTcp => sockets::redis,
        Metric::IperfToTcp => sockets::iperf,
        _ => return None,
    };
    Some(match column {
        OURS => measure(cores, sockets::Way::Library, seconds).map(Some),
        PEER => measure(cores, sockets::Way::Kernel, seconds).map(Some),
        _ => Ok(None),
    })
}

fn row(samples: &Samples<3, Metric>, lines: &[Line], (worst, buffers): (usize, BufferArgs)) -> Row {
    let middle = |of: fn(&Line) -> f64| median(&lines.iter().map(of).collect::<Vec<f64>>());
    let (metric, chosen) = (samples.metric, samples.choose());
    let better = if chosen.values[BESIDE] > chosen.values[PEER] { BESIDE } else { PEER };
    let is_rate = metric.unit() == "GB/s";
    let ours = chosen.values[OURS];
    let row = Row::new()
        .tag("bench", "message")
        .text("metric", metric.word())
        .count("size", if metric == Metric::Regret { worst as u64 } else { metric.size() })
        .text("unit", metric.unit())
        .maybe("millrace", ours, metric.decimals())
        .maybe("peer", chosen.values[better], metric.decimals())
        .text("peer_is", metric.column(better))
        .maybe("ratio", chosen.ratio(OURS, better), 3)
        .text("goal", metric.goal())
        .cell("scheme", metric.scheme().map_or(Cell::Missing, |scheme| Cell::Text(scheme.to_owned())))
        .beside("mtu", Cell::Count(buffers.mtu.into()))
        .beside("optimisations", Cell::Text(buffers.optimisations.to_string()))
        .beside("gbps", number(ours.filter(|_| is_rate).map(|rate| rate * 8.0), 3))
        .beside("latency_p50_ns", number(ours.filter(|_| metric.unit() == "ns"), 1))
        .maybe("cpu_send", middle(|line| line.cpu[0]), 2)
        .maybe("cpu_receive", middle(|line| line.cpu[1]), 2)
        .maybe("copies", middle(|line| line.copies.unwrap_or(f64::NAN)), 2);
    chosen.end(row)
}

fn number(value: Option<f64>, decimals: usize) -> Cell {
    value.map_or(Cell::Missing, |value| Cell::Number(value, decimals))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steady::Sample;
    use optimisations::Optimisations;

    #[test]
    fn a_row_has_what_is_promised() {
        let mut samples = Samples::<3, Metric>::new(Metric::LargeToMessageMode);
        samples.begin();
        let sample = |value| Some(Sample { value, cacheline_ns: Some(100.0) });
        samples.add(OURS, sample(6.0));
        samples.add(PEER, sample(2.0));
        let line = Line { value: 6.0, cpu: [1.0, 0.5], copies: Some(2.0) };
        let buffers = BufferArgs { mtu: 65536, slots: 8, optimisations: Optimisations::ALL, adopt: false };
        let row = row(&samples, &[line], (0, buffers)).to_json();
        let row: serde_json::Value = serde_json::from_str(&row).unwrap();
        for (key, value) in [
            ("bench", serde_json::json!("message")),
            ("metric", serde_json::json!("large_to_message_mode")),
            ("size", serde_json::json!(16 << 20)),
            ("millrace", serde_json::json!(6.0)),
            ("peer", serde_json::json!(2.0)),
            ("ratio", serde_json::json!(3.0)),
            ("scheme", serde_json::json!("chosen")),
            ("mtu", serde_json::json!(65536)),
            ("optimisations", serde_json::json!("123")),
            ("gbps", serde_json::json!(48.0)),
            ("latency_p50_ns", serde_json::Value::Null),
            ("cpu_send", serde_json::json!(1.0)),
            ("cpu_receive", serde_json::json!(0.5)),
            ("copies", serde_json::json!(2.0)),
        ] {
            assert_eq!(row[key], value, "{key} in {row}");
        }
    }
}
