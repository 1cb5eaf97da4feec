//! One kind of traffic, by everybody, in turns.

use millrace_tool::output::Row;

use super::describe;
use super::inline::{Inline, Passed, Wire};
use super::lab::{Ends, Lab};
use super::path::{Path, Router};
use super::work::Traffic;
use crate::median::median;

/// Frames for the first guess at a rate.
const FIRST: u32 = 20_000;
/// How often a run is repeated in which something was lost, because somebody else wanted the core and frames had to wait.
const TRIES: u32 = 6;
/// How much of what is sent must have been fast where the router is on.
const FAST: f64 = 0.99;

/// A lab with who forwards in it, and what was measured there: nanoseconds for a packet.
struct Rig {
    path: Path,
    router: Option<Router>,
    inline: Inline,
    values: Vec<f64>,
}

/// What was measured of one kind of traffic.
pub struct Cell {
    pub traffic: Traffic,
    cores: usize,
    paths: Vec<(Path, Vec<f64>)>,
    alone: Vec<f64>,
}

impl Rig {
    fn new(traffic: Traffic, path: Path, cores: &[usize]) -> Result<Self, String> {
        let lab = Lab::new(traffic.work, cores.len(), Ends::Dumb)?;
        let router = if path == Path::Kernel { None } else { Some(Router::start(&lab, path)?) };
        let mut rig = Self { path, router, inline: Inline::new(lab, cores)?, values: Vec::new() };
        // Every flow is there, answered and known before anything counts.
        for turn in 0..3 {
            let each = FIRST.max(2 * traffic.flows) / cores.len() as u32;
            rig.run(traffic, Wire::Routed, each)?;
            if turn == 0 && traffic.work.is_tracked() {
                rig.inline.answer(traffic)?;
            }
        }
        let tracked = if traffic.work.is_tracked() { u64::from(traffic.flows) } else { 0 };
        match rig.inline.lab.tracked()? {
            count if count == tracked => Ok(rig),
            count => Err(format!("conntrack has {count} flows and not {tracked}")),
        }
    }

    /// Sends so many frames, none of which is lost.
    fn run(&mut self, traffic: Traffic, wire: Wire, frames: u32) -> Result<Passed, String> {
        let mut problem = String::new();
        for _ in 0..TRIES {
            let passed = self.inline.run(traffic, wire, frames)?;
            match check(traffic, self.path, passed) {
                Ok(()) => return Ok(passed),
                Err(why) => problem = why,
            }
        }
        Err(format!("{problem}, {TRIES} times"))
    }

    /// One sample.
    fn measure(&mut self, traffic: Traffic, wire: Wire, seconds: f64) -> Result<f64, String> {
        let first = self.run(traffic, wire, FIRST)?;
        let frames = (1e9 / first.ns() * seconds).clamp(1e3, 1e8) as u32;
        let before = self.fast()?;
        let passed = self.run(traffic, wire, frames)?;
        let fast = self.fast()? - before;
        if self.path.is_fast() && wire == Wire::Routed && (fast as f64) < FAST * passed.sent as f64 {
            return Err(format!("{}: of {} packets {fast} were fast", describe(traffic), passed.sent));
        }
        Ok(passed.ns())
    }

    fn fast(&self) -> Result<u64, String> {
        self.router.as_ref().map_or(Ok(0), |router| router.fast(&self.inline.lab))
    }
}

impl Cell {
    /// Measures it by these paths, in turns, with these cores that send.
    pub fn measure(
        traffic: Traffic,
        paths: &[Path],
        cores: &[usize],
        rounds: u32,
        seconds: f64,
    ) -> Result<Self, String> {
        let rigs: Result<Vec<Rig>, String> = paths.iter().map(|path| Rig::new(traffic, *path, cores)).collect();
        let (mut rigs, mut alone) = (rigs?, Vec::new());
        for _ in 0..rounds {
            if let Some(first) = rigs.first_mut() {
                alone.push(first.measure(traffic, Wire::Short, seconds)?);
            }
            for rig in &mut rigs {
                let value = rig.measure(traffic, Wire::Routed, seconds)?;
                rig.values.push(value);
            }
        }
        let paths = rigs.into_iter().map(|rig| (rig.path, rig.values)).collect();
        Ok(Self { traffic, cores: cores.len(), paths, alone })
    }

    /// Nanoseconds for a packet.
    pub fn ns(&self, path: Path) -> Option<f64> {
        self.paths.iter().find(|(one, _)| *one == path).and_then(|(_, values)| median(values))
    }

    /// Those without generator and sink.
    fn net(&self, path: Path) -> Option<f64> {
        self.ns(path).zip(median(&self.alone)).map(|(ns, alone)| ns - alone)
    }

    /// How many times as fast as the kernel.
    pub fn ratio(&self, path: Path) -> Option<f64> {
        self.ns(Path::Kernel).zip(self.ns(path)).map(|(kernel, ns)| kernel / ns)
    }

    /// A row for each path, and one for generator and sink alone.
    pub fn rows(&self) -> Vec<Row> {
        let alone = self.row("alone", &self.alone).maybe("ns_net", None, 1).maybe("ratio_to_kernel", None, 2);
        let others = self.paths.iter().map(|(path, values)| {
            let net = self.net(Path::Kernel).zip(self.net(*path)).map(|(kernel, ns)| kernel / ns);
            self.row(path.word(), values)
                .maybe("ns_net", self.net(*path), 1)
                .maybe("ratio_to_kernel", self.ratio(*path), 2)
                .maybe("ratio_net", net, 2)
        });
        std::iter::once(alone.maybe("ratio_net", None, 2)).chain(others).collect()
    }

    fn row(&self, path: &str, values: &[f64]) -> Row {
        let (traffic, ns) = (self.traffic, median(values));
        let mpps = ns.map(|ns| 1e3 / ns);
        Row::new()
            .tag("bench", "router")
            .text("path", path)
            .text("work", traffic.work.word())
            .text("protocol", traffic.protocol.word())
            .count("size", traffic.size.into())
            .count("flows", traffic.flows.into())
            .count("cores", self.cores as u64)
            .maybe("mpps", mpps, 3)
            .maybe("gbps", mpps.map(|mpps| mpps * f64::from(traffic.size) * 8e-3), 3)
            .count("rounds", values.len() as u64)
            .maybe("ns", ns, 1)
    }
}

/// Nothing is lost, and everything is as the work makes it.
fn check(traffic: Traffic, path: Path, passed: Passed) -> Result<(), String> {
    let what = format!("{} by {}", describe(traffic), path.word());
    if passed.came != passed.sent {
        return Err(format!("{what}: of {} frames {} came", passed.sent, passed.came));
    }
    if passed.wrong != 0 {
        return Err(format!("{what}: {} of {} frames came with wrong addresses", passed.wrong, passed.came));
    }
    Ok(())
}
