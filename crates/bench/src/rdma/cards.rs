//! The cards between the two programs.

use std::path::{Path, PathBuf};

use millrace_abi::queue::Direction;
use millrace_tool::host::Device;
use millrace_tool::programs;
use tempfile::TempDir;

use super::Bench;
use crate::peers::namespace::Namespace;
use crate::peers::process::Process;

/// Seed of the faults, so that the same frames are lost in every run.
const SEED: u32 = 7;

/// What lies between both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// One card: they are on one host, and reach each other's memory.
    None,
    /// One card, whose thread moves frames between them.
    Card,
    /// One card, whose engine (`--rdma-cpu`) moves the bytes: `place=card`.
    Engine,
    /// The same on the card's core, for programs that leave it alone.
    EngineOnCore,
    /// A vhost-user socket; each end works on its port itself.
    Memory,
    /// The same; the port of the first end loses one frame in a hundred.
    Lossy,
    /// The same without selective repeat.
    LossyPlain,
    /// A veth with AF_XDP at both ends, which each end works on itself.
    Veth,
}

impl Wire {
    pub fn word(self) -> &'static str {
        match self {
            Wire::None | Wire::Engine | Wire::EngineOnCore => "none",
            Wire::Card => "card",
            Wire::Memory => "memory",
            Wire::Lossy | Wire::LossyPlain => "memory, 1 % lost",
            Wire::Veth => "veth",
        }
    }

    /// Where the protocol runs.
    pub fn placement(self) -> &'static str {
        if matches!(self, Wire::Engine | Wire::EngineOnCore) { "card" } else { "library" }
    }
}

/// What lies between the ends, and what each of them has to know (`MILLRACE_VERBS`). It ends with this.
pub struct Cards {
    pub words: [String; 2],
    /// Where both run, if that is not here.
    pub namespace: Option<Namespace>,
    wire: Wire,
    card: Option<Process>,
    folder: TempDir,
}

impl Cards {
    /// Makes it. Errors are sentences.
    pub fn start(bench: &Bench, wire: Wire) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
        let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
        let at = |name: &str| folder.path().join(name).display().to_string();
        let (mut card, mut namespace) = (None, None);
        let ends = |ports: [String; 2], more: &str| {
            let mut end = 0;
            ports.map(|port| {
                end += 1;
                format!("port={port} ip=198.18.0.{end} {more}")
            })
        };
        let (server, client) = (format!("vhost-user:{}", at("wire")), format!("virtio-user:{}", at("wire")));
        let lossy = format!("fault:loss=1%,seed={SEED},port=({server})");
        let words = match wire {
            Wire::None | Wire::Card | Wire::Engine | Wire::EngineOnCore => {
                card = Some(start(bench, wire, &folder.path().join("card"), folder.path())?);
                let local = match wire {
                    Wire::Card => " local=off",
                    Wire::Engine | Wire::EngineOnCore => " place=card",
                    _ => " adopt=heap",
                };
                [0, 1].map(|_| format!("unix:{}{local}", at("card")))
            }
            Wire::Memory => ends([server, client], "mtu=4096"),
            Wire::Lossy => ends([lossy, client], "mtu=4096"),
            Wire::LossyPlain => ends([lossy, client], "mtu=4096 extended=off"),
            Wire::Veth => {
                let host = namespace.insert(Namespace::new()?);
                host.add_pair("left", "right")?;
                ends(["af_xdp:left".to_owned(), "af_xdp:right".to_owned()], "mtu=1024")
            }
        };
        Ok(Self { words, namespace, wire, card, folder })
    }

    /// The process of the card, if there is one.
    pub fn process(&self) -> Option<u32> {
        self.card.as_ref().map(Process::id)
    }

    /// Where both ends write what they have counted. The engine in the card does not tell.
    pub fn counters(&self) -> Option<[PathBuf; 2]> {
        (self.wire.placement() == "library").then(|| ["first", "second"].map(|end| self.folder.path().join(end)))
    }

    /// Where both ends write when what happened.
    pub fn stamps(&self) -> Option<[PathBuf; 2]> {
        self.counters().map(|files| files.map(|file| file.with_extension("stamps")))
    }

    /// Bytes of frames that the card has copied, and that it was given, so far.
    pub fn copied(&self) -> Option<[f64; 2]> {
        if self.card.is_none() {
            return Some([0.0; 2]);
        }
        let name = format!("unix:{}", self.folder.path().join("card").display());
        let stats = Device::open(&name).ok()?.stats().ok()?;
        // Copies are counted, and frames, and bytes of frames.
        let of = |copies: u64, frames: u64, bytes: u64| copies as f64 * bytes as f64 / frames.max(1) as f64;
        let copied = stats.queues.iter().map(|queue| of(queue.copies, queue.passed, queue.passed_bytes)).sum();
        let given = stats.queues.iter().filter(|queue| queue.queue.direction == Direction::Tx);
        Some([copied, given.map(|queue| queue.passed_bytes as f64).sum()])
    }
}

fn start(bench: &Bench, wire: Wire, socket: &Path, folder: &Path) -> Result<Process, String> {
    let program = programs::beside(programs::MILLRACE).map_err(|why| format!("cannot find millrace: {why}"))?;
    let mut card = Process::start("card", &program, folder, |command| {
        command.args(["card", "--until-eof", "--workers", "1", "--queues", "2", "--listen"]).arg(socket);
        if let Some(core) = bench.cores.card {
            command.args(["--cpu", &core.to_string()]);
        }
        match (wire, bench.cores.card) {
            (Wire::EngineOnCore, Some(core)) => _ = command.args(["--rdma-cpu", &core.to_string()]),
            (Wire::Engine | Wire::EngineOnCore, _) => _ = command.arg("--rdma-cpu"),
            _ => {}
        }
        command.env_remove("MILLRACE_DEVICE");
    })?;
    card.wait_until("the socket of the card", || socket.exists())?;
    Ok(card)
}
