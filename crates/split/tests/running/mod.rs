//! A backend for tests.
#![allow(dead_code)]

use millrace_split::{
    Address, Backend, Completion, Config, Door, Endpoint, GuestCounts, Limits, Port, PortConfig, PortCounts, Report,
    TurnedAway, memory,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const SOON: Duration = Duration::from_secs(20);

/// A backend on a thread of its own.
pub struct Running {
    _folder: tempfile::TempDir,
    pub path: PathBuf,
    stop: Arc<AtomicBool>,
    pub reports: Arc<Mutex<Vec<Report>>>,
    /// Of the port, and who was turned away, when it has ended.
    counts: Arc<Mutex<(PortCounts, TurnedAway)>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start(limits: Limits) -> Self {
        Self::start_with(limits, None)
    }

    /// With a port.
    pub fn start_with(limits: Limits, port: Option<PortConfig>) -> Self {
        Self::start_at(limits, port, Vec::new())
    }

    /// With more doors.
    pub fn start_at(limits: Limits, port: Option<PortConfig>, mut doors: Vec<Box<dyn Door>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("split.sock");
        let (stop, reports): (Arc<AtomicBool>, Arc<Mutex<Vec<Report>>>) = Default::default();
        doors.push(Box::new(memory::MemoryDoor::at(path.clone(), 0).unwrap()));
        let (until, told, counts) = (stop.clone(), reports.clone(), Arc::default());
        let counted: Arc<Mutex<(PortCounts, TurnedAway)>> = Arc::clone(&counts);
        let port = port.map(|port| Port::open(&port).unwrap());
        let thread = std::thread::spawn(move || {
            let mut backend = Backend::with_port(limits, doors, port);
            backend.run(&|| until.load(Ordering::Relaxed), |report| told.lock().unwrap().push(report.clone()));
            *counted.lock().unwrap() = (backend.port_counts().unwrap_or_default(), backend.turned_away());
        });
        Self { _folder: folder, path, stop, reports, counts, thread: Some(thread) }
    }

    pub fn place(&self) -> String {
        self.path.to_str().unwrap().to_owned()
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::open(&Config { place: self.place(), depth: 64 }).unwrap()
    }

    pub fn left(&self, address: Address) -> Option<(bool, GuestCounts)> {
        self.reports.lock().unwrap().iter().find_map(|report| match report {
            Report::Left { address: gone, was_put_out, counts, .. } if *gone == address => {
                Some((*was_put_out, *counts))
            }
            _ => None,
        })
    }
}

impl Running {
    /// Ends it: what its port has counted.
    pub fn end(mut self) -> PortCounts {
        self.stop();
        self.counts.lock().unwrap().0
    }

    /// Ends it: who was turned away.
    pub fn end_away(mut self) -> TurnedAway {
        self.stop();
        self.counts.lock().unwrap().1
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn done(endpoint: &Endpoint) -> Completion {
    endpoint.wait(SOON).unwrap().expect("nothing has ended")
}
