//! `queues_1000`: a thousand queue pairs beside a thousand bare rings, and eight beside eight.

use millrace_abi::queue::Engine;
use millrace_tool::failure::Failure;
use millrace_tool::list::Queues;
use millrace_tool::options::Shared;
use millrace_tool::output::Row;
use millrace_tool::stop;

use super::metric::Metric;
use super::programs::Programs;
use super::samples::{self, Samples};
use super::setting::Bench;
use crate::choice::{ENGINE_OF_MANY, engines};
use crate::many::Many;
use crate::rig::Rig;

/// The metric.
const METRIC: Metric = Metric::Queues1000;
/// The program that the others are.
const PEER: &str = "bare_queues";
/// Pairs that are open and busy.
const PAIRS: [u32; 2] = [1000, 8];
/// Buffers of each queue, and of each bare ring.
const BUFFERS: &str = "256";

/// Everything measured so far: of Millrace and of bare rings, with many pairs and with few.
pub struct Comparison {
    samples: Samples<4>,
    engine: Option<Engine>,
}

impl Comparison {
    /// Nothing yet, if it is wanted.
    pub fn new(wanted: bool, bench: &Bench<'_>) -> Option<Self> {
        let engine = match engines(bench.shared)[..] {
            [engine] => engine,
            _ => Some(ENGINE_OF_MANY),
        };
        wanted.then(|| Self { samples: Samples::new(METRIC), engine })
    }

    /// Measures all four once.
    pub fn measure(&mut self, bench: &mut Bench<'_>, programs: &Programs) -> Result<(), Failure> {
        let cores = bench.cores;
        self.samples.begin();
        for (at, pairs) in PAIRS.into_iter().enumerate() {
            if stop::asked() {
                break;
            }
            let ours = || measure_ours(bench, self.engine, pairs).map(Some);
            let sample = samples::take(cores, METRIC, &format!("millrace, {pairs} pairs"), ours)?;
            self.samples.add(2 * at, sample);
            let tune = format!("queues={pairs},ring={BUFFERS}");
            let theirs = || programs.measure(bench, PEER, METRIC, &["--tune", &tune]);
            let sample = samples::take(cores, METRIC, &format!("bare, {pairs} pairs"), theirs)?;
            self.samples.add(2 * at + 1, sample);
        }
        Ok(())
    }

    /// What came of it.
    pub fn row(&self) -> Row {
        let chosen = self.samples.choose();
        let [ours, bare, ours_8, bare_8] = chosen.values;
        let engine = self.engine.map_or_else(String::new, |engine| engine.to_string());
        chosen
            .row(METRIC, METRIC.size())
            .text("engine", engine)
            .maybe("millrace", ours, METRIC.decimals())
            .maybe("bare", bare, METRIC.decimals())
            .maybe("ratio_to_bare", chosen.ratio(0, 1), 3)
            .maybe("millrace_8", ours_8, METRIC.decimals())
            .maybe("bare_8", bare_8, METRIC.decimals())
            .maybe("ratio_to_bare_8", chosen.ratio(2, 3), 3)
    }
}

/// As the bare program: bursts on all pairs in turns.
fn measure_ours(bench: &Bench<'_>, engine: Option<Engine>, pairs: u32) -> Result<f64, Failure> {
    let shared = Shared { queue: Some(Queues::first(pairs)), ..bench.shared.clone() };
    let options = ["--port", "loopback", "--buffers", BUFFERS, "--descriptors", BUFFERS];
    let card = Rig::start_with(&shared, bench.cores, engine, &options)?;
    let session = card.session()?;
    let mut many = Many::open(&session, pairs)?;
    let mpps = many.exchange(pairs as usize, METRIC.size(), bench.seconds)?;
    many.close()?;
    drop(session);
    card.end()?;
    Ok(mpps)
}
