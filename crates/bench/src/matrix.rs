//! `millrace bench matrix`: throughput and latency by number of queues and packet size (the accelerator paper's figures 7
//! and 8).
//!
//! All queue pairs are active, one thread serves them. Throughput is that of frames out and back through the card's
//! loopback; latency is the round trip of one frame at a time, the pairs taking turns. The columns for VXLAN are the same while rules put
//! every frame into a VXLAN packet and take it out again. With `--nodes` three processes are measured: [`crate::nodes`].

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
use crate::nodes;
use crate::peers::rules::{OUR_MAC, OURS, THEIR_MAC, THEIRS, VNI};
use crate::rig::{Cores, Rig};

/// Packet sizes unless `--size` says otherwise.
const SIZES: [u32; 6] = [64, 128, 256, 512, 1024, 1536];

/// Options of `bench matrix`.
#[derive(Debug, Args)]
#[command(after_help = "\
For each number of queue pairs and each entry of --size (default
64,128,256,512,1024,1536): frames per second out and back through the card's
loopback on all pairs, and the round trip of one frame at a time. Medians of
--rounds rounds. vxlan: the same while a rule puts each frame into a VXLAN packet
and takes it out again.

--nodes: for each size, three processes: a sender, a card that forwards by rules
between two vhost-user sockets, and a receiver, without VXLAN and with (into
packets there, out of them back). Throughput is what the receiver counts,
latency the round trip of one frame that it sends back. With two cores, sender
and receiver share the one that the card does not have, and the round trip has
the changes between them in it.

Examples:
  millrace bench matrix
  millrace bench matrix --svg matrix.svg --rounds 5
  millrace bench matrix --queues 1,16 --size 64 --engine sze --json
  millrace bench matrix --queues 1 --nodes nodes.svg")]
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
    /// Measure three processes as well, without VXLAN and with, and draw both by packet size
    #[arg(long, value_name = "FILE.svg")]
    nodes: Option<PathBuf>,
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
    let steps = Steps::new("matrix", u64::from(args.rounds) * 2 * cells.len() as u64);
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
    if let Some(file) = &args.nodes {
        nodes::run(shared, cores, &sizes, args.rounds, args.seconds, file)?;
    }
    Ok(())
}

fn sizes(shared: &Shared) -> Result<Vec<u16>, Failure> {
    single_sizes(shared, &SIZES)
}

/// What `--size` says, or else these: single sizes.
pub fn single_sizes(shared: &Shared, usual: &[u32]) -> Result<Vec<u16>, Failure> {
    let sizes = shared.size.clone().unwrap_or_else(|| Sizes::each(usual));
    let single = |entry: Sizes| entry.single().and_then(|size| u16::try_from(size).ok()).filter(|size| *size >= 60);
    sizes.entries().map(single).collect::<Option<_>>().ok_or_else(|| {
        Failure::Usage(format!("--size {sizes}: this benchmark takes single sizes of at least 60 bytes"))
    })
}

/// One number of queues and one size, and its values without VXLAN and with.
struct Cell {
    queues: u32,
    size: u16,
    plain: Values,
    vxlan: Values,
}

/// One value per round.
#[derive(Default)]
struct Values {
    mpps: Vec<f64>,
    gbps: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Values {
    fn measure(&mut self, pairs: &mut Many, active: usize, size: u16, seconds: f64) -> Result<(), Failure> {
        let rate = pairs.throughput(active, size, seconds)?;
        self.mpps.push(rate.mpps);
        self.gbps.push(rate.gbps);
        let times = pairs.round_trips(active, size, seconds)?.times;
        self.p50.extend(times.quantile(0.5).map(|time| time as f64));
        self.p99.extend(times.quantile(0.99).map(|time| time as f64));
        Ok(())
    }
}

impl Cell {
    fn new(queues: u32, size: u16) -> Self {
        Self { queues, size, plain: Values::default(), vxlan: Values::default() }
    }

    fn row(&self, engine: &str) -> Row {
        let (plain, vxlan) = (&self.plain, &self.vxlan);
        Row::new()
            .tag("bench", "matrix")
            .tag("engine", engine)
            .count("queues", u64::from(self.queues))
            .count("size", u64::from(self.size))
            .count("rounds", plain.mpps.len() as u64)
            .maybe("mpps", median(&plain.mpps), 3)
            .maybe("gbps", median(&plain.gbps), 3)
            .maybe("p50_ns", median(&plain.p50), 1)
            .maybe("p99_ns", median(&plain.p99), 1)
            .maybe("vxlan_mpps", median(&vxlan.mpps), 3)
            .maybe("vxlan_gbps", median(&vxlan.gbps), 3)
            .maybe("vxlan_p50_ns", median(&vxlan.p50), 1)
            .maybe("vxlan_p99_ns", median(&vxlan.p99), 1)
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
    let rules = tempfile::NamedTempFile::new().map_err(cannot_write)?;
    std::fs::write(rules.path(), in_and_out(queues)).map_err(cannot_write)?;
    let path = rules.path().display().to_string();
    for vxlan in [false, true] {
        // A card that is there already has the rules that it has.
        if vxlan && shared.device.is_some() {
            break;
        }
        let options: &[&str] = if vxlan { &["--port", "loopback", "--rules", &path] } else { &["--port", "loopback"] };
        let card = Rig::start_with(&shared, cores, engine, options)?;
        let session = card.session()?;
        let mut pairs = Many::open(&session, queues)?;
        for cell in &mut *cells {
            if stop::asked() {
                return Err(Failure::Interrupted);
            }
            steps.next(format!("{queues} queues, {} bytes{}", cell.size, if vxlan { ", VXLAN" } else { "" }));
            let values = if vxlan { &mut cell.vxlan } else { &mut cell.plain };
            values.measure(&mut pairs, queues as usize, cell.size, seconds)?;
        }
        pairs.close()?;
        drop(session);
        card.end()?;
    }
    Ok(())
}

fn cannot_write(source: std::io::Error) -> Failure {
    Failure::File { doing: "cannot write", path: "rules".into(), source }
}

/// Rules with which every frame goes into a VXLAN packet and out of it, and to the queue that it would have gone to.
fn in_and_out(queues: u32) -> String {
    let outer = format!("vni={VNI},src={OURS},dst={THEIRS},dl_src={OUR_MAC},dl_dst={THEIR_MAC}");
    let rule = |queue| format!("in_queue={queue},actions=encap_vxlan({outer}),decap_vxlan,queue:{queue}\n");
    (0..queues).map(rule).collect()
}

fn draw(file: &std::path::Path, engine: &str, sizes: &[u16], queues: &[u32], cells: &[Cell]) -> Result<(), Failure> {
    let curves = |values: fn(&Cell) -> &Vec<f64>| -> Vec<Line> {
        let curve = |(queues, cells): (&u32, &[Cell])| Line {
            name: if *queues == 1 { "1 queue pair".to_owned() } else { format!("{queues} queue pairs") },
            points: cells.iter().map(|cell| median(values(cell)).unwrap_or(0.0)).collect(),
        };
        queues.iter().zip(cells.chunks(sizes.len())).map(curve).collect()
    };
    let throughput = |title: &str, values| Chart { title: title.to_owned(), unit: "Gbit/s", lines: curves(values) };
    let latency = |title: &str, values| Chart { title: title.to_owned(), unit: "ns", lines: curves(values) };
    let mut charts = vec![
        throughput(&format!("Throughput by packet size, {engine}, out and back"), |cell| &cell.plain.gbps),
        latency(&format!("Median round trip by packet size, {engine}"), |cell| &cell.plain.p50),
    ];
    if cells.iter().any(|cell| !cell.vxlan.gbps.is_empty()) {
        charts.push(throughput("Throughput with VXLAN", |cell| &cell.vxlan.gbps));
        charts.push(latency("Median round trip with VXLAN", |cell| &cell.vxlan.p50));
    }
    let labels: Vec<String> = sizes.iter().map(u16::to_string).collect();
    lines::draw(file, "packet size without FCS, bytes", &labels, &charts)
}
