//! All sizes: throughput, latency and the share of a core that both ends take: on one host, by the engine in the card, by a card that moves frames,
//! over a wire of shared memory, and by TCP. The figures 5.7 to 5.12 of the source (SLURPoE).

use std::path::Path;

use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::progress::Steps;
use millrace_tool::stop;

use super::Bench;
use super::cards::{Cards, Wire};
use super::others::{self, Other};
use super::ours::{self, Work};
use crate::lines::{Chart, Line, draw};

const SIZES: [u64; 7] = [8, 64, 512, 4096, 32 << 10, 256 << 10, 1 << 20];

/// Who moves the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Verbs(Wire),
    Tcp,
}

const WAYS: [(Way, &str); 5] = [
    (Way::Verbs(Wire::None), "one host"),
    (Way::Verbs(Wire::Engine), "engine in the card"),
    (Way::Verbs(Wire::Card), "frames by a card"),
    (Way::Verbs(Wire::Memory), "a wire"),
    (Way::Tcp, "TCP (UCX)"),
];

/// One line of the table.
struct Point {
    op: &'static str,
    way: usize,
    size: u64,
    gbps: Option<f64>,
    latency: Option<f64>,
    cpu: Option<[f64; 2]>,
    cpu_card: Option<f64>,
    copies: Option<f64>,
}

/// Measures all of it, and draws it if asked to.
pub fn run(shared: &Shared, bench: &Bench, svg: Option<&Path>) -> Result<(), Failure> {
    let mut points = Vec::new();
    let steps = Steps::new("rdma, sizes", (3 * WAYS.len() * SIZES.len()) as u64);
    'all: for op in ["write", "read", "send"] {
        for (way, (_, name)) in WAYS.iter().enumerate() {
            for size in SIZES {
                steps.next(format!("{op}, {name}, {size} bytes"));
                let point = measure(bench, op, way, size);
                // What was measured until it is interrupted is printed.
                if stop::asked() {
                    break 'all;
                }
                points.push(point);
            }
        }
    }
    drop(steps);
    let rows: Vec<Row> = points.iter().map(row).collect();
    Output::new(shared.json).rows("by size of message", &rows)?;
    if stop::asked() {
        return Err(Failure::Interrupted);
    }
    svg.map_or(Ok(()), |file| picture(file, &points))
}

fn measure(bench: &Bench, op: &'static str, way: usize, size: u64) -> Point {
    let of = |measure| Work { op, measure, size };
    let mut point = Point { op, way, size, gbps: None, latency: None, cpu: None, cpu_card: None, copies: None };
    let result = match WAYS[way].0 {
        Way::Verbs(wire) => Cards::start(bench, wire).and_then(|cards| {
            let line = ours::measure(bench, &cards, of("bandwidth"))?;
            (point.gbps, point.cpu) = (Some(line.value * 8.0), Some(line.cpu));
            (point.cpu_card, point.copies) = (line.cpu_card, line.copies);
            point.latency = Some(ours::measure(bench, &cards, of("latency"))?.value);
            Ok(())
        }),
        // UCX over TCP has one way for all that the initiator does; it stands beside WRITE.
        Way::Tcp if op != "write" => Ok(()),
        Way::Tcp => others::measure(bench, Other::UcxTcp, of("bandwidth")).and_then(|value| {
            point.gbps = Some(value * 8.0);
            point.latency = Some(others::measure(bench, Other::UcxTcp, of("latency"))?);
            Ok(())
        }),
    };
    if let Err(why) = result
        && !stop::asked()
    {
        note(format!("{op}, {}, {size} bytes: {why}", WAYS[way].1));
    }
    point
}

fn row(point: &Point) -> Row {
    let (way, name) = WAYS[point.way];
    let (placement, wire) = match way {
        Way::Verbs(wire) => (wire.placement(), wire.word()),
        Way::Tcp => ("kernel", "loopback"),
    };
    Row::new()
        .tag("bench", "rdma")
        .text("op", point.op)
        .text("path", name)
        .tag("placement", placement)
        .tag("wire", wire)
        .count("size", point.size)
        .maybe("gbps", point.gbps, 3)
        .maybe("latency_p50_ns", point.latency, 0)
        .maybe("cpu_app", point.cpu.map(|cpu| cpu[0]), 2)
        .maybe("cpu_target", point.cpu.map(|cpu| cpu[1]), 2)
        .maybe("cpu_card", point.cpu_card, 2)
        .maybe("copies", point.copies, 2)
}

fn picture(file: &Path, points: &[Point]) -> Result<(), Failure> {
    let labels: Vec<String> = SIZES.iter().map(u64::to_string).collect();
    let mut charts = Vec::new();
    for op in ["write", "read", "send"] {
        type Of = fn(&Point) -> Option<f64>;
        let kinds: [(&str, &'static str, Of); 3] = [
            ("throughput", "Gbit/s", |point| point.gbps),
            ("one way, logarithm of base 10", "log ns", |point| point.latency.map(|ns| ns.max(1.0).log10())),
            ("CPU of the initiator", "cores", |point| point.cpu.map(|cpu| cpu[0])),
        ];
        for (title, unit, of) in kinds {
            let lines = (0..WAYS.len()).filter_map(|way| {
                let all = points.iter().filter(|point| point.op == op && point.way == way);
                let points: Option<Vec<f64>> = all.map(of).collect();
                points
                    .filter(|points| points.len() == SIZES.len())
                    .map(|points| Line { name: WAYS[way].1.into(), points })
            });
            let lines: Vec<Line> = lines.collect();
            if !lines.is_empty() {
                charts.push(Chart { title: format!("{}: {title}", op.to_uppercase()), unit, lines });
            }
        }
    }
    draw(file, "bytes", &labels, &charts)
}
