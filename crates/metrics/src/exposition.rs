//! Counters and gauges as text.

use millrace_abi::clock::{SCALED_PER_PPM, State};
use millrace_abi::control::QueueState;
use millrace_abi::launch::{BUCKETS, bucket_end};
use millrace_abi::queue::QueueId;
use millrace_abi::stats::{CardStats, Count, FunctionStats, LaunchStats, PortStats, QueueStats, WorkerStats};
use millrace_clock::Snapshot;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

/// What a card says of itself at one moment, in the words of OpenMetrics.
///
/// # Errors
/// None that anybody has seen: text is written to memory.
pub fn text(stats: CardStats, clock: Option<Snapshot>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("millrace");
    registry.register_collector(Box::new(Look { stats, clock }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Look {
    stats: CardStats,
    clock: Option<Snapshot>,
}

type Labels = Vec<(&'static str, String)>;

/// Writes metrics one after the other.
struct Writer<'e>(DescriptorEncoder<'e>);

impl Writer<'_> {
    fn counters(&mut self, name: &str, help: &str, values: impl Iterator<Item = (Labels, u64)>) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauges(&mut self, name: &str, help: &str, values: impl Iterator<Item = (Labels, f64)>) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Collector for Look {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut writer = Writer(encoder);
        queues(&mut writer, &self.stats.queues)?;
        ports(&mut writer, &self.stats.ports)?;
        workers(&mut writer, &self.stats.workers)?;
        let flows = self.stats.flows.iter().map(|count| (vec![("what", count.reason.clone())], count.count));
        writer.counters("flow_frames", "What became of frames that rules decided on", flows)?;
        let bells = self.stats.bells.iter().map(|count| (vec![("what", count.reason.clone())], count.count));
        writer.counters(
            "wakes",
            "Wakes of programs that took too long, and those that a thread of the user's makes since",
            bells,
        )?;
        let of_function = |function: &FunctionStats| {
            by_reason(&vec![("function", function.path.clone())], &function.events).into_iter()
        };
        let events = self.stats.functions.iter().flat_map(of_function);
        writer.counters("function_events", "What happened to PCI functions", events)?;
        self.clock.map_or(Ok(()), |clock| led(&mut writer, &clock))
    }
}

fn of_queue(queue: QueueId) -> Labels {
    vec![("queue", queue.to_string())]
}

fn by_reason(labels: &Labels, counts: &[Count]) -> Vec<(Labels, u64)> {
    let with = |count: &Count| [labels.clone(), vec![("reason", count.reason.clone())]].concat();
    counts.iter().map(|count| (with(count), count.count)).collect()
}

fn queues(writer: &mut Writer<'_>, queues: &[QueueStats]) -> fmt::Result {
    type Field = (&'static str, &'static str, fn(&QueueStats) -> u64);
    const FIELDS: &[Field] = &[
        ("queue_offered_frames", "RX: offered to the queue; TX: taken out of the ring", |queue| queue.offered),
        ("queue_passed_frames", "RX: written to the ring; TX: handed to the port", |queue| queue.passed),
        ("queue_passed_bytes", "Bytes of the frames passed, without FCS", |queue| queue.passed_bytes),
        ("queue_copies", "Copies that the card has made of frames", |queue| queue.copies),
        ("queue_iotlb_hits", "Translations answered by the last mapping used", |queue| queue.iotlb_hits),
        ("queue_iotlb_misses", "Translations that had to search the domain", |queue| queue.iotlb_misses),
        ("queue_iotlb_faults", "Translations that failed", |queue| queue.iotlb_faults),
        ("queue_refused_starts", "Starts that were refused", |queue| queue.refused),
    ];
    for (name, help, value) in FIELDS {
        writer.counters(name, help, queues.iter().map(|queue| (of_queue(queue.queue), value(queue))))?;
    }
    let drops = queues.iter().flat_map(|queue| by_reason(&of_queue(queue.queue), &queue.drops));
    writer.counters("queue_dropped_frames", "Frames that were not passed, by reason", drops)?;
    launches(writer, queues)?;
    let running = |queue: &QueueStats| f64::from(u8::from(queue.state == QueueState::Running));
    writer.gauges("queue_running", "1: started", queues.iter().map(|queue| (of_queue(queue.queue), running(queue))))?;
    let holders = queues.iter().map(|queue| (of_queue(queue.queue), queue.holders.len() as f64));
    writer.gauges("queue_holders", "Programs that have it open", holders)?;
    let engines = queues.iter().map(|queue| {
        let labels =
            [of_queue(queue.queue), vec![("engine", queue.engine.to_string()), ("worker", queue.worker.to_string())]];
        (labels.concat(), 1.0)
    });
    writer.gauges("queue_info", "Which engine and worker serve it", engines)
}

/// Frames with a launch time.
fn launches(writer: &mut Writer<'_>, queues: &[QueueStats]) -> fmt::Result {
    let with = || queues.iter().filter_map(|queue| Some((of_queue(queue.queue), queue.launch.as_ref()?)));
    writer.counters("queue_launch_frames", "With a verdict", with().map(|(labels, launch)| (labels, launch.frames)))?;
    let verdicts = with().flat_map(|(labels, launch)| by_reason(&labels, &launch.verdicts));
    writer.counters("queue_launch_verdicts", "Verdicts on frames with a launch time, by reason", verdicts)?;
    writer.counters(
        "queue_launch_late_frames",
        "How many left at most le seconds late: a histogram, for histogram_quantile()",
        with().flat_map(|(labels, launch)| up_to(&labels, launch)),
    )?;
    type Share = (&'static str, fn(&LaunchStats) -> u64);
    const SHARES: &[Share] = &[
        ("0.5", |launch| launch.late_p50_ns),
        ("0.99", |launch| launch.late_p99_ns),
        ("1", |launch| launch.late_max_ns),
    ];
    let shares = with().flat_map(|(labels, launch)| {
        let share = move |(share, ns): &Share| {
            ([labels.clone(), vec![("share", (*share).to_owned())]].concat(), ns(launch) as f64 * 1e-9)
        };
        SHARES.iter().map(share).collect::<Vec<_>>()
    });
    writer.gauges("queue_launch_late_seconds", "This share of frames left no later than this", shares)
}

/// The histogram of how late frames left, as Prometheus has it: each bucket counts those of the buckets before as well, and is there
/// when it is empty, too.
fn up_to(labels: &Labels, launch: &LaunchStats) -> Vec<(Labels, u64)> {
    let of =
        |end: Option<u64>| launch.late.iter().filter(|late| late.below_ns == end).map(|late| late.count).sum::<u64>();
    let mut sum = 0;
    let bucket = |end: Option<u64>| {
        sum += of(end);
        // Lateness is whole ns: below 64 is up to 63.
        let le = end.map_or_else(|| "+Inf".to_owned(), |ns| format!("{:.9}", (ns - 1) as f64 * 1e-9));
        ([labels.clone(), vec![("le", le)]].concat(), sum)
    };
    (0..BUCKETS).map(bucket_end).map(bucket).collect()
}

fn ports(writer: &mut Writer<'_>, ports: &[PortStats]) -> fmt::Result {
    type Field = (&'static str, &'static str, fn(&PortStats) -> u64);
    type Counts = (&'static str, &'static str, fn(&PortStats) -> &[Count]);
    const FIELDS: &[Field] = &[
        ("port_rx_frames", "Came in from the wire, and the MAC let them through", |port| port.rx_frames),
        ("port_rx_bytes", "Their bytes", |port| port.rx_bytes),
        ("port_rx_copies", "Copies made of frames from the wire", |port| port.rx_copies),
        ("port_tx_frames", "Went out to the wire", |port| port.tx_frames),
        ("port_tx_bytes", "Their bytes", |port| port.tx_bytes),
        ("port_tx_copies", "Copies made of frames towards the wire", |port| port.tx_copies),
    ];
    const COUNTS: &[Counts] = &[
        ("port_rx_dropped_frames", "Arrived, but were not passed on, by reason", |port| &port.rx_drops),
        ("port_tx_dropped_frames", "Were handed over, but did not leave, by reason", |port| &port.tx_drops),
        ("port_rx_events", "What else happened to frames from the wire", |port| &port.rx_events),
        ("port_tx_events", "What else happened to frames towards the wire", |port| &port.tx_events),
    ];
    let of_port = |port: &PortStats| vec![("port", port.port.to_string())];
    for (name, help, value) in FIELDS {
        writer.counters(name, help, ports.iter().map(|port| (of_port(port), value(port))))?;
    }
    for (name, help, counts) in COUNTS {
        writer.counters(name, help, ports.iter().flat_map(|port| by_reason(&of_port(port), counts(port))))?;
    }
    let links = ports.iter().map(|port| (of_port(port), f64::from(u8::from(port.link))));
    writer.gauges("port_link", "1: somebody is at the other end, as far as is known", links)?;
    let specs = ports.iter().map(|port| {
        let connected = port.connected.map_or_else(String::new, |other| other.to_string());
        let labels = vec![("spec", port.spec.clone()), ("mode", port.mode.clone()), ("connected", connected)];
        ([of_port(port), labels].concat(), 1.0)
    });
    writer.gauges("port_info", "What is plugged in", specs)
}

fn workers(writer: &mut Writer<'_>, workers: &[WorkerStats]) -> fmt::Result {
    let of_worker = |worker: &WorkerStats| vec![("worker", worker.worker.to_string())];
    writer.counters("worker_passes", "Times round its loop", workers.iter().map(|w| (of_worker(w), w.passes)))?;
    writer.counters("worker_sleeps", "Times it went to sleep", workers.iter().map(|w| (of_worker(w), w.sleeps)))?;
    let active = workers.iter().map(|worker| (of_worker(worker), f64::from(worker.active_queues)));
    writer.gauges("worker_active_queues", "Queues that it serves at the moment", active)?;
    let pinned = workers.iter().filter_map(|worker| worker.cpu.map(|cpu| (of_worker(worker), f64::from(cpu))));
    writer.gauges("worker_cpu", "Core that it is pinned to", pinned)
}

fn led(writer: &mut Writer<'_>, clock: &Snapshot) -> fmt::Result {
    let report = &clock.report;
    let seconds = |ns: Option<i64>| ns.map(|ns| (Labels::new(), ns as f64 * 1e-9)).into_iter();
    let one = |value: f64| std::iter::once((Labels::new(), value));
    writer.gauges("clock_offset_seconds", "The clock less its source, as last measured", seconds(report.offset_ns))?;
    writer.gauges("clock_path_delay_seconds", "One way to its source", seconds(report.path_delay_ns))?;
    let ppm = |scaled: i64| scaled as f64 / SCALED_PER_PPM as f64;
    writer.gauges(
        "clock_frequency_ppm",
        "How much faster than nominal it is told to go",
        one(ppm(clock.scaled_ppm)),
    )?;
    writer.gauges(
        "clock_state_seconds",
        "How long its state is what it is",
        one(clock.since_change().as_secs_f64()),
    )?;
    writer.counters("clock_steps", "How often it was set or stepped", std::iter::once((Labels::new(), clock.steps)))?;
    let states = [State::Free, State::Acquiring, State::Locked, State::Holdover, State::Master];
    let states = states.map(|state| {
        let name = format!("{state:?}").to_lowercase();
        (vec![("state", name)], f64::from(u8::from(report.state == state)))
    });
    writer.gauges("clock_state", "1: this is its state", states.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_abi::queue::Engine;
    use millrace_abi::stats::LateBucket;
    use serde_json::Value;

    fn counts(count: u64) -> Vec<Count> {
        vec![Count { reason: "no \"room\"".into(), count }]
    }

    /// Every number another one.
    fn stats() -> CardStats {
        let launch = LaunchStats {
            frames: 1_001,
            verdicts: counts(1_002),
            late_p50_ns: 1_003_000_000_000,
            late_p99_ns: 1_004_000_000_000,
            late_max_ns: 1_005_000_000_000,
            late: Vec::new(),
        };
        let queue = QueueStats {
            queue: QueueId::rx(1_009),
            engine: Engine::Medusa,
            state: QueueState::Running,
            worker: 1_010,
            holders: Vec::new(),
            offered: 1_011,
            passed: 1_012,
            passed_bytes: 1_013,
            copies: 1_014,
            drops: counts(1_015),
            launch: Some(launch),
            iotlb_hits: 1_016,
            iotlb_misses: 1_017,
            iotlb_faults: 1_018,
            fault_iova: None,
            refused: 1_019,
            refusal: None,
        };
        let port = PortStats {
            port: 1_020,
            spec: "af_packet:eth0".into(),
            link: true,
            mode: "x".into(),
            connected: Some(1_021),
            rx_frames: 1_022,
            rx_bytes: 1_023,
            rx_copies: 1_024,
            tx_frames: 1_025,
            tx_bytes: 1_026,
            tx_copies: 1_027,
            rx_drops: counts(1_028),
            tx_drops: counts(1_029),
            rx_events: counts(1_030),
            tx_events: counts(1_031),
            schedule: None,
        };
        let worker =
            WorkerStats { worker: 1_032, cpu: Some(1_033), active_queues: 1_034, passes: 1_035, sleeps: 1_036 };
        let function = FunctionStats { path: "/tmp/pci.0".into(), events: counts(1_038) };
        CardStats {
            queues: vec![queue],
            ports: vec![port],
            workers: vec![worker],
            flows: counts(1_037),
            functions: vec![function],
            bells: counts(1_039),
        }
    }

    fn numbers(value: &Value, to: &mut Vec<u64>) {
        match value {
            Value::Number(number) => to.extend(number.as_u64()),
            Value::Array(values) => values.iter().for_each(|value| numbers(value, to)),
            Value::Object(fields) => fields.values().for_each(|value| numbers(value, to)),
            _ => {}
        }
    }

    #[test]
    fn every_number_that_stats_shows_is_there() {
        let stats = stats();
        let text = text(stats.clone(), None).unwrap();
        let mut wanted = Vec::new();
        numbers(&serde_json::to_value(&stats).unwrap(), &mut wanted);
        assert!(wanted.len() >= 33, "{wanted:?}");
        for number in wanted {
            // What is in ns there is in seconds here.
            let number = if number > 1_000_000_000 { number / 1_000_000_000 } else { number };
            assert!(text.contains(&number.to_string()), "{number} is missing:\n{text}");
        }
        assert!(text.ends_with("# EOF\n") && text.contains(r#"reason="no \"room\"""#), "{text}");
        assert!(text.contains("millrace_queue_passed_frames_total{queue=\"rx1009\"} 1012\n"), "{text}");
    }

    #[test]
    fn how_late_frames_left_is_a_histogram_of_prometheus() {
        let late = [(Some(64), 5), (Some(256), 2), (None, 1)];
        let mut stats = stats();
        let launch = stats.queues[0].launch.as_mut().unwrap();
        launch.late = late.map(|(below_ns, count)| LateBucket { below_ns, count }).into();
        let text = text(stats, None).unwrap();
        for (le, count) in [("0.000000063", 5), ("0.000000127", 5), ("0.000000255", 7), ("1.073741823", 7), ("+Inf", 8)]
        {
            let line = format!("millrace_queue_launch_late_frames_total{{queue=\"rx1009\",le=\"{le}\"}} {count}\n");
            assert!(text.contains(&line), "{line} is missing:\n{text}");
        }
    }

    #[test]
    fn the_clock_says_its_state_and_no_offset_that_nobody_has_measured() {
        use millrace_clock::{Ticks, Timebase};
        let snapshot = Snapshot::new(Timebase::new(Ticks::new(1)), Ticks::now());
        let text = text(CardStats::default(), Some(snapshot)).unwrap();
        assert!(text.contains("millrace_clock_state{state=\"free\"} 1.0\n"), "{text}");
        assert!(!text.contains("\nmillrace_clock_offset_seconds{"), "{text}");
    }
}
