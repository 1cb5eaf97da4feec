//! What was measured round by round, and the median of what may be compared: samples that were taken while the two cores
//! were at the same distance.

use millrace_tool::output::Row;

use super::metric::Metric;
use crate::median::median;
use crate::rig::Cores;
use crate::steady::{self, Sample};

/// The round trip of a cache line from which on two cores are far from each other, in ns.
const FAR: f64 = 240.0;

/// How far the two cores are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// They share a cache.
    Near,
    /// They do not.
    Far,
    /// There are not two.
    Unknown,
}

impl Distance {
    const ALL: [Distance; 3] = [Distance::Near, Distance::Far, Distance::Unknown];

    fn of(cacheline_ns: Option<f64>) -> Self {
        match cacheline_ns {
            Some(ns) if ns < FAR => Distance::Near,
            Some(_) => Distance::Far,
            None => Distance::Unknown,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Distance::Near => "near",
            Distance::Far => "far",
            Distance::Unknown => "unknown",
        }
    }
}

/// How far the cores were from each other.
fn distance_of(sample: &Sample) -> Distance {
    Distance::of(sample.cacheline_ns)
}

/// Takes a sample of a metric, as [`steady::take`] does.
pub fn take<E>(
    cores: Cores,
    metric: Metric,
    peer: &str,
    measure: impl FnMut() -> Result<Option<f64>, E>,
) -> Result<Option<Sample>, E> {
    let shown = |value: f64| format!("{value:.*} {}", metric.decimals(), metric.unit());
    steady::take(cores, &format!("{} {peer}", metric.word()), shown, measure)
}

/// All samples of a metric: a row per round, a column for each who takes part.
#[derive(Clone, Debug)]
pub struct Samples<const N: usize, M = Metric> {
    /// The metric.
    pub metric: M,
    rounds: Vec<[Option<Sample>; N]>,
}

/// What is printed of them.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<const N: usize> {
    /// Rounds in which everybody was measured at that distance.
    rounds: usize,
    distance: Distance,
    cacheline_ns: Option<f64>,
    /// Medians.
    pub values: [Option<f64>; N],
}

impl<const N: usize, M> Samples<N, M> {
    /// None yet.
    pub fn new(metric: M) -> Self {
        Self { metric, rounds: Vec::new() }
    }

    /// A new round begins.
    pub fn begin(&mut self) {
        self.rounds.push([None; N]);
    }

    /// What was taken in this round for the one in that column.
    pub fn add(&mut self, column: usize, sample: Option<Sample>) {
        if let Some(round) = self.rounds.last_mut() {
            round[column] = sample;
        }
    }

    /// The samples of the distance with the most rounds in which nobody was missing who was there at all. Without a single
    /// such round, those of the distance with the most samples.
    pub fn choose(&self) -> Chosen<N> {
        let distance = Distance::ALL
            .into_iter()
            .rev()
            .max_by_key(|distance| (self.complete(*distance).count(), self.at(*distance).flatten().flatten().count()))
            .expect("there are some");
        let rounds = self.complete(distance).count();
        let kept: Vec<[Option<Sample>; N]> =
            if rounds > 0 { self.complete(distance).collect() } else { self.at(distance).collect() };
        let column = |at: usize| kept.iter().filter_map(|round| Some(round[at]?.value)).collect::<Vec<f64>>();
        let lines: Vec<f64> = kept.iter().flatten().filter_map(|sample| sample.as_ref()?.cacheline_ns).collect();
        let values = std::array::from_fn(|at| median(&column(at)));
        Chosen { rounds, distance, cacheline_ns: median(&lines), values }
    }

    /// Every round, without the samples of other distances.
    fn at(&self, distance: Distance) -> impl Iterator<Item = [Option<Sample>; N]> + '_ {
        let of = move |sample: Option<Sample>| sample.filter(|sample| distance_of(sample) == distance);
        self.rounds.iter().map(move |round| round.map(of))
    }

    /// The rounds in which that distance lasted for all who were measured in any round.
    fn complete(&self, distance: Distance) -> impl Iterator<Item = [Option<Sample>; N]> + '_ {
        let is_there = |at: usize| self.rounds.iter().any(|round| round[at].is_some());
        let wanted: [bool; N] = std::array::from_fn(is_there);
        let anybody = wanted.contains(&true);
        let is_whole = move |round: &[Option<Sample>; N]| {
            anybody && wanted.iter().zip(round).all(|(wanted, sample)| !wanted || sample.is_some())
        };
        self.at(distance).filter(is_whole)
    }
}

impl<const N: usize> Chosen<N> {
    /// The fields that every row of results begins with.
    pub fn row(&self, metric: Metric, size: u16) -> Row {
        let start = Row::new()
            .tag("bench", "peers")
            .text("metric", metric.word())
            .text("unit", metric.unit())
            .count("size", u64::from(size));
        self.end(start)
    }

    /// The same at the end of a row that begins with something else.
    pub fn end(&self, row: Row) -> Row {
        row.count("count", self.rounds as u64).text("distance", self.distance.word()).maybe(
            "cacheline_ns",
            self.cacheline_ns,
            1,
        )
    }

    /// One value by another.
    pub fn ratio(&self, one: usize, other: usize) -> Option<f64> {
        Some(self.values[one]? / self.values[other]?)
    }
}

#[cfg(test)]
pub fn of_rounds<const N: usize>(metric: Metric, rounds: &[[Option<(f64, f64)>; N]]) -> Samples<N> {
    let sample = |(value, ns)| Sample { value, cacheline_ns: Some(ns) };
    Samples { metric, rounds: rounds.iter().map(|round| round.map(|one| one.map(sample))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_samples_of_one_distance_are_compared() {
        let (near, far) = (120.0, 380.0);
        let samples = of_rounds(
            Metric::RttP50,
            &[
                [Some((300.0, near)), Some((700.0, near)), None],
                [Some((900.0, far)), Some((1900.0, far)), None],
                [Some((320.0, near)), Some((1900.0, far)), None],
                [Some((340.0, near)), Some((800.0, near)), None],
                [Some((310.0, near)), None, None],
            ],
        );
        let chosen = samples.choose();
        assert_eq!((chosen.rounds, chosen.distance), (2, Distance::Near));
        assert_eq!(chosen.values, [Some(320.0), Some(750.0), None], "of the first and the fourth round");
        let json = chosen.row(Metric::RttP50, 64).to_json();
        assert!(json.ends_with(r#""count":2,"distance":"near","cacheline_ns":120.0}"#), "{json}");
    }

    #[test]
    fn without_a_complete_round_the_more_samples_count() {
        let samples =
            of_rounds(Metric::TxMpps64, &[[Some((10.0, 400.0)), Some((30.0, 100.0))], [Some((12.0, 400.0)), None]]);
        let chosen = samples.choose();
        assert_eq!((chosen.rounds, chosen.distance, chosen.values), (0, Distance::Far, [Some(11.0), None]));
        assert_eq!(Samples::<2>::new(Metric::TxMpps64).choose().values, [None, None]);
    }

    #[test]
    fn a_sample_is_taken_again_while_nothing_is_known_of_the_cores_only_once() {
        let nowhere = Cores { app: None, card: None };
        let mut taken = 0;
        let sample = take(nowhere, Metric::RttP50, "test", || {
            taken += 1;
            Ok::<_, ()>(Some(5.0))
        });
        assert_eq!((taken, sample), (1, Ok(Some(Sample { value: 5.0, cacheline_ns: None }))));
    }
}
