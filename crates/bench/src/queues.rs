//! `millrace bench queues`: what queues cost that are configured, and what queues cost that carry traffic.
//!
//! A configured queue pair is open and started and idle; an active one carries traffic. `mpps` are frames of 64 bytes out
//! and back through the card's loopback on all active pairs, `rtt_p50_ns` is the median round trip of one such frame at a
//! time, the active pairs taking turns. One thread serves all pairs. All configurations are measured in turns, round by
//! round.

use clap::Args;
use millrace_abi::queue::Engine;
use millrace_tool::failure::Failure;
use millrace_tool::list::Queues;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::progress::Steps;
use millrace_tool::stop;

use crate::choice::{ENGINE_OF_MANY, engines};
use crate::many::Many;
use crate::median::median;
use crate::rig::{Cores, Rig};

/// The configurations, unless one is chosen.
const CONFIGURATIONS: [Configuration; 5] = [
    Configuration { configured: 1, active: 1 },
    Configuration { configured: 8, active: 8 },
    Configuration { configured: 1000, active: 1 },
    Configuration { configured: 1000, active: 8 },
    Configuration { configured: 1000, active: 1000 },
];

/// Frame size, in bytes.
const SIZE: u16 = 64;

/// Options of `bench queues`.
#[derive(Debug, Args)]
#[command(after_help = "\
configured queue pairs are open, started and idle; active ones carry traffic.
mpps: frames of 64 bytes out and back on all active pairs. rtt_p50_ns: median
round trip of one frame at a time. Medians of --rounds rounds.

The ratios, printed last, are those of the goals: throughput of 1000 active
pairs to that of 8 (at least 0.8), and round trip of 1 active pair of 1000
configured to that of a card with 1 pair (at most 1.05).

Examples:
  millrace bench queues
  millrace bench queues --configured 4096 --active 1 --json
  millrace bench queues --engine sze --rounds 5 --seconds 1")]
pub struct QueuesArgs {
    /// Queue pairs of the one configuration to measure
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    configured: Option<u32>,
    /// How many of them carry traffic [default: 1]
    #[arg(long, value_name = "N", requires = "configured", value_parser = clap::value_parser!(u32).range(1..=4096))]
    active: Option<u32>,
    /// How often to measure everything
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    seconds: f64,
    /// Buffers of each Medusa or DD queue; the same for every number of queues
    #[arg(long, value_name = "N", default_value = "256")]
    buffers: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Configuration {
    configured: u32,
    active: u32,
}

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &QueuesArgs) -> Result<(), Failure> {
    let mut cases: Vec<Case> = args.configurations()?.into_iter().map(Case::new).collect();
    let engine = match engines(shared)[..] {
        [engine] => engine,
        _ => Some(ENGINE_OF_MANY),
    };
    let steps = Steps::new("queues", u64::from(args.rounds) * cases.len() as u64);
    for _ in 0..args.rounds {
        // Cases with the same number of queues stand in a row and share a card.
        for cases in cases.chunk_by_mut(|one, other| one.configuration.configured == other.configuration.configured) {
            if stop::asked() {
                return Err(Failure::Interrupted);
            }
            measure(shared, cores, engine, args, cases, &steps)?;
        }
    }
    drop(steps);
    if stop::asked() {
        return Err(Failure::Interrupted);
    }
    report(shared, engine, args, &cases)
}

impl QueuesArgs {
    fn configurations(&self) -> Result<Vec<Configuration>, Failure> {
        let Some(configured) = self.configured else { return Ok(CONFIGURATIONS.to_vec()) };
        let active = self.active.unwrap_or(1);
        if active > configured {
            return Err(Failure::Usage(format!("--active {active}: only {configured} pairs are configured")));
        }
        Ok(vec![Configuration { configured, active }])
    }
}

/// One configuration, and its values, one per round.
struct Case {
    configuration: Configuration,
    mpps: Vec<f64>,
    rtt: Vec<f64>,
}

impl Case {
    fn new(configuration: Configuration) -> Self {
        Self { configuration, mpps: Vec::new(), rtt: Vec::new() }
    }
}

fn measure(
    shared: &Shared,
    cores: Cores,
    engine: Option<Engine>,
    args: &QueuesArgs,
    cases: &mut [Case],
    steps: &Steps,
) -> Result<(), Failure> {
    let Some(Case { configuration: Configuration { configured, .. }, .. }) = cases.first() else { return Ok(()) };
    let configured = *configured;
    let shared = Shared { queue: Some(Queues::first(configured)), ..shared.clone() };
    let card = Rig::start_with(
        &shared,
        cores,
        engine,
        &["--port", "loopback", "--buffers", &args.buffers, "--descriptors", &args.buffers],
    )?;
    let session = card.session()?;
    let mut pairs = Many::open(&session, configured)?;
    for case in cases {
        let Configuration { configured, active } = case.configuration;
        steps.next(format!("{configured} configured, {active} active"));
        let active = active as usize;
        case.rtt.extend(pairs.round_trips(active, SIZE, args.seconds)?.times.quantile(0.5).map(|time| time as f64));
        case.mpps.push(pairs.throughput(active, SIZE, args.seconds)?.mpps);
        if stop::asked() {
            return Err(Failure::Interrupted);
        }
    }
    pairs.close()?;
    drop(session);
    card.end()
}

fn report(shared: &Shared, engine: Option<Engine>, args: &QueuesArgs, cases: &[Case]) -> Result<(), Failure> {
    let engine = engine.map_or_else(String::new, |engine| engine.to_string());
    let row = |case: &Case| {
        Row::new()
            .tag("bench", "queues")
            .tag("engine", &engine)
            .count("configured", u64::from(case.configuration.configured))
            .count("active", u64::from(case.configuration.active))
            .maybe("mpps", median(&case.mpps), 3)
            .maybe("rtt_p50_ns", median(&case.rtt), 1)
    };
    let rows: Vec<Row> = cases.iter().map(row).collect();
    let output = Output::new(shared.json);
    output.rows(&format!("medians of {} rounds, {engine}, {SIZE} bytes", args.rounds), &rows)?;
    let ratios = ratios(&engine, cases);
    if !ratios.is_empty() {
        output.rows("ratios", &ratios)?;
    }
    Ok(())
}

/// The ratios of the goals, as far as their configurations were measured.
fn ratios(engine: &str, cases: &[Case]) -> Vec<Row> {
    let find =
        |configured, active| cases.iter().find(|case| case.configuration == Configuration { configured, active });
    let row = |name: &str, value: Option<f64>, goal: &str| {
        value.map(|value| {
            Row::new()
                .tag("bench", "queues")
                .tag("engine", engine)
                .text("metric", name)
                .number("ratio", value, 3)
                .text("goal", goal)
        })
    };
    let mpps = |case: Option<&Case>| median(&case?.mpps);
    let rtt = |case: Option<&Case>| median(&case?.rtt);
    let throughput = mpps(find(1000, 1000)).zip(mpps(find(8, 8))).map(|(many, few)| many / few);
    let latency = rtt(find(1000, 1)).zip(rtt(find(1, 1))).map(|(many, one)| many / one);
    [row("mpps_1000_active_to_8", throughput, ">= 0.8"), row("rtt_1000_configured_to_1", latency, "<= 1.05")]
        .into_iter()
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratios_compare_medians() {
        let case = |configured, active, mpps: [f64; 3], rtt: [f64; 3]| Case {
            configuration: Configuration { configured, active },
            mpps: mpps.to_vec(),
            rtt: rtt.to_vec(),
        };
        let cases = [
            case(1, 1, [1.0; 3], [300.0, 900.0, 200.0]),
            case(8, 8, [10.0, 20.0, 30.0], [1.0; 3]),
            case(1000, 1, [1.0; 3], [330.0; 3]),
            case(1000, 1000, [16.0; 3], [1.0; 3]),
        ];
        let rows: Vec<String> = ratios("medusa", &cases).iter().map(Row::to_json).collect();
        assert!(rows[0].contains(r#""metric":"mpps_1000_active_to_8","ratio":0.8,"#), "{rows:?}");
        assert!(rows[1].contains(r#""metric":"rtt_1000_configured_to_1","ratio":1.1,"#), "{rows:?}");
        assert!(ratios("medusa", &cases[..2]).is_empty());
    }
}
