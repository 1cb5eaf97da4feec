//! Bandwidth by the size of buffers, before and after the optimisations: the source's figure 4, with its machine beside it as a model.

use std::path::Path;

use millrace_message::Scheme;
use millrace_tool::cores;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::progress::Steps;
use millrace_tool::stop;

use super::drive::{Ends, Line};
use super::end::BufferArgs;
use super::optimisations::Optimisations;
use super::source;
use crate::lines::{self, Chart, draw};
use crate::rig::Cores;

/// Bytes of a message: those of the figure, and shorter ones.
const SIZES: [u64; 2] = [16 << 20, 1 << 20];

/// 1 KiB to 1 MiB, but none below `from`.
fn mtus(from: u32) -> impl Iterator<Item = u32> {
    (10..=20).map(|bits| 1 << bits).filter(move |mtu| *mtu >= from)
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Smallest buffers, in bytes.
    pub from: u32,
    /// How long each measurement takes.
    pub seconds: f64,
    /// Where to draw it.
    pub svg: Option<&'a Path>,
}

/// From which time on, in ns, round trips of a message are left out.
const SLOW: f64 = 1e8;

/// What was measured for one size with one kind of buffers.
#[derive(Clone, Copy, Debug)]
struct Point {
    size: u64,
    mtu: u32,
    optimisations: Optimisations,
    /// GB/s, and ns one way, if that is not very long.
    flow: Line,
    latency: Option<Line>,
}

impl Point {
    fn gbps(&self) -> f64 {
        self.flow.value * 8.0
    }

    /// The source's machine has figures for none and for all.
    fn model(&self) -> Option<f64> {
        let is_after = self.optimisations == Optimisations::ALL;
        let is_before = self.optimisations == Optimisations::STEPS[0];
        (is_after || is_before).then(|| source::gbps(self.size, self.mtu.into(), is_after))
    }

    fn row(&self) -> Row {
        Row::new()
            .tag("bench", "message")
            .count("size", self.size)
            .text("scheme", Scheme::OneCopy.name())
            .count("mtu", self.mtu.into())
            .text("optimisations", self.optimisations)
            .number("gbps", self.gbps(), 3)
            .maybe("source_model_gbps", self.model(), 3)
            .maybe("latency_p50_ns", self.latency.map(|line| line.value), 0)
            .number("cpu_send", self.flow.cpu[0], 2)
            .number("cpu_receive", self.flow.cpu[1], 2)
            .maybe("copies", self.flow.copies, 2)
    }
}

/// Measures all of it, and draws it if asked to.
pub fn run(shared: &Shared, (cores, buffers): (Cores, BufferArgs), work: Work<'_>) -> Result<(), Failure> {
    let Work { from, seconds, svg } = work;
    let count = mtus(from).count() * Optimisations::STEPS.len();
    let steps = Steps::new("message, buffers", count as u64);
    let mut points = Vec::new();
    'all: for mtu in mtus(from) {
        for optimisations in Optimisations::STEPS {
            steps.next(format!("buffers of {mtu} bytes, optimisations {optimisations}"));
            let ends = Ends::start(cores, BufferArgs { mtu, optimisations, ..buffers });
            let measured = ends.and_then(|ends| {
                let one_copy = Some(Scheme::OneCopy);
                SIZES.iter().try_for_each(|&size| {
                    let flow = ends.bandwidth(size as usize, one_copy, seconds)?;
                    let is_slow = size as f64 / flow.value > SLOW;
                    let latency = (!is_slow).then(|| ends.latency(size as usize, one_copy, seconds)).transpose()?;
                    points.push(Point { size, mtu, optimisations, flow, latency });
                    Ok::<_, String>(())
                })
            });
            cores::unpin();
            // What was measured until it is interrupted is printed.
            if stop::asked() {
                break 'all;
            }
            measured.map_err(Failure::Found)?;
        }
    }
    drop(steps);
    points.sort_by_key(|point| core::cmp::Reverse(point.size));
    let rows: Vec<Row> = points.iter().map(Point::row).collect();
    Output::new(shared.json).rows("by bytes of a buffer, with one copy at each end", &rows)?;
    note(
        "source_model_gbps is a model of the source's machine (RapidIO of 10 Gb/s), made from costs that it has published",
    );
    if stop::asked() {
        return Err(Failure::Interrupted);
    }
    svg.map_or(Ok(()), |file| {
        draw(file, "bytes of a buffer", &mtus(from).map(label).collect::<Vec<_>>(), &charts(&points))
    })
}

fn label(mtu: u32) -> String {
    if mtu < 1 << 20 { format!("{} KiB", mtu >> 10) } else { format!("{} MiB", mtu >> 20) }
}

/// A chart for each size: measured, by optimisations; and one for the model.
fn charts(points: &[Point]) -> Vec<Chart> {
    let of = |size: u64, optimisations: Optimisations, value: fn(&Point) -> Option<f64>| -> Option<Vec<f64>> {
        let is_it = |point: &&Point| point.size == size && point.optimisations == optimisations;
        points.iter().filter(is_it).map(value).collect()
    };
    let named = |name: String, points: Vec<f64>| lines::Line { name, points };
    let measured = SIZES.map(|size| {
        let line = |one| Some(named(format!("optimisations {one}"), of(size, one, |point| Some(point.gbps()))?));
        let lines = Optimisations::STEPS.into_iter().filter_map(line).collect();
        Chart { title: format!("Messages of {} MiB here", size >> 20), unit: "Gbit/s", lines }
    });
    let size = SIZES[0];
    let line = |one| Some(named(format!("optimisations {one}"), of(size, one, Point::model)?));
    let lines = Optimisations::STEPS.into_iter().filter_map(line).collect();
    let title = format!("Messages of {} MiB on the source's machine, by the model", size >> 20);
    measured.into_iter().chain([Chart { title, unit: "Gbit/s", lines }]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> Vec<Point> {
        let of = |size, mtu, optimisations| {
            let line = |value| Line { value, cpu: [0.9, 0.8], copies: Some(2.0) };
            Point { size, mtu, optimisations, flow: line(f64::from(mtu) / 1e6), latency: Some(line(5e3)) }
        };
        let with = |mtu| Optimisations::STEPS.into_iter().flat_map(move |one| SIZES.map(|size| of(size, mtu, one)));
        mtus(0).flat_map(with).collect()
    }

    #[test]
    fn a_row_has_what_is_promised() {
        let row = points()[0].row().to_json();
        for key in [
            "bench",
            "size",
            "scheme",
            "mtu",
            "optimisations",
            "gbps",
            "latency_p50_ns",
            "cpu_send",
            "cpu_receive",
            "copies",
            "source_model_gbps",
        ] {
            assert!(row.contains(&format!("\"{key}\":")), "{key} is not in {row}");
        }
        assert!(row.contains(r#""optimisations":"none""#), "{row}");
    }

    #[test]
    fn the_model_stands_beside_none_and_all_of_the_optimisations() {
        let with_model: Vec<String> = points()
            .iter()
            .filter(|point| point.model().is_some())
            .map(|point| point.optimisations.to_string())
            .collect();
        assert_eq!(with_model.len(), 2 * 2 * 11);
        assert!(with_model.iter().all(|one| one == "none" || one == "123"));
    }

    #[test]
    fn there_are_lines_for_all_that_was_measured() {
        let charts = charts(&points());
        assert_eq!(charts.iter().map(|chart| chart.lines.len()).collect::<Vec<_>>(), [4, 4, 2]);
        assert!(charts.iter().flat_map(|chart| &chart.lines).all(|line| line.points.len() == 11));
        assert_eq!(mtus(0).map(label).collect::<Vec<_>>()[..2], ["1 KiB", "2 KiB"]);
    }
}
