//! One thread per queue, progress meanwhile, one row per queue afterwards.

use std::thread;

use millrace_packet::structured::Findings;

use crate::clock::Moment;
use crate::distribution::Distribution;
use crate::failure::Failure;
use crate::meter::Meter;
use crate::options::Shared;
use crate::output::{Output, Row, is_watched};
use crate::progress::{PERIOD, Progress};
use crate::stop;

/// What one queue came to.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Frames moved.
    pub frames: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// From the first call to the last, in seconds.
    pub seconds: f64,
    /// What a check of the contents found, if there was one.
    pub findings: Option<Findings>,
    /// The times that frames took, if they were measured.
    pub latency: Option<Distribution>,
}

impl Tally {
    /// What `meter` shows, after a run that began at `start`.
    pub fn of(meter: &Meter, start: Moment) -> Self {
        Self { frames: meter.frames(), bytes: meter.bytes(), seconds: start.seconds(), ..Self::default() }
    }

    fn add(&mut self, other: &Tally) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.seconds = self.seconds.max(other.seconds);
        if let Some(findings) = &other.findings {
            self.findings.get_or_insert_default().add(findings);
        }
        if let Some(latency) = &other.latency {
            self.latency.get_or_insert_default().add(latency);
        }
    }

    fn row(&self, command: &str, queue: &str) -> Row {
        let rate = |amount: f64| if self.seconds > 0.0 { amount / self.seconds } else { 0.0 };
        let row = Row::new()
            .tag("command", command)
            .text("queue", queue)
            .count("frames", self.frames)
            .count("bytes", self.bytes)
            .number("seconds", self.seconds, 6)
            .number("mpps", rate(self.frames as f64) * 1e-6, 3)
            .number("gbps", rate(self.bytes as f64 * 8.0) * 1e-9, 3);
        let row = match &self.findings {
            Some(found) => findings_cells(row, found),
            None => row,
        };
        match &self.latency {
            Some(latency) => latency_cells(row, latency),
            None => row,
        }
    }
}

/// The columns of a check of contents.
pub fn findings_cells(row: Row, found: &Findings) -> Row {
    row.count("lost", found.lost)
        .count("corrupt", found.corrupt)
        .count("reordered", found.reordered)
        .count("duplicates", found.duplicates + found.strays)
}

/// The columns of measured times.
pub fn latency_cells(row: Row, times: &Distribution) -> Row {
    row.maybe("mean_ns", times.mean(), 1)
        .maybe("geomean_ns", times.geometric_mean(), 1)
        .maybe_count("p50_ns", times.quantile(0.5))
        .maybe_count("p90_ns", times.quantile(0.9))
        .maybe_count("p99_ns", times.quantile(0.99))
        .maybe_count("p999_ns", times.quantile(0.999))
        .maybe_count("min_ns", times.min())
        .maybe_count("max_ns", times.max())
}

/// What one queue did, and why it ended early if it did. The numbers so far count in any case.
pub type Lane = (Tally, Result<(), Failure>);

/// Runs `work` for each queue of `--queue` and prints what came of it: a row per queue, and one for all if there are
/// several. `--count` is the goal of each.
pub fn run(
    command: &'static str,
    shared: &Shared,
    work: impl Fn(u32, &Meter) -> Lane + Sync,
) -> Result<Tally, Failure> {
    run_on(command, shared, shared.queues().indices(), work)
}

/// As [`run`], for these queues: a command may need more than one for a thread.
pub fn run_on(
    command: &'static str,
    shared: &Shared,
    queues: &[u32],
    work: impl Fn(u32, &Meter) -> Lane + Sync,
) -> Result<Tally, Failure> {
    let meters: Vec<Meter> = queues.iter().map(|_| Meter::default()).collect();
    let goal = shared.count.map(|count| count.saturating_mul(meters.len() as u64));
    let lanes = start_and_watch(command, queues, &meters, goal, &work);
    let all = report(command, shared, queues, &lanes)?;
    // The failure of a queue comes before the interruption that it caused for the others.
    let failures = lanes.into_iter().filter_map(|(_, outcome)| outcome.err());
    let (interrupted, failed): (Vec<_>, Vec<_>) = failures.partition(|failure| matches!(failure, Failure::Interrupted));
    match failed.into_iter().chain(interrupted).next() {
        Some(failure) => Err(failure),
        None => Ok(all),
    }
}

fn start_and_watch(
    command: &'static str,
    queues: &[u32],
    meters: &[Meter],
    goal: Option<u64>,
    work: &(impl Fn(u32, &Meter) -> Lane + Sync),
) -> Vec<Lane> {
    thread::scope(|scope| {
        let main = thread::current();
        let lanes: Vec<_> = queues
            .iter()
            .zip(meters)
            .map(|(queue, meter)| {
                let main = main.clone();
                scope.spawn(move || {
                    let lane = work(*queue, meter);
                    if lane.1.is_err() {
                        stop::ask();
                    }
                    main.unpark();
                    lane
                })
            })
            .collect();
        if is_watched() {
            let progress = Progress::new(command, goal);
            while !lanes.iter().all(|lane| lane.is_finished()) {
                thread::park_timeout(PERIOD);
                progress.show(meters);
            }
            progress.finish();
        }
        lanes.into_iter().map(|lane| lane.join().expect("a lane reports failures and does not panic")).collect()
    })
}

fn report(command: &str, shared: &Shared, queues: &[u32], lanes: &[Lane]) -> Result<Tally, Failure> {
    let mut all = Tally::default();
    let mut rows = Vec::with_capacity(lanes.len() + 1);
    let has_failed = |lane: &Lane| !matches!(lane.1, Ok(()) | Err(Failure::Interrupted));
    let ended_by_failure = lanes.iter().any(has_failed);
    for (queue, lane) in queues.iter().zip(lanes) {
        all.add(&lane.0);
        // What there is to tell besides why it failed: frames, or that there were none until somebody ended it.
        if lane.0.frames > 0 || (!ended_by_failure && !has_failed(lane)) {
            rows.push(lane.0.row(command, &queue.to_string()));
        }
    }
    if rows.len() > 1 {
        rows.push(all.row(command, "all"));
    }
    if !rows.is_empty() {
        Output::new(shared.json).rows(command, &rows)?;
    }
    Ok(all)
}

/// Whether a loop with that goal is done, or was asked to end before it.
pub fn outcome(done: u64, goal: Option<u64>) -> Result<(), Failure> {
    match goal {
        Some(goal) if done < goal => Err(Failure::Interrupted),
        _ => Ok(()),
    }
}

/// Fails unless every frame came once, whole and in order.
pub fn judge(all: &Tally) -> Result<(), Failure> {
    match &all.findings {
        Some(found) if !found.is_clean() => Err(Failure::Found(format!(
            "{} lost, {} corrupt, {} reordered, {} duplicated; `millrace stats` shows where frames were dropped",
            found.lost,
            found.corrupt,
            found.reordered,
            found.duplicates + found.strays
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up_and_the_longest_time_counts() {
        let found = Findings { in_order: 5, lost: 1, ..Findings::default() };
        let one = Tally { frames: 5, bytes: 320, seconds: 2.0, findings: Some(found), latency: None };
        let mut all = Tally::default();
        all.add(&one);
        all.add(&Tally { seconds: 1.0, ..one.clone() });
        assert_eq!((all.frames, all.bytes, all.seconds), (10, 640, 2.0));
        assert_eq!(all.findings.unwrap().lost, 2);
        assert!(matches!(judge(&all), Err(Failure::Found(text)) if text.starts_with("2 lost, 0 corrupt")));
        assert!(judge(&Tally::default()).is_ok());
        let row = one.row("read", "0").to_json();
        assert!(row.contains(r#""mpps":0.0,"gbps":0.0,"lost":1,"corrupt":0"#), "{row}");
    }

    #[test]
    fn a_goal_that_was_not_reached_is_an_interruption() {
        assert!(outcome(5, None).is_ok() && outcome(5, Some(5)).is_ok());
        assert!(matches!(outcome(4, Some(5)), Err(Failure::Interrupted)));
    }
}
