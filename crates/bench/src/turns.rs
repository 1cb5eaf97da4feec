//! Metrics that are measured in turns, round by round and column by column; what was measured until Ctrl-C is kept.

use millrace_tool::failure::Failure;
use millrace_tool::output::note;
use millrace_tool::progress::Steps;
use millrace_tool::stop;

use crate::peers::samples::Samples;
use crate::rig::Cores;
use crate::steady;

/// Columns of the samples: ours, what it is compared with, and what stands beside both.
pub const OURS: usize = 0;
pub const PEER: usize = 1;
pub const BESIDE: usize = 2;

/// What is compared.
pub trait Compared: Copy + PartialEq {
    /// Its name in results.
    fn word(self) -> &'static str;
    /// Whose value stands in that column.
    fn column(self, column: usize) -> &'static str;
    /// The unit of its values.
    fn unit(self) -> &'static str;
    /// Digits behind the point.
    fn decimals(self) -> usize;
}

/// Takes all samples of `name`'s benchmark. `measure` is asked for one metric (which of `all`, and it) and one column: `None`, there is
/// none of it; an error is a sentence, and that column is not asked for again. What of ours could not be measured is returned, the first of it.
pub fn take<M: Compared>(
    name: &str,
    cores: Cores,
    rounds: u32,
    all: &mut [Samples<3, M>],
    mut measure: impl FnMut(usize, M, usize) -> Result<Option<f64>, String>,
) -> Option<String> {
    let (mut absent, mut failed) = (Vec::new(), None);
    let steps = Steps::new(name, u64::from(rounds) * all.len() as u64);
    for _ in 0..rounds {
        for (at, samples) in all.iter_mut().enumerate() {
            let metric = samples.metric;
            steps.next(metric.word());
            samples.begin();
            for column in [OURS, PEER, BESIDE] {
                if stop::asked() {
                    return failed;
                }
                if absent.contains(&(metric.word(), column)) {
                    continue;
                }
                let shown = |value: f64| format!("{value:.*} {}", metric.decimals(), metric.unit());
                let name = format!("{} {}", metric.word(), metric.column(column));
                match steady::take(cores, &name, shown, || measure(at, metric, column)) {
                    Ok(sample) => samples.add(column, sample),
                    Err(why) => {
                        note(format!("{name}: left out: {why}"));
                        absent.push((metric.word(), column));
                        if column == OURS {
                            failed.get_or_insert(format!("{name}: {why}"));
                        }
                    }
                }
            }
        }
    }
    failed
}

/// How a benchmark ends, when all that was measured is printed.
pub fn end(failed: Option<String>) -> Result<(), Failure> {
    match failed {
        _ if stop::asked() => Err(Failure::Interrupted),
        Some(why) => Err(Failure::Found(why)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq)]
    struct Plain(&'static str);

    impl Compared for Plain {
        fn word(self) -> &'static str {
            self.0
        }

        fn column(self, column: usize) -> &'static str {
            ["ours", "peer", "beside"][column]
        }

        fn unit(self) -> &'static str {
            "ns"
        }

        fn decimals(self) -> usize {
            0
        }
    }

    #[test]
    fn what_fails_is_asked_for_once_and_what_of_ours_failed_first_is_said() {
        let mut all: Vec<Samples<3, Plain>> = [Plain("a"), Plain("b")].map(Samples::new).into();
        let cores = Cores { app: None, card: None };
        let mut asked = Vec::new();
        let failed = take("test", cores, 2, &mut all, |at, metric, column| {
            asked.push((at, column));
            match (metric.word(), column) {
                ("a", PEER) => Err("no peer".to_owned()),
                ("b", OURS) => Err("nothing".to_owned()),
                (_, BESIDE) => Ok(None),
                _ => Ok(Some(5.0)),
            }
        });
        assert_eq!(failed.as_deref(), Some("b ours: nothing"));
        let (first, second) = ([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], [(0, 0), (0, 2), (1, 1), (1, 2)]);
        assert_eq!(asked, [&first[..], &second[..]].concat());
        assert_eq!(all[0].choose().values, [Some(5.0), None, None]);
        assert_eq!(all[1].choose().values, [None, Some(5.0), None]);
    }
}
