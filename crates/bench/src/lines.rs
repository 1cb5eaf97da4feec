//! Charts with a line for each case, under each other in one SVG.

use std::path::Path;

use millrace_tool::failure::Failure;
use plotters::prelude::*;

use crate::plot::{COLOURS, text};

/// Width of the drawing and height of one chart, in pixels.
const SIZE: (u32, u32) = (960, 480);

/// One chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What stands above it.
    pub title: String,
    /// Unit of the vertical axis, which begins at 0.
    pub unit: &'static str,
    /// The lines.
    pub lines: Vec<Line>,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// What the legend calls it.
    pub name: String,
    /// Its values, one for each place of the horizontal axis.
    pub points: Vec<f64>,
}

/// Draws the charts into `file`. Their horizontal axes have the places `labels`, equally far apart.
pub fn draw(file: &Path, axis: &str, labels: &[String], charts: &[Chart]) -> Result<(), Failure> {
    let mut svg = String::new();
    render(&mut svg, axis, labels, charts)
        .map_err(|why| Failure::Found(format!("cannot draw {}: {why}", file.display())))?;
    std::fs::write(file, svg).map_err(|source| Failure::File { doing: "cannot write", path: file.to_owned(), source })
}

fn render(svg: &mut String, axis: &str, labels: &[String], charts: &[Chart]) -> Result<(), String> {
    let size = (SIZE.0, SIZE.1 * charts.len() as u32);
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    area.fill(&WHITE).map_err(text)?;
    for (part, chart) in area.split_evenly((charts.len(), 1)).iter().zip(charts) {
        draw_chart(part, axis, labels, chart)?;
    }
    area.present().map_err(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_chart(area: &Area<'_>, axis: &str, labels: &[String], chart: &Chart) -> Result<(), String> {
    let highest = chart.lines.iter().flat_map(|line| &line.points).copied().fold(0.0, f64::max);
    if highest <= 0.0 || labels.is_empty() {
        return Err("nothing was measured".to_owned());
    }
    // Room above for the legend, and beside the first and the last place.
    let (last, top) = (labels.len() as f64 - 1.0, highest * 1.3);
    let mut context = ChartBuilder::on(area)
        .caption(&chart.title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(72)
        .build_cartesian_2d(-0.5..last + 0.5, 0.0..top)
        .map_err(text)?;
    let place = |at: &f64| {
        let nearest = at.round();
        let label = labels.get(nearest as usize).filter(|_| (at - nearest).abs() < 1e-6 && nearest >= 0.0);
        label.cloned().unwrap_or_default()
    };
    let decimals = if top < 3.0 { 2 } else { usize::from(top < 30.0) };
    context
        .configure_mesh()
        .x_desc(axis)
        .y_desc(chart.unit)
        .x_labels(labels.len() * 2 + 1)
        .x_label_formatter(&place)
        .y_label_formatter(&|value| format!("{value:.decimals$}"))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 16))
        .disable_x_mesh()
        .light_line_style(WHITE)
        .draw()
        .map_err(text)?;
    for (line, colour) in chart.lines.iter().zip(COLOURS.iter().cycle()) {
        let points = || line.points.iter().enumerate().map(|(at, value)| (at as f64, *value));
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2));
        context
            .draw_series(LineSeries::new(points(), colour.stroke_width(2)))
            .map_err(text)?
            .label(&line.name)
            .legend(legend);
        context.draw_series(points().map(|point| Circle::new(point, 4, colour.filled()))).map_err(text)?;
    }
    context
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.4))
        .draw()
        .map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[f64]) -> Chart {
        let line = |name: &str| Line { name: name.into(), points: points.to_vec() };
        Chart { title: "Throughput".into(), unit: "Gbit/s", lines: vec![line("1 queue pair"), line("8 queue pairs")] }
    }

    #[test]
    fn both_charts_have_titles_axes_legends_and_points() {
        let labels = ["64", "1536"].map(str::to_owned);
        let latency = Chart { title: "Round trip".into(), unit: "ns", ..chart(&[250.0, 600.0]) };
        let mut svg = String::new();
        render(&mut svg, "bytes", &labels, &[chart(&[10.0, 55.5]), latency]).unwrap();
        for wanted in ["Throughput", "Round trip", "Gbit/s", "ns", "8 queue pairs", "64", "1536", "bytes", "</svg>"] {
            assert!(svg.contains(wanted), "{wanted:?} is not in the drawing");
        }
        assert_eq!(svg.matches("<circle").count(), 8);
    }

    #[test]
    fn nothing_measured_is_no_drawing() {
        assert!(render(&mut String::new(), "bytes", &[], &[chart(&[])]).is_err());
        assert!(render(&mut String::new(), "bytes", &["64".into()], &[chart(&[0.0])]).is_err());
    }
}
