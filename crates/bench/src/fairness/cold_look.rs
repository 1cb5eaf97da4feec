//! `cold_look_p99_us`: how soon a quiet ring is looked at while many are busy, and how late a launch time comes there.

use std::thread;
use std::time::Duration;

use millrace_tool::clock::Moment;
use millrace_tool::distribution::Distribution;
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{Device, Pool, PoolRx, PoolTx, RxQueue, TxQueue};
use millrace_tool::stop;
use rustix::process::{Resource, getrlimit};

use super::child::Disturber;
use super::setting::{Goal, Measured, Metric, Setting, head};
use super::trips::Trips;
use crate::median::median;
use crate::rig::Rig;

const NAME: &str = "cold_look_p99_us";

pub const METRIC: Metric = Metric { name: NAME, goal: Goal::AtMost(200.0), cases, measure };

/// A frame that is sent at once.
const SEND: &str = "send";
/// A frame with a launch time.
const LAUNCH: &str = "launch";

/// Quiet pairs that send in turn, so that each has been quiet for long when it is its turn.
const SENDERS: u32 = 32;
/// Between two frames.
const NAP: Duration = Duration::from_millis(2);
/// How far ahead a launch time is, in ns.
const AHEAD: u64 = 500_000;
/// How long to wait for a frame, in seconds.
const LONGEST_WAIT: f64 = 10.0;
/// Descriptors of the card beside those of queues.
const OTHER_FILES: u64 = 500;

fn cases() -> Vec<&'static str> {
    vec![SEND, LAUNCH]
}

fn measure(setting: &Setting<'_>, names: &[&'static str]) -> Result<Vec<Measured>, Failure> {
    check_files(setting)?;
    let mut cases: Vec<Case> = names.iter().map(|name| Case::new(name)).collect();
    for _ in setting.rounds() {
        let mut crowd = Crowd::new(setting)?;
        for case in &mut cases {
            setting.steps.next(format!("{NAME} {}", case.name));
            case.measure(setting.args.seconds, &mut crowd)?;
            if stop::asked() {
                return Ok(Vec::new());
            }
        }
    }
    Ok(cases.iter().map(|case| case.measured(setting)).collect())
}

/// Each open queue costs its program and the card a few descriptors for a moment, and some of them for long.
fn check_files(setting: &Setting<'_>) -> Result<(), Failure> {
    let queues = u64::from(setting.args.busy + setting.args.quiet);
    let (needed, limit) = (2 * queues + OTHER_FILES, getrlimit(Resource::Nofile).current);
    if limit.is_some_and(|limit| limit < needed) {
        let text = format!("{NAME} with {queues} queues needs {needed} descriptors, and there may be {limit:?}");
        return Err(Failure::Usage(format!("{text}: raise `ulimit -n`, or choose fewer with --busy and --quiet")));
    }
    Ok(())
}

struct Case {
    name: &'static str,
    p50: Vec<f64>,
    p99: Vec<f64>,
    max: Vec<f64>,
    samples: u64,
    delayed: u64,
}

impl Case {
    fn new(name: &'static str) -> Self {
        Self { name, p50: Vec::new(), p99: Vec::new(), max: Vec::new(), samples: 0, delayed: 0 }
    }

    fn measure(&mut self, seconds: f64, crowd: &mut Crowd) -> Result<(), Failure> {
        let (times, delayed) = match self.name {
            SEND => crowd.send(seconds)?,
            _ => (crowd.launch(seconds)?, 0),
        };
        let micros = |quantile| times.quantile(quantile).map(|nanos| nanos as f64 * 1e-3);
        self.p50.extend(micros(0.5));
        self.p99.extend(micros(0.99));
        self.max.extend(micros(1.0));
        self.samples += times.count();
        self.delayed += delayed;
        Ok(())
    }

    fn measured(&self, setting: &Setting<'_>) -> Measured {
        let value = median(&self.p99);
        let row = head(NAME)
            .text("case", self.name)
            .count("busy", setting.args.busy.into())
            .count("quiet", setting.args.quiet.into())
            .maybe("p50_us", median(&self.p50), 2)
            .maybe("value", value, 2)
            .maybe("max_us", median(&self.max), 2)
            .count("samples", self.samples)
            .count("delayed", self.delayed);
        Measured { case: self.name, value, counts: true, row }
    }
}

/// A card on whose worker are the quiet queues of this program and the busy ones of another.
struct Crowd {
    // In the order in which they go: those who are busy first, as all others have to be stopped.
    _busy: Disturber,
    _quiet: Vec<TxQueue>,
    senders: Vec<(RxQueue, TxQueue)>,
    launcher: (PoolRx, PoolTx),
    pool: Pool,
    _card: Rig,
}

impl Crowd {
    fn new(setting: &Setting<'_>) -> Result<Self, Failure> {
        let (busy, quiet) = (setting.args.busy, setting.args.quiet);
        // The pairs of the card: the quiet ones, the busy ones, and one of DD.
        let dd = quiet + busy;
        let engine = format!("dd@{dd}");
        let small = ["--engine", "medusa", "--engine", &engine, "--buffers", "128", "--buffer", "256"];
        let card = setting.card(dd + 1, &[&small[..], &["--descriptors", "64", "--tsu"]].concat())?;
        let device = card.session()?.device;
        let senders = SENDERS.min(quiet);
        let both = |index| Ok((start_rx(&device, index)?, start_tx(&device, index)?));
        let quiet_ones = (senders..quiet).map(|index| start_tx(&device, index)).collect::<Result<_, _>>()?;
        let senders = (0..senders).map(both).collect::<Result<_, Failure>>()?;
        let pool = device.pool(256, 2048).doing(launching)?;
        let rx = device.rx(dd).open_on(&pool, 64).doing(launching)?;
        let tx = device.tx(dd).open_on(&pool, 64).doing(launching)?;
        let queues = format!("{quiet}-{}", quiet + busy - 1);
        let arguments = ["rings", "--case", "flood", "--queue", &queues];
        let busy = Disturber::start(card.device(), setting.other_core(), &arguments)?;
        Ok(Self { _busy: busy, _quiet: quiet_ones, senders, launcher: (rx, tx), pool, _card: card })
    }

    /// Times from flush to arrival on quiet pairs that take turns, and how many were left out.
    fn send(&mut self, seconds: f64) -> Result<(Distribution, u64), Failure> {
        let mut trips = Trips::new();
        let start = Moment::now();
        for at in (0..self.senders.len()).cycle() {
            if start.seconds() > seconds || stop::asked() {
                break;
            }
            thread::sleep(NAP);
            let (rx, tx) = &mut self.senders[at];
            trips.go(rx, tx)?;
        }
        Ok((trips.times().clone(), trips.delayed()))
    }

    /// How late frames with a launch time leave a quiet DD queue, by the card's own clock.
    fn launch(&mut self, seconds: f64) -> Result<Distribution, Failure> {
        let mut late = Distribution::new();
        // The first says what time it is there.
        let mut launch = 0;
        let start = Moment::now();
        while start.seconds() < seconds && !stop::asked() {
            let Some(arrived) = self.launch_at(launch)? else {
                // The next would be taken for this one, should it come at last.
                late.record((LONGEST_WAIT * 1e9) as u64);
                break;
            };
            let seen = Moment::now();
            if launch > 0 {
                late.record(arrived.saturating_sub(launch));
            }
            thread::sleep(NAP);
            launch = arrived + Moment::now().nanos_since(seen) + AHEAD;
        }
        Ok(late)
    }

    /// Sends a frame that leaves at `launch`; when it arrived, by the card's clock in ns, if it did within
    /// [`LONGEST_WAIT`].
    fn launch_at(&mut self, launch: u64) -> Result<Option<u64>, Failure> {
        let (rx, tx) = &mut self.launcher;
        tx.reclaim();
        let mut frame = self.pool.take().ok_or_else(|| Failure::Found("the pool is empty".to_owned()))?;
        frame.set_len(64);
        frame.fill(0x5a);
        frame.set_launch(launch);
        let mut frames = vec![frame];
        tx.send(&mut frames).doing(launching)?;
        let start = Moment::now();
        // It polls: a wait would add the time of waking up to the clock that the next launch goes by.
        while rx.receive(&mut frames, 1).doing(launching)? == 0 {
            if start.seconds() > LONGEST_WAIT || stop::asked() {
                return Ok(None);
            }
        }
        let stamp = frames.first().and_then(|frame| frame.received_at());
        stamp.map(|(time, _)| Some(time)).ok_or_else(|| Failure::Found("the card's frames have no time".to_owned()))
    }
}

fn launching() -> String {
    "cannot send at a launch time".to_owned()
}

fn start_tx(device: &Device, index: u32) -> Result<TxQueue, Failure> {
    device.tx(index).open().and_then(|idle| idle.start()).doing(|| format!("cannot start tx{index}"))
}

fn start_rx(device: &Device, index: u32) -> Result<RxQueue, Failure> {
    device.rx(index).open().and_then(|idle| idle.start()).doing(|| format!("cannot start rx{index}"))
}
