//! What takes how long in one SEND: stamps of both ends (`profile=FILE`), put beside each other. Figure 4.3 of the source (SLURPoE).

use std::path::Path;

use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, note};
use millrace_tool::progress::Steps;
use millrace_tool::stop;
use serde_json::Value;

use super::Bench;
use super::cards::{Cards, Wire};
use super::ours::{self, Work};
use crate::median::median;
use crate::turns;

const SIZES: [u64; 3] = [8, 4096, 64 << 10];
const WAYS: [(Wire, &str); 3] = [(Wire::None, "one host"), (Wire::Card, "frames by a card"), (Wire::Memory, "a wire")];

/// A stage, and what begins and ends it.
const STAGES: [&str; 6] = ["post_ns", "doorbell_ns", "engine_ns", "wire_ns", "deliver_ns", "poll_ns"];

/// A stamp of one end.
struct Stamp {
    ns: f64,
    end: usize,
    stage: String,
}

/// Measures all of it.
pub fn run(shared: &Shared, bench: &Bench) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let steps = Steps::new("rdma, stages", (WAYS.len() * SIZES.len()) as u64);
    'all: for (wire, path) in WAYS {
        for size in SIZES {
            steps.next(format!("{path}, {size} bytes"));
            let measured = measure(bench, wire, size);
            // What was measured until it is interrupted is printed.
            if stop::asked() {
                break 'all;
            }
            match measured {
                Ok(trips) => rows.push(row(wire, path, size, &trips)),
                Err(why) => note(format!("{path}, {size} bytes: {why}")),
            }
        }
    }
    drop(steps);
    Output::new(shared.json).rows("one SEND, medians in ns", &rows)?;
    turns::end(rows.is_empty().then(|| "nothing could be measured".to_owned()))
}

/// A SEND: how long each stage took, and all of them.
type Trip = ([Option<f64>; 6], f64);

fn measure(bench: &Bench, wire: Wire, size: u64) -> Result<Vec<Trip>, String> {
    let cards = Cards::start(bench, wire)?;
    ours::profile(bench, &cards, Work { op: "send", measure: "latency", size })?;
    let files = cards.stamps().ok_or("the engine in the card makes no stamps")?;
    let (mut all, mut ns_per_tick) = (Vec::new(), 0.0);
    for (end, file) in files.iter().enumerate() {
        let told = read(file)?;
        // The first end's clock, for both: a difference of the two, however small, would grow with the time since the start.
        ns_per_tick = if end == 0 { told["ns_per_tick"].as_f64().unwrap_or(1.0) } else { ns_per_tick };
        all.extend(stamps(&told, end));
    }
    all.sort_by_key(|(ticks, ..)| *ticks);
    let first = all.first().map_or(0, |(ticks, ..)| *ticks);
    let stamps: Vec<Stamp> = all
        .into_iter()
        .map(|(ticks, end, stage)| Stamp { ns: (ticks - first) as f64 * ns_per_tick, end, stage })
        .collect();
    let trips = trips(&stamps);
    if trips.is_empty() { Err("no SEND has all its stamps".to_owned()) } else { Ok(trips) }
}

fn read(file: &Path) -> Result<Value, String> {
    let text = std::fs::read(file).map_err(|why| format!("there are no stamps: {why}"))?;
    serde_json::from_slice(&text).map_err(|why| format!("{}: {why}", file.display()))
}

fn stamps(told: &Value, end: usize) -> Vec<(u64, usize, String)> {
    let listed = told["stamps"].as_array().into_iter().flatten();
    listed.filter_map(|stamp| Some((stamp[0].as_u64()?, end, stamp[1].as_str()?.to_owned()))).collect()
}

/// The SENDs of which one was on its way at a time. From the completion that the other end got, its way is followed back to the post:
/// what comes in between, such as acknowledgements, is left out.
fn trips(stamps: &[Stamp]) -> Vec<Trip> {
    let mut trips = Vec::new();
    for (at, polled) in stamps.iter().enumerate().filter(|(_, stamp)| stamp.stage == "polled") {
        let sender = 1 - polled.end;
        let back = |from: usize, end: usize, stage: &str| {
            stamps[..from].iter().rposition(|stamp| stamp.end == end && stamp.stage == stage)
        };
        let trip = (|| {
            let done = back(at, polled.end, "done")?;
            let came = back(done, polled.end, "came")?;
            let asked = back(at, sender, "asked")?;
            let after = |from: usize, stage: &str| {
                let found = stamps[from..at].iter().position(|stamp| stamp.end == sender && stamp.stage == stage);
                found.map(|found| found + from)
            };
            let posted = after(asked, "posted")?;
            let sent = after(posted, "sent")?;
            // Without a turn of the engine it was in the ring when it was posted.
            let begun = after(posted, "begun").filter(|begun| *begun < sent);
            let ns = |from: usize, to: usize| stamps[to].ns - stamps[from].ns;
            let stages = [
                Some(ns(asked, posted)),
                Some(begun.map_or(ns(posted, sent), |begun| ns(posted, begun))),
                begun.map(|begun| ns(begun, sent)),
                Some(ns(sent, came)),
                Some(ns(came, done)),
                Some(ns(done, at)),
            ];
            // The end that has got it has not been sent anything else meanwhile.
            (came > asked && ns(asked, at) < 1e9).then(|| (stages, ns(asked, at)))
        })();
        trips.extend(trip);
    }
    trips
}

fn row(wire: Wire, path: &str, size: u64, trips: &[Trip]) -> Row {
    let start = Row::new()
        .tag("bench", "rdma")
        .text("op", "send")
        .text("path", path)
        .tag("placement", wire.placement())
        .tag("wire", wire.word())
        .count("size", size);
    // Of what most have not gone through, nothing is said.
    let stage = |at: usize| {
        let found: Vec<f64> = trips.iter().filter_map(|(stages, _)| stages[at]).collect();
        median(&found).filter(|_| 2 * found.len() >= trips.len())
    };
    let row = STAGES.iter().enumerate().fold(start, |row, (at, name)| row.maybe(name, stage(at), 0));
    row.maybe("total_ns", median(&trips.iter().map(|(_, total)| *total).collect::<Vec<f64>>()), 0)
        .count("count", trips.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(all: &[(f64, usize, &str)]) -> Vec<Stamp> {
        all.iter().map(|(ns, end, stage)| Stamp { ns: *ns, end: *end, stage: (*stage).to_owned() }).collect()
    }

    #[test]
    fn a_way_is_followed_back_past_acknowledgements() {
        let trips = trips(&made(&[
            (0.0, 0, "asked"),
            (10.0, 0, "posted"),
            (12.0, 0, "begun"),
            (42.0, 0, "sent"),
            (50.0, 1, "came"),
            (55.0, 1, "done"),
            (100.0, 1, "came"),
            (120.0, 1, "done"),
            (121.0, 1, "begun"),
            (130.0, 1, "sent"),
            (135.0, 1, "polled"),
        ]));
        let stages = [10.0, 2.0, 30.0, 58.0, 20.0, 15.0].map(Some);
        assert_eq!(trips, [(stages, 135.0)]);
    }

    #[test]
    fn what_went_at_once_has_no_turn_of_the_engine() {
        let short = made(&[
            (0.0, 1, "asked"),
            (20.0, 1, "posted"),
            (25.0, 1, "sent"),
            (60.0, 0, "came"),
            (70.0, 0, "done"),
            (80.0, 0, "polled"),
        ]);
        assert_eq!(trips(&short), [([Some(20.0), Some(5.0), None, Some(35.0), Some(10.0), Some(10.0)], 80.0)]);
        assert_eq!(trips(&short[1..]), [], "without its beginning it is none");
    }
}
