//! `millrace bench clock`: how far a card's clock is from its PTP master, beside what `ptp4l` reaches.
//!
//! Two network namespaces with a pair of interfaces between them. `ptp4l` is the master in one of them. In the other, in turns, another
//! `ptp4l` follows it, and a card's clock does; both take the time stamps of the kernel. What is compared is the same for both:
//! the offset that each measures with each Sync, before any filter. Of `ptp4l` that is only what measuring does, since both ends
//! have the clock of this host, which it is not allowed to set; of the card it is that and what its clock does.
//!
//! Of the card there is a second figure, which `ptp4l` has no equal to: how far its clock really is from the one that the master hands
//! out, which is `CLOCK_REALTIME` here.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use millrace_abi::clock::State;
use millrace_tool::distribution::Distribution;
use millrace_tool::failure::Failure;
use millrace_tool::host::{Clock, Device};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::progress::Steps;
use millrace_tool::stop;
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use crate::peers::namespace::Namespace;
use crate::peers::process::{Process, find};

/// The interfaces: that of the followers, and that of the master.
const NEAR: &str = "near0";
const FAR: &str = "far0";
/// Seconds between two Sync, and between two measurements of the path, as a power of two.
const RATE: &str = "-4";
/// How often the card's clock is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How often two clocks are compared for one result: the comparison that took least counts, unless it took longer than this, in ns.
const COMPARISONS: usize = 5;
const LONG: u64 = 10_000;

/// Options of `bench clock`.
#[derive(Debug, Args)]
#[command(after_help = "\
It takes root, for network namespaces, and ptp4l (Debian package linuxptp). Nobody
sets the clock of this host. The goal is a ratio of 3 at most.

Examples:
  millrace bench clock
  millrace bench clock --rounds 10 --seconds 10 --json")]
pub struct ClockArgs {
    /// Turns of each
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Seconds that each turn is measured for
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

/// Runs the benchmark.
pub fn run(shared: &Shared, args: &ClockArgs) -> Result<(), Failure> {
    let steps = Steps::new("clock", u64::from(args.rounds));
    let mut figures = Figures::default();
    let lab = Lab::new().map_err(Failure::Found)?;
    let time = Duration::from_secs(args.seconds);
    for round in 0..args.rounds {
        steps.next(format!("round {}", round + 1));
        lab.ptp4l(time, &mut figures).and_then(|()| lab.card(time, &mut figures)).map_err(|why| {
            match stop::asked() {
                true => Failure::Interrupted,
                false => Failure::Found(why),
            }
        })?;
    }
    Ok(Output::new(shared.json).rows("offsets from a PTP master", &[figures.row()])?)
}

/// Offsets, without their signs.
#[derive(Default)]
struct Figures {
    card: Distribution,
    // From the clock that the master hands out.
    error: Distribution,
    ptp4l: Distribution,
}

impl Figures {
    fn row(&self) -> Row {
        let p99 = |offsets: &Distribution| offsets.quantile(0.99);
        let ratio = p99(&self.card).zip(p99(&self.ptp4l)).map(|(card, ptp4l)| card as f64 / ptp4l.max(1) as f64);
        Row::new()
            .tag("bench", "clock")
            .count("offsets", self.card.count())
            .maybe_count("offset_p50_ns", self.card.quantile(0.5))
            .maybe_count("offset_p99_ns", p99(&self.card))
            .count("ptp4l_offsets", self.ptp4l.count())
            .maybe_count("ptp4l_offset_p50_ns", self.ptp4l.quantile(0.5))
            .maybe_count("ptp4l_offset_p99_ns", p99(&self.ptp4l))
            .maybe("ratio", ratio, 2)
            .maybe_count("error_p50_ns", self.error.quantile(0.5))
            .maybe_count("error_p99_ns", p99(&self.error))
    }
}

/// The namespaces, with the master. Errors are sentences.
struct Lab {
    // In the order in which they end.
    _master: Process,
    near: Namespace,
    _far: Namespace,
    folder: TempDir,
    ptp4l: PathBuf,
    millrace: PathBuf,
}

impl Lab {
    fn new() -> Result<Self, String> {
        let ptp4l = find("ptp4l", "linuxptp")?;
        let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join("millrace")));
        let millrace = beside.filter(|program| program.is_file()).ok_or("millrace is not beside this program")?;
        let (near, far) = (Namespace::named("a")?, Namespace::named("b")?);
        near.add_pair_to(NEAR, &far, FAR)?;
        near.ip(&["link", "set", NEAR, "up"])?;
        far.ip(&["link", "set", FAR, "up"])?;
        let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
        let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
        let (mut master, said) = start_ptp4l("master", &ptp4l, &far, folder.path(), &["-i", FAR])?;
        master.wait_until("the part of a master", || said_by(&said).contains("assuming the grand master role"))?;
        Ok(Self { _master: master, near, _far: far, folder, ptp4l, millrace })
    }

    /// A turn of `ptp4l`.
    fn ptp4l(&self, time: Duration, figures: &mut Figures) -> Result<(), String> {
        let arguments = ["-i", NEAR, "-s"];
        let (mut slave, said) = start_ptp4l("slave", &self.ptp4l, &self.near, self.folder.path(), &arguments)?;
        slave.wait_until("an offset", || said_by(&said).contains("master offset"))?;
        wait(time)?;
        drop(slave);
        offsets(&said_by(&said)).for_each(|offset| figures.ptp4l.record(offset.unsigned_abs()));
        Ok(())
    }

    /// A turn of a card.
    fn card(&self, time: Duration, figures: &mut Figures) -> Result<(), String> {
        let socket = self.folder.path().join("card.sock");
        let device = format!("unix:{}", socket.display());
        let start = |name, arguments: &[&str]| {
            Process::start(name, self.near.starter(), self.folder.path(), |command| {
                command.args(self.near.prefix()).arg(&self.millrace).args(arguments);
            })
        };
        let port = format!("af_packet:{NEAR}");
        let listen = socket.display().to_string();
        let mut card = start("card", &["card", "--port", &port, "--listen", &listen])?;
        card.wait_until("its socket", || socket.exists())?;
        let intervals = ["--sync", RATE, "--delay", RATE, "--role", "slave"];
        let follow = ["clock", "follow", "ptp", "--device", &device];
        let mut follower = start("follower", &[&follow[..], &intervals].concat())?;
        let card_says = |why: &dyn std::fmt::Display| format!("the card: {why}");
        let device = Device::open(&device).map_err(|why| card_says(&why))?;
        let clock = device.clock().map_err(|why| card_says(&why))?;
        let is_locked = || clock.snapshot().is_ok_and(|snapshot| snapshot.report.state == State::Locked);
        follower.wait_until("a clock that is locked", is_locked)?;
        let (begin, mut before) = (Instant::now(), None);
        while begin.elapsed() < time {
            let snapshot = clock.snapshot().map_err(|why| card_says(&why))?;
            if snapshot.reported != before {
                let offset = snapshot.report.offset_ns.filter(|_| before.is_some());
                offset.into_iter().for_each(|offset| figures.card.record(offset.unsigned_abs()));
                before = snapshot.reported;
            }
            error(&clock).into_iter().for_each(|ns| figures.error.record(ns));
            wait(LOOK)?;
        }
        follower.check()
    }
}

/// How far a card's clock is from that of the host, in ns, unless something came between two readings.
fn error(clock: &Clock) -> Option<u64> {
    let host = || {
        let now = clock_gettime(ClockId::Realtime);
        Some(u64::try_from(now.tv_sec).ok()? * 1_000_000_000 + u64::try_from(now.tv_nsec).ok()?)
    };
    let compare = || {
        let (before, card, after) = (host()?, clock.nanoseconds().ok()?, host()?);
        let took = after.checked_sub(before)?;
        Some((took, card.abs_diff(before + took / 2)))
    };
    let best = (0..COMPARISONS).filter_map(|_| compare()).min_by_key(|(took, _)| *took)?;
    (best.0 <= LONG).then_some(best.1)
}

fn wait(time: Duration) -> Result<(), String> {
    let begin = Instant::now();
    while begin.elapsed() < time {
        if stop::asked() {
            return Err("interrupted".to_owned());
        }
        thread::sleep(time.saturating_sub(begin.elapsed()).min(Duration::from_millis(100)));
    }
    Ok(())
}

/// What takes the right to set clocks away from a program.
const SETS_NO_CLOCK: [&str; 3] = ["setpriv", "--bounding-set=-sys_time", "--inh-caps=-sys_time"];

/// Starts `ptp4l`; and the file with what it says.
fn start_ptp4l(
    name: &'static str,
    program: &Path,
    place: &Namespace,
    folder: &Path,
    arguments: &[&str],
) -> Result<(Process, PathBuf), String> {
    let (file, control) = (folder.join(format!("{name}.cfg")), folder.join(format!("{name}.sock")));
    let text = format!(
        "[global]\ntime_stamping software\nlogSyncInterval {RATE}\nlogMinDelayReqInterval {RATE}\n\
         logAnnounceInterval -2\nsummary_interval -4\ntx_timestamp_timeout 100\nuds_address {}\n",
        control.display()
    );
    fs::write(&file, text).map_err(|why| format!("cannot write {}: {why}", file.display()))?;
    let process = Process::start(name, place.starter(), folder, |command| {
        command
            .args(place.prefix())
            .args(SETS_NO_CLOCK)
            .arg(program)
            .arg("-f")
            .arg(&file)
            .args(["-2", "-m"])
            .args(arguments);
    })?;
    Ok((process, folder.join(format!("{name}.out"))))
}

fn said_by(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}

/// The offsets that `ptp4l` says it has measured.
fn offsets(said: &str) -> impl Iterator<Item = i64> + '_ {
    said.lines().filter_map(|line| line.split("master offset").nth(1)?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_ptp4l_writes_them() {
        let said = "ptp4l[56217.690]: master offset        -40 s0 freq      +0 path delay      2153\n\
                    ptp4l[56198.342]: port 1: LISTENING to UNCALIBRATED on RS_SLAVE\n\
                    ptp4l[56217.815]: master offset        961 s2 freq      +0 path delay      2153\n";
        assert_eq!(offsets(said).collect::<Vec<_>>(), [-40, 961]);
    }

    #[test]
    fn the_ratio_is_that_of_the_99th_percentiles() {
        let mut figures = Figures::default();
        (1..=100).for_each(|ns| figures.card.record(ns * 30));
        (1..=100).for_each(|ns| figures.ptp4l.record(ns * 10));
        let (card, ptp4l) = (figures.card.quantile(0.99).unwrap(), figures.ptp4l.quantile(0.99).unwrap());
        assert!((card as f64 / ptp4l as f64 - 3.0).abs() < 0.02, "{card} {ptp4l}");
    }
}
