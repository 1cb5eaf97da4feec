//! `millrace bench matrix`: throughput and latency by number of queues and packet size (the accelerator paper's figures 7
//! and 8).
//!
//! All queue pairs are active, one thread serves them. Throughput is that of frames out and back through the card's
//! loopback; latency is the round trip of one frame at a time, the pairs taking turns. The columns for VXLAN stay empty
//! until the card has a classifier that takes it off.

use std::path::PathBuf;

use clap::Args;
use millrace_abi::queue::Engine;
use millrace_tool::failure::Failure;
use millrace_tool::list::{Queues, Sizes};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::progress::Steps;
use millrace_tool::stop;

use crate::choice::{ENGINE_OF_MANY, engines};
use crate::lines::{self, Chart, Line};
use crate::many::Many;
use crate::median::median;
use crate::rig::{Cores, Rig};

/// Packet sizes unless `--size` says otherwise.
const SIZES: [u32; 6] = [64, 128, 256, 512, 1024, 1536];

/// Options of `bench matrix`.
#[derive(Debug, Args)]
#[command(after_help = "\
For each number of queue pairs and each entry of --size (default
64,128,256,512,1024,1536): frames per second out and back through the card's
loopback on all pairs, and the round trip of one frame at a time. Medians of
--rounds rounds. The columns for VXLAN stay empty until there is a classifier.

Examples:
  millrace bench matrix
  millrace bench matrix --svg matrix.svg --rounds 5
  millrace bench matrix --queues 1,16 --size 64 --engine sze --json")]
pub struct MatrixArgs {
    /// Numbers of queue pairs
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    queues: Vec<u32>,
    /// How often to measure everything
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.3)]
    seconds: f64,
    /// Draw both by packet size, a curve for each number of queues
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
}

impl MatrixArgs {
    /// The largest number of queue pairs.
    pub fn most_queues(&self) -> u32 {
        self.queues.iter().copied().max().unwrap_or(1)
    }
}

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &MatrixArgs) -> Result<(), Failure> {
    let sizes = sizes(shared)?;
    let engine = match engines(shared)[..] {
        [engine] => engine,
        _ => Some(ENGINE_OF_MANY),
    };
    let mut cells: Vec<Cell> =
        args.queues.iter().flat_map(|queues| sizes.iter().map(|size| Cell::new(*queues, *size))).collect();
    let steps = Steps::new("matrix", u64::from(args.rounds) * cells.len() as u64);
    for _ in 0..args.rounds {
        for cells in cells.chunks_mut(sizes.len()) {
            measure(shared, cores, engine, args.seconds, cells, &steps)?;
        }
    }
    drop(steps);
    let engine = engine.map_or_else(String::new, |engine| engine.to_string());
    let rows: Vec<Row> = cells.iter().map(|cell| cell.row(&engine)).collect();
    Output::new(shared.json).rows(&format!("medians of {} rounds, {engine}", args.rounds), &rows)?;
    if let Some(file) = &args.svg {
        draw(file, &engine, &sizes, &args.queues, &cells)?;
        note(format!("the curves are in {}", file.display()));
    }
    Ok(())
}

fn sizes(shared: &Shared) -> Result<Vec<u16>, Failure> {
    let sizes = shared.size.clone().unwrap_or_else(|| Sizes::each(&SIZES));
    let single = |entry: Sizes| entry.single().and_then(|size| u16::try_from(size).ok()).filter(|size| *size >= 60);
    sizes.entries().map(single).collect::<Option<_>>().ok_or_else(|| {
        Failure::Usage(format!("--size {sizes}: this benchmark takes single sizes of at least 60 bytes"))
    })
}

/// One number of queues and one size, and its values, one per round.
struct Cell {
    queues: u32,
    size: u16,
    mpps: Vec<f64>,
    gbps: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Cell {
    fn new(queues: u32, size: u16) -> Self {
        Self { queues, size, mpps: Vec::new(), gbps: Vec::new(), p50: Vec::new(), p99: Vec::new() }
    }

    fn measure(&mut self, pairs: &mut Many, seconds: f64) -> Result<(), Failure> {
        let active = self.queues as usize;
        let rate = pairs.throughput(active, self.size, seconds)?;
        self.mpps.push(rate.mpps);
        self.gbps.push(rate.gbps);
        let times = pairs.round_trips(active, self.size, seconds)?.times;
        self.p50.extend(times.quantile(0.5).map(|time| time as f64));
        self.p99.extend(times.quantile(0.99).map(|time| time as f64));
        Ok(())
    }

    fn row(&self, engine: &str) -> Row {
        Row::new()
            .tag("bench", "matrix")
            .tag("engine", engine)
            .count("queues", u64::from(self.queues))
            .count("size", u64::from(self.size))
            .count("rounds", self.mpps.len() as u64)
            .maybe("mpps", median(&self.mpps), 3)
            .maybe("gbps", median(&self.gbps), 3)
            .maybe("p50_ns", median(&self.p50), 1)
            .maybe("p99_ns", median(&self.p99), 1)
            .maybe("vxlan_mpps", None, 3)
            .maybe("vxlan_gbps", None, 3)
            .maybe("vxlan_p50_ns", None, 1)
            .maybe("vxlan_p99_ns", None, 1)
    }
}

/// One round of all sizes on a card with as many queues.
fn measure(
    shared: &Shared,
    cores: Cores,
    engine: Option<Engine>,
    seconds: f64,
    cells: &mut [Cell],
    steps: &Steps,
) -> Result<(), Failure> {
    let Some(queues) = cells.first().map(|cell| cell.queues) else { return Ok(()) };
    let shared = Shared { queue: Some(Queues::first(queues)), ..shared.clone() };
    let card = Rig::start(&shared, cores, engine, "loopback")?;
    let session = card.session()?;
    let mut pairs = Many::open(&session, queues)?;
    for cell in cells {
        if stop::asked() {
            return Err(Failure::Interrupted);
        }
        steps.next(format!("{queues} queues, {} bytes", cell.size));
        cell.measure(&mut pairs, seconds)?;
    }
    pairs.close()?;
    drop(session);
    card.end()
}

fn draw(file: &std::path::Path, engine: &str, sizes: &[u16], queues: &[u32], cells: &[Cell]) -> Result<(), Failure> {
    let curves = |values: fn(&Cell) -> &Vec<f64>| -> Vec<Line> {
        let curve = |(queues, cells): (&u32, &[Cell])| Line {
            name: if *queues == 1 { "1 queue pair".to_owned() } else { format!("{queues} queue pairs") },
            points: cells.iter().map(|cell| median(values(cell)).unwrap_or(0.0)).collect(),
        };
        queues.iter().zip(cells.chunks(sizes.len())).map(curve).collect()
    };
    let charts = [
        Chart {
            title: format!("Throughput by packet size, {engine}, out and back"),
            unit: "Gbit/s",
            lines: curves(|cell| &cell.gbps),
        },
        Chart {
            title: format!("Median round trip by packet size, {engine}"),
            unit: "ns",
            lines: curves(|cell| &cell.p50),
        },
    ];
    let labels: Vec<String> = sizes.iter().map(u16::to_string).collect();
    lines::draw(file, "packet size without FCS, bytes", &labels, &charts)
}
