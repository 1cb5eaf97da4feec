//! Several queue pairs of one card, measured from one thread.

use crate::exchange::exchange;
use millrace_packet::probe::{self, Addresses, Probes, Version};
use millrace_tool::clock::Clock;
use millrace_tool::failure::Failure;
use millrace_tool::host::{RxQueue, TxQueue};
use millrace_tool::list::Sizes;
use millrace_tool::send;
use millrace_tool::session::Session;
use millrace_tool::stop;
use millrace_tool::traffic::{Board, Lengths, Pair, Plan, Results, Worker};

use millrace_tool::trips::{self, RoundTrips, round_trips_over};

/// Frames per call.
const BURST: usize = 64;
/// Frames on their way at once on all queues together, as in `bench throughput`; each queue has at least one burst.
const WINDOW: u64 = 512;
/// Frames that go over each queue before the measurement begins, so that every buffer of it has been used: the system
/// gives memory at the first touch.
const WARM_UP: u64 = 512;
/// How long to wait for frames that do not come back, in seconds.
const LINGER: f64 = 5.0;

/// Queue pairs that are open and started.
pub struct Many {
    pairs: Vec<(RxQueue, TxQueue)>,
}

/// How many frames went out and back.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Millions of frames per second.
    pub mpps: f64,
    /// Thousands of millions of bits of frames per second.
    pub gbps: f64,
}

impl Many {
    /// Opens queues `0..count`.
    pub fn open(session: &Session<'_>, count: u32) -> Result<Self, Failure> {
        let pairs = (0..count).map(|queue| Ok((session.rx(queue)?, session.tx(queue)?)));
        Ok(Self { pairs: pairs.collect::<Result<_, Failure>>()? })
    }

    /// Frames of `size` bytes out and back on the first `active` pairs for `seconds`; every one is checked.
    pub fn throughput(&mut self, active: usize, size: u16, seconds: f64) -> Result<Rate, Failure> {
        let warm_up = Plan { goal: Some(WARM_UP), seconds: None, ..plan(active, size, seconds)? };
        self.send_and_receive(active, &warm_up)?;
        let results = self.send_and_receive(active, &plan(active, size, seconds)?)?;
        let (mut frames, mut sent) = (0, 0);
        for queue in &results.queues {
            frames += queue.received.findings.in_order;
            sent += queue.sent.frames;
        }
        if frames < sent && !stop::asked() {
            let text = format!("of {sent} frames {frames} came back whole and in order: such a measurement is none");
            return Err(Failure::Found(text));
        }
        let mpps = frames as f64 / results.receiving * 1e-6;
        Ok(Rate { mpps, gbps: mpps * f64::from(size) * 8e-3 })
    }

    /// As [`Many::throughput`], with no more work for each frame than a bare program does; in millions per second.
    pub fn exchange(&mut self, active: usize, size: u16, seconds: f64) -> Result<f64, Failure> {
        let pairs = self.pairs[..active].iter_mut().map(|(rx, tx)| (rx, tx));
        exchange(pairs, &[size; BURST], window(active), seconds)
    }

    fn send_and_receive(&mut self, active: usize, plan: &Plan) -> Result<Results, Failure> {
        let board = Board::new(active, 1);
        let rest = self.pairs.split_off(active);
        let pair = |(at, (rx, tx))| Pair::new(at as u32, at, Some(rx), tx, plan);
        let pairs = std::mem::take(&mut self.pairs).into_iter().enumerate().map(pair).collect();
        let mut worker = Worker::new(plan, &board, 0, pairs, Clock::start());
        worker.run()?;
        let (results, pairs) = worker.results();
        let queues = pairs.into_iter().map(Pair::into_queues);
        self.pairs = queues.filter_map(|(rx, tx)| Some((rx?, tx))).chain(rest).collect();
        Ok(results)
    }

    /// One packet at a time out and back, the first `active` pairs in turn, for `seconds`.
    pub fn round_trips(&mut self, active: usize, size: u16, seconds: f64) -> Result<RoundTrips, Failure> {
        let extent = trips::Extent { count: u64::MAX, seconds: Some(seconds) };
        let trips = round_trips_over(&mut self.pairs[..active], size, extent)?;
        match trips.lost + trips.corrupt {
            0 => Ok(trips),
            _ if stop::asked() => Ok(trips),
            bad => Err(Failure::Found(format!("{bad} packets lost or changed: such a measurement is none"))),
        }
    }

    /// Stops all queues.
    pub fn close(self) -> Result<(), Failure> {
        self.pairs.into_iter().try_for_each(|(_, tx)| send::finish(tx))
    }
}

/// Frames on their way on each of `active` pairs.
fn window(active: usize) -> u64 {
    (WINDOW / active as u64).max(BURST as u64)
}

fn plan(active: usize, size: u16, seconds: f64) -> Result<Plan, Failure> {
    let addresses = Addresses::default_of(Version::V4);
    let probes = probe::Plan { flows: active as u32, addresses, longest: size.into(), seed: 1 };
    Ok(Plan {
        probes: Probes::new(&probes).map_err(|error| Failure::Usage(error.to_string()))?,
        flows: 1,
        goal: None,
        seconds: Some(seconds),
        rate: None,
        lengths: Lengths::random(Sizes::one(size.into()), 1),
        burst: BURST,
        window: Some(window(active)),
        latency: false,
        poll: true,
        linger: LINGER,
    })
}
