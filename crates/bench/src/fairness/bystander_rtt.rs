//! `bystander_rtt_ratio`: the round trip of a quiet queue beside a hostile ring, against the same beside an honest one.

use millrace_tool::failure::Failure;
use millrace_tool::output::Row;
use millrace_tool::stop;

use super::child::Disturber;
use super::setting::{Goal, Measured, Metric, Setting, head};
use super::trips::Trips;
use crate::hostile::rings::{CASES, Case, HONEST};
use crate::median::median;

const NAME: &str = "bystander_rtt_ratio";

pub const METRIC: Metric = Metric { name: NAME, goal: Goal::AtMost(1.5), cases, measure };

fn cases() -> Vec<&'static str> {
    CASES.map(|case| case.name).to_vec()
}

fn measure(setting: &Setting<'_>, names: &[&'static str]) -> Result<Vec<Measured>, Failure> {
    let mut cases: Vec<Beside> = CASES.into_iter().filter(|case| names.contains(&case.name)).map(Beside::new).collect();
    for _ in setting.rounds() {
        for case in &mut cases {
            setting.steps.next(format!("{NAME} {}", case.case.name));
            case.measure(setting)?;
            if stop::asked() {
                return Ok(Vec::new());
            }
        }
    }
    Ok(cases.iter().map(Beside::measured).collect())
}

/// p99 of both sides, one per round, in ns.
struct Beside {
    case: Case,
    honest: Vec<f64>,
    hostile: Vec<f64>,
    trips: u64,
    delayed: u64,
}

impl Beside {
    fn new(case: Case) -> Self {
        Self { case, honest: Vec::new(), hostile: Vec::new(), trips: 0, delayed: 0 }
    }

    fn measure(&mut self, setting: &Setting<'_>) -> Result<(), Failure> {
        for (case, is_hostile) in [(HONEST, false), (self.case, true)] {
            let trips = round_trips_beside(setting, case)?;
            self.trips += trips.times().count();
            self.delayed += trips.delayed();
            let values = if is_hostile { &mut self.hostile } else { &mut self.honest };
            values.extend(trips.times().quantile(0.99).map(|nanos| nanos as f64));
        }
        Ok(())
    }

    fn measured(&self) -> Measured {
        let (honest, hostile) = (median(&self.honest), median(&self.hostile));
        let value = honest.zip(hostile).map(|(honest, hostile)| hostile / honest);
        let row: Row = head(NAME)
            .text("case", self.case.name)
            .text("engine", self.case.engine)
            .maybe("honest_p99_ns", honest, 0)
            .maybe("hostile_p99_ns", hostile, 0)
            .maybe("value", value, 3)
            .count("trips", self.trips)
            .count("delayed", self.delayed);
        Measured { case: self.case.name, value, counts: true, row }
    }
}

/// Round trips on pair 0 while pair 1 of the same worker is another program's. A card for each: what one has left behind,
/// such as frames in its ring, is nothing for the other.
fn round_trips_beside(setting: &Setting<'_>, case: Case) -> Result<Trips, Failure> {
    let engine = format!("{}@1", case.engine);
    let card = setting.card(2, &["--engine", "medusa", "--engine", &engine])?;
    let session = card.session()?;
    let (mut rx, mut tx) = (session.rx(0)?, session.tx(0)?);
    let arguments = ["rings", "--case", case.name, "--queue", "1"];
    let _other = Disturber::start(card.device(), setting.other_core(), &arguments)?;
    let mut trips = Trips::new();
    // Caches and the other program settle.
    trips.run(&mut rx, &mut tx, setting.args.seconds * 0.1)?;
    let mut trips = Trips::new();
    trips.run(&mut rx, &mut tx, setting.args.seconds)?;
    Ok(trips)
}
