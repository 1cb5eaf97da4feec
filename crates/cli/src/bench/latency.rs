//! `millrace bench latency`: the round trip of one packet (the thesis's table 6.1 and figures 6.1 and 6.2).
//!
//! A round trip begins with the reading of the clock before `get` asks for a slot, and ends with the reading of the
//! clock after the `get` that found the packet. In between lie filling the slot, `put`, `flush`, the card's copy from
//! the transmit to the receive queue, and the empty `get`s meanwhile. Checking the contents comes afterwards.

use std::path::PathBuf;

use clap::Args;
use millrace_abi::queue::{Engine, Mode, QueueId};
use millrace_packet::structured::{self, Checker, MIN_LEN, Sequence, Stamping};

use super::plot::{self, Curve};
use super::rig::{Cores, Rig};
use super::{engines, first_queue, modes};
use crate::args::Shared;
use crate::clock::{Clock, Moment};
use crate::distribution::Distribution;
use crate::echo::cannot_receive;
use crate::failure::{Failure, While};
use crate::host::{RxQueue, TxQueue};
use crate::lanes::latency_cells;
use crate::output::{Output, Row, note};
use crate::progress::Steps;
use crate::{send, stop};

/// Round trips unless `--count` says otherwise.
const DEFAULT_COUNT: u64 = 1_000_000;

/// Round trips before those that count: caches, branch predictors and clocks settle.
const WARM_UP: u64 = 2_000;

/// A packet that is not back after so many nanoseconds is lost. Long enough for a machine that does something else
/// meanwhile: a long time belongs into the distribution, and leaving it out would flatter the card.
const LOST_AFTER: u64 = 5_000_000_000;

/// Round trips between two looks at the clock and for Ctrl-C.
const TRIPS_PER_LOOK: u64 = 64;

/// Empty polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 256;

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

/// What round trips came to.
#[derive(Clone, Debug)]
pub struct RoundTrips {
    /// How long they took.
    pub times: Distribution,
    /// Packets that did not come back in time.
    pub lost: u64,
    /// Packets that came back changed.
    pub corrupt: u64,
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
            .cell("size", crate::output::Cell::Count(u64::from(size)))
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

/// How many round trips to make.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// At most so many.
    pub count: u64,
    /// For at most so long.
    pub seconds: Option<f64>,
}

/// Makes round trips, after some that do not count, to the end of `extent` or until Ctrl-C.
pub fn round_trips(rx: &mut RxQueue, tx: &mut TxQueue, size: u16, extent: Extent) -> Result<RoundTrips, Failure> {
    travel(size, extent, |traveller| traveller.go(rx, tx))
}

/// The same on several pairs, which take turns.
pub fn round_trips_over(pairs: &mut [(RxQueue, TxQueue)], size: u16, extent: Extent) -> Result<RoundTrips, Failure> {
    let (mut next, count) = (0, pairs.len());
    travel(size, extent, |traveller| {
        let (rx, tx) = &mut pairs[next];
        next = if next + 1 == count { 0 } else { next + 1 };
        traveller.go(rx, tx)
    })
}

fn travel(
    size: u16,
    extent: Extent,
    mut go: impl FnMut(&mut Traveller) -> Result<Option<u64>, Failure>,
) -> Result<RoundTrips, Failure> {
    let mut traveller = Traveller::new(size);
    let mut trips = RoundTrips { times: Distribution::new(), lost: 0, corrupt: 0 };
    let is_over = |start: Moment| stop::asked() || extent.seconds.is_some_and(|seconds| start.seconds() > seconds);
    let start = Moment::now();
    for number in 0..WARM_UP.min(extent.count) {
        // On a machine that does something else meanwhile so many can take minutes.
        if number % TRIPS_PER_LOOK == 0 && is_over(start) {
            break;
        }
        go(&mut traveller)?;
    }
    let start = Moment::now();
    for number in 0..extent.count {
        if number % TRIPS_PER_LOOK == 0 && is_over(start) {
            break;
        }
        if let Some(time) = go(&mut traveller)? {
            trips.times.record(time);
        }
    }
    let found = traveller.checker.finish(traveller.next);
    (trips.lost, trips.corrupt) = (found.lost, found.corrupt + found.duplicates + found.strays);
    Ok(trips)
}

/// One packet that goes out and comes back again and again.
struct Traveller {
    lens: [u16; 1],
    next: Sequence,
    checker: Checker,
    clock: Clock,
}

impl Traveller {
    fn new(size: u16) -> Self {
        let checker = Checker::new(Stamping::On);
        Self { lens: [size], next: Sequence::ZERO, checker, clock: Clock::start() }
    }

    /// One round trip; its nanoseconds, or `None` if the packet did not come back in time.
    #[inline]
    fn go(&mut self, rx: &mut RxQueue, tx: &mut TxQueue) -> Result<Option<u64>, Failure> {
        let start = self.clock.now();
        let fill = |_, slot: &mut [u8]| structured::fill_stamped(slot, self.next, start);
        if send::burst(tx, &self.lens, fill)? == 0 {
            return Err(no_room());
        }
        send::flush(tx)?;
        self.next = self.next.next();
        let deadline = start.nanos() + LOST_AFTER;
        loop {
            for _ in 0..POLLS_PER_LOOK {
                let burst = rx.get(1).doing(cannot_receive)?;
                if burst.is_empty() {
                    continue;
                }
                let end = self.clock.now();
                // A packet that had been given up may come before the one that is waited for.
                let stamp = structured::stamp(&burst[0]);
                let _ = self.checker.check(&burst[0]);
                if stamp == Some(start) {
                    return Ok(Some(end.nanos_since(start)));
                }
            }
            if self.clock.now().nanos() > deadline || stop::asked() {
                return Ok(None);
            }
        }
    }
}

/// What it means when an empty queue has no room.
pub fn no_room() -> Failure {
    Failure::Found("the transmit queue has no room though it is empty: is the card alive?".to_owned())
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
