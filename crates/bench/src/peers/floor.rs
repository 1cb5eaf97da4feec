//! `rtt_floor`: the round trip of a frame beside that of a bare cache line, which nothing between two cores can beat.

use millrace_abi::queue::Engine;
use millrace_tool::failure::Failure;
use millrace_tool::output::Row;
use millrace_tool::stop;

use super::metric::Metric;
use super::rings::median_trip;
use super::samples::{self, Samples};
use super::setting::Bench;
use crate::cacheline::Trips;
use crate::choice::engines;
use crate::latency::one_size;
use crate::rig::Rig;

/// The metric.
const METRIC: Metric = Metric::RttFloor;

/// Everything measured so far: of Millrace, and of a cache line.
pub struct Comparison {
    samples: Samples<2>,
    engine: Option<Engine>,
    size: u16,
}

impl Comparison {
    /// Nothing yet, if it is wanted.
    pub fn new(wanted: bool, bench: &Bench<'_>) -> Result<Option<Self>, Failure> {
        if !wanted {
            return Ok(None);
        }
        let engine = match engines(bench.shared)[..] {
            [engine] => engine,
            _ => Some(Engine::Dd),
        };
        Ok(Some(Self { samples: Samples::new(METRIC), engine, size: one_size(bench.shared, METRIC.size().into())? }))
    }

    /// Measures both once.
    pub fn measure(&mut self, bench: &Bench<'_>) -> Result<(), Failure> {
        self.samples.begin();
        if stop::asked() {
            return Ok(());
        }
        let ours = || measure_ours(bench, self.engine, self.size).map(Some);
        self.samples.add(0, samples::take(bench.cores, METRIC, "millrace", ours)?);
        let line = || Ok::<_, Failure>(Trips::make(bench.cores, bench.seconds).map(|trips| trips.median()));
        self.samples.add(1, samples::take(bench.cores, METRIC, "cacheline", line)?);
        Ok(())
    }

    /// What came of it.
    pub fn row(&self, bench: &Bench<'_>) -> Row {
        let chosen = self.samples.choose();
        let [ours, line] = chosen.values;
        let engine = self.engine.map_or_else(String::new, |engine| engine.to_string());
        chosen
            .row(METRIC, self.size)
            .text("engine", engine)
            .text("mode", bench.mode)
            .maybe("millrace", ours, METRIC.decimals())
            .maybe("cacheline", line, METRIC.decimals())
            .maybe("ratio_to_cacheline", chosen.ratio(0, 1), 3)
    }
}

fn measure_ours(bench: &Bench<'_>, engine: Option<Engine>, size: u16) -> Result<f64, Failure> {
    let card = Rig::start(bench.shared, bench.cores, engine, "loopback")?;
    let median = median_trip(bench, &card.in_mode(bench.mode), size)?;
    card.end()?;
    Ok(median)
}
