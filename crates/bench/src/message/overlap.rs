//! Computing beside a transfer, and how much of the transfer is hidden by it.

use std::hint::black_box;

use millrace_tool::clock::Moment;
use millrace_tool::output::note;

use crate::median::median;

/// By how much a share of what nobody disturbs is beside 0 % or 100 %.
const NOISE: f64 = 10.0;

/// Steps by which a processor is measured.
const PROBE: u64 = 1 << 18;

/// Something to compute that takes about so long, in registers.
#[derive(Clone, Copy, Debug)]
pub struct Computing {
    steps: u64,
}

impl Computing {
    /// One that takes so many ns by itself.
    pub fn of(nanos: f64) -> Self {
        let probe = Self { steps: PROBE };
        // Nothing is faster than what nobody disturbs.
        let fastest = (0..9).map(|_| probe.timed()).fold(f64::INFINITY, f64::min);
        Self { steps: (nanos / fastest * PROBE as f64).max(1.0) as u64 }
    }

    /// Computes. Each step needs the one before.
    pub fn run(&self) {
        let mut number = black_box(1_u64);
        for _ in 0..self.steps {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        black_box(number);
    }

    /// The same, by the clock: in ns.
    pub fn timed(&self) -> f64 {
        let begin = Moment::now();
        self.run();
        Moment::now().nanos_since(begin) as f64
    }
}

/// The share of a transfer that passes while something is computed, in percent, from how long both take alone and together.
pub fn overlap(transfer: f64, computing: f64, both: f64) -> f64 {
    (transfer + computing - both) / transfer * 100.0
}

/// The median of such shares. `None`: it is no share of a transfer, because something else has run on one of the cores; whoever reads on standard
/// error is told.
pub fn middle(shares: &[f64]) -> Option<f64> {
    let middle = median(shares)?;
    let is_share = (-NOISE..=100.0 + NOISE).contains(&middle);
    if !is_share {
        note(format!(
            "left out for this round: {middle:.1} % of a transfer is none, so something else runs on these cores"
        ));
    }
    is_share.then_some(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_nothing_is_all_and_one_after_the_other_is_nothing() {
        assert_eq!(overlap(200.0, 200.0, 200.0), 100.0);
        assert_eq!(overlap(200.0, 200.0, 400.0), 0.0);
        assert_eq!(overlap(200.0, 300.0, 320.0), 90.0);
    }

    #[test]
    fn what_is_no_share_is_left_out() {
        assert_eq!([98.0, -3.0, 101.0].map(|share| middle(&[share])), [Some(98.0), Some(-3.0), Some(101.0)]);
        assert_eq!([-117.6, 130.0, f64::NAN].map(|share| middle(&[share])), [None; 3]);
        assert_eq!(middle(&[]), None);
    }

    #[test]
    fn twice_as_long_is_twice_as_many_steps() {
        let steps = |nanos: f64| (0..5).map(|_| Computing::of(nanos).steps).max().unwrap();
        let (once, thrice) = (steps(200_000.0), steps(600_000.0));
        assert!(thrice > once && once > 0, "{once} {thrice}");
    }
}
