//! One thread that drives several queue pairs.

use std::hint;
use std::thread;
use std::time::Duration;

use millrace_packet::probe::{Arrival, Reading, Tracker};
use millrace_packet::structured::Findings;

use super::board::{Board, Gauge};
use super::pair::{Pair, Sent};
use super::plan::Plan;
use crate::clock::{Clock, Moment};
use crate::distribution::Distribution;
use crate::echo::cannot_receive;
use crate::failure::{Failure, While};
use crate::stop;

/// Rounds without anything to do before the first sleep.
const SPINS: u32 = 2_000;
/// Longest sleep: a full queue is empty after less than that.
const SLEEP: Duration = Duration::from_micros(50);
/// How long nothing comes back before a window opens again, in ns.
const GIVE_UP: u64 = 100_000_000;
/// Up to so many pairs have latencies of their own; the histograms of more would take too much memory.
const OWN_LATENCIES: usize = 64;

/// What one pair received.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// Frames of this run that came to this queue.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that others sent.
    pub other: u64,
    /// What became of the frames; `lost` is for the caller to say.
    pub findings: Findings,
}

impl Received {
    /// Adds what another queue received.
    pub fn add(&mut self, other: &Received) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.other += other.other;
        self.findings.add(&other.findings);
    }
}

/// A worker. What it found so far stands even when a call fails.
pub struct Worker<'a> {
    plan: &'a Plan,
    board: &'a Board,
    /// Number of the first pair on the board.
    first: usize,
    pairs: Vec<Pair>,
    clock: Clock,
    checks: Checks,
    received: Vec<Received>,
    /// How long it sent, and when the last frame came, in ns after the start.
    sent_at: u64,
    heard_at: u64,
}

/// What becomes of frames.
struct Checks {
    /// One for each flow of all workers: a flow may come back anywhere, but always at the same queue.
    trackers: Vec<Tracker>,
    /// Frames of each pair of all workers that came here, each counted once.
    came: Vec<u64>,
    /// One for each pair of this worker, or one for all.
    latencies: Vec<Distribution>,
}

impl<'a> Worker<'a> {
    /// A worker for `pairs`, which are those from number `first` on.
    pub fn new(plan: &'a Plan, board: &'a Board, first: usize, pairs: Vec<Pair>, clock: Clock) -> Self {
        let receives = pairs.iter().any(|pair| pair.rx.is_some());
        let flows = if receives { plan.probes.flows() as usize } else { 0 };
        let latencies = match pairs.len() {
            _ if !plan.latency => 0,
            many if many > OWN_LATENCIES => 1,
            few => few,
        };
        let checks = Checks {
            trackers: vec![Tracker::new(); flows],
            came: vec![0; board.gauges().len()],
            latencies: (0..latencies).map(|_| Distribution::new()).collect(),
        };
        let received = vec![Received::default(); pairs.len()];
        Self { plan, board, first, pairs, clock, checks, received, sent_at: 0, heard_at: 0 }
    }

    /// Sends everything, and receives until nothing is missing or nothing comes any more.
    pub fn run(&mut self) -> Result<(), Failure> {
        let start = Moment::now();
        let sent = self.send_all(start);
        self.board.sent_everything();
        sent?;
        if self.pairs.iter().any(|pair| pair.rx.is_some()) {
            self.collect(start)?;
        }
        Ok(())
    }

    fn send_all(&mut self, start: Moment) -> Result<(), Failure> {
        let limit = self.plan.seconds.map_or(u64::MAX, |seconds| (seconds * 1e9) as u64);
        let mut idle = 0;
        loop {
            let elapsed = Moment::now().nanos_since(start);
            if elapsed >= limit || stop::asked() || self.pairs.iter().all(|pair| pair.is_done(self.plan)) {
                return Ok(());
            }
            let (sent, received) = self.round(elapsed)?;
            if sent {
                self.sent_at = Moment::now().nanos_since(start);
            }
            if sent || received {
                idle = 0;
                continue;
            }
            idle += 1;
            if self.plan.window.is_some() && elapsed > self.heard_at.max(self.sent_at) + GIVE_UP {
                let gauges = &self.board.gauges()[self.first..];
                self.pairs.iter_mut().zip(gauges).for_each(|(pair, gauge)| pair.give_up(gauge));
            }
            self.rest(idle, elapsed);
        }
    }

    /// Every pair's turn: whether anything was sent, and whether anything came.
    #[inline]
    fn round(&mut self, elapsed: u64) -> Result<(bool, bool), Failure> {
        let (mut sent, mut received) = (false, false);
        let gauges = &self.board.gauges()[self.first..];
        for (at, (pair, gauge)) in self.pairs.iter_mut().zip(gauges).enumerate() {
            sent |= pair.send(self.plan, self.clock, elapsed, gauge)?;
            received |= self.checks.receive(self.plan, self.clock, at, pair, gauge, &mut self.received[at])?;
        }
        if received {
            self.heard_at = elapsed;
        }
        Ok((sent, received))
    }

    /// Receives what is still on its way.
    fn collect(&mut self, start: Moment) -> Result<(), Failure> {
        let linger = (self.plan.linger * 1e9) as u64;
        let (mut idle, mut heard) = (0, Moment::now().nanos_since(start));
        loop {
            let mut any = false;
            let gauges = &self.board.gauges()[self.first..];
            for (at, (pair, gauge)) in self.pairs.iter_mut().zip(gauges).enumerate() {
                any |= self.checks.receive(self.plan, self.clock, at, pair, gauge, &mut self.received[at])?;
            }
            let now = Moment::now().nanos_since(start);
            if any {
                (self.heard_at, heard, idle) = (now, now, 0);
                continue;
            }
            // While others send, what they send may still come here.
            if self.board.is_sending() {
                heard = now;
            }
            if self.board.is_complete() || now > heard + linger {
                return Ok(());
            }
            idle += 1;
            self.rest(idle, now);
        }
    }

    /// Nothing was to be done for so many rounds: perhaps sleep a little. Whoever measures times does not.
    fn rest(&self, idle: u32, elapsed: u64) {
        if self.plan.poll || self.plan.latency || idle < SPINS {
            return hint::spin_loop();
        }
        let due = self.pairs.iter().map(|pair| pair.due(self.plan)).min().unwrap_or(0);
        let pause = Duration::from_nanos(due.saturating_sub(elapsed)).min(SLEEP);
        thread::sleep(if pause.is_zero() { SLEEP } else { pause });
    }

    /// Ends the pairs, and says what each queue sent and received.
    pub fn finish(self) -> (Results, Result<(), Failure>) {
        let (results, pairs) = self.results();
        (results, pairs.into_iter().map(Pair::finish).fold(Ok(()), Result::and))
    }

    /// What each queue sent and received; and the pairs.
    pub fn results(self) -> (Results, Vec<Pair>) {
        let own = self.checks.latencies.len() == self.pairs.len();
        let queues = self.pairs.iter().zip(self.received).enumerate().map(|(at, (pair, received))| QueueResult {
            queue: pair.queue,
            sent: pair.sent(),
            received,
            latency: own.then(|| self.checks.latencies[at].clone()),
        });
        let results = Results {
            queues: queues.collect(),
            came: self.checks.came,
            latency: self.plan.latency.then(|| together(&self.checks.latencies)),
            sending: self.sent_at as f64 * 1e-9,
            receiving: self.heard_at as f64 * 1e-9,
        };
        (results, self.pairs)
    }
}

/// The times of several sets.
fn together(sets: &[Distribution]) -> Distribution {
    let mut all = Distribution::new();
    sets.iter().for_each(|set| all.add(set));
    all
}

/// What the queues of a worker came to.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Each queue.
    pub queues: Vec<QueueResult>,
    /// Frames of each pair of the board that came here, each counted once.
    pub came: Vec<u64>,
    /// How long the frames took, if that was measured.
    pub latency: Option<Distribution>,
    /// From the start until the last frame was sent, in seconds.
    pub sending: f64,
    /// From the start until the last frame came, in seconds.
    pub receiving: f64,
}

impl Results {
    /// These and those of another worker.
    #[must_use]
    pub fn with(mut self, other: Results) -> Self {
        self.queues.extend(other.queues);
        self.came.resize(self.came.len().max(other.came.len()), 0);
        self.came.iter_mut().zip(other.came).for_each(|(came, more)| *came += more);
        if let Some(latency) = &other.latency {
            self.latency.get_or_insert_default().add(latency);
        }
        self.sending = self.sending.max(other.sending);
        self.receiving = self.receiving.max(other.receiving);
        self
    }
}

/// What one queue came to.
#[derive(Clone, Debug)]
pub struct QueueResult {
    /// Its number.
    pub queue: u32,
    /// What it sent.
    pub sent: Sent,
    /// What it received.
    pub received: Received,
    /// How long what it received took, if that was measured for each queue.
    pub latency: Option<Distribution>,
}

impl Checks {
    /// Takes a burst and looks at every frame; whether there was one.
    #[inline]
    fn receive(
        &mut self,
        plan: &Plan,
        clock: Clock,
        at: usize,
        pair: &mut Pair,
        gauge: &Gauge,
        received: &mut Received,
    ) -> Result<bool, Failure> {
        let Some(rx) = &mut pair.rx else { return Ok(false) };
        let burst = rx.get(plan.burst).doing(cannot_receive)?;
        if burst.is_empty() {
            return Ok(false);
        }
        // The frames of one burst were found at one moment.
        let now = plan.latency.then(|| clock.now());
        let mut latency = now.zip(match self.latencies.len() {
            0 => None,
            several => self.latencies.get_mut(at.min(several - 1)),
        });
        let (mut frames, mut bytes, mut settled) = (0, 0, 0);
        let found = &mut received.findings;
        for packet in burst.iter() {
            let probe = match plan.probes.read(packet.data) {
                Reading::Probe(probe) => Some(probe),
                Reading::Corrupt => None,
                Reading::Other => {
                    received.other += 1;
                    continue;
                }
            };
            frames += 1;
            bytes += packet.data.len() as u64;
            let Some(probe) = probe else {
                found.corrupt += 1;
                settled += 1;
                continue;
            };
            if let Some((now, times)) = &mut latency {
                times.record(now.nanos_since(probe.stamp));
            }
            match self.trackers[probe.flow as usize].arrive(probe.sequence) {
                Arrival::InOrder => found.in_order += 1,
                Arrival::Late => found.reordered += 1,
                Arrival::Duplicate => {
                    found.duplicates += 1;
                    continue;
                }
                Arrival::Stray => {
                    found.strays += 1;
                    continue;
                }
            }
            settled += 1;
            self.came[(probe.flow / plan.flows) as usize] += 1;
        }
        received.frames += frames;
        received.bytes += bytes;
        gauge.received.add(frames, bytes);
        gauge.settled.add(settled, 0);
        Ok(true)
    }
}
