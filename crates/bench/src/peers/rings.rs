//! One application and one card, against DPDK's ways to do that, a bare ring and a cache line.
//!
//! The others are programs of their own in `bench/peers`, run through its `run.sh`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use millrace_abi::queue::{Mode, QueueId};
use millrace_tool::failure::Failure;
use millrace_tool::list::Sizes;
use millrace_tool::output::{Row, note};
use millrace_tool::{send, stop};

use super::metric::Metric;
use super::setting::Bench;
use crate::choice::first_queue;
use crate::median::median;
use crate::rig::{Rig, run_on_all_cores};
use crate::throughput::{self, transmit};
use millrace_tool::trips::{self, round_trips};

/// Exit code of a program that lacks a package.
const UNAVAILABLE: i32 = 77;

/// Frames per call of the one-way measurements.
const BURST: u16 = 64;

/// The port of the card that a metric needs.
fn port(metric: Metric) -> &'static str {
    if metric.is_time() { "loopback" } else { "null" }
}

/// The better of two values, if there are any.
fn better(metric: Metric, one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) if metric.is_time() => Some(one.min(other)),
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    }
}

/// The others, by the names that their programs print.
const PEERS: [&str; 4] = ["dpdk_vhost", "dpdk_memif", "bare_ring", "cacheline"];

/// Everything measured so far.
pub struct Comparison {
    samples: Vec<Samples>,
    programs: Option<PathBuf>,
}

impl Comparison {
    /// Nothing yet.
    pub fn new(metrics: impl Iterator<Item = Metric>, folder: Option<&Path>) -> Result<Self, Failure> {
        let samples: Vec<Samples> = metrics.map(Samples::new).collect();
        let programs = find_programs(folder)?;
        if programs.is_none() && !samples.is_empty() {
            note("bench/peers is not here: Millrace is measured alone; give --peers FOLDER");
        }
        Ok(Self { samples, programs })
    }

    /// Measures everything once.
    pub fn measure(&mut self, bench: &mut Bench<'_>) -> Result<(), Failure> {
        for samples in &mut self.samples {
            if stop::asked() {
                break;
            }
            samples.ours.push(measure_ours(bench, samples.metric)?);
            if let Some(programs) = &self.programs {
                measure_theirs(bench, programs, samples)?;
            }
        }
        Ok(())
    }

    /// What came of it.
    pub fn rows(&self, engine: &str, mode: Mode) -> Vec<Row> {
        self.samples.iter().map(|samples| samples.row(engine, mode)).collect()
    }
}

/// All values of one metric, one per round.
struct Samples {
    metric: Metric,
    ours: Vec<f64>,
    theirs: [Vec<f64>; PEERS.len()],
}

impl Samples {
    fn new(metric: Metric) -> Self {
        Self { metric, ours: Vec::new(), theirs: Default::default() }
    }

    fn row(&self, engine: &str, mode: Mode) -> Row {
        let ours = median(&self.ours);
        let theirs = self.theirs.each_ref().map(|values| median(values));
        let [vhost, memif, bare, _] = theirs;
        let ratio = |other: Option<f64>| Some(ours? / other?);
        let decimals = self.metric.decimals();
        let row =
            self.metric.row(self.ours.len()).tag("engine", engine).tag("mode", mode).maybe("millrace", ours, decimals);
        PEERS
            .iter()
            .zip(theirs)
            .fold(row, |row, (peer, value)| row.maybe(peer, value, decimals))
            .maybe("ratio_to_dpdk", ratio(better(self.metric, vhost, memif)), 3)
            .maybe("ratio_to_bare", ratio(bare), 3)
    }
}

/// One measurement of Millrace, with a card process of its own as the others have.
fn measure_ours(bench: &Bench<'_>, metric: Metric) -> Result<f64, Failure> {
    let &Bench { shared, cores, engine, mode, seconds, .. } = bench;
    let card = Rig::start(shared, cores, engine, port(metric))?;
    let rig = card.in_mode(mode);
    let session = rig.session()?;
    let queue = first_queue(shared);
    let value = match metric {
        metric if metric.is_time() => {
            let (mut rx, mut tx) = rig.pair(&session)?;
            let extent = trips::Extent { count: shared.count.unwrap_or(1_000_000), seconds: Some(seconds) };
            let trips = round_trips(&mut rx, &mut tx, metric.size(), extent)?;
            send::finish(tx)?;
            sound(trips.lost, trips.corrupt)?;
            trips.times.quantile(0.5).unwrap_or(0) as f64
        }
        _ => {
            let sizes = Sizes::one(u32::from(metric.size()));
            let extent = throughput::Extent { count: u64::MAX, seconds };
            let flow = transmit(&session, queue, &sizes, shared.burst_or(BURST), extent)?;
            sound(flow.lost, flow.corrupt)?;
            if metric == Metric::TxMpps64 { flow.mpps() } else { flow.gbps() }
        }
    };
    session.engine(QueueId::tx(queue))?;
    drop(session);
    card.end()?;
    Ok(value)
}

fn sound(lost: u64, corrupt: u64) -> Result<(), Failure> {
    if lost + corrupt == 0 || stop::asked() {
        return Ok(());
    }
    Err(Failure::Found(format!("{lost} packets lost, {corrupt} corrupt: such a measurement is none")))
}

/// Measures each of the others once and adds what they say.
fn measure_theirs(bench: &mut Bench<'_>, programs: &Path, samples: &mut Samples) -> Result<(), Failure> {
    for (peer, values) in PEERS.into_iter().zip(&mut samples.theirs) {
        if bench.is_absent(peer) || stop::asked() {
            continue;
        }
        let output = run(bench, programs, peer, samples.metric)?;
        match output.status.code() {
            Some(0) => values.extend(value_in(&String::from_utf8_lossy(&output.stdout), peer, samples.metric)),
            Some(UNAVAILABLE) => bench.leave_out(peer, "apt-get install dpdk libdpdk-dev, then run this again"),
            _ if stop::asked() => {}
            _ => bench.leave_out(peer, format!("it failed with {}; see above", output.status)),
        }
    }
    Ok(())
}

fn run(bench: &Bench<'_>, programs: &Path, peer: &str, metric: Metric) -> Result<process::Output, Failure> {
    let script = programs.join("run.sh");
    let mut command = Command::new(&script);
    command.args(["--peer", peer, "--metric", metric.word(), "--seconds", &bench.seconds.to_string()]);
    if let (Some(app), Some(card)) = (bench.cores.app, bench.cores.card) {
        command.args(["--cpus", &format!("{app},{card}")]);
    }
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    run_on_all_cores(command).map_err(|source| Failure::File { doing: "cannot run", path: script, source })
}

/// The value in the line that a program prints about itself and that metric; a cache line has only a round trip.
fn value_in(text: &str, peer: &str, metric: Metric) -> Option<f64> {
    text.lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find(|line| line["peer"] == peer && line["metric"] == metric.word())?["value"]
        .as_f64()
}

/// The folder with the programs, as a path that stays valid wherever a program is started.
fn find_programs(given: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let is_there = |place: &Path| place.join("run.sh").is_file();
    if let Some(place) = given.filter(|place| !is_there(place)) {
        return Err(Failure::Usage(format!("--peers {}: no run.sh is there", place.display())));
    }
    let variable = env::var_os("MILLRACE_PEERS").map(PathBuf::from);
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/peers");
    let places = [given.map(Path::to_owned), variable, Some("bench/peers".into()), Some(built)];
    let found = places.into_iter().flatten().find(|place| is_there(place));
    Ok(found.and_then(|place| place.canonicalize().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_better_one() {
        let mut samples = Samples::new(Metric::RttP50);
        samples.ours = vec![500.0];
        samples.theirs = [vec![1000.0], vec![2000.0], vec![400.0], vec![]];
        let json = samples.row("medusa", Mode::Direct).to_json();
        assert!(
            json.ends_with(
                r#""millrace":500.0,"dpdk_vhost":1000.0,"dpdk_memif":2000.0,"bare_ring":400.0,"cacheline":null,"ratio_to_dpdk":0.5,"ratio_to_bare":1.25}"#
            ),
            "{json}"
        );
        let of_both = |metric: Metric| better(metric, Some(1.0), Some(2.0));
        assert_eq!([Metric::RttP50, Metric::TxMpps64].map(of_both), [Some(1.0), Some(2.0)]);
        assert_eq!(better(Metric::TxMpps64, None, Some(2.0)), Some(2.0));
    }

    #[test]
    fn the_line_of_the_peer_is_found_among_others() {
        let text = "gcc: note\n\
            {\"bench\":\"peers\",\"peer\":\"bare_ring\",\"metric\":\"tx_mpps_64\",\"size\":64,\"value\":57.1}\n\
            {\"bench\":\"peers\",\"peer\":\"bare_ring\",\"metric\":\"rtt_p50\",\"size\":64,\"value\":463.0,\"unit\":\"ns\"}\n";
        assert_eq!(value_in(text, "bare_ring", Metric::RttP50), Some(463.0));
        assert_eq!(value_in(text, "cacheline", Metric::RttP50), None);
    }
}
