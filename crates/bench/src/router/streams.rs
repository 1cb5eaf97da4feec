//! iperf3 through the router. Its two ends share the cores with the router, so these are figures of all three.

use std::path::Path as File;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use libbpf_rs::Link;
use millrace_tool::output::Row;
use serde_json::Value;

use super::inline::index;
use super::lab::{Ends, LEFT, Lab, RIGHT, WIRE};
use super::path::{Path, Router};
use super::place::inside;
use super::program::Programs;
use super::work::{Protocol, SINK, Work};
use crate::median::median;
use crate::peers::namespace::Namespace;
use crate::peers::process::{Process, find};

/// Bytes of an IP packet.
const PACKET: u32 = 1400;
/// How long frames flow before they are counted, and then are, in seconds.
const OMIT: u32 = 1;
const COUNTED: u32 = 2;

/// What is sent, and whether Linux may make large segments of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub protocol: Protocol,
    pub offloads: bool,
}

/// What was measured of a kind: gigabits per second.
pub struct Stream {
    pub kind: Kind,
    paths: Vec<(Path, Vec<f64>)>,
}

impl Kind {
    pub const ALL: [Kind; 4] = [
        Kind { protocol: Protocol::Tcp, offloads: false },
        Kind { protocol: Protocol::Udp, offloads: false },
        Kind { protocol: Protocol::Tcp, offloads: true },
        Kind { protocol: Protocol::Udp, offloads: true },
    ];

    /// The router's way for it: large segments are for tc.
    pub fn fast(self) -> Path {
        if self.offloads { Path::Tc } else { Path::Xdp }
    }
}

impl Stream {
    /// Measures it by these paths, in turns; those of the router are one.
    pub fn measure(kind: Kind, paths: &[Path], rounds: u32) -> Result<Self, String> {
        let mut measured: Vec<(Path, Vec<f64>)> = Vec::new();
        if paths.contains(&Path::Kernel) {
            measured.push((Path::Kernel, Vec::new()));
        }
        if paths.iter().any(|path| path.is_fast()) {
            measured.push((kind.fast(), Vec::new()));
        }
        for _ in 0..rounds {
            for (path, values) in &mut measured {
                values.push(gbps(kind, *path)?);
            }
        }
        Ok(Self { kind, paths: measured })
    }

    pub fn gbps(&self, path: Path) -> Option<f64> {
        self.paths.iter().find(|(one, _)| *one == path).and_then(|(_, values)| median(values))
    }

    pub fn rows(&self) -> Vec<Row> {
        let kernel = self.gbps(Path::Kernel);
        let row = |(path, values): &(Path, Vec<f64>)| {
            let gbps = median(values);
            Row::new()
                .tag("bench", "router")
                .text("path", path.word())
                .text("work", Work::Snat.word())
                .text("iperf3", self.kind.protocol.word())
                .text("offloads", if self.kind.offloads { "on" } else { "off" })
                .count("size", PACKET.into())
                .maybe("gbps", gbps, 3)
                .maybe("ratio_to_kernel", gbps.zip(kernel).map(|(gbps, kernel)| gbps / kernel), 2)
                .count("rounds", values.len() as u64)
        };
        self.paths.iter().map(row).collect()
    }
}

/// One measurement in a lab of its own.
fn gbps(kind: Kind, path: Path) -> Result<f64, String> {
    let iperf = find("iperf3", "iperf3")?;
    let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
    let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
    let lab = Lab::new(Work::Snat, 1, Ends::Hosts)?;
    let _pass = arrange(&lab, kind)?;
    let router = if path == Path::Kernel { None } else { Some(Router::start(&lab, path)?) };
    let mut server = Process::start("iperf3", lab.sink.starter(), folder.path(), |command| {
        command.args(lab.sink.prefix()).arg(&iperf).args(["--server", "--one-off", "--forceflush"]);
    })?;
    let log = folder.path().join("iperf3.out");
    server.wait_until("its word", || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("listening")))?;
    let said = client(&lab, &iperf, kind)?;
    drop(router);
    read(&said).ok_or_else(|| format!("iperf3 does not say how much came: {}", said["error"]))
}

/// Sets offloads at both ends and in the router. What is returned are programs that pass everything: without GRO a veth takes from XDP
/// only what goes to an interface with a program.
fn arrange(lab: &Lab, kind: Kind) -> Result<Vec<Link>, String> {
    let set = |place: &Namespace, name: &str, features: &[&str], on: bool| {
        let mut words = vec!["ethtool", "-K", name];
        features.iter().for_each(|feature| words.extend([*feature, if on { "on" } else { "off" }]));
        place.run(&words)
    };
    for place in [&lab.source, &lab.sink] {
        set(place, WIRE, &["tx", "tso", "gso"], kind.offloads)?;
    }
    for name in [LEFT, RIGHT] {
        set(&lab.router, name, &["gro", "gso", "tso"], kind.offloads)?;
    }
    if kind.offloads {
        return Ok(Vec::new());
    }
    let programs = Programs::load()?;
    let pass = |place: &Namespace| inside(place, || programs.attach("pass", index(WIRE)?));
    let links = vec![pass(&lab.source)?, pass(&lab.sink)?];
    // They take a moment to bring the link up again.
    thread::sleep(Duration::from_millis(100));
    Ok(links)
}

fn client(lab: &Lab, iperf: &File, kind: Kind) -> Result<Value, String> {
    let mut command = Command::new(lab.source.starter());
    command.args(lab.source.prefix()).arg(iperf).args(["--client", &SINK.to_string(), "--json"]);
    command.args(["--omit", &OMIT.to_string(), "--time", &COUNTED.to_string()]);
    match kind.protocol {
        Protocol::Tcp => command.args(["--set-mss", &(PACKET - 40).to_string()]),
        Protocol::Udp => command.args(["--udp", "--bitrate", "0", "--length", &(PACKET - 28).to_string()]),
    };
    let output = command.stdin(Stdio::null()).output().map_err(|why| format!("cannot start iperf3: {why}"))?;
    serde_json::from_slice(&output.stdout).map_err(|why| format!("iperf3 --json: {why}"))
}

/// Gigabits per second that the receiver has seen.
fn read(said: &Value) -> Option<f64> {
    let end = &said["end"];
    let bits = end["sum_received"]["bits_per_second"].as_f64();
    bits.filter(|bits| *bits > 0.0).map(|bits| bits * 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_receiver_has_seen_counts() {
        let said = serde_json::json!({"end": {"sum_sent": {"bits_per_second": 2e9}, "sum_received": {"bits_per_second": 1.5e9}}});
        assert_eq!(read(&said), Some(1.5));
        assert_eq!(read(&serde_json::json!({"error": "refused"})), None);
    }
}
