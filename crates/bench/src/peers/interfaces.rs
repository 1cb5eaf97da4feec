//! AF_XDP on veth interfaces: receive, send and forward 64 bytes, by Millrace and by `dpdk-testpmd` with `net_af_xdp`.
//!
//! Both have the same neighbours: `dpdk-testpmd` sends where something is to be received, and Linux counts what
//! arrives. Whoever is measured has the card's core, the sender the other; Linux does its part of the work on the core
//! of whoever sends.

use std::thread;
use std::time::{Duration, Instant};

use millrace_tool::failure::Failure;
use millrace_tool::output::Row;
use millrace_tool::stop;
use millrace_tool::{cores, programs};
use tempfile::TempDir;

use super::forwarder::{Peer, TwoCores};
use super::metric::Metric;
use super::namespace::Namespace;
use super::process::{LONGEST_WAIT, Process, RuntimeFolder, find};
use super::samples::{self, Samples};
use super::setting::Bench;

/// Who is measured.
const PEERS: [Peer; 2] = [Peer::Millrace, Peer::Testpmd];
/// How many these are.
const COLUMNS: usize = PEERS.len();
/// How long frames flow before they are counted.
const WARM_UP: Duration = Duration::from_millis(300);
/// What testpmd is called when it sends for somebody else.
const SENDER: &str = "testpmd, sending";

/// Everything measured so far.
pub struct Comparison {
    samples: Vec<Samples<COLUMNS>>,
    /// What went wrong with Millrace itself: the others are still measured, but the run has failed.
    failed: Option<String>,
}

impl Comparison {
    /// Nothing yet.
    pub fn new(metrics: impl Iterator<Item = Metric>) -> Self {
        Self { samples: metrics.map(Samples::new).collect(), failed: None }
    }

    /// Measures everything once.
    pub fn measure(&mut self, bench: &mut Bench<'_>) {
        for samples in &mut self.samples {
            let metric = samples.metric;
            samples.begin();
            for (at, peer) in PEERS.into_iter().enumerate() {
                let name = name(peer);
                if stop::asked() || bench.is_absent(name) {
                    continue;
                }
                cores::unpin();
                let cores = bench.cores;
                let measured = samples::take(cores, metric, name, || measure(bench, peer, metric).map(Some));
                bench.cores.pin_application();
                match measured {
                    Ok(sample) => samples.add(at, sample),
                    Err(_) if stop::asked() => {}
                    Err(why) => {
                        bench.leave_out(name, &why);
                        if peer == Peer::Millrace && rustix::process::geteuid().is_root() {
                            self.failed.get_or_insert(why);
                        }
                    }
                }
            }
        }
    }

    /// An error when Millrace could not be measured though it might have been.
    pub fn check(&self) -> Result<(), Failure> {
        self.failed.clone().map_or(Ok(()), |why| Err(Failure::Found(why)))
    }

    /// What came of it.
    pub fn rows(&self) -> Vec<Row> {
        self.samples.iter().map(row).collect()
    }
}

/// The name in notes: somebody may be able to do the one thing and not the other.
fn name(peer: Peer) -> &'static str {
    if peer == Peer::Millrace { "millrace with af_xdp" } else { "testpmd with net_af_xdp" }
}

fn row(samples: &Samples<COLUMNS>) -> Row {
    let (metric, chosen) = (samples.metric, samples.choose());
    let values = PEERS.into_iter().zip(chosen.values);
    let start = chosen.row(metric, metric.size());
    values.fold(start, |row, (peer, value)| row.maybe(peer.word(), value, metric.decimals())).maybe(
        "ratio_to_testpmd",
        chosen.ratio(0, 1),
        3,
    )
}

/// One measurement in a namespace of its own. What is started last ends first, and the namespace last of all.
struct Arena {
    processes: Vec<Process>,
    runtimes: Vec<RuntimeFolder>,
    folder: TempDir,
    namespace: Namespace,
    cores: TwoCores,
}

impl Drop for Arena {
    fn drop(&mut self) {
        while let Some(process) = self.processes.pop() {
            drop(process);
        }
    }
}

/// Millions of frames per second. Errors are sentences.
fn measure(bench: &Bench<'_>, peer: Peer, metric: Metric) -> Result<f64, String> {
    let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
    let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
    let (cores, namespace) = (TwoCores::of(bench.cores)?, Namespace::new()?);
    let mut arena = Arena { processes: Vec::new(), runtimes: Vec::new(), folder, namespace, cores };
    arena.namespace.add_pair("left0", "left1")?;
    let counted = match metric {
        Metric::AfXdpTxMpps => {
            arena.start(peer, Work::Send, &["left0"])?;
            ("left1", Reader::Linux)
        }
        Metric::AfXdpRxMpps => {
            arena.start(peer, Work::Receive, &["left1"])?;
            arena.start_testpmd(SENDER, "sender", cores.app, cores.card, Work::Send, &["left0"])?;
            ("left1", Reader::Measured)
        }
        _ => {
            arena.namespace.add_pair("right0", "right1")?;
            arena.start(peer, Work::Forward, &["left1", "right0"])?;
            arena.start_testpmd(SENDER, "sender", cores.app, cores.card, Work::Send, &["left0"])?;
            ("right1", Reader::Linux)
        }
    };
    arena.rate(counted, bench.seconds)
}

/// Who reads the interface at which frames are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// Whoever is measured: what it had no room for has not arrived.
    Measured,
    /// Linux, which has no use for these frames and calls that dropped: they have arrived.
    Linux,
}

/// What a program does with its interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Receive,
    Send,
    Forward,
}

impl Arena {
    fn start(&mut self, peer: Peer, work: Work, interfaces: &[&str]) -> Result<(), String> {
        match peer {
            Peer::Millrace => self.start_ours(work, interfaces),
            _ => self.start_testpmd("testpmd", "testpmd", self.cores.card, self.cores.app, work, interfaces),
        }
    }

    /// A card: what is received goes to a `null` port, what is sent comes from a `generator`.
    fn start_ours(&mut self, work: Work, interfaces: &[&str]) -> Result<(), String> {
        let program = programs::beside(programs::MILLRACE).map_err(|why| format!("cannot find millrace: {why}"))?;
        let socket = self.folder.path().join("card.sock");
        let mut ports: Vec<String> = interfaces.iter().map(|interface| format!("af_xdp:{interface}")).collect();
        match work {
            Work::Receive => ports.push("null".to_owned()),
            Work::Send => ports.push("generator:size=64".to_owned()),
            Work::Forward => {}
        }
        let card = Process::start("millrace card", self.namespace.starter(), self.folder.path(), |command| {
            command.args(self.namespace.prefix()).arg(program).env_remove("MILLRACE_DEVICE");
            command.args([
                "card",
                "--json",
                "--until-eof",
                "--poll",
                "--cpu",
                &self.cores.card.to_string(),
                "--listen",
            ]);
            command.arg(&socket);
            ports.iter().for_each(|port| {
                command.args(["--port", port]);
            });
            command.args(["--connect", "0-1"]);
        })?;
        self.processes.push(card);
        let card = self.processes.last_mut().expect("just pushed");
        card.wait_until("its socket", || socket.exists())
    }

    fn start_testpmd(
        &mut self,
        name: &'static str,
        word: &str,
        core: usize,
        other: usize,
        work: Work,
        interfaces: &[&str],
    ) -> Result<(), String> {
        let program = find("dpdk-testpmd", "dpdk-dev")?;
        let runtime = RuntimeFolder::new(word);
        let mode = match work {
            Work::Receive => "rxonly",
            Work::Send => "txonly",
            Work::Forward => "io",
        };
        let process = Process::start(name, self.namespace.starter(), self.folder.path(), |command| {
            command.args(self.namespace.prefix()).arg(program);
            command.args(["-l", &format!("{other},{core}"), "--main-lcore", &other.to_string()]);
            command.args(["--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--file-prefix", runtime.prefix()]);
            for (index, interface) in interfaces.iter().enumerate() {
                command.arg(format!("--vdev=net_af_xdp{index},iface={interface}"));
            }
            command.args(["--", "--no-mlockall", "--total-num-mbufs=16384", "--burst=64", "--no-lsc-interrupt"]);
            command.args(["--disable-link-check", "--nb-cores=1", &format!("--forward-mode={mode}")]);
        })?;
        self.processes.push(process);
        self.runtimes.push(runtime);
        Ok(())
    }

    /// Waits until frames arrive at an interface, and then says how many millions do per second.
    fn rate(&mut self, (interface, reader): (&str, Reader), seconds: f64) -> Result<f64, String> {
        let start = Instant::now();
        while self.namespace.received(interface)?.frames < 1000 {
            self.check()?;
            if start.elapsed() > LONGEST_WAIT {
                return Err(format!("nothing arrived at {interface} in {} s", LONGEST_WAIT.as_secs()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(WARM_UP);
        let (start, before) = (Instant::now(), self.namespace.received(interface)?);
        thread::sleep(Duration::from_secs_f64(seconds));
        let (after, elapsed) = (self.namespace.received(interface)?, start.elapsed());
        self.check()?;
        let mut frames = after.frames - before.frames;
        if reader == Reader::Measured {
            frames = frames.saturating_sub(after.dropped - before.dropped);
        }
        if frames == 0 {
            return Err(format!("nothing arrived at {interface} any more"));
        }
        Ok(frames as f64 / elapsed.as_secs_f64() / 1e6)
    }

    fn check(&mut self) -> Result<(), String> {
        if stop::asked() {
            return Err("interrupted".to_owned());
        }
        self.processes.iter_mut().try_for_each(Process::check)
    }
}
