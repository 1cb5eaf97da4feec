//! All sizes and ways: what each takes, and whether the one that is chosen is the fastest.

use millrace_message::Scheme;
use millrace_message::control::MOST_EAGER;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::progress::Steps;
use millrace_tool::{cores, stop};

use super::drive::{Ends, Line};
use super::end::BufferArgs;
use crate::median::median;
use crate::rig::Cores;
use crate::turns;

/// 1 byte to 16 MiB.
const SIZES: [usize; 14] = [
    1,
    64,
    MOST_EAGER,
    MOST_EAGER + 1,
    4 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
];
/// Turns of all ways at one size: whatever else runs is none of them.
const TURNS: usize = 5;

/// What a size takes.
struct Point {
    size: usize,
    /// By the way that is chosen, in ns one way.
    chosen: f64,
    ways: Vec<(Scheme, f64)>,
}

impl Point {
    fn fastest(&self) -> f64 {
        self.ways.iter().map(|way| way.1).fold(f64::INFINITY, f64::min)
    }

    fn regret(&self) -> f64 {
        self.chosen / self.fastest()
    }
}

/// Where the choice is worst.
pub struct Regret {
    pub size: usize,
    pub chosen: f64,
    pub fastest: f64,
}

fn point(ends: &Ends, size: usize, seconds: f64) -> Result<Point, String> {
    let possible = |scheme: &Scheme| *scheme != Scheme::Eager || size <= MOST_EAGER;
    let ways: Vec<Option<Scheme>> = Scheme::ALL.into_iter().filter(possible).map(Some).chain([None]).collect();
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..TURNS {
        if stop::asked() {
            return Err("interrupted".to_owned());
        }
        for (way, times) in ways.iter().zip(&mut times) {
            times.push(ends.latency(size, *way, seconds)?.value);
        }
    }
    let mut medians = times.iter().map(|times| median(times).unwrap_or(f64::NAN));
    let found = ways.iter().filter_map(|way| Some((*way, medians.next()?))).collect::<Vec<_>>();
    let chosen = found.last().map_or(f64::NAN, |last| last.1);
    Ok(Point { size, chosen, ways: found.iter().filter_map(|(way, time)| Some(((*way)?, *time))).collect() })
}

/// The worst choice of all sizes. Errors are sentences.
pub fn regret((cores, buffers): (Cores, BufferArgs), seconds: f64) -> Result<Regret, String> {
    let ends = Ends::start(cores, buffers)?;
    let points = SIZES.iter().map(|&size| point(&ends, size, seconds)).collect::<Result<Vec<_>, _>>();
    cores::unpin();
    let points = points?;
    let worst = points.iter().max_by(|one, other| one.regret().total_cmp(&other.regret()));
    let worst = worst.ok_or("there are no sizes")?;
    Ok(Regret { size: worst.size, chosen: worst.chosen, fastest: worst.fastest() })
}

/// Runs the sweep.
pub fn run(shared: &Shared, (cores, buffers): (Cores, BufferArgs), seconds: f64) -> Result<(), Failure> {
    let ends = Ends::start(cores, buffers).map_err(Failure::Found)?;
    let steps = Steps::new("message", SIZES.len() as u64);
    let mut rows = Vec::new();
    for size in SIZES {
        steps.next(format!("{size} bytes"));
        let of_size = rows_of((&ends, buffers), size, seconds / TURNS as f64);
        // What was measured until it is interrupted is printed.
        if stop::asked() {
            break;
        }
        rows.extend(of_size.map_err(Failure::Found)?);
    }
    drop(steps);
    Output::new(shared.json).rows("messages one way, and one after the other", &rows)?;
    turns::end(None)
}

fn rows_of((ends, buffers): (&Ends, BufferArgs), size: usize, seconds: f64) -> Result<Vec<Row>, String> {
    let point = point(ends, size, seconds)?;
    let ways = point.ways.iter().map(|(way, time)| (Some(*way), *time)).chain([(None, point.chosen)]);
    let row_of = |(way, time): (Option<Scheme>, f64)| {
        // Messages one after the other say little about how fast short ones go together.
        let flow = ends.bandwidth(size, way, seconds)?;
        Ok(row((size, way), buffers, (time, &flow), way.is_none().then(|| point.regret())))
    };
    ways.map(row_of).collect()
}

fn row(
    (size, way): (usize, Option<Scheme>),
    buffers: BufferArgs,
    (time, flow): (f64, &Line),
    regret: Option<f64>,
) -> Row {
    Row::new()
        .tag("bench", "message")
        .count("size", size as u64)
        .text("scheme", way.map_or("chosen", Scheme::name))
        .count("mtu", buffers.mtu.into())
        .text("optimisations", buffers.optimisations)
        .number("gbps", flow.value * 8.0, 3)
        .number("latency_p50_ns", time, 1)
        .number("cpu_send", flow.cpu[0], 2)
        .number("cpu_receive", flow.cpu[1], 2)
        .maybe("copies", flow.copies, 2)
        .maybe("regret", regret, 3)
}
