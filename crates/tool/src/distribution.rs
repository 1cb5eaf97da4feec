//! Many measured times, and what can be said about them.

use hdrhistogram::Histogram;

/// Longest time that is told apart from longer ones, in ns: a minute.
const LONGEST: u64 = 60_000_000_000;

/// Significant decimal digits of a time in the histogram.
const DIGITS: u8 = 3;

/// A set of times in nanoseconds. Means are exact, quantiles have three significant digits. Nothing is allocated after
/// [`Distribution::new`].
#[derive(Clone, Debug)]
pub struct Distribution {
    histogram: Histogram<u64>,
    sum: f64,
    sum_of_squares: f64,
    sum_of_logs: f64,
    min: u64,
    max: u64,
}

/// How many times fell between two bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// Lower bound in ns, included.
    pub from: f64,
    /// Upper bound in ns, not included.
    pub to: f64,
    /// Times between them.
    pub count: u64,
}

impl Distribution {
    /// No times yet.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_max(LONGEST, DIGITS).expect("bounds and digits are those of a histogram");
        Self { histogram, sum: 0.0, sum_of_squares: 0.0, sum_of_logs: 0.0, min: u64::MAX, max: 0 }
    }

    /// Adds a time.
    pub fn record(&mut self, nanos: u64) {
        // A time below the clock's resolution would make the geometric mean 0.
        let nanos = nanos.max(1);
        let value = nanos as f64;
        self.histogram.saturating_record(nanos);
        self.sum += value;
        self.sum_of_squares += value * value;
        self.sum_of_logs += value.ln();
        self.min = self.min.min(nanos);
        self.max = self.max.max(nanos);
    }

    /// Adds the times of another set.
    pub fn add(&mut self, other: &Distribution) {
        self.histogram.add(&other.histogram).expect("all histograms have the same bounds");
        self.sum += other.sum;
        self.sum_of_squares += other.sum_of_squares;
        self.sum_of_logs += other.sum_of_logs;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// How many times there are.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Arithmetic mean in ns; `None` of nothing.
    pub fn mean(&self) -> Option<f64> {
        self.per_count(self.sum)
    }

    /// Geometric mean in ns; `None` of nothing.
    pub fn geometric_mean(&self) -> Option<f64> {
        self.per_count(self.sum_of_logs).map(f64::exp)
    }

    /// Standard deviation in ns; `None` of nothing.
    pub fn deviation(&self) -> Option<f64> {
        let mean = self.mean()?;
        self.per_count(self.sum_of_squares).map(|squares| (squares - mean * mean).max(0.0).sqrt())
    }

    /// The time that a share of `quantile` does not exceed, in ns; `None` of nothing.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        // The histogram answers with the upper end of a bin, which may lie above the longest time.
        (!self.is_empty()).then(|| self.histogram.value_at_quantile(quantile).clamp(self.min, self.max))
    }

    /// The shortest time in ns; `None` of nothing.
    pub fn min(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.min)
    }

    /// The longest time in ns; `None` of nothing.
    pub fn max(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.max)
    }

    /// Counts in `bins` bins from `from` to `to` ns, equally wide on a logarithmic scale. Times outside are left out.
    pub fn logarithmic_bins(&self, from: f64, to: f64, bins: usize) -> Vec<Bin> {
        let step = (to / from).powf(1.0 / bins as f64);
        let edge = |at: usize| from * step.powi(at as i32);
        let mut counts: Vec<Bin> = (0..bins).map(|at| Bin { from: edge(at), to: edge(at + 1), count: 0 }).collect();
        for recorded in self.histogram.iter_recorded() {
            let value = recorded.value_iterated_to() as f64;
            let at = (value / from).ln() / step.ln();
            if let Some(bin) = (at >= 0.0).then(|| counts.get_mut(at as usize)).flatten() {
                bin.count += recorded.count_since_last_iteration();
            }
        }
        counts
    }

    fn per_count(&self, sum: f64) -> Option<f64> {
        (!self.is_empty()).then(|| sum / self.count() as f64)
    }
}

impl Default for Distribution {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times: &[u64]) -> Distribution {
        let mut distribution = Distribution::new();
        times.iter().for_each(|time| distribution.record(*time));
        distribution
    }

    #[test]
    fn means_and_quantiles_of_a_known_set() {
        let set = of(&[100, 200, 400, 800]);
        assert_eq!(set.mean(), Some(375.0));
        assert!((set.geometric_mean().unwrap() - 282.842_712).abs() < 1e-5);
        assert!((set.deviation().unwrap() - 268.095_132).abs() < 1e-5);
        assert_eq!(
            (set.min(), set.max(), set.quantile(0.5), set.quantile(1.0)),
            (Some(100), Some(800), Some(200), Some(800))
        );
    }

    #[test]
    fn nothing_has_no_mean() {
        let set = Distribution::new();
        assert_eq!((set.mean(), set.geometric_mean(), set.deviation(), set.quantile(0.5)), (None, None, None, None));
        assert_eq!((set.min(), set.max()), (None, None));
    }

    #[test]
    fn adding_is_recording_both() {
        let mut set = of(&[1, 2, 3]);
        set.add(&of(&[1000, 0]));
        set.add(&Distribution::new());
        assert_eq!((set.count(), set.min(), set.max(), set.mean()), (5, Some(1), Some(1000), Some(201.4)));
    }

    #[test]
    fn bins_share_the_times_out() {
        let set = of(&[10, 11, 99, 100, 500, 5000]);
        let bins = set.logarithmic_bins(10.0, 1000.0, 2);
        assert_eq!(bins.iter().map(|bin| bin.count).collect::<Vec<_>>(), [3, 2]);
        assert!((bins[0].to - 100.0).abs() < 1e-9);
    }
}
