//! Three processes, as the three nodes of the accelerator paper's figures 7 and 8: a sender, a card that forwards, and a receiver;
//! throughput and latency by packet size, without VXLAN and with.
//!
//! ```text
//! sender -- vhost-user -- card: rules -- vhost-user -- receiver
//! ```

pub mod process;

use std::path::Path;
use std::process::{Child, Command, Stdio};

use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::progress::Steps;
use millrace_tool::stop;

use crate::lines::{self, Chart, Line};
use crate::median::median;
use crate::peers::forwarder::{Forwarder, Peer, Wiring};
use crate::peers::start;
use crate::rig::Cores;
use crate::steady;
use process::Part;

/// One size without VXLAN, or with.
struct Cell {
    size: u16,
    vxlan: bool,
    mpps: Vec<f64>,
    gbps: Vec<f64>,
    p50: Vec<f64>,
    cacheline: Vec<f64>,
}

/// Measures all sizes and draws them into `file`.
pub fn run(
    shared: &Shared,
    cores: Cores,
    sizes: &[u16],
    rounds: u32,
    seconds: f64,
    file: &Path,
) -> Result<(), Failure> {
    let cell = |(size, vxlan)| Cell {
        size,
        vxlan,
        mpps: Vec::new(),
        gbps: Vec::new(),
        p50: Vec::new(),
        cacheline: Vec::new(),
    };
    let mut cells: Vec<Cell> =
        [false, true].into_iter().flat_map(|vxlan| sizes.iter().map(move |size| (*size, vxlan))).map(cell).collect();
    let steps = Steps::new("nodes", u64::from(rounds) * cells.len() as u64);
    for _ in 0..rounds {
        for cell in &mut cells {
            steps.next(format!("nodes, {} bytes{}", cell.size, if cell.vxlan { ", VXLAN" } else { "" }));
            cell.measure(cores, seconds).map_err(Failure::Found)?;
            if stop::asked() {
                return Err(Failure::Interrupted);
            }
        }
    }
    drop(steps);
    let rows: Vec<Row> = cells.iter().map(Cell::row).collect();
    Output::new(shared.json).rows(&format!("medians of {rounds} rounds, three processes"), &rows)?;
    draw(file, sizes, &cells)?;
    note(format!("the curves of three processes are in {}", file.display()));
    Ok(())
}

impl Cell {
    fn measure(&mut self, cores: Cores, seconds: f64) -> Result<(), String> {
        let (size, wiring) = (self.size, if self.vxlan { Wiring::Vxlan } else { Wiring::Ruled });
        let name = |what| format!("nodes {what} {size}{}", if self.vxlan { ", vxlan" } else { "" });
        let both = |sender, receiver, wanted: Part| {
            let mut card = start::start(Peer::Millrace, wiring, cores)?;
            let receiver = Node::start(receiver, &card, size, seconds)?;
            let sender = Node::start(sender, &card, size, seconds)?;
            let (first, second) = if wanted == Part::Count { (receiver, sender) } else { (sender, receiver) };
            let value = first.value()?;
            drop(second);
            card.check()?;
            Ok::<_, String>(Some(value))
        };
        let mpps = steady::take(
            cores,
            &name("throughput"),
            |value| format!("{value:.3} Mpps"),
            || both(Part::Send, Part::Count, Part::Count),
        )?;
        let p50 = steady::take(
            cores,
            &name("latency"),
            |value| format!("{value:.0} ns"),
            || both(Part::Travel, Part::Reflect, Part::Travel),
        )?;
        self.mpps.extend(mpps.map(|sample| sample.value));
        self.gbps.extend(mpps.map(|sample| sample.value * f64::from(size) * 8e-3));
        self.p50.extend(p50.map(|sample| sample.value));
        self.cacheline.extend([mpps, p50].into_iter().flatten().filter_map(|sample| sample.cacheline_ns));
        Ok(())
    }

    fn row(&self) -> Row {
        Row::new()
            .tag("bench", "matrix")
            .text("nodes", "3")
            .count("size", self.size.into())
            .text("vxlan", if self.vxlan { "on" } else { "off" })
            .count("rounds", self.mpps.len() as u64)
            .maybe("mpps", median(&self.mpps), 3)
            .maybe("gbps", median(&self.gbps), 3)
            .maybe("p50_ns", median(&self.p50), 1)
            .maybe("cacheline_ns", median(&self.cacheline), 1)
    }
}

fn draw(file: &Path, sizes: &[u16], cells: &[Cell]) -> Result<(), Failure> {
    let curves = |values: fn(&Cell) -> &Vec<f64>| -> Vec<Line> {
        let curve = |(name, cells): (&str, &[Cell])| Line {
            name: name.to_owned(),
            points: cells.iter().map(|cell| median(values(cell)).unwrap_or(0.0)).collect(),
        };
        ["VXLAN off", "VXLAN on"].into_iter().zip(cells.chunks(sizes.len())).map(curve).collect()
    };
    let charts = [
        Chart {
            title: "Throughput by packet size: sender, card, receiver".to_owned(),
            unit: "Gbit/s",
            lines: curves(|cell| &cell.gbps),
        },
        Chart {
            title: "Median round trip by packet size: sender, card, receiver, and back".to_owned(),
            unit: "ns",
            lines: curves(|cell| &cell.p50),
        },
    ];
    let labels: Vec<String> = sizes.iter().map(u16::to_string).collect();
    lines::draw(file, "packet size without FCS, bytes", &labels, &charts)
}

/// A sender or a receiver in a process of its own, on the core of this one. It ends with this.
struct Node(Child);

impl Node {
    fn start(part: Part, card: &Forwarder, size: u16, seconds: f64) -> Result<Self, String> {
        let cannot = |why: std::io::Error| format!("cannot start a node: {why}");
        let program = std::env::current_exe().map_err(cannot)?;
        // Should we be killed, so is it.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(["node", part.word()])
            .arg(&card.sockets[part.socket()]);
        command.args(["--frame", &size.to_string(), "--seconds", &seconds.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().map(Self).map_err(cannot)
    }

    /// What it says in the end.
    fn value(mut self) -> Result<f64, String> {
        let mut text = String::new();
        if let Some(stdout) = &mut self.0.stdout {
            std::io::Read::read_to_string(stdout, &mut text).map_err(|why| format!("a node cannot be read: {why}"))?;
        }
        text.trim().parse().map_err(|_| "a node has ended without a value; see above".to_owned())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // One that has ended by itself cannot be killed, and need not be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
