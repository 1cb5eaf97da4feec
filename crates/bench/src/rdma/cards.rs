//! The cards between the two programs.

use std::path::{Path, PathBuf};

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
    /// Two cards, joined by a vhost-user socket.
    Memory,
    /// The same; the first card loses one frame in a hundred.
    Lossy,
    /// The same without selective repeat.
    LossyPlain,
    /// Two cards with AF_XDP at both ends of a veth.
    Veth,
}

impl Wire {
    pub fn word(self) -> &'static str {
        match self {
            Wire::None => "none",
            Wire::Card => "card",
            Wire::Memory => "memory",
            Wire::Lossy | Wire::LossyPlain => "memory, 1 % lost",
            Wire::Veth => "veth",
        }
    }
}

/// Cards that run, and what each end has to know (`MILLRACE_VERBS`). They end with this.
pub struct Cards {
    pub words: [String; 2],
    _processes: Vec<Process>,
    _namespace: Option<Namespace>,
    _folder: TempDir,
}

impl Cards {
    /// Starts them. Errors are sentences.
    pub fn start(bench: &Bench, wire: Wire) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
        let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
        let at = |name: &str| folder.path().join(name);
        let namespace = if wire == Wire::Veth { Some(Namespace::new()?) } else { None };
        if let Some(namespace) = &namespace {
            namespace.add_pair("left", "right")?;
        }
        let mut processes = Vec::new();
        let mut card = |name, options: &[String]| {
            start(bench, name, &at(name), folder.path(), namespace.as_ref(), options).map(|card| processes.push(card))
        };
        let words = match wire {
            Wire::None | Wire::Card => {
                card("card", &options(&["--queues", "2"]))?;
                let local = if wire == Wire::Card { " local=off" } else { "" };
                [0, 1].map(|_| format!("unix:{}{local}", at("card").display()))
            }
            _ => {
                let socket = at("wire").display().to_string();
                let ports = match wire {
                    Wire::Veth => ["af_xdp:left".to_owned(), "af_xdp:right".to_owned()],
                    Wire::Memory => [format!("vhost-user:{socket}"), format!("virtio-user:{socket}")],
                    _ => [
                        format!("fault:loss=1%,seed={SEED},port=(vhost-user:{socket})"),
                        format!("virtio-user:{socket}"),
                    ],
                };
                // Packets of 4 KiB need frames of as much; an interface has frames of 1500 bytes.
                let big: &[&str] = if wire == Wire::Veth { &[] } else { &["--frame-max", "9000", "--buffer", "8192"] };
                for (name, port) in ["first", "second"].into_iter().zip(&ports) {
                    card(name, &options(&[&["--queues", "1", "--port", port], big].concat()))?;
                }
                let more = if wire == Wire::LossyPlain { " extended=off" } else { "" };
                [("first", 1), ("second", 2)]
                    .map(|(name, end)| format!("unix:{} ip=198.18.0.{end}{more}", at(name).display()))
            }
        };
        Ok(Self { words, _processes: processes, _namespace: namespace, _folder: folder })
    }
}

fn options(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn start(
    bench: &Bench,
    name: &'static str,
    socket: &Path,
    folder: &Path,
    namespace: Option<&Namespace>,
    options: &[String],
) -> Result<Process, String> {
    let millrace: PathBuf =
        programs::beside(programs::MILLRACE).map_err(|why| format!("cannot find millrace: {why}"))?;
    let program = namespace.map_or(&millrace, Namespace::starter);
    let mut card = Process::start(name, program, folder, |command| {
        if let Some(namespace) = namespace {
            command.args(namespace.prefix()).arg(&millrace);
        }
        command.args(["card", "--until-eof", "--workers", "1", "--listen"]).arg(socket).args(options);
        if let Some(core) = bench.cores.card {
            command.args(["--cpu", &core.to_string()]);
        }
        command.env_remove("MILLRACE_DEVICE");
    })?;
    card.wait_until("the socket of the card", || socket.exists())?;
    Ok(card)
}
