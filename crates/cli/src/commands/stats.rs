//! `millrace stats`: what the card has counted, once or every second.

use std::thread;
use std::time::Duration;

use clap::Args;
use millrace_abi::stats::{CardStats, Count, PortStats, QueueStats, WorkerStats};

use crate::args::Shared;
use crate::clock::Moment;
use crate::commands::info::state;
use crate::failure::Failure;
use crate::output::{Output, Row};
use crate::session::Session;
use crate::stop;

/// Options of `stats`.
#[derive(Debug, Args)]
#[command(after_help = "\
For every queue: offered = passed + dropped, and why frames were dropped. What
is neither is on its way at the moment. With --json each look is one object
with everything that the card counts.

Examples:
  millrace stats --device unix:/tmp/card.sock
  millrace stats --watch 5
  millrace stats --queue 0-3 --watch --count 10 --json")]
pub struct StatsArgs {
    /// Look again every SECONDS, until Ctrl-C or --count looks
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected a number of seconds from 0.01 to 86400".to_owned())
}

/// Runs the command.
pub fn run(shared: &Shared, args: &StatsArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "there is nothing to count")?;
    if args.watch.is_none() && shared.count.is_some() {
        return Err(Failure::Usage("--count says how often to look, and so needs --watch".to_owned()));
    }
    let mut looks = args.watch.map_or(1, |_| shared.count.unwrap_or(u64::MAX));
    let mut before: Option<Look> = None;
    loop {
        let look = Look { at: Moment::now(), stats: session.stats()? };
        print(shared, &look, before.as_ref())?;
        before = Some(look);
        looks -= 1;
        if looks == 0 || stop::asked() || !pause(args.watch.unwrap_or_default()) {
            return Ok(());
        }
    }
}

struct Look {
    at: Moment,
    stats: CardStats,
}

/// Sleeps, in pieces short enough for Ctrl-C; `false` if it came.
fn pause(time: Duration) -> bool {
    let start = Moment::now();
    while !stop::asked() {
        let left = time.as_secs_f64() - start.seconds();
        if left <= 0.0 {
            return true;
        }
        thread::sleep(Duration::from_secs_f64(left.min(0.1)));
    }
    false
}

fn print(shared: &Shared, look: &Look, before: Option<&Look>) -> Result<(), Failure> {
    let output = Output::new(shared.json);
    if output.is_json() {
        return Ok(output.object(&look.stats)?);
    }
    let queues = look.stats.queues.iter().filter(|queue| shared.queue.is_none() || is_wanted(shared, queue));
    let queues: Vec<Row> = queues.map(|queue| queue_row(queue, rate(look, before, queue))).collect();
    output.rows("queues", &queues)?;
    output.rows("ports", &look.stats.ports.iter().map(port_row).collect::<Vec<_>>())?;
    output.rows("workers", &look.stats.workers.iter().map(worker_row).collect::<Vec<_>>())?;
    Ok(())
}

fn is_wanted(shared: &Shared, queue: &QueueStats) -> bool {
    shared.queues().indices().contains(&queue.queue.index)
}

/// Millions of frames per second that passed since the look before; `None` at the first look.
fn rate(look: &Look, before: Option<&Look>, queue: &QueueStats) -> Option<f64> {
    let before = before?;
    let earlier = before.stats.queues.iter().find(|entry| entry.queue == queue.queue)?;
    let passed = queue.passed.saturating_sub(earlier.passed) as f64;
    Some(passed * 1e3 / look.at.nanos_since(before.at).max(1) as f64)
}

fn queue_row(queue: &QueueStats, mpps: Option<f64>) -> Row {
    let dropped = total(&queue.drops);
    let refusal =
        queue.refusal.iter().map(|why| format!("{} starts refused, the last one because {why}", queue.refused));
    Row::new()
        .text("queue", queue.queue)
        .text("engine", queue.engine)
        .text("state", state(queue.state))
        .count("offered", queue.offered)
        .count("passed", queue.passed)
        .count("bytes", queue.passed_bytes)
        .count("dropped", dropped)
        .count("on_the_way", queue.offered.saturating_sub(queue.passed + dropped))
        .maybe("mpps", mpps, 3)
        .maybe("copies", per_frame(queue.copies, queue.passed), 2)
        .number("iotlb_hit_%", hit_share(queue), 2)
        .count("faults", queue.iotlb_faults)
        .list("reasons", reasons(&queue.drops).into_iter().chain(refusal).collect())
        .list("held_by", queue.holders.iter().map(|pid| pid.to_string()).collect())
}

/// Copies for each frame that passed; `None` while there was none.
fn per_frame(copies: u64, frames: u64) -> Option<f64> {
    (frames > 0).then(|| copies as f64 / frames as f64)
}

fn hit_share(queue: &QueueStats) -> f64 {
    let all = queue.iotlb_hits + queue.iotlb_misses;
    100.0 * queue.iotlb_hits as f64 / all as f64
}

/// What a port has passed.
pub fn port_row(port: &PortStats) -> Row {
    Row::new()
        .count("port", u64::from(port.port))
        .text("spec", &port.spec)
        .text("link", if port.link { "up" } else { "down" })
        .count("rx_frames", port.rx_frames)
        .count("rx_bytes", port.rx_bytes)
        .count("tx_frames", port.tx_frames)
        .count("tx_bytes", port.tx_bytes)
        .maybe("rx_copies", per_frame(port.rx_copies, port.rx_frames), 2)
        .maybe("tx_copies", per_frame(port.tx_copies, port.tx_frames), 2)
        .list("rx_drops", reasons(&port.rx_drops))
        .list("tx_drops", reasons(&port.tx_drops))
        .list("events", reasons(&port.rx_events).into_iter().chain(reasons(&port.tx_events)).collect())
        .text("mode", &port.mode)
}

/// What a worker does.
pub fn worker_row(worker: &WorkerStats) -> Row {
    let row = Row::new().count("worker", u64::from(worker.worker));
    let row = match worker.cpu {
        Some(cpu) => row.count("cpu", u64::from(cpu)),
        None => row.text("cpu", "any"),
    };
    row.count("active_queues", u64::from(worker.active_queues))
        .count("passes", worker.passes)
        .count("sleeps", worker.sleeps)
}

fn total(counts: &[Count]) -> u64 {
    counts.iter().map(|count| count.count).sum()
}

fn reasons(counts: &[Count]) -> Vec<String> {
    counts.iter().map(|count| format!("{} {}", count.count, count.reason)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_abi::control::QueueState;
    use millrace_abi::queue::{Engine, QueueId};

    fn queue(offered: u64, passed: u64, dropped: u64) -> QueueStats {
        QueueStats {
            worker: 0,
            copies: 0,
            queue: QueueId::rx(0),
            engine: Engine::Medusa,
            state: QueueState::Running,
            holders: vec![7],
            offered,
            passed,
            passed_bytes: passed * 64,
            drops: vec![Count { reason: "no-room".into(), count: dropped }],
            iotlb_hits: 99,
            iotlb_misses: 1,
            iotlb_faults: 0,
            fault_iova: None,
            refused: 0,
            refusal: None,
        }
    }

    #[test]
    fn the_row_shows_the_counting_equation_and_the_reasons() {
        let json = queue_row(&queue(10, 6, 3), None).to_json();
        assert!(json.contains(r#""offered":10,"passed":6,"bytes":384,"dropped":3,"on_the_way":1"#), "{json}");
        assert!(json.contains(r#""iotlb_hit_%":99.0,"faults":0,"reasons":["3 no-room"],"held_by":["7"]"#), "{json}");
        let refused = QueueStats { refused: 2, refusal: Some("it rains".into()), ..queue(0, 0, 0) };
        let json = queue_row(&refused, None).to_json();
        assert!(json.contains("2 starts refused, the last one because it rains"), "{json}");
    }

    #[test]
    fn the_rate_is_of_the_time_between_two_looks() {
        let look = |passed| Look {
            at: Moment::now(),
            stats: CardStats { queues: vec![queue(passed, passed, 0)], ..CardStats::default() },
        };
        let before = look(0);
        thread::sleep(Duration::from_millis(10));
        let now = look(10_000);
        let mpps = rate(&now, Some(&before), &now.stats.queues[0]).unwrap();
        assert!((0.01..=1.0).contains(&mpps), "{mpps}");
        assert_eq!(rate(&now, None, &now.stats.queues[0]), None);
        assert!(seconds("0").is_err() && seconds("x").is_err() && seconds("0.5").is_ok());
    }
}
