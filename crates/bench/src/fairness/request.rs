//! `request_p99_ms`: how long the control requests of a bystander take while others flood the control socket.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use millrace_abi::message::Buffers;
use millrace_abi::name::DeviceName;
use millrace_abi::queue::{Mode, QueueId, Sharing};
use millrace_driver::{Client, ClientError};
use millrace_tool::clock::Moment;
use millrace_tool::distribution::Distribution;
use millrace_tool::failure::Failure;
use millrace_tool::{cores, stop};
use rustix::process::{Resource, Rlimit, Signal, kill_process, prlimit};

use super::child::Disturber;
use super::setting::{Goal, Measured, Metric, Setting, head};
use crate::median::median;
use crate::rig::Rig;

const NAME: &str = "request_p99_ms";

pub const METRIC: Metric = Metric { name: NAME, goal: Goal::AtMost(5.0), cases, measure };

/// Without anybody else.
const ALONE: &str = "alone";

/// Names, kinds of hostile programs, and how many of them.
const CASES: [(&str, &str, usize); 4] =
    [(ALONE, "", 0), ("connects", "connects", 2), ("requests", "requests", 2), ("fds", "fds", 8)];

/// Descriptors of the card in case `fds`: fewer than the hostile programs together take.
const CARD_FILES: u64 = 1024;

/// Between two rounds of requests.
const NAP: Duration = Duration::from_millis(1);

/// A card that has not answered for so long beyond the time of the measurement is stuck.
const STUCK: Duration = Duration::from_secs(20);

fn cases() -> Vec<&'static str> {
    CASES.iter().map(|(name, ..)| *name).collect()
}

fn measure(setting: &Setting<'_>, names: &[&'static str]) -> Result<Vec<Measured>, Failure> {
    let chosen = CASES.into_iter().filter(|(name, ..)| names.contains(name));
    let mut cases: Vec<Case> = chosen.map(|(name, kind, count)| Case::new(name, kind, count)).collect();
    // All sides wait most of the time, and those who start them hand on their cores: let the system place them.
    cores::unpin();
    let measured = setting.rounds().try_for_each(|_| cases.iter_mut().try_for_each(|case| case.measure(setting)));
    setting.cores.pin_application();
    measured?;
    Ok(cases.iter().map(Case::measured).collect())
}

struct Case {
    name: &'static str,
    kind: &'static str,
    count: usize,
    /// Medians and p99, one per round, in ms.
    p50: Vec<f64>,
    p99: Vec<f64>,
    requests: u64,
    refused: u64,
    stuck: u64,
}

impl Case {
    fn new(name: &'static str, kind: &'static str, count: usize) -> Self {
        Self { name, kind, count, p50: Vec::new(), p99: Vec::new(), requests: 0, refused: 0, stuck: 0 }
    }

    fn measure(&mut self, setting: &Setting<'_>) -> Result<(), Failure> {
        if stop::asked() {
            return Err(Failure::Interrupted);
        }
        setting.steps.next(format!("{NAME} {}", self.name));
        let card = setting.card_anywhere(1, &["--engine", "medusa"])?;
        let bystander = Bystander::connect(card.device())?;
        if self.kind == "fds" {
            limit_files(&card)?;
        }
        let start = |_| Disturber::start(card.device(), None, &[self.kind]);
        let others = (0..self.count).map(start).collect::<Result<Vec<_>, _>>()?;
        let found = watch(&card, bystander, setting.args.seconds);
        drop(others);
        let Some(times) = found else {
            // It took at least that long, and nobody knows how long it would have.
            self.stuck += 1;
            self.p99.push(STUCK.as_secs_f64() * 1e3);
            return Ok(());
        };
        let (times, refused) = times?;
        let millis = |quantile| times.quantile(quantile).map(|nanos| nanos as f64 * 1e-6);
        self.p50.extend(millis(0.5));
        self.p99.extend(millis(0.99));
        self.requests += times.count();
        self.refused += refused;
        Ok(())
    }

    fn measured(&self) -> Measured {
        let value = median(&self.p99);
        let row = head(NAME)
            .text("case", self.name)
            .maybe("p50_ms", median(&self.p50), 4)
            .maybe("value", value, 4)
            .count("requests", self.requests)
            .count("refused", self.refused)
            .count("stuck", self.stuck);
        Measured { case: self.name, value, counts: self.name != ALONE, row }
    }
}

/// Gives the card so few descriptors that others can use them up.
fn limit_files(card: &Rig) -> Result<(), Failure> {
    let limit = Rlimit { current: Some(CARD_FILES), maximum: Some(CARD_FILES) };
    let limited = prlimit(card.process(), Resource::Nofile, limit);
    limited.map(drop).map_err(|errno| Failure::Found(format!("cannot limit the descriptors of the card: {errno}")))
}

type Times = Result<(Distribution, u64), Failure>;

/// Lets the bystander work for `seconds`; `None` when the card does not answer, which is killed then.
fn watch(card: &Rig, bystander: Bystander, seconds: f64) -> Option<Times> {
    let (sender, receiver) = mpsc::channel();
    let worker = thread::spawn(move || {
        // Nobody listens any more when the card was stuck.
        let _ = sender.send(bystander.work(seconds));
    });
    let times = receiver.recv_timeout(Duration::from_secs_f64(seconds) + STUCK).ok();
    if times.is_none()
        && let Some(process) = card.process()
    {
        // That ends the wait for its answer.
        let _ = kill_process(process, Signal::KILL);
    }
    // It has sent what it found, or does so now.
    let _ = worker.join();
    times
}

/// A program that asks for little, now and then.
struct Bystander {
    client: Client,
}

impl Bystander {
    fn connect(device: &str) -> Result<Self, Failure> {
        let path = match device.parse() {
            Ok(DeviceName::Unix(path)) => path,
            _ => PathBuf::from(device),
        };
        let client = Client::connect(&path).map_err(|error| Failure::Found(error.to_string()))?;
        Ok(Self { client })
    }

    /// Times of its requests, and how many were refused.
    fn work(&self, seconds: f64) -> Times {
        let (mut times, mut refused) = (Distribution::new(), 0);
        let start = Moment::now();
        while start.seconds() < seconds && !stop::asked() {
            let client = &self.client;
            timed(&mut times, &mut refused, || client.read(0, &mut [0; 4]))?;
            let open = || client.open(QueueId::rx(0), Mode::Direct, Sharing::Exclusive, Buffers::Driver);
            if let Some(opened) = timed(&mut times, &mut refused, open)? {
                timed(&mut times, &mut refused, || client.close(opened.handle))?;
            }
            thread::sleep(NAP);
        }
        Ok((times, refused))
    }
}

/// Asks, and takes the time; a refusal is an answer too.
fn timed<T>(
    times: &mut Distribution,
    refused: &mut u64,
    ask: impl FnOnce() -> Result<T, ClientError>,
) -> Result<Option<T>, Failure> {
    let start = Moment::now();
    let answer = ask();
    times.record(Moment::now().nanos_since(start));
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.code().is_some() => {
            *refused += 1;
            Ok(None)
        }
        Err(error) => Err(Failure::Found(format!("a request of the bystander failed: {error}"))),
    }
}
