//! What RSS costs: frames from a capture to one queue, and to eight, by a worker on one core; a program on the other core counts them.

use std::fs;
use std::path::PathBuf;

use millrace_tool::clock::Moment;
use millrace_tool::echo::{SILENCE, cannot_receive};
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::RxQueue;
use millrace_tool::list::Queues;
use millrace_tool::options::Shared;
use millrace_tool::output::Row;
use millrace_tool::stop;
use tempfile::TempDir;

use super::{FLOWS, Metric, traffic};
use crate::choice::{ENGINE_OF_MANY, engines};
use crate::peers::samples::Samples;
use crate::rig::{Cores, Rig};
use crate::steady;

/// Queues that the frames are spread over.
const QUEUES: u32 = 8;
/// Frames per call.
const BURST: usize = 64;
/// Seconds before frames count.
const WARM_UP: f64 = 0.2;

/// Columns of the samples.
const RSS: usize = 0;
const ONE: usize = 1;
const NO_RULES: usize = 2;
/// Their rules, if they have any.
const CASES: [(&str, Option<&str>); 3] = [
    ("rss", Some("group=1,rss,queues=0-7\npriority=1,actions=rss:1\n")),
    ("one", Some("priority=1,actions=queue:0\n")),
    ("no_rules", None),
];

/// Everything measured so far.
pub struct Comparison {
    samples: Samples<3, ()>,
    capture: PathBuf,
    folder: TempDir,
}

impl Comparison {
    /// Nothing yet; writes the capture.
    pub fn new() -> Result<Self, Failure> {
        let cannot = |source| Failure::File { doing: "cannot write", path: "a capture".into(), source };
        let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir().map_err(cannot)?;
        let capture = folder.path().join("flows.pcap");
        fs::write(&capture, pcap(&traffic::frames(FLOWS))).map_err(cannot)?;
        Ok(Self { samples: Samples::new(()), capture, folder })
    }

    /// Measures each case once.
    pub fn measure(&mut self, shared: &Shared, cores: Cores, seconds: f64) -> Result<(), Failure> {
        self.samples.begin();
        for (at, (name, rules)) in CASES.into_iter().enumerate() {
            if stop::asked() {
                break;
            }
            let shown = |value: f64| format!("{value:.3} Mpps");
            let sample = steady::take(cores, &format!("rss_overhead, {name}"), shown, || {
                self.rate(shared, cores, rules, seconds).map(Some)
            })?;
            self.samples.add(at, sample);
        }
        Ok(())
    }

    /// Millions of frames per second.
    fn rate(&self, shared: &Shared, cores: Cores, rules: Option<&str>, seconds: f64) -> Result<f64, Failure> {
        let engine = match engines(shared)[..] {
            [engine] => engine,
            _ => Some(ENGINE_OF_MANY),
        };
        let port = format!("pcap:{},loop=forever", self.capture.display());
        let file = self.folder.path().join("rules");
        let path = file.display().to_string();
        let mut options = vec!["--workers", "1", "--port", &port];
        if let Some(rules) = rules {
            fs::write(&file, rules).map_err(|source| Failure::File { doing: "cannot write", path: file, source })?;
            options.extend(["--rules", &path]);
        }
        let shared = Shared { queue: Some(Queues::first(QUEUES)), ..shared.clone() };
        let card = Rig::start_with(&shared, cores, engine, &options)?;
        let session = card.session()?;
        let mut queues = (0..QUEUES).map(|queue| session.rx(queue)).collect::<Result<Vec<_>, Failure>>()?;
        count(&mut queues, WARM_UP)?;
        let begin = Moment::now();
        let frames = count(&mut queues, seconds)?;
        let rate = frames as f64 / begin.seconds() * 1e-6;
        drop(queues);
        drop(session);
        card.end()?;
        Ok(rate)
    }

    /// What came of it.
    pub fn row(&self) -> Row {
        let chosen = self.samples.choose();
        let (name, unit, decimals, goal) = Metric::RssOverhead.words();
        let row = Row::new()
            .tag("bench", "classify")
            .text("metric", name)
            .count("size", traffic::SIZE as u64)
            .tag("unit", unit)
            .maybe("value", chosen.ratio(RSS, ONE), decimals)
            .text("goal", goal.unwrap_or("-"))
            .maybe("rss", chosen.values[RSS], 3)
            .maybe("one", chosen.values[ONE], 3)
            .maybe("no_rules", chosen.values[NO_RULES], 3);
        chosen.end(row)
    }
}

/// A capture of these frames, one after the other (the classic format, with nanoseconds, in the byte order of this machine).
fn pcap(frames: &[[u8; traffic::SIZE]]) -> Vec<u8> {
    let (magic, version, ethernet) = (0xa1b2_3c4d_u32, 2 | 4 << 16, 1);
    let mut bytes: Vec<u8> = [magic, version, 0, 0, 65535, ethernet].into_iter().flat_map(u32::to_ne_bytes).collect();
    for frame in frames {
        let len = traffic::SIZE as u32;
        bytes.extend([0, 0, len, len].into_iter().flat_map(u32::to_ne_bytes));
        bytes.extend(frame);
    }
    bytes
}

/// Takes what comes for so many seconds, and counts it.
fn count(queues: &mut [RxQueue], seconds: f64) -> Result<u64, Failure> {
    let (begin, mut last, mut frames) = (Moment::now(), Moment::now(), 0);
    while begin.seconds() < seconds && !stop::asked() {
        let before = frames;
        // Every queue often between two looks at the clock.
        for _ in 0..BURST {
            for queue in &mut *queues {
                frames += queue.get(BURST).doing(cannot_receive)?.len() as u64;
            }
        }
        if frames > before {
            last = Moment::now();
        } else if last.seconds() > SILENCE {
            return Err(Failure::Found("nothing comes any more".to_owned()));
        }
    }
    Ok(frames)
}
