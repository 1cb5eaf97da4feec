//! How far a long run has come, on standard error, when somebody watches.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::clock::Moment;
use crate::meter::Meter;
use crate::output::is_watched;
use crate::traffic::Gauge;

/// How often the line is drawn.
pub const PERIOD: Duration = Duration::from_millis(250);

/// A line that shows how far several loops have come together.
pub struct Progress {
    bar: ProgressBar,
    start: Moment,
}

impl Progress {
    /// A line for `goal` frames, or for as many as come.
    pub fn new(what: &str, goal: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(goal, target());
        let template = match goal {
            Some(_) => "{prefix} {wide_bar} {percent}% {msg}, {eta} left",
            None => "{prefix} {spinner} {elapsed} {msg}",
        };
        // A template that is wrong shows in the tests; at run time the plain bar will do.
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(what.to_owned());
        Self { bar, start: Moment::now() }
    }

    /// Shows the sum of `meters`.
    pub fn show(&self, meters: &[Meter]) {
        let packets: u64 = meters.iter().map(Meter::frames).sum();
        self.say(packets, format!("{packets} frames, {:.2} Mpps", self.mpps(packets)));
    }

    /// Shows what went out and what came back.
    pub fn show_exchange(&self, gauges: &[Gauge]) {
        let sent: u64 = gauges.iter().map(|gauge| gauge.sent.frames()).sum();
        let received: u64 = gauges.iter().map(|gauge| gauge.received.frames()).sum();
        let (out, back) = (self.mpps(sent), self.mpps(received));
        self.say(sent, format!("{sent} sent, {out:.2} Mpps, {received} received, {back:.2} Mpps"));
    }

    /// Millions of frames per second since the start.
    fn mpps(&self, packets: u64) -> f64 {
        packets as f64 / self.start.seconds().max(1e-9) * 1e-6
    }

    fn say(&self, position: u64, message: String) {
        self.bar.set_message(message);
        self.bar.set_position(position);
        self.bar.tick();
    }

    /// Removes the line.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// A line that counts the steps of something longer, such as the rounds of a benchmark. It draws only between steps, so
/// that nothing is drawn while something is measured.
pub struct Steps(ProgressBar);

impl Steps {
    /// A line for `count` steps.
    pub fn new(what: &str, count: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(count), target());
        let style = ProgressStyle::with_template("{prefix} [{pos}/{len}] {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(what.to_owned());
        Self(bar)
    }

    /// The next step begins.
    pub fn next(&self, what: impl Into<String>) {
        self.0.inc(1);
        self.0.set_message(what.into());
        self.0.tick();
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn target() -> ProgressDrawTarget {
    if is_watched() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_the_sum_of_its_meters() {
        let meter = Meter::default();
        meter.add(33, 2112);
        let progress = Progress::new("test", Some(40));
        progress.show(&[meter]);
        assert_eq!(progress.bar.position(), 33);
        progress.finish();
    }
}
