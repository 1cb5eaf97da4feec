//! `millrace bench fairness`: what a program notices of others that are hostile, flooded or many.
//!
//! One file per metric. Each has a card of its own; those who disturb are processes of their own (`millrace hostile`). A
//! case is measured in turns with what it is compared with, `--rounds` times, and medians are compared.

mod bystander_rtt;
mod child;
mod cold_look;
mod flooded_share;
mod request;
mod setting;
mod trips;

use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::progress::Steps;
use millrace_tool::stop;

use crate::rig::Cores;
pub use setting::FairnessArgs;
use setting::{Goal, Measured, Metric, Setting, head, third_core};

const METRICS: [Metric; 4] = [bystander_rtt::METRIC, flooded_share::METRIC, request::METRIC, cold_look::METRIC];

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

#[cfg(test)]
mod tests {
    use super::*;
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
