//! Samples that were taken while the two cores stayed at the same distance: right before and right after each, the round trip of a
//! cache line between them is measured.

use millrace_tool::output::note;
use millrace_tool::stop;

use crate::cacheline::Trips;
use crate::rig::Cores;

/// How long the distance is measured, in seconds.
const PROBE: f64 = 0.003;
/// By how much it may change during a sample.
const TOLERANCE: f64 = 0.2;
/// How often a sample is taken before it is given up.
const TRIES: u32 = 4;

/// One value, and the round trip of a cache line while it was taken, in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The value.
    pub value: f64,
    /// The round trip; none if there are not two cores.
    pub cacheline_ns: Option<f64>,
}

/// Takes a sample, and takes it again if the distance has changed meanwhile. `None`: there is nothing to be measured, it never stayed
/// the same, or Ctrl-C came meanwhile, which ends what is measured too early, and as an error at times. `name` and `shown` are for what
/// standard error is told.
pub fn take<E>(
    cores: Cores,
    name: &str,
    shown: impl Fn(f64) -> String,
    mut measure: impl FnMut() -> Result<Option<f64>, E>,
) -> Result<Option<Sample>, E> {
    let distance = || Trips::make(cores, PROBE).map(|trips| trips.distance());
    for _ in 0..TRIES {
        let before = distance();
        let measured = measure();
        if stop::asked() {
            return Ok(None);
        }
        let Some(value) = measured? else { return Ok(None) };
        let after = distance();
        let line = |ns: Option<f64>| ns.map_or_else(|| "unknown".to_owned(), |ns| format!("{ns:.0} ns"));
        note(format!("{name}: {}; cache line {} before, {} after", shown(value), line(before), line(after)));
        if before.zip(after).is_none_or(|(before, after)| is_steady(before, after)) {
            let cacheline_ns = before.zip(after).map(|(before, after)| (before + after) / 2.0);
            return Ok(Some(Sample { value, cacheline_ns }));
        }
    }
    note(format!("{name}: given up for this round, the cores moved in each of {TRIES} tries"));
    Ok(None)
}

fn is_steady(before: f64, after: f64) -> bool {
    (before - after).abs() <= TOLERANCE * before.min(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_is_steady_and_more_is_not() {
        assert!(is_steady(100.0, 120.0) && is_steady(120.0, 100.0));
        assert!(!is_steady(100.0, 121.0) && !is_steady(350.0, 200.0));
    }

    #[test]
    fn nothing_to_measure_is_no_sample() {
        let cores = Cores { app: None, card: None };
        let of = |value: Option<f64>| take::<()>(cores, "x", |value| value.to_string(), || Ok(value)).unwrap();
        assert_eq!(of(None), None);
        assert_eq!(of(Some(3.0)), Some(Sample { value: 3.0, cacheline_ns: None }));
    }
}
