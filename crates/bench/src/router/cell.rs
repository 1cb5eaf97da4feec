//! One kind of traffic, by everybody, in turns.

use millrace_tool::output::Row;

use millrace_router::engine::Engine;

use super::describe;
use super::inline::{Inline, Passed, Wire};
use super::lab::{Ends, Lab};
use super::path::{Path, Router};
use super::stand_in;
use super::work::Traffic;
use crate::median::median;

/// Frames for the first guess at a rate.
const FIRST: u32 = 20_000;
/// How often a run is repeated in which something was lost, because somebody else wanted the core and frames had to wait.
const TRIES: u32 = 6;
/// How much of what is sent must have been fast where the router is on.
const FAST: f64 = 0.99;

/// Who forwards.
enum Forwarder {
    /// Linux, and nobody else.
    Linux,
    /// `millrace router` beside it.
    Router(Router),
    /// Its engine alone.
    Engine(Box<Engine>),
}

/// A lab with who forwards in it, and what was measured there: nanoseconds for a packet.
struct Rig {
    traffic: Traffic,
    path: Path,
    forwarder: Forwarder,
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
        let forwarder = match path {
            Path::Kernel => Forwarder::Linux,
            path => Forwarder::Router(Router::start(&lab, path)?),
        };
        Self::settle(Self { traffic, path, forwarder, inline: Inline::new(lab, cores)?, values: Vec::new() }, cores)
    }

    /// One without the daemon, by XDP.
    fn with_engine(traffic: Traffic, cores: &[usize]) -> Result<Self, String> {
        let lab = Lab::new(traffic.work, cores.len(), Ends::Dumb)?;
        let engine = stand_in::engine(&lab, traffic.work)?;
        let mut inline = Inline::new(lab, cores)?;
        stand_in::begin(&engine, &mut inline, traffic)?;
        let forwarder = Forwarder::Engine(Box::new(engine));
        Self::settle(Self { traffic, path: Path::Xdp, forwarder, inline, values: Vec::new() }, cores)
    }

    /// Every flow is there, answered and known before anything counts.
    fn settle(mut rig: Self, cores: &[usize]) -> Result<Self, String> {
        let traffic = rig.traffic;
        for turn in 0..3 {
            let each = FIRST.max(2 * traffic.flows) / cores.len() as u32;
            rig.run(Wire::Routed, each)?;
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
    fn run(&mut self, wire: Wire, frames: u32) -> Result<Passed, String> {
        let traffic = self.traffic;
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
    fn measure(&mut self, wire: Wire, seconds: f64) -> Result<f64, String> {
        let first = self.run(wire, FIRST)?;
        let frames = (1e9 / first.ns() * seconds).clamp(1e3, 1e8) as u32;
        let before = self.fast()?;
        let passed = self.run(wire, frames)?;
        let fast = self.fast()? - before;
        if self.path.is_fast() && wire == Wire::Routed && (fast as f64) < FAST * passed.sent as f64 {
            return Err(format!("{}: of {} packets {fast} were fast", describe(self.traffic), passed.sent));
        }
        Ok(passed.ns())
    }

    fn fast(&self) -> Result<u64, String> {
        match &self.forwarder {
            Forwarder::Linux => Ok(0),
            Forwarder::Router(router) => router.fast(&self.inline.lab),
            Forwarder::Engine(engine) => stand_in::fast(engine),
        }
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
        let mut rigs = rigs?;
        let alone = take_turns(&mut rigs, rounds, seconds)?;
        let paths = rigs.into_iter().map(|rig| (rig.path, rig.values)).collect();
        Ok(Self { traffic, cores: cores.len(), paths, alone })
    }

    /// Measures these beside one another, by the engine alone on one core: a cell for each.
    pub fn measure_engine(kinds: &[Traffic], core: usize, rounds: u32, seconds: f64) -> Result<Vec<Self>, String> {
        let rigs: Result<Vec<Rig>, String> = kinds.iter().map(|kind| Rig::with_engine(*kind, &[core])).collect();
        let mut rigs = rigs?;
        let alone = take_turns(&mut rigs, rounds, seconds)?;
        let cell = |rig: Rig| Self {
            traffic: rig.traffic,
            cores: 1,
            paths: vec![(rig.path, rig.values)],
            alone: alone.clone(),
        };
        Ok(rigs.into_iter().map(cell).collect())
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

/// One sample of each in every round. What is returned are those of generator and sink alone.
fn take_turns(rigs: &mut [Rig], rounds: u32, seconds: f64) -> Result<Vec<f64>, String> {
    let mut alone = Vec::new();
    for _ in 0..rounds {
        if let Some(first) = rigs.first_mut() {
            alone.push(first.measure(Wire::Short, seconds)?);
        }
        for rig in &mut *rigs {
            let value = rig.measure(Wire::Routed, seconds)?;
            rig.values.push(value);
        }
    }
    Ok(alone)
}

/// Nothing is lost, and everything is as the work makes it.
fn check(traffic: Traffic, path: Path, passed: Passed) -> Result<(), String> {
    let what = format!("{} by {}", describe(traffic), path.word());
    if passed.came != passed.sent {
        return Err(format!("{what}: of {} frames {} came", passed.sent, passed.came));
    }
    if passed.wrong != 0 {
        return Err(format!(
            "{what}: {} of {} frames came with a wrong type or wrong addresses",
            passed.wrong, passed.came
        ));
    }
    Ok(())
}
