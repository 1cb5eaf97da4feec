//! Something that forwards frames between two vhost-user sockets.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use tempfile::TempDir;

use super::namespace::Namespace;
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
    /// As `Through`, because rules say so.
    Ruled,
    /// As `Ruled`, by a thousand rules ([`super::rules::classified`]); from the first socket to the second only.
    Classified,
    /// As `Ruled`, and from the first socket to the second frames are put into VXLAN packets, and taken out the other way.
    Vxlan,
}

impl Wiring {
    /// How many sockets that makes.
    pub fn sockets(self) -> usize {
        match self {
            Wiring::Back => 1,
            _ => 2,
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
    runtime: Option<RuntimeFolder>,
    /// Where one of them runs.
    namespace: Option<Namespace>,
    /// Sockets and logs; removed when the processes have ended.
    folder: TempDir,
}

impl Forwarder {
    /// One that has no process yet, and the sockets it will have.
    pub fn new(wiring: Wiring, runtime: Option<RuntimeFolder>) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
        let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
        let sockets = (0..wiring.sockets()).map(|index| folder.path().join(format!("port{index}"))).collect();
        Ok(Self { sockets, processes: Vec::new(), runtime, namespace: None, folder })
    }

    /// The folder for everything that the processes write.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// The prefix of DPDK's folder.
    pub fn runtime_prefix(&self) -> String {
        self.runtime.as_ref().map_or_else(String::new, |runtime| runtime.prefix().to_owned())
    }

    /// Keeps the namespace in which a process runs until it has ended.
    pub fn keep(&mut self, namespace: Namespace) {
        self.namespace = Some(namespace);
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
