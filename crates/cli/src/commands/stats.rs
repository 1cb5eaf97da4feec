//! `millrace stats`: what the card has counted, once or every second.

use std::thread;
use std::time::{Duration, SystemTime};

use clap::Args;
use millrace_abi::stats::{CardStats, Count, FunctionStats, PortStats, QueueStats, WorkerStats};
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, is_screen};
use millrace_tool::session::Session;
use millrace_tool::stop;
use serde::Serialize;

use crate::commands::info::{pids, state};

/// Options of `stats`.
#[derive(Debug, Args)]
#[command(after_help = "\
For every queue: offered = passed + dropped, and why frames were dropped. What
is neither is on its way at the moment. Without --queue all queues are shown;
--count is how often --watch looks. With --json each look is one object
with everything that the card counts (docs/json.md).

With --watch on a terminal each look takes the place of the one before, with
the rates of queues and ports since then; anywhere else looks follow each other.

Examples:
  millrace stats --device unix:/tmp/card.sock
  millrace stats --watch 5
  millrace stats --queue 0-3 --watch --count 10 --json")]
pub struct StatsArgs {
    /// Look again every SECONDS, until Ctrl-C or --count looks
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
}

/// A number of seconds, as options take it.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected a number of seconds from 0.01 to 86400".to_owned())
}

/// Runs the command.
pub fn run(shared: &Shared, args: &StatsArgs) -> Result<(), Failure> {
    if args.watch.is_none() && shared.count.is_some() {
        return Err(Failure::Usage("--count says how often to look, and so needs --watch".to_owned()));
    }
    let session = Session::open_running(shared, "there is nothing to count")?;
    let mut looks = args.watch.map_or(1, |_| shared.count.unwrap_or(u64::MAX));
    let mut before: Option<Look> = None;
    loop {
        let mut look = Look { at: Moment::now(), time_ns: unix_nanos(), stats: session.stats()? };
        keep_wanted(shared, &mut look.stats)?;
        print(shared, &look, before.as_ref(), args.watch.is_some())?;
        before = Some(look);
        looks -= 1;
        if looks == 0 {
            return Ok(());
        }
        if stop::asked() || !pause(args.watch.unwrap_or_default()) {
            // Without an end of its own, Ctrl-C is how it ends.
            return if shared.count.is_some() { Err(Failure::Interrupted) } else { Ok(()) };
        }
    }
}

/// Leaves only the queues of `--queue`, if it is given.
fn keep_wanted(shared: &Shared, stats: &mut CardStats) -> Result<(), Failure> {
    let Some(wanted) = &shared.queue else { return Ok(()) };
    stats.queues.retain(|queue| wanted.indices().contains(&queue.queue.index));
    if stats.queues.is_empty() {
        return Err(Failure::Usage(
            "--queue: the card has none of these queues; `millrace info` lists them".to_owned(),
        ));
    }
    Ok(())
}

struct Look {
    at: Moment,
    // Since 1970, to be compared with other logs.
    time_ns: u64,
    stats: CardStats,
}

/// A look as `--json` prints it.
#[derive(Serialize)]
struct JsonLook<'a> {
    time_ns: u64,
    #[serde(flatten)]
    stats: &'a CardStats,
}

fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps, in pieces short enough for Ctrl-C; `false` if it came.
pub fn pause(time: Duration) -> bool {
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

fn print(shared: &Shared, look: &Look, before: Option<&Look>, watched: bool) -> Result<(), Failure> {
    let output = Output::new(shared.json);
    if output.is_json() {
        return Ok(output.object(&JsonLook { time_ns: look.time_ns, stats: &look.stats })?);
    }
    if watched {
        let time = time_of_day(SystemTime::now());
        // On a screen each look takes the place of the one before; in a file they stand below each other.
        let clear = if is_screen() { "\x1b[H\x1b[2J" } else { "" };
        output.text(&format!("{clear}{time}\n\n"))?;
    }
    let row = |queue| queue_row(queue, rates(look, before, queue));
    let queues: Vec<Row> = look.stats.queues.iter().map(row).collect();
    output.rows("queues", &queues)?;
    let launches: Vec<Row> = look.stats.queues.iter().filter_map(launch_row).collect();
    if !launches.is_empty() {
        output.rows("frames with launch times", &launches)?;
    }
    let rated = |port| port_rates(port_row(port), port, look, before);
    output.rows("ports", &look.stats.ports.iter().map(rated).collect::<Vec<_>>())?;
    output.rows("workers", &look.stats.workers.iter().map(worker_row).collect::<Vec<_>>())?;
    // Without rules there is nothing to show.
    let flows: Vec<Row> = look.stats.flows.iter().map(flow_row).collect();
    if !flows.is_empty() {
        output.rows("rules", &flows)?;
    }
    let functions: Vec<Row> = look.stats.functions.iter().map(function_row).collect();
    if !functions.is_empty() {
        output.rows("PCI functions", &functions)?;
    }
    let bells: Vec<Row> = look.stats.bells.iter().map(flow_row).collect();
    if !bells.is_empty() {
        output.rows("wakes that took long", &bells)?;
    }
    Ok(())
}

/// Hours, minutes and seconds of the day (UTC).
pub fn time_of_day(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Rates since the look before; nothing at the first look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rates {
    /// Millions of frames per second.
    mpps: Option<f64>,
    /// 10^9 bits of frames per second, without FCS.
    gbps: Option<f64>,
}

impl Rates {
    /// What became of frames and bytes in so many ns.
    fn new(frames: (u64, u64), bytes: (u64, u64), nanos: u64) -> Self {
        let rate = |(before, now): (u64, u64)| now.saturating_sub(before) as f64 / nanos.max(1) as f64;
        Self { mpps: Some(rate(frames) * 1e3), gbps: Some(rate(bytes) * 8.0) }
    }
}

fn rates(look: &Look, before: Option<&Look>, queue: &QueueStats) -> Rates {
    let earlier = before.and_then(|before| {
        let entry = before.stats.queues.iter().find(|entry| entry.queue == queue.queue)?;
        Some((entry, look.at.nanos_since(before.at)))
    });
    earlier.map_or_else(Rates::default, |(entry, nanos)| {
        Rates::new((entry.passed, queue.passed), (entry.passed_bytes, queue.passed_bytes), nanos)
    })
}

/// Adds how fast a port is, from the second look on.
fn port_rates(row: Row, port: &PortStats, look: &Look, before: Option<&Look>) -> Row {
    let Some(before) = before else { return row };
    let Some(entry) = before.stats.ports.iter().find(|entry| entry.port == port.port) else { return row };
    let nanos = look.at.nanos_since(before.at);
    let rx = Rates::new((entry.rx_frames, port.rx_frames), (entry.rx_bytes, port.rx_bytes), nanos);
    let tx = Rates::new((entry.tx_frames, port.tx_frames), (entry.tx_bytes, port.tx_bytes), nanos);
    row.maybe("rx_mpps", rx.mpps, 3)
        .maybe("rx_gbps", rx.gbps, 3)
        .maybe("tx_mpps", tx.mpps, 3)
        .maybe("tx_gbps", tx.gbps, 3)
}

fn queue_row(queue: &QueueStats, rates: Rates) -> Row {
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
        .maybe("mpps", rates.mpps, 3)
        .maybe("gbps", rates.gbps, 3)
        .maybe("copies", per_frame(queue.copies, queue.passed), 2)
        .number("iotlb_hit_%", hit_share(queue), 2)
        .count("faults", queue.iotlb_faults)
        .list("reasons", reasons(&queue.drops).into_iter().chain(refusal).collect())
        .both("holders", pids(&queue.holders), &queue.holders)
}

/// Copies for each frame that passed; `None` while there was none.
fn per_frame(copies: u64, frames: u64) -> Option<f64> {
    (frames > 0).then(|| copies as f64 / frames as f64)
}

fn hit_share(queue: &QueueStats) -> f64 {
    let all = queue.iotlb_hits + queue.iotlb_misses;
    100.0 * queue.iotlb_hits as f64 / all as f64
}

/// What a port has passed. In JSON as in that of `stats`.
pub fn port_row(port: &PortStats) -> Row {
    Row::new()
        .count("port", u64::from(port.port))
        .text("spec", &port.spec)
        .both("link", if port.link { "up" } else { "down" }, port.link)
        .count("rx_frames", port.rx_frames)
        .count("rx_bytes", port.rx_bytes)
        .count("tx_frames", port.tx_frames)
        .count("tx_bytes", port.tx_bytes)
        .both("rx_copies", shown_per_frame(port.rx_copies, port.rx_frames), port.rx_copies)
        .both("tx_copies", shown_per_frame(port.tx_copies, port.tx_frames), port.tx_copies)
        .both("rx_drops", reasons(&port.rx_drops).join(", "), &port.rx_drops)
        .both("tx_drops", reasons(&port.tx_drops).join(", "), &port.tx_drops)
        .both("rx_events", reasons(&port.rx_events).join(", "), &port.rx_events)
        .both("tx_events", reasons(&port.tx_events).join(", "), &port.tx_events)
        .text("mode", &port.mode)
}

fn shown_per_frame(copies: u64, frames: u64) -> String {
    per_frame(copies, frames).map_or_else(String::new, |copies| format!("{copies:.2}"))
}

/// What a worker does.
pub fn worker_row(worker: &WorkerStats) -> Row {
    let core = worker.cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string());
    Row::new()
        .count("worker", u64::from(worker.worker))
        .both("cpu", core, worker.cpu)
        .count("active_queues", u64::from(worker.active_queues))
        .count("passes", worker.passes)
        .count("sleeps", worker.sleeps)
}

/// How late the frames of a queue were that had a launch time; `None`: it had none.
fn launch_row(queue: &QueueStats) -> Option<Row> {
    let launch = queue.launch.as_ref()?;
    let row = Row::new()
        .text("queue", queue.queue)
        .count("frames", launch.frames)
        .count("late_p50_ns", launch.late_p50_ns)
        .count("late_p99_ns", launch.late_p99_ns)
        .count("late_max_ns", launch.late_max_ns)
        .list("verdicts", reasons(&launch.verdicts));
    Some(row)
}

fn function_row(function: &FunctionStats) -> Row {
    let happened: Vec<Count> = function.events.iter().filter(|event| event.count > 0).cloned().collect();
    Row::new().text("function", &function.path).list("events", reasons(&happened))
}

fn flow_row(count: &Count) -> Row {
    Row::new().text("what", &count.reason).count("count", count.count)
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
    use millrace_abi::stats::LaunchStats;

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
            launch: None,
            refused: 0,
            refusal: None,
        }
    }

    #[test]
    fn the_row_shows_the_counting_equation_and_the_reasons() {
        let json = queue_row(&queue(10, 6, 3), Rates::default()).to_json();
        assert!(json.contains(r#""offered":10,"passed":6,"bytes":384,"dropped":3,"on_the_way":1"#), "{json}");
        assert!(json.contains(r#""iotlb_hit_%":99.0,"faults":0,"reasons":["3 no-room"],"holders":[7]"#), "{json}");
        let refused = QueueStats { refused: 2, refusal: Some("it rains".into()), ..queue(0, 0, 0) };
        let json = queue_row(&refused, Rates::default()).to_json();
        assert!(json.contains("2 starts refused, the last one because it rains"), "{json}");
    }

    #[test]
    fn a_queue_without_launch_times_has_no_row_about_them() {
        assert!(launch_row(&queue(1, 1, 0)).is_none());
        let launch = LaunchStats {
            frames: 7,
            verdicts: vec![Count { reason: "on-time".into(), count: 7 }],
            late_p50_ns: 64,
            ..LaunchStats::default()
        };
        let row = launch_row(&QueueStats { launch: Some(launch), ..queue(7, 7, 0) }).unwrap().to_json();
        assert!(
            row.contains(r#""frames":7,"late_p50_ns":64,"#) && row.contains(r#""verdicts":["7 on-time"]"#),
            "{row}"
        );
    }

    #[test]
    fn the_rate_is_of_the_time_between_two_looks() {
        let look = |passed| Look {
            at: Moment::now(),
            time_ns: unix_nanos(),
            stats: CardStats { queues: vec![queue(passed, passed, 0)], ..CardStats::default() },
        };
        let before = look(0);
        thread::sleep(Duration::from_millis(10));
        let now = look(10_000);
        let mpps = rates(&now, Some(&before), &now.stats.queues[0]).mpps.unwrap();
        assert!(mpps > 0.0 && mpps <= 1.0, "{mpps}");
        assert_eq!(rates(&now, None, &now.stats.queues[0]), Rates::default());
        let rates = Rates::new((5, 1_005), (0, 125_000), 1_000_000);
        assert_eq!((rates.mpps, rates.gbps), (Some(1.0), Some(1.0)));
        assert_eq!(time_of_day(SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 + 3_723)), "01:02:03 UTC");
        assert!(seconds("0").is_err() && seconds("x").is_err() && seconds("0.5").is_ok());
    }
}
