//! What the metrics of fairness have in common.

use clap::Args;
use millrace_tool::failure::Failure;
use millrace_tool::list::Queues;
use millrace_tool::options::Shared;
use millrace_tool::output::Row;
use millrace_tool::progress::Steps;
use millrace_tool::{cores, stop};

use crate::rig::{Cores, Rig};

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
    pub rounds: u32,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub seconds: f64,
    /// Only this case [default: all of the metric]
    #[arg(long, value_name = "NAME")]
    pub case: Option<String>,
    /// Only this metric [default: all]
    #[arg(long, value_name = "NAME")]
    pub metric: Option<String>,
    /// Busy queues of cold_look_p99_us
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub busy: u32,
    /// Quiet queues of cold_look_p99_us
    #[arg(long, value_name = "N", default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..=3095))]
    pub quiet: u32,
}

/// Where the figure of a metric has to be.
#[derive(Clone, Copy)]
pub enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    pub fn is_met(self, value: f64) -> bool {
        match self {
            Goal::AtMost(limit) => value <= limit,
            Goal::AtLeast(limit) => value >= limit,
        }
    }

    /// Whether `one` is further from the goal than `other`.
    pub fn is_worse(self, one: f64, other: f64) -> bool {
        match self {
            Goal::AtMost(_) => one > other,
            Goal::AtLeast(_) => one < other,
        }
    }

    pub fn text(self) -> String {
        match self {
            Goal::AtMost(limit) => format!("<= {limit}"),
            Goal::AtLeast(limit) => format!(">= {limit}"),
        }
    }
}

/// One metric.
pub struct Metric {
    pub name: &'static str,
    pub goal: Goal,
    /// Names of its cases.
    pub cases: fn() -> Vec<&'static str>,
    pub measure: fn(&Setting<'_>, &[&'static str]) -> Result<Vec<Measured>, Failure>,
}

/// What all metrics are given.
pub struct Setting<'a> {
    pub shared: &'a Shared,
    pub cores: Cores,
    pub args: &'a FairnessArgs,
    pub steps: &'a Steps,
}

/// What became of one case.
pub struct Measured {
    pub case: &'static str,
    /// What is compared with the goal.
    pub value: Option<f64>,
    /// Whether it is one of those that have to meet the goal, and not one to compare with.
    pub counts: bool,
    /// The row as it is shown.
    pub row: Row,
}

/// The beginning of every row.
pub fn head(metric: &'static str) -> Row {
    Row::new().tag("bench", "fairness").tag("metric", metric)
}

/// A core for those who disturb, if there are three.
pub fn third_core(taken: Cores) -> Option<usize> {
    cores::allowed().into_iter().find(|core| Some(*core) != taken.app && Some(*core) != taken.card)
}

impl Setting<'_> {
    /// A card with one worker, which polls on its core, and `pairs` queue pairs.
    pub fn card(&self, pairs: u32, options: &[&str]) -> Result<Rig, Failure> {
        self.card_on(self.cores, pairs, options)
    }

    /// The same without a core of its own, and so without polling.
    pub fn card_anywhere(&self, pairs: u32, options: &[&str]) -> Result<Rig, Failure> {
        self.card_on(Cores { app: None, card: None }, pairs, options)
    }

    pub fn card_on(&self, cores: Cores, pairs: u32, options: &[&str]) -> Result<Rig, Failure> {
        let shared = Shared { queue: Some(Queues::first(pairs)), engine: Vec::new(), ..self.shared.clone() };
        Rig::start_with(&shared, cores, None, &[&["--port", "loopback", "--workers", "1"], options].concat())
    }

    /// The core of those who disturb.
    pub fn other_core(&self) -> Option<usize> {
        third_core(self.cores)
    }

    pub fn rounds(&self) -> impl Iterator<Item = u32> {
        (0..self.args.rounds).take_while(|_| !stop::asked())
    }
}
