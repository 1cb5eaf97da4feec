//! `millrace bench peers`: the same work done by Millrace, by DPDK, by a bare ring and by a cache line.
//!
//! The others are programs of their own in `bench/peers`, run through its `run.sh`. All are measured in turns, round by
//! round, so that a machine that gets slower or faster meanwhile does so for all; what is printed are medians.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use clap::Args;
use millrace_abi::queue::{Engine, Mode, QueueId};

use super::latency::{self, round_trips};
use super::rig::{Cores, Rig, run_on_all_cores};
use super::throughput::{self, transmit};
use super::{engines, first_queue, median};
use crate::args::Shared;
use crate::failure::Failure;
use crate::list::Sizes;
use crate::output::{Output, Row, note};
use crate::progress::Steps;
use crate::{send, stop};

/// Exit code of a program that lacks a package.
const UNAVAILABLE: i32 = 77;

/// Frames per call of the one-way measurements.
const BURST: u16 = 64;

/// Options of `bench peers`.
#[derive(Debug, Args)]
#[command(after_help = "\
rtt_p50 is the median round trip: lower is better, also of the ratios. The two
others are rates one way: higher is better, also of the ratios. The ratios are
Millrace's value divided by that of the better DPDK peer, and by that of the
bare ring. Senders write all bytes of every frame. Without DPDK (Debian
packages dpdk and libdpdk-dev) its columns are empty.

The programs are looked for in --peers FOLDER, in $MILLRACE_PEERS, in
./bench/peers and where this program was built.

Examples:
  millrace bench peers
  millrace bench peers --rounds 9 --seconds 2 --json
  millrace bench peers --metric rtt_p50 --engine sze")]
pub struct PeersArgs {
    /// What to measure
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "rtt_p50,tx_mpps_64,tx_gbps_1518")]
    metric: Vec<Metric>,
    /// How often to measure everything
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    seconds: f64,
    /// Folder with run.sh and the programs
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Metric {
    /// Median round trip of 64 bytes, in ns.
    RttP50,
    /// Millions of frames of 64 bytes per second, one way.
    #[value(name = "tx_mpps_64")]
    TxMpps64,
    /// Gigabits per second in frames of 1518 bytes, one way.
    #[value(name = "tx_gbps_1518")]
    TxGbps1518,
}

impl Metric {
    fn word(self) -> &'static str {
        match self {
            Metric::RttP50 => "rtt_p50",
            Metric::TxMpps64 => "tx_mpps_64",
            Metric::TxGbps1518 => "tx_gbps_1518",
        }
    }

    fn size(self) -> u16 {
        match self {
            Metric::RttP50 | Metric::TxMpps64 => 64,
            Metric::TxGbps1518 => 1518,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Metric::RttP50 => "ns",
            Metric::TxMpps64 => "Mpps",
            Metric::TxGbps1518 => "Gbit/s",
        }
    }

    fn port(self) -> &'static str {
        match self {
            Metric::RttP50 => "loopback",
            Metric::TxMpps64 | Metric::TxGbps1518 => "null",
        }
    }

    /// The better of two values, if there are any.
    fn better(self, one: Option<f64>, other: Option<f64>) -> Option<f64> {
        match (one, other) {
            (Some(one), Some(other)) if self == Metric::RttP50 => Some(one.min(other)),
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        }
    }
}

/// The others, by the names that their programs print.
const PEERS: [&str; 4] = ["dpdk_vhost", "dpdk_memif", "bare_ring", "cacheline"];

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &PeersArgs) -> Result<(), Failure> {
    let engine = match engines(shared)[..] {
        [engine] => engine,
        _ => Some(Engine::Medusa),
    };
    let mode = shared.mode();
    let programs = find_programs(args.peers.as_deref())?;
    if programs.is_none() {
        note("bench/peers is not here: Millrace is measured alone; give --peers FOLDER");
    }
    let mut peers = Peers { programs, cores, absent: Vec::new() };
    let mut samples: Vec<Samples> = args.metric.iter().map(|metric| Samples::new(*metric)).collect();
    let steps = Steps::new("peers, round", u64::from(args.rounds));
    for _ in 0..args.rounds {
        steps.next("");
        for samples in &mut samples {
            if stop::asked() {
                break;
            }
            samples.ours.push(measure_ours(shared, cores, samples.metric, engine, mode, args.seconds)?);
            peers.measure(samples, args.seconds)?;
        }
    }
    drop(steps);
    let engine = engine.map_or_else(String::new, |engine| engine.to_string());
    let rows: Vec<Row> = samples.iter().map(|samples| samples.row(&engine, mode)).collect();
    Output::new(shared.json).rows(&format!("medians of {} rounds, {engine} {mode}", args.rounds), &rows)?;
    if stop::asked() { Err(Failure::Interrupted) } else { Ok(()) }
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
        let decimals = if self.metric == Metric::RttP50 { 1 } else { 3 };
        let row = Row::new()
            .tag("bench", "peers")
            .tag("engine", engine)
            .tag("mode", mode)
            .text("metric", self.metric.word())
            .text("unit", self.metric.unit())
            .count("size", u64::from(self.metric.size()))
            .count("count", self.ours.len() as u64)
            .maybe("millrace", ours, decimals);
        PEERS
            .iter()
            .zip(theirs)
            .fold(row, |row, (peer, value)| row.maybe(peer, value, decimals))
            .maybe("ratio_to_dpdk", ratio(self.metric.better(vhost, memif)), 3)
            .maybe("ratio_to_bare", ratio(bare), 3)
    }
}

/// One measurement of Millrace, with a card process of its own as the others have.
fn measure_ours(
    shared: &Shared,
    cores: Cores,
    metric: Metric,
    engine: Option<Engine>,
    mode: Mode,
    seconds: f64,
) -> Result<f64, Failure> {
    let card = Rig::start(shared, cores, engine, metric.port())?;
    let rig = card.in_mode(mode);
    let session = rig.session()?;
    let queue = first_queue(shared);
    let value = match metric {
        Metric::RttP50 => {
            let (mut rx, mut tx) = rig.pair(&session)?;
            let extent = latency::Extent { count: shared.count.unwrap_or(1_000_000), seconds: Some(seconds) };
            let trips = round_trips(&mut rx, &mut tx, metric.size(), extent)?;
            send::finish(tx)?;
            sound(trips.lost, trips.corrupt)?;
            trips.times.quantile(0.5).unwrap_or(0) as f64
        }
        Metric::TxMpps64 | Metric::TxGbps1518 => {
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

/// The programs of the others, and which of them cannot be run here.
struct Peers {
    programs: Option<PathBuf>,
    cores: Cores,
    absent: Vec<&'static str>,
}

impl Peers {
    /// Measures each of the others once and adds what they say.
    fn measure(&mut self, samples: &mut Samples, seconds: f64) -> Result<(), Failure> {
        let Some(programs) = self.programs.clone() else { return Ok(()) };
        for (peer, values) in PEERS.into_iter().zip(&mut samples.theirs) {
            if self.absent.contains(&peer) || stop::asked() {
                continue;
            }
            let output = self.run(&programs, peer, samples.metric, seconds)?;
            match output.status.code() {
                Some(0) => values.extend(value_in(&String::from_utf8_lossy(&output.stdout), peer, samples.metric)),
                Some(UNAVAILABLE) => {
                    note(format!("{peer} is left out: apt-get install dpdk libdpdk-dev, then run this again"));
                    self.absent.push(peer);
                }
                _ if stop::asked() => {}
                _ => {
                    note(format!("{peer} failed with {} and is left out from here on; see above", output.status));
                    self.absent.push(peer);
                }
            }
        }
        Ok(())
    }

    fn run(&self, programs: &Path, peer: &str, metric: Metric, seconds: f64) -> Result<process::Output, Failure> {
        let script = programs.join("run.sh");
        let mut command = Command::new(&script);
        command.args(["--peer", peer, "--metric", metric.word(), "--seconds", &seconds.to_string()]);
        if let (Some(app), Some(card)) = (self.cores.app, self.cores.card) {
            command.args(["--cpus", &format!("{app},{card}")]);
        }
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        run_on_all_cores(command).map_err(|source| Failure::File { doing: "cannot run", path: script, source })
    }
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
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 5.0, 6.0]), Some(5.5));
    }

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
        let better = |metric: Metric| metric.better(Some(1.0), Some(2.0));
        assert_eq!([Metric::RttP50, Metric::TxMpps64].map(better), [Some(1.0), Some(2.0)]);
        assert_eq!(Metric::TxMpps64.better(None, Some(2.0)), Some(2.0));
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
