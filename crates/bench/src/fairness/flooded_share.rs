//! `flooded_share`: the throughput of a queue beside flooded ones of another program, of half of what it has alone.

use millrace_tool::failure::Failure;
use millrace_tool::stop;

use super::child::Disturber;
use super::setting::{Goal, Measured, Metric, Setting, head};
use crate::many::Many;
use crate::median::median;

const NAME: &str = "flooded_share";

pub const METRIC: Metric = Metric { name: NAME, goal: Goal::AtLeast(0.9), cases, measure };

/// Bytes of a frame.
const SIZE: u16 = 64;

/// Queue pairs of the card: the honest one, and the flooded ones behind it.
const PAIRS: u32 = 33;

/// Names and numbers of flooded pairs.
const CASES: [(&str, u32); 2] = [("1-queue", 1), ("32-queues", 32)];

fn cases() -> Vec<&'static str> {
    CASES.iter().map(|(name, _)| *name).collect()
}

fn measure(setting: &Setting<'_>, names: &[&'static str]) -> Result<Vec<Measured>, Failure> {
    let mut alone = Vec::new();
    let mut cases: Vec<(&str, u32, Vec<f64>)> = CASES
        .iter()
        .filter(|(name, _)| names.contains(name))
        .map(|(name, pairs)| (*name, *pairs, Vec::new()))
        .collect();
    for _ in setting.rounds() {
        alone.push(rate(setting, 0)?);
        for (name, pairs, rates) in &mut cases {
            setting.steps.next(format!("{NAME} {name}"));
            rates.push(rate(setting, *pairs)?);
            if stop::asked() {
                return Ok(Vec::new());
            }
        }
    }
    let alone = median(&alone);
    Ok(cases.into_iter().map(|(name, _, rates)| measured(name, alone, median(&rates))).collect())
}

fn measured(case: &'static str, alone: Option<f64>, beside: Option<f64>) -> Measured {
    let value = alone.zip(beside).map(|(alone, beside)| beside / (alone / 2.0));
    let row = head(NAME)
        .text("case", case)
        .maybe("alone_mpps", alone, 3)
        .maybe("beside_mpps", beside, 3)
        .maybe("value", value, 3);
    Measured { case, value, counts: true, row }
}

/// Millions of frames per second out and back on pair 0 beside so many flooded pairs.
fn rate(setting: &Setting<'_>, flooded: u32) -> Result<f64, Failure> {
    let card = setting.card(PAIRS, &["--engine", "medusa"])?;
    let session = card.session()?;
    let mut honest = Many::open(&session, 1)?;
    let queues = format!("1-{flooded}");
    let arguments = ["rings", "--case", "honest", "--queue", &queues];
    let flood = (flooded > 0).then(|| Disturber::start(card.device(), setting.other_core(), &arguments));
    let _flood = flood.transpose()?;
    Ok(honest.throughput(1, SIZE, setting.args.seconds)?.mpps)
}
