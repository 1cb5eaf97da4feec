//! `millrace bench latency`: the round trip of one packet (the thesis's table 6.1 and figures 6.1 and 6.2).
//! What belongs to a round trip is in `millrace_tool::trips`.

use std::path::PathBuf;

use clap::Args;
use millrace_abi::queue::{Engine, Mode, QueueId};
use millrace_packet::structured::MIN_LEN;
use millrace_tool::failure::Failure;
use millrace_tool::lanes::latency_cells;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::progress::Steps;
use millrace_tool::trips::{Extent, RoundTrips, round_trips};
use millrace_tool::{send, stop};

use crate::choice::{engines, first_queue, modes};
use crate::plot::{self, Curve};
use crate::rig::{Cores, Rig};

/// Round trips unless `--count` says otherwise.
const DEFAULT_COUNT: u64 = 1_000_000;

/// Options of `bench latency`.
#[derive(Debug, Args)]
#[command(after_help = "\
Sends --count packets (1M by default) of --size bytes (64), one at a time,
through the card's loopback, and measures from before asking for a slot until
the packet is in hand again.

Examples:
  millrace bench latency
  millrace bench latency --engine medusa --mode direct --count 10M --json
  millrace bench latency --count 200k --plot latency.svg")]
pub struct LatencyArgs {
    /// Draw the histograms of all modes over each other
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Runs the command.
pub fn run(shared: &Shared, cores: Cores, args: &LatencyArgs) -> Result<(), Failure> {
    let size = one_size(shared, 64)?;
    let count = shared.count.unwrap_or(DEFAULT_COUNT);
    let cases = measure_all(shared, cores, size, count)?;
    let rows: Vec<Row> = cases.iter().map(|case| case.row(size)).collect();
    Output::new(shared.json).rows(&format!("round trips of {size} bytes"), &rows)?;
    if let Some(file) = &args.plot {
        plot::draw(file, &format!("Round trip of {size} bytes"), &curves(&cases))?;
        note(format!("histograms are in {}", file.display()));
    }
    judge(&cases, count)
}

struct Case {
    engine: Engine,
    mode: Mode,
    trips: RoundTrips,
}

impl Case {
    fn row(&self, size: u16) -> Row {
        let row = Row::new()
            .tag("bench", "latency")
            .text("engine", self.engine)
            .text("mode", self.mode)
            .cell("size", millrace_tool::output::Cell::Count(u64::from(size)))
            .count("count", self.trips.times.count());
        latency_cells(row, &self.trips.times).count("lost", self.trips.lost).count("corrupt", self.trips.corrupt)
    }
}

fn measure_all(shared: &Shared, cores: Cores, size: u16, count: u64) -> Result<Vec<Case>, Failure> {
    let engines = engines(shared);
    let count_of = |&engine: &Option<Engine>| modes(shared, engine).len() as u64;
    let steps = Steps::new("latency", engines.iter().map(count_of).sum());
    let mut cases = Vec::new();
    for engine in engines {
        let rig = Rig::start(shared, cores, engine, "loopback")?;
        for mode in modes(shared, engine) {
            steps.next(format!("{} {mode}", engine.map_or_else(String::new, |engine| engine.to_string())));
            cases.push(measure(&rig.in_mode(mode), mode, size, count, first_queue(shared))?);
            if stop::asked() {
                return Ok(cases);
            }
        }
        rig.end()?;
    }
    Ok(cases)
}

fn measure(rig: &Rig, mode: Mode, size: u16, count: u64, queue: u32) -> Result<Case, Failure> {
    let session = rig.session()?;
    let engine = session.engine(QueueId::tx(queue))?;
    let (mut rx, mut tx) = rig.pair(&session)?;
    let trips = round_trips(&mut rx, &mut tx, size, Extent { count, seconds: None })?;
    send::finish(tx)?;
    Ok(Case { engine, mode, trips })
}

/// The one size of `--size`, or `otherwise`.
pub fn one_size(shared: &Shared, otherwise: u32) -> Result<u16, Failure> {
    let sizes = shared.sizes_or(otherwise);
    let size = sizes.single().and_then(|size| u16::try_from(size).ok());
    size.filter(|size| usize::from(*size) >= MIN_LEN).ok_or_else(|| {
        Failure::Usage(format!("--size {sizes}: this benchmark takes one size of at least {MIN_LEN} bytes"))
    })
}

fn curves(cases: &[Case]) -> Vec<Curve<'_>> {
    let name = |case: &Case| format!("{} {}", case.engine, case.mode);
    cases.iter().map(|case| Curve { name: name(case), times: &case.trips.times }).collect()
}

fn judge(cases: &[Case], count: u64) -> Result<(), Failure> {
    let lost: u64 = cases.iter().map(|case| case.trips.lost).sum();
    let corrupt: u64 = cases.iter().map(|case| case.trips.corrupt).sum();
    if lost + corrupt > 0 {
        return Err(Failure::Found(format!("{lost} packets lost, {corrupt} corrupt")));
    }
    let is_done = |case: &Case| case.trips.times.count() == count;
    match (stop::asked(), cases.iter().all(is_done)) {
        (true, _) => Err(Failure::Interrupted),
        (false, true) => Ok(()),
        (false, false) => Err(Failure::Found("packets came back, but more than five seconds late".to_owned())),
    }
}
