//! Something that forwards frames between two vhost-user sockets.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use tempfile::TempDir;

use super::process::{Process, RuntimeFolder};
use crate::rig::Cores;

/// Who forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Millrace,
    OvsDpdk,
    Testpmd,
}

impl Peer {
    /// All, in the order in which they are measured and shown.
    pub const ALL: [Peer; 3] = [Peer::Millrace, Peer::OvsDpdk, Peer::Testpmd];

    /// The name in results.
    pub fn word(self) -> &'static str {
        match self {
            Peer::Millrace => "millrace",
            Peer::OvsDpdk => "ovs_dpdk",
            Peer::Testpmd => "testpmd",
        }
    }
}

/// Where frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// Into one socket and out of the other, both ways.
    Through,
    /// Out of the socket by which they came; there is only one.
    Back,
}

impl Wiring {
    /// How many sockets that makes.
    pub fn sockets(self) -> usize {
        match self {
            Wiring::Through => 2,
            Wiring::Back => 1,
        }
    }
}

/// The two cores: the forwarder polls on one, everything else has the other.
#[derive(Clone, Copy, Debug)]
pub struct TwoCores {
    pub app: usize,
    pub card: usize,
}

impl TwoCores {
    /// The error says why there are not two.
    pub fn of(cores: Cores) -> Result<Self, String> {
        match (cores.app, cores.card) {
            (Some(app), Some(card)) if app != card => Ok(Self { app, card }),
            _ => Err("a forwarder needs a core beside that of the application".to_owned()),
        }
    }
}

/// A running forwarder; it ends when this is dropped.
pub struct Forwarder {
    /// Those that frames come through, in the order in which they ended up in the folder.
    pub sockets: Vec<PathBuf>,
    /// Those that were started last end first.
    processes: Vec<Process>,
    _runtime: Option<RuntimeFolder>,
    /// Sockets and logs; removed when the processes have ended.
    folder: TempDir,
}

impl Forwarder {
    /// One that has no process yet, and the sockets it will have.
    pub fn new(wiring: Wiring, runtime: Option<RuntimeFolder>) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
        let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
        let sockets = (0..wiring.sockets()).map(|index| folder.path().join(format!("port{index}"))).collect();
        Ok(Self { sockets, processes: Vec::new(), _runtime: runtime, folder })
    }

    /// The folder for everything that the processes write.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Adds a process.
    pub fn add(&mut self, process: Process) -> &mut Process {
        self.processes.push(process);
        self.processes.last_mut().expect("just pushed")
    }

    /// Waits until the last process has made all sockets.
    pub fn await_sockets(mut self) -> Result<Self, String> {
        let is_socket = |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.file_type().is_socket());
        let sockets = &self.sockets;
        if let Some(process) = self.processes.last_mut() {
            process.wait_until("its vhost-user sockets", || sockets.iter().all(is_socket))?;
        }
        Ok(self)
    }

    /// An error when a process has ended.
    pub fn check(&mut self) -> Result<(), String> {
        self.processes.iter_mut().try_for_each(Process::check)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        while let Some(process) = self.processes.pop() {
            drop(process);
        }
    }
}
