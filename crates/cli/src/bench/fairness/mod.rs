//! `millrace bench fairness`: what a program notices of others that are hostile, flooded or many.
//!
//! One file per metric. Each has a card of its own; those who disturb are processes of their own (`millrace hostile`). A
//! case is measured in turns with what it is compared with, `--rounds` times, and medians are compared.

mod bystander_rtt;
mod child;
mod cold_look;
mod flooded_share;
mod request;
mod trips;

use clap::Args;

use super::median;
use super::rig::{Cores, Rig};
use crate::args::Shared;
use crate::failure::Failure;
use crate::list::Queues;
use crate::output::{Output, Row, note};
use crate::progress::Steps;
use crate::{cores, stop};

/// Options of `bench fairness`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each metric has a row per case, and one with the worst of them and the goal.

bystander_rtt_ratio: p99 of the round trip of a quiet queue, whose program
  spins, while a ring of another program is served by the same worker: a
  hostile one, against an honest one at full speed.
flooded_share: frames per second of a queue beside 1 or 32 flooded queues of
  another program on the same worker, of half of what it has alone.
request_p99_ms: control requests (read a register, open, close) of a bystander
  while others flood the socket or use up descriptors.
cold_look_p99_us: from flush to arrival of a frame on one of many quiet queues
  while many others are busy, all on one worker; and how late a frame with a
  launch time leaves there.

delayed counts the samples left out because the measuring program itself was
not running when the frame arrived (no look for 20 us or more): on a machine
with few cores others take its core from it, which is no doing of the card.
Where these are more than half, they are not left out. A frame that is not
back after ten seconds counts as having taken these.

Examples:
  millrace bench fairness
  millrace bench fairness --metric bystander_rtt_ratio --case medusa-tx-endless
  millrace bench fairness --rounds 5 --seconds 2 --json")]
pub struct FairnessArgs {
    /// How often to measure everything
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    /// Only this case [default: all of the metric]
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Only this metric [default: all]
    #[arg(long, value_name = "NAME")]
    metric: Option<String>,
    /// Busy queues of cold_look_p99_us
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=2000))]
    busy: u32,
    /// Quiet queues of cold_look_p99_us
    #[arg(long, value_name = "N", default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..=3095))]
    quiet: u32,
}

/// Where the figure of a metric has to be.
#[derive(Clone, Copy)]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Goal::AtMost(limit) => value <= limit,
            Goal::AtLeast(limit) => value >= limit,
        }
    }

    /// Whether `one` is further from the goal than `other`.
    fn is_worse(self, one: f64, other: f64) -> bool {
        match self {
            Goal::AtMost(_) => one > other,
            Goal::AtLeast(_) => one < other,
        }
    }

    fn text(self) -> String {
        match self {
            Goal::AtMost(limit) => format!("<= {limit}"),
            Goal::AtLeast(limit) => format!(">= {limit}"),
        }
    }
}

/// One metric.
struct Metric {
    name: &'static str,
    goal: Goal,
    /// Names of its cases.
    cases: fn() -> Vec<&'static str>,
    measure: fn(&Setting<'_>, &[&'static str]) -> Result<Vec<Measured>, Failure>,
}

const METRICS: [Metric; 4] = [bystander_rtt::METRIC, flooded_share::METRIC, request::METRIC, cold_look::METRIC];

/// What all metrics are given.
struct Setting<'a> {
    shared: &'a Shared,
    cores: Cores,
    args: &'a FairnessArgs,
    steps: &'a Steps,
}

/// What became of one case.
struct Measured {
    case: &'static str,
    /// What is compared with the goal.
    value: Option<f64>,
    /// Whether it is one of those that have to meet the goal, and not one to compare with.
    counts: bool,
    /// The row as it is shown.
    row: Row,
}

/// Runs the command.
pub fn run(shared: &Shared, cores: Cores, args: &FairnessArgs) -> Result<(), Failure> {
    if let Some(device) = &shared.device {
        let text = "bench fairness disturbs the card that it measures, and takes one of its own: leave --device out";
        return Err(Failure::Usage(format!("{text} (it is {device})")));
    }
    let chosen = choose(args)?;
    if third_core(cores).is_none() {
        note("fewer than three cores: those who disturb share the core of the program that measures");
    }
    let count: usize = chosen.iter().map(|(_, cases)| cases.len()).sum();
    let steps = Steps::new("fairness", count as u64 * u64::from(args.rounds));
    let setting = Setting { shared, cores, args, steps: &steps };
    for (metric, cases) in chosen {
        let measured = (metric.measure)(&setting, &cases);
        if stop::asked() {
            return Err(Failure::Interrupted);
        }
        report(shared, args, metric, &measured?)?;
    }
    Ok(())
}

/// The metrics that were asked for, with those of their cases that were.
fn choose(args: &FairnessArgs) -> Result<Vec<(&'static Metric, Vec<&'static str>)>, Failure> {
    let is_wanted = |name: &Option<String>, has: &str| name.as_deref().is_none_or(|name| name == has);
    let metrics: Vec<&Metric> = METRICS.iter().filter(|metric| is_wanted(&args.metric, metric.name)).collect();
    if metrics.is_empty() {
        let names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        let asked = args.metric.as_deref().unwrap_or_default();
        return Err(Failure::Usage(format!("--metric {asked}: there are {}", names.join(", "))));
    }
    let cases_of = |metric: &Metric| (metric.cases)().into_iter().filter(|case| is_wanted(&args.case, case)).collect();
    let mut chosen: Vec<(&Metric, Vec<&str>)> = metrics.iter().map(|metric| (*metric, cases_of(metric))).collect();
    chosen.retain(|(_, cases)| !cases.is_empty());
    if chosen.is_empty() {
        let names: Vec<&str> = metrics.iter().flat_map(|metric| (metric.cases)()).collect();
        let asked = args.case.as_deref().unwrap_or_default();
        return Err(Failure::Usage(format!("--case {asked}: there are {}", names.join(", "))));
    }
    Ok(chosen)
}

fn report(shared: &Shared, args: &FairnessArgs, metric: &Metric, measured: &[Measured]) -> Result<(), Failure> {
    let output = Output::new(shared.json);
    let rows: Vec<Row> = measured.iter().map(|measured| measured.row.clone()).collect();
    output.rows(&format!("{}, medians of {} rounds", metric.name, args.rounds), &rows)?;
    let worst = worst(metric.goal, measured).map(|(case, value)| {
        head(metric.name)
            .text("worst_case", case)
            .number("worst", value, 3)
            .text("goal", metric.goal.text())
            .text("met", if metric.goal.is_met(value) { "yes" } else { "no" })
    });
    Ok(output.rows("the worst of them", &worst.into_iter().collect::<Vec<_>>())?)
}

/// The case furthest from the goal; one without a value is nowhere near it.
fn worst(goal: Goal, measured: &[Measured]) -> Option<(&'static str, f64)> {
    let values = measured.iter().filter(|measured| measured.counts);
    let values = values.filter_map(|measured| Some((measured.case, measured.value?)));
    values.reduce(|worst, other| if goal.is_worse(other.1, worst.1) { other } else { worst })
}

/// The beginning of every row.
fn head(metric: &'static str) -> Row {
    Row::new().tag("bench", "fairness").tag("metric", metric)
}

/// A core for those who disturb, if there are three.
fn third_core(taken: Cores) -> Option<usize> {
    cores::allowed().into_iter().find(|core| Some(*core) != taken.app && Some(*core) != taken.card)
}

impl Setting<'_> {
    /// A card with one worker, which polls on its core, and `pairs` queue pairs.
    fn card(&self, pairs: u32, options: &[&str]) -> Result<Rig, Failure> {
        self.card_on(self.cores, pairs, options)
    }

    /// The same without a core of its own, and so without polling.
    fn card_anywhere(&self, pairs: u32, options: &[&str]) -> Result<Rig, Failure> {
        self.card_on(Cores { app: None, card: None }, pairs, options)
    }

    fn card_on(&self, cores: Cores, pairs: u32, options: &[&str]) -> Result<Rig, Failure> {
        let shared = Shared { queue: Some(Queues::first(pairs)), engine: Vec::new(), ..self.shared.clone() };
        Rig::start_with(&shared, cores, None, &[&["--port", "loopback", "--workers", "1"], options].concat())
    }

    /// The core of those who disturb.
    fn other_core(&self) -> Option<usize> {
        third_core(self.cores)
    }

    fn rounds(&self) -> impl Iterator<Item = u32> {
        (0..self.args.rounds).take_while(|_| !stop::asked())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    fn chosen(options: &str) -> Result<Vec<(&'static str, usize)>, Failure> {
        #[derive(Parser)]
        struct Only {
            #[command(flatten)]
            args: FairnessArgs,
        }
        let args = Only::try_parse_from(["x"].into_iter().chain(options.split_whitespace())).unwrap().args;
        Ok(choose(&args)?.into_iter().map(|(metric, cases)| (metric.name, cases.len())).collect())
    }

    #[test]
    fn metrics_and_cases_are_chosen_by_name_and_unknown_ones_listed() {
        assert_eq!(chosen("").unwrap().len(), METRICS.len());
        assert_eq!(chosen("--case medusa-tx-endless").unwrap(), [("bystander_rtt_ratio", 1)]);
        assert_eq!(chosen("--metric request_p99_ms --case fds").unwrap(), [("request_p99_ms", 1)]);
        let Err(Failure::Usage(text)) = chosen("--metric speed") else { panic!() };
        assert!(METRICS.iter().all(|metric| text.contains(metric.name)), "{text}");
        let Err(Failure::Usage(text)) = chosen("--metric request_p99_ms --case medusa-tx-endless") else { panic!() };
        assert!(text.contains("fds") && !text.contains("sze-jumps"), "{text}");
        assert!(Cli::try_parse_from("millrace bench fairness --rounds 0".split(' ')).is_err());
    }

    #[test]
    fn the_worst_is_the_one_furthest_from_the_goal() {
        let case = |case, value, counts| Measured { case, value, counts, row: Row::new() };
        let cases = [case("a", Some(1.0), true), case("b", Some(3.0), true), case("c", Some(9.0), false)];
        assert_eq!(worst(Goal::AtMost(2.0), &cases), Some(("b", 3.0)));
        assert_eq!(worst(Goal::AtLeast(2.0), &cases), Some(("a", 1.0)));
        assert!(Goal::AtMost(2.0).is_met(2.0) && !Goal::AtLeast(2.0).is_met(1.9));
    }
}
