//! `millrace bench classify`: what looking up a frame's rule costs, how fast rules change meanwhile, and what VXLAN and RSS cost in a card.
//!
//! - `traffic`: rules and frames; - `lookup`: nanoseconds per frame; - `updates`: transactions beside a worker that looks up: these
//!   need no card.
//! - `vxlan`: frames put into VXLAN packets and taken out, beside Open vSwitch; - `rss`: one queue and eight.

mod lookup;
mod rss;
mod traffic;
mod updates;
mod vxlan;

use clap::Args;
use millrace_tool::failure::Failure;
use millrace_tool::options::{self, Shared};
use millrace_tool::output::{Output, Row};
use millrace_tool::progress::Steps;
use millrace_tool::stop;

use crate::median::median;
use crate::rig::Cores;
use crate::steady::{self, Sample};
use crate::turns;
use lookup::Case;
use updates::Counted;

/// Flows at once: a frame of each in every pass.
const FLOWS: u32 = 10_000;

/// Options of `bench classify`.
#[derive(Debug, Args)]
#[command(after_help = "\
hit_ns, miss_ns, rule_updates_per_s, pair_updates_per_s: 10,000 flows, rules with
20 masks, frames of 64 bytes in bursts of 64, on one core, without a card. hit_ns
and miss_ns: parsing, key and lookup of a frame whose flow the cache of the worker
knows, or does not. rule_updates_per_s: rules that another core adds and removes,
each in a transaction of its own, while this worker looks up; pair_updates_per_s:
the same with two rules in a transaction. wrong counts lookups with another
verdict than the rules say, halves those that saw one rule of a transaction and
not the other: with one, the benchmark fails. cycles is value times the frequency
that /proc/cpuinfo shows, which is not counted by the processor.

vxlan_ratio, for each --size (default 64,128,256,512,1024,1518): frames of 256
flows between two vhost-user sockets, in millions per second on one core. off: a
rule says output. on: they are put into VXLAN packets one way (encap) and taken
out the other way (decap); on is what both make of a frame that takes both ways,
2 / (1/encap + 1/decap), and value is on / off. ovs is the same by OVS-DPDK with
its tunnel ports (openvswitch-switch-dpdk, root), and ratio_to_ovs is on / ovs.

rss_overhead: frames of 64 bytes and 10,000 flows from a pcap port to a program
that only counts them. one: a rule gives them to one queue; rss: a rule spreads
them over eight; no_rules: there are no rules. value is rss / one.

Before and after each sample the round trip of a cache line between the two cores
is measured; one during which it changed by more than a fifth is taken again,
three times at most. Values are medians of --rounds rounds; those of vxlan_ratio
and rss_overhead are of the rounds at one distance, as in `bench peers`.

Examples:
  millrace bench classify
  millrace bench classify --metric hit_ns --rules 1000 --rounds 9 --seconds 1 --json
  millrace bench classify --metric vxlan_ratio --size 64,1518")]
pub struct ClassifyArgs {
    /// What to measure
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = Metric::ALL.map(|metric| metric.words().0))]
    metric: Vec<Metric>,
    /// Numbers of rules, such as 1000,10k
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1000,10000", value_parser = options::count)]
    rules: Vec<u64>,
    /// How often to measure everything
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    seconds: f64,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Metric {
    /// A lookup that the cache answers, in ns.
    #[value(name = "hit_ns")]
    Hit,
    /// One that it does not.
    #[value(name = "miss_ns")]
    Miss,
    /// Transactions of one rule.
    #[value(name = "rule_updates_per_s")]
    Updates,
    /// Rules in transactions of two.
    #[value(name = "pair_updates_per_s")]
    Pairs,
    /// Frames per second with VXLAN, by those without.
    VxlanRatio,
    /// Frames per second to eight queues, by those to one.
    RssOverhead,
}

impl Metric {
    const ALL: [Metric; 6] =
        [Metric::Hit, Metric::Miss, Metric::Updates, Metric::Pairs, Metric::VxlanRatio, Metric::RssOverhead];

    /// Name, unit, decimals, goal.
    fn words(self) -> (&'static str, &'static str, usize, Option<&'static str>) {
        match self {
            Metric::Hit => ("hit_ns", "ns", 1, Some("<= 60")),
            Metric::Miss => ("miss_ns", "ns", 1, Some("<= 300")),
            Metric::Updates => ("rule_updates_per_s", "1/s", 0, Some(">= 100000")),
            Metric::Pairs => ("pair_updates_per_s", "1/s", 0, None),
            Metric::VxlanRatio => ("vxlan_ratio", "1", 3, Some(">= 0.8")),
            Metric::RssOverhead => ("rss_overhead", "1", 3, Some(">= 0.9")),
        }
    }

    /// Whether it takes a card.
    fn has_card(self) -> bool {
        matches!(self, Metric::VxlanRatio | Metric::RssOverhead)
    }
}

/// One metric with so many rules, and its samples, one per round.
struct Series {
    metric: Metric,
    rules: u32,
    samples: Vec<Sample>,
    counted: Counted,
}

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &ClassifyArgs) -> Result<(), Failure> {
    let mut all = Vec::new();
    for &rules in &args.rules {
        let rules = u32::try_from(rules).ok().filter(|rules| *rules <= 1 << 20);
        let rules = rules.ok_or_else(|| Failure::Usage("--rules: at most 1048576".to_owned()))?;
        let series = |metric| Series { metric, rules, samples: Vec::new(), counted: Counted::default() };
        all.extend(args.metric.iter().copied().filter(|metric| !metric.has_card()).map(series));
    }
    let wanted = |metric| args.metric.contains(&metric);
    let mut vxlan = vxlan::Comparison::new(shared, wanted(Metric::VxlanRatio))?;
    let mut rss = wanted(Metric::RssOverhead).then(rss::Comparison::new).transpose()?;
    // What was measured until it is interrupted, or fails, is printed.
    let measured = measure_all(shared, cores, args, (&mut all, &mut vxlan, rss.as_mut()));
    let (output, rounds) = (Output::new(shared.json), args.rounds);
    let rows: Vec<Row> = all.iter().map(|series| series.row(megahertz())).collect();
    let tables = [
        (format!("medians of {rounds} rounds, {FLOWS} flows"), rows),
        (format!("medians of up to {rounds} rounds, VXLAN, Mpps"), vxlan.rows()),
        (format!("medians of up to {rounds} rounds, RSS, Mpps"), rss.iter().map(rss::Comparison::row).collect()),
    ];
    for (title, rows) in tables.iter().filter(|(_, rows)| !rows.is_empty()) {
        output.rows(title, rows)?;
    }
    measured?;
    let wrong: u64 = all.iter().map(|series| series.counted.wrong + series.counted.halves).sum();
    if wrong > 0 {
        return Err(Failure::Found(format!("{wrong} lookups saw what no version has")));
    }
    turns::end(None)
}

/// All rounds, as far as they come.
fn measure_all(
    shared: &Shared,
    cores: Cores,
    args: &ClassifyArgs,
    (all, vxlan, mut rss): (&mut [Series], &mut vxlan::Comparison, Option<&mut rss::Comparison>),
) -> Result<(), Failure> {
    let frames = traffic::frames(FLOWS);
    let each = all.len() + vxlan.len() + usize::from(rss.is_some());
    let steps = Steps::new("classify", u64::from(args.rounds) * each as u64);
    for _ in 0..args.rounds {
        for series in &mut *all {
            if stop::asked() {
                return Ok(());
            }
            steps.next(format!("{}, {} rules", series.metric.words().0, series.rules));
            series.sample(cores, &frames, args.seconds)?;
        }
        vxlan.measure(cores, args.seconds, &steps)?;
        if let Some(rss) = &mut rss {
            steps.next("rss_overhead");
            rss.measure(shared, cores, args.seconds)?;
        }
    }
    Ok(())
}

impl Series {
    fn sample(&mut self, cores: Cores, frames: &[[u8; traffic::SIZE]], seconds: f64) -> Result<(), Failure> {
        let (metric, rules) = (self.metric, self.rules);
        let (name, unit, decimals, _) = metric.words();
        let counted = &mut self.counted;
        let mut count = |result: Result<Counted, Failure>| {
            let new = result?;
            counted.lookups += new.lookups;
            counted.wrong += new.wrong;
            counted.halves += new.halves;
            Ok::<_, Failure>(Some(new.rules_per_s))
        };
        let shown = |value: f64| format!("{value:.decimals$} {unit}");
        let sample = steady::take(cores, &format!("{name}, {rules} rules"), shown, || match metric {
            Metric::Hit => lookup::nanos(Case::Hit, rules, frames, seconds),
            Metric::Miss => lookup::nanos(Case::Miss, rules, frames, seconds),
            Metric::Updates => count(updates::single(rules, frames, cores, seconds)),
            Metric::Pairs => count(updates::pairs(rules, cores, seconds)),
            // Measured apart, with a card.
            Metric::VxlanRatio | Metric::RssOverhead => Ok(None),
        })?;
        self.samples.extend(sample);
        Ok(())
    }

    fn row(&self, megahertz: Option<f64>) -> Row {
        let (name, unit, decimals, goal) = self.metric.words();
        let values: Vec<f64> = self.samples.iter().map(|sample| sample.value).collect();
        let lines: Vec<f64> = self.samples.iter().filter_map(|sample| sample.cacheline_ns).collect();
        let value = median(&values);
        let beside = matches!(self.metric, Metric::Updates | Metric::Pairs);
        let cycles = value.zip(megahertz).filter(|_| !beside).map(|(ns, megahertz)| ns * megahertz / 1000.0);
        let counted = |count: u64| beside.then_some(count);
        Row::new()
            .tag("bench", "classify")
            .text("metric", name)
            .count("rules", self.rules.into())
            .tag("unit", unit)
            .cell("flows", millrace_tool::output::Cell::Count(FLOWS.into()))
            .maybe("value", value, decimals)
            .text("goal", goal.unwrap_or("-"))
            .maybe("cycles", cycles, 0)
            .maybe_count("lookups", counted(self.counted.lookups))
            .maybe_count("wrong", counted(self.counted.wrong))
            .maybe_count("halves", counted(self.counted.halves))
            .count("count", self.samples.len() as u64)
            .maybe("cacheline_ns", median(&lines), 1)
    }
}

/// The frequency that Linux shows for the first processor.
fn megahertz() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    line.split(':').nth(1)?.trim().parse().ok()
}
