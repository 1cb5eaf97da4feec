//! `millrace bench message`: messages between two programs of one host, beside what others have, in turns, round by round.
//!
//! * [`metric`]: what is compared, and the goals. [`end`]: our two ends. [`others`]: UCX and Open MPI. [`sweep`]: all sizes and ways.

pub mod end;
mod metric;
mod others;
mod sweep;

use clap::Args;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::progress::Steps;
use millrace_tool::{cores, stop};

use crate::cacheline::Trips;
use crate::median::median;
use crate::peers::samples::Samples;
use crate::rig::Cores;
use crate::steady;
use end::{BufferArgs, Ends, Line};
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
regret              messages of 1 byte to 16 MiB one way in ns by the way that is
                    chosen (millrace message explain), by the fastest of all ways,
                    at the size where that is worst

UCX is Debian's ucx-utils, Open MPI openmpi-bin and libopenmpi-dev; without them their columns
are empty. cpu_send and cpu_receive are the cores that both programs use.

--sweep measures all sizes and ways.

Examples:
  millrace bench message
  millrace bench message --metric small_to_ucx --rounds 9 --json
  millrace bench message --sweep")]
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
    /// Measure all sizes and ways instead
    #[arg(long)]
    sweep: bool,
    #[command(flatten)]
    buffers: BufferArgs,
}

/// Columns of the samples.
const OURS: usize = 0;
const PEER: usize = 1;
const BESIDE: usize = 2;

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &MessageArgs) -> Result<(), Failure> {
    cores::unpin();
    if args.sweep {
        return sweep::run(shared, (cores, args.buffers), args.seconds);
    }
    let mut all: Vec<Samples<3, Metric>> = args.metric.iter().map(|&metric| Samples::new(metric)).collect();
    let mut lines: Vec<Vec<Line>> = vec![Vec::new(); all.len()];
    let mut absent: Vec<(Metric, usize)> = Vec::new();
    let (mut failed, mut worst) = (None, 0);
    let steps = Steps::new("message", u64::from(args.rounds) * all.len() as u64);
    for _ in 0..args.rounds {
        for (samples, lines) in all.iter_mut().zip(&mut lines) {
            let metric = samples.metric;
            steps.next(metric.word());
            samples.begin();
            // Both columns of it come from one sweep.
            let mut fastest = None;
            for column in [OURS, PEER, BESIDE] {
                if stop::asked() {
                    return Err(Failure::Interrupted);
                }
                if absent.contains(&(metric, column)) {
                    continue;
                }
                let shown = |value: f64| format!("{value:.*} {}", metric.decimals(), metric.unit());
                let name = format!("{} {}", metric.word(), metric.column(column));
                let taken = steady::take(cores, &name, shown, || match (metric, column) {
                    (Metric::Regret, OURS) => {
                        let regret = sweep::regret((cores, args.buffers), args.seconds / 20.0)?;
                        (fastest, worst) = (Some(regret.fastest), regret.size);
                        Ok(Some(regret.chosen))
                    }
                    (Metric::Regret, PEER) => Ok(fastest),
                    _ => measure((cores, args.buffers), args.seconds, metric, column, lines),
                });
                match taken {
                    Ok(sample) => samples.add(column, sample),
                    Err(why) => {
                        note(format!("{name}: left out: {why}"));
                        absent.push((metric, column));
                        if column == OURS {
                            failed.get_or_insert(format!("{name}: {why}"));
                        }
                    }
                }
            }
        }
    }
    drop(steps);
    let rows: Vec<Row> = all.iter().zip(&lines).map(|(samples, lines)| row(samples, lines, worst)).collect();
    Output::new(shared.json).rows(&format!("medians of up to {} rounds", args.rounds), &rows)?;
    failed.map_or(Ok(()), |why| Err(Failure::Found(why)))
}

/// One sample. `None`: this metric has no such column. Errors are sentences.
fn measure(
    (cores, buffers): (Cores, BufferArgs),
    seconds: f64,
    metric: Metric,
    column: usize,
    lines: &mut Vec<Line>,
) -> Result<Option<f64>, String> {
    if column == OURS {
        let is_large = !matches!(metric, Metric::SmallToUcx | Metric::DoorbellToCacheline);
        let ends = Ends::start(cores, if is_large { buffers.adopting() } else { buffers })?;
        let line = match metric {
            Metric::SmallToUcx => ends.latency(8, None, seconds),
            Metric::DoorbellToCacheline => ends.bells(seconds),
            _ => ends.bandwidth(LARGE as usize, None, seconds),
        };
        cores::unpin();
        let line = line?;
        lines.push(line);
        return Ok(Some(line.value));
    }
    match (metric, column) {
        (Metric::SmallToUcx, PEER) => others::ucx(cores, 8, true, seconds).map(Some),
        (Metric::DoorbellToCacheline, PEER) => Ok(Trips::make(cores, seconds).map(|trips| trips.median() / 2.0)),
        (Metric::LargeToRaw, PEER) => crate::rdma::raw_write(cores, seconds, LARGE).map(Some),
        (Metric::LargeToBestPeer, PEER) => others::ucx(cores, LARGE, false, seconds).map(Some),
        (Metric::LargeToBestPeer, BESIDE) => others::mpi(cores, LARGE, seconds).map(Some),
        _ => Ok(None),
    }
}

fn row(samples: &Samples<3, Metric>, lines: &[Line], worst: usize) -> Row {
    let middle = |of: fn(&Line) -> f64| median(&lines.iter().map(of).collect::<Vec<f64>>());
    let (metric, chosen) = (samples.metric, samples.choose());
    let better = if chosen.values[BESIDE] > chosen.values[PEER] { BESIDE } else { PEER };
    let size = match metric {
        Metric::SmallToUcx => 8,
        Metric::DoorbellToCacheline => 0,
        Metric::Regret => worst as u64,
        _ => LARGE,
    };
    let row = Row::new()
        .tag("bench", "message")
        .text("metric", metric.word())
        .count("size", size)
        .text("unit", metric.unit())
        .maybe("millrace", chosen.values[OURS], metric.decimals())
        .maybe("peer", chosen.values[better], metric.decimals())
        .text("peer_is", metric.column(better))
        .maybe("ratio", chosen.ratio(OURS, better), 3)
        .text("goal", metric.goal())
        .maybe("cpu_send", middle(|line| line.cpu[0]), 2)
        .maybe("cpu_receive", middle(|line| line.cpu[1]), 2);
    chosen.end(row)
}
