//! Histograms of round trips over each other, as an SVG that needs no fonts of this machine.

use std::fmt::Display;
use std::path::Path;

use millrace_tool::distribution::{Bin, Distribution};
use millrace_tool::failure::Failure;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

const SIZE: (u32, u32) = (960, 540);
const BINS: usize = 240;
/// The share of the longest times that is cut off, so that a few interruptions do not squeeze everything else.
const CUT: f64 = 0.99;
/// Told apart in print and by the colour-blind (Okabe and Ito).
pub const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// One histogram.
#[derive(Clone, Debug)]
pub struct Curve<'a> {
    /// What the legend calls it.
    pub name: String,
    /// The times.
    pub times: &'a Distribution,
}

/// Draws the histograms into `file`. The horizontal axis is logarithmic and ends where all curves have had 99 % of
/// their times; the vertical axis is the share of packets per bin.
pub fn draw(file: &Path, title: &str, curves: &[Curve<'_>]) -> Result<(), Failure> {
    let mut svg = String::new();
    render(&mut svg, title, curves).map_err(|why| Failure::Found(format!("cannot draw the histograms: {why}")))?;
    std::fs::write(file, svg).map_err(|source| Failure::File { doing: "cannot write", path: file.to_owned(), source })
}

fn render(svg: &mut String, title: &str, curves: &[Curve<'_>]) -> Result<(), String> {
    let curves: Vec<&Curve<'_>> = curves.iter().filter(|curve| !curve.times.is_empty()).collect();
    let Some((from, to)) = range(&curves) else { return Err("nothing was measured".to_owned()) };
    let shares: Vec<Vec<(f64, f64)>> = curves.iter().map(|curve| steps(curve.times, from, to)).collect();
    let highest = shares.iter().flatten().map(|(_, share)| *share).fold(0.0, f64::max);

    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(text)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(LogTime::new(from, to), 0.0..highest * 1.08)
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc("round trip, logarithmic")
        .y_desc("share of packets per bin, %")
        .x_label_formatter(&|nanos| time(*nanos))
        .y_label_formatter(&|share| format!("{share:.1}"))
        .x_labels(12)
        .light_line_style(WHITE)
        .draw()
        .map_err(text)?;
    for ((curve, shares), colour) in curves.iter().zip(&shares).zip(COLOURS.iter().cycle()) {
        let area = AreaSeries::new(shares.iter().copied(), 0.0, colour.mix(0.25)).border_style(colour.stroke_width(1));
        let legend = move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.mix(0.6).filled());
        chart.draw_series(area).map_err(text)?.label(label(curve, to)).legend(legend);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.4))
        .draw()
        .map_err(text)?;
    area.present().map_err(text)
}

pub fn text(error: impl Display) -> String {
    error.to_string()
}

/// What all curves cover together, cut at the far end; `None` without curves.
fn range(curves: &[&Curve<'_>]) -> Option<(f64, f64)> {
    let from = curves.iter().filter_map(|curve| curve.times.min()).min()? as f64;
    let to = curves.iter().filter_map(|curve| curve.times.quantile(CUT)).max()? as f64;
    Some((from * 0.95, to.max(from * 1.1) * 1.05))
}

/// The outline of a histogram: two points per bin, at the height of its share in percent.
fn steps(times: &Distribution, from: f64, to: f64) -> Vec<(f64, f64)> {
    let bins = times.logarithmic_bins(from, to, bins_for(from, to));
    // A bin of 1.5 ns holds one or two whole nanoseconds; without the correction every other bin would be a spike.
    let correction = |bin: &Bin| (bin.to - bin.from) / (bin.to.ceil() - bin.from.ceil()).max(1.0);
    let share = |bin: &Bin| 100.0 * bin.count as f64 / times.count() as f64 * correction(bin);
    bins.iter().flat_map(|bin| [(bin.from, share(bin)), (bin.to, share(bin))]).collect()
}

/// As many bins as there is room for, but none narrower than the nanosecond in which times are measured.
fn bins_for(from: f64, to: f64) -> usize {
    let narrowest = (1.0 + 1.0 / from).ln();
    ((to / from).ln() / narrowest).floor().clamp(1.0, BINS as f64) as usize
}

fn label(curve: &Curve<'_>, to: f64) -> String {
    let median = curve.times.quantile(0.5).unwrap_or(0);
    let max = curve.times.max().unwrap_or(0);
    let cut = if max as f64 > to { format!(", longest {} (cut off)", time(max as f64)) } else { String::new() };
    format!("{}: median {}{cut}", curve.name, time(median as f64))
}

/// A time in the unit that suits it.
pub fn time(nanos: f64) -> String {
    match nanos {
        ..1e3 => format!("{nanos:.0} ns"),
        ..1e4 => format!("{:.2} µs", nanos * 1e-3),
        ..1e6 => format!("{:.0} µs", nanos * 1e-3),
        _ => format!("{:.1} ms", nanos * 1e-6),
    }
}

/// A logarithmic axis for times. `plotters` has one too, but that one puts labels at powers of ten only, of which a
/// latency histogram often has one or none.
struct LogTime {
    logs: RangedCoordf64,
    range: std::ops::Range<f64>,
}

impl LogTime {
    fn new(from: f64, to: f64) -> Self {
        Self { logs: (from.ln()..to.ln()).into(), range: from..to }
    }
}

impl Ranged for LogTime {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.logs.map(&value.max(self.range.start).ln(), limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        labels(&self.range, hint.max_num_points())
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for LogTime {
    fn format(value: &f64) -> String {
        time(*value)
    }
}

/// Round numbers inside the range, as many as there is room for: the first of these ladders that fits, else fewer.
fn labels(range: &std::ops::Range<f64>, most: usize) -> Vec<f64> {
    let ladders: [&[f64]; 4] = [
        &[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
        &[1.0, 2.0, 5.0],
        &[1.0],
    ];
    let on = |ladder: &[f64]| -> Vec<f64> {
        let decades = (0..12).map(|exponent| 10_f64.powi(exponent));
        let points = decades.flat_map(|decade| ladder.iter().map(move |step| step * decade));
        points.filter(|point| range.contains(point)).collect()
    };
    ladders.iter().map(|ladder| on(ladder)).find(|points| points.len() <= most).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(centre: u64) -> Distribution {
        let mut times = Distribution::new();
        for spread in 0..100 {
            (0..100 - spread).for_each(|_| times.record(centre + spread));
        }
        times.record(centre * 1000);
        times
    }

    #[test]
    fn the_drawing_has_axes_legend_and_both_curves() {
        let (direct, mediated) = (around(450), around(9_000));
        let curves = [
            Curve { name: "medusa direct".into(), times: &direct },
            Curve { name: "medusa mediated".into(), times: &mediated },
        ];
        let mut svg = String::new();
        render(&mut svg, "Round trip of 64 bytes", &curves).unwrap();
        for wanted in [
            "Round trip of 64 bytes",
            "round trip, logarithmic",
            "share of packets per bin, %",
            "medusa direct: median 4",
            "medusa mediated: median 9.0",
            "1.00 µs",
            "</svg>",
        ] {
            assert!(svg.contains(wanted), "{wanted:?} is not in the drawing");
        }
    }

    #[test]
    fn nothing_measured_is_no_drawing() {
        assert!(render(&mut String::new(), "x", &[]).is_err());
        let nothing = Distribution::new();
        assert!(render(&mut String::new(), "x", &[Curve { name: "n".into(), times: &nothing }]).is_err());
    }

    #[test]
    fn a_single_time_has_a_range_too() {
        let mut times = Distribution::new();
        times.record(500);
        render(&mut String::new(), "x", &[Curve { name: "n".into(), times: &times }]).unwrap();
    }

    #[test]
    fn labels_are_round_and_few() {
        assert_eq!(labels(&(430.0..530.0), 12), [500.0]);
        assert_eq!(labels(&(90.0..1100.0), 5), [100.0, 200.0, 500.0, 1000.0]);
        assert!(labels(&(10.0..1e9), 12).len() <= 12);
        assert_eq!([999.0, 1500.0, 15_000.0, 2e6].map(time), ["999 ns", "1.50 µs", "15 µs", "2.0 ms"]);
    }
}
