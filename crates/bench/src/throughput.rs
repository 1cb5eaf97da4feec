//! `millrace bench throughput`: packets and bits per second, out, in and both, per size.
//!
//! - `tx`: structured frames into a card whose port fetches every byte and then forgets it. Lost is what the card did
//!   not count as passed on; nobody looks at the contents, so corrupt is 0.
//! - `rx`: structured frames that the card's port generates, every byte checked.
//! - `both`: structured frames out and back through the card's loopback, every byte checked. A frame counts once, though
//!   it crosses the card twice.
//!
//! Bits are those of the frames, without FCS, preamble and gap.

use std::fmt;

use clap::{Args, ValueEnum};
use millrace_abi::queue::{Engine, Mode, QueueId};
use millrace_packet::structured::{self, Checker, MIN_LEN, Sequence, Stamping};
use millrace_tool::clock::Moment;
use millrace_tool::echo::{Echo, Plan, SILENCE, cannot_receive};
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{RxQueue, TxQueue};
use millrace_tool::list::Sizes;
use millrace_tool::meter::Meter;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::progress::Steps;
use millrace_tool::session::Session;
use millrace_tool::{send, stop};

use crate::choice::{engines, first_queue, modes};
use crate::rig::{Cores, Rig};

/// Sizes unless `--size` says otherwise.
const DEFAULT_SIZES: [u32; 6] = [64, 128, 256, 512, 1024, 1518];

/// Frames per call unless `--burst` says otherwise.
const DEFAULT_BURST: u16 = 64;

/// Frames on their way at once in direction `both`: a quarter of a default ring.
const WINDOW: u64 = 512;

/// Bursts between two looks at the clock.
const BURSTS_PER_LOOK: u32 = 64;

/// Options of `bench throughput`.
#[derive(Debug, Args)]
#[command(after_help = "\
Measures every entry of --size by itself (default 64,128,256,512,1024,1518),
for --seconds or --count frames. A tx frame goes to a port that forgets it, an
rx frame comes from a generator (of a range, the largest size), and direction
both is out and back.

Examples:
  millrace bench throughput
  millrace bench throughput --direction tx --size 64 --engine medusa --json
  millrace bench throughput --size 64-1518 --seconds 5")]
pub struct ThroughputArgs {
    /// Directions to measure
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "tx,rx,both")]
    direction: Vec<Direction>,
    /// How long to measure each; --count takes precedence
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Direction {
    Tx,
    Rx,
    Both,
}

impl Direction {
    fn word(self) -> &'static str {
        match self {
            Direction::Tx => "tx",
            Direction::Rx => "rx",
            Direction::Both => "both",
        }
    }

    /// What can be measured of `sizes`: a generator makes frames of one size only.
    fn sizes(self, sizes: Sizes) -> Sizes {
        match self {
            Direction::Rx => Sizes::one(sizes.largest()),
            Direction::Tx | Direction::Both => sizes,
        }
    }

    /// The port that a card needs for it.
    fn port(self, sizes: &Sizes) -> String {
        match self {
            Direction::Tx => "null".to_owned(),
            Direction::Rx => format!("generator:size={}", sizes.largest()),
            Direction::Both => "loopback".to_owned(),
        }
    }
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// At most so many frames.
    pub count: u64,
    /// At most so long.
    pub seconds: f64,
}

/// What went through in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    /// Frames.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The time that they took, in seconds.
    pub seconds: f64,
    /// Frames that went in and did not come out.
    pub lost: u64,
    /// Frames that came out changed, repeated or in the wrong order.
    pub corrupt: u64,
}

impl Flow {
    /// Millions of frames per second.
    pub fn mpps(&self) -> f64 {
        self.packets as f64 / self.seconds * 1e-6
    }

    /// Thousands of millions of bits per second.
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds * 1e-9
    }
}

/// Runs the benchmark.
pub fn run(shared: &Shared, cores: Cores, args: &ThroughputArgs) -> Result<(), Failure> {
    let sizes = shared.size.clone().unwrap_or_else(|| Sizes::each(&DEFAULT_SIZES));
    if (sizes.smallest() as usize) < MIN_LEN {
        return Err(Failure::Usage(format!("--size {sizes}: a frame needs {MIN_LEN} bytes to be checked")));
    }
    let cases = cases(shared, args, &sizes);
    let steps = Steps::new("throughput", cases.len() as u64);
    let extent = Extent {
        count: shared.count.unwrap_or(u64::MAX),
        seconds: if shared.count.is_some() { f64::INFINITY } else { args.seconds },
    };
    let mut rows = Vec::with_capacity(cases.len());
    let (mut lost, mut corrupt) = (0, 0);
    for case in cases.iter().take_while(|_| !stop::asked()) {
        steps.next(case.to_string());
        let (engine, flow) = case.measure(shared, cores, extent)?;
        (lost, corrupt) = (lost + flow.lost, corrupt + flow.corrupt);
        let row = case.row(engine, &flow);
        if shared.json {
            Output::new(true).rows("", &[row])?;
        } else {
            rows.push(row);
        }
    }
    Output::new(shared.json).rows("throughput", &rows)?;
    match (lost + corrupt, stop::asked()) {
        (1.., _) => Err(Failure::Found(format!("{lost} packets lost, {corrupt} corrupt"))),
        (0, true) => Err(Failure::Interrupted),
        (0, false) => Ok(()),
    }
}

fn cases(shared: &Shared, args: &ThroughputArgs, sizes: &Sizes) -> Vec<Case> {
    let mut cases = Vec::new();
    for engine in engines(shared) {
        for mode in modes(shared, engine) {
            for &direction in &args.direction {
                let sizes = sizes.entries().map(|sizes| direction.sizes(sizes));
                cases.extend(sizes.map(|sizes| Case { engine, mode, direction, sizes }));
            }
        }
    }
    cases
}

/// One line of the table.
#[derive(Debug)]
struct Case {
    engine: Option<Engine>,
    mode: Mode,
    direction: Direction,
    sizes: Sizes,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(engine) = self.engine {
            write!(f, "{engine} ")?;
        }
        write!(f, "{} {} {} bytes", self.mode, self.direction.word(), self.sizes)
    }
}

impl Case {
    fn measure(&self, shared: &Shared, cores: Cores, extent: Extent) -> Result<(Engine, Flow), Failure> {
        let card = Rig::start(shared, cores, self.engine, &self.direction.port(&self.sizes))?;
        let rig = card.in_mode(self.mode);
        let session = rig.session()?;
        let queue = first_queue(shared);
        let engine = session.engine(QueueId::tx(queue))?;
        let burst = shared.burst_or(DEFAULT_BURST);
        let flow = match self.direction {
            Direction::Tx => transmit(&session, queue, &self.sizes, burst, extent)?,
            Direction::Rx => receive(&mut session.rx(queue)?, burst, extent)?,
            Direction::Both => {
                let (rx, tx) = rig.pair(&session)?;
                both(rx, tx, &self.sizes, burst, extent)?
            }
        };
        drop(session);
        card.end()?;
        Ok((engine, flow))
    }

    fn row(&self, engine: Engine, flow: &Flow) -> Row {
        let row = Row::new()
            .tag("bench", "throughput")
            .text("engine", engine)
            .text("mode", self.mode)
            .text("direction", self.direction.word());
        let row = match self.sizes.single() {
            Some(size) => row.count("size", u64::from(size)),
            None => row.text("size", &self.sizes),
        };
        row.count("count", flow.packets)
            .number("mpps", flow.mpps(), 3)
            .number("gbps", flow.gbps(), 3)
            .count("lost", flow.lost)
            .count("corrupt", flow.corrupt)
    }
}

/// Sends as fast as the card takes frames. Opens and closes the queue itself, because only a stopped queue has final
/// counts.
pub fn transmit(
    session: &Session<'_>,
    queue: u32,
    sizes: &Sizes,
    burst: usize,
    extent: Extent,
) -> Result<Flow, Failure> {
    let passed_before = passed(session, queue)?;
    let mut tx = session.tx(queue)?;
    let mut flow = send_until(&mut tx, sizes, burst, extent)?;
    send::finish(tx)?;
    flow.lost = flow.packets.saturating_sub(passed(session, queue)? - passed_before);
    Ok(flow)
}

/// How many frames of a transmit queue have reached the card's port.
fn passed(session: &Session<'_>, queue: u32) -> Result<u64, Failure> {
    let stats = session.stats()?;
    Ok(stats.queues.iter().find(|entry| entry.queue == QueueId::tx(queue)).map_or(0, |entry| entry.passed))
}

fn send_until(tx: &mut TxQueue, sizes: &Sizes, burst: usize, extent: Extent) -> Result<Flow, Failure> {
    let mut lens = vec![0; burst];
    let mut random = fastrand::Rng::new();
    let mut next = Sequence::ZERO;
    let mut flow = Flow::default();
    let start = Moment::now();
    while flow.packets < extent.count && start.seconds() < extent.seconds && !stop::asked() {
        for _ in 0..BURSTS_PER_LOOK {
            let count = burst.min(usize::try_from(extent.count - flow.packets).unwrap_or(usize::MAX));
            if count == 0 {
                break;
            }
            sizes.pick(&mut random, &mut lens[..count]);
            let sent = send::burst(tx, &lens[..count], |at, slot| structured::fill(slot, next.offset(at as i64)))?;
            next = next.offset(sent as i64);
            flow.packets += sent as u64;
            flow.bytes += send::bytes(&lens[..sent]);
            send::flush(tx)?;
        }
    }
    flow.seconds = start.seconds();
    Ok(flow)
}

/// Receives as fast as frames come, and checks them. Time counts from the first frames on, which do not count.
pub fn receive(rx: &mut RxQueue, burst: usize, extent: Extent) -> Result<Flow, Failure> {
    let mut checker = Checker::joining(Stamping::Off);
    await_first(rx, burst, &mut checker)?;
    let mut flow = Flow::default();
    let (start, mut heard) = (Moment::now(), Moment::now());
    while flow.packets < extent.count && start.seconds() < extent.seconds && !stop::asked() {
        let before = flow.packets;
        for _ in 0..BURSTS_PER_LOOK {
            let most = burst.min(usize::try_from(extent.count - flow.packets).unwrap_or(usize::MAX));
            take(rx, most, &mut checker, &mut flow)?;
        }
        if flow.packets > before {
            heard = Moment::now();
        } else if heard.seconds() > SILENCE {
            break;
        }
    }
    flow.seconds = start.seconds();
    let found = checker.findings();
    flow.lost = found.lost;
    flow.corrupt = found.corrupt + found.reordered + found.duplicates + found.strays;
    Ok(flow)
}

fn await_first(rx: &mut RxQueue, burst: usize, checker: &mut Checker) -> Result<(), Failure> {
    let (start, mut first) = (Moment::now(), Flow::default());
    while first.packets == 0 {
        take(rx, burst, checker, &mut first)?;
        if start.seconds() > SILENCE {
            return Err(Failure::Found(
                "no frames came within five seconds; use a card with --port generator".to_owned(),
            ));
        }
    }
    Ok(())
}

#[inline]
fn take(rx: &mut RxQueue, most: usize, checker: &mut Checker, flow: &mut Flow) -> Result<(), Failure> {
    let burst = rx.get(most).doing(cannot_receive)?;
    for packet in burst.iter() {
        let _ = checker.check(packet.data);
        flow.bytes += packet.data.len() as u64;
    }
    flow.packets += burst.len() as u64;
    Ok(())
}

/// Sends and receives in turns through a card that sends everything back.
pub fn both(mut rx: RxQueue, mut tx: TxQueue, sizes: &Sizes, burst: usize, extent: Extent) -> Result<Flow, Failure> {
    let mut echo = Echo::new(Plan {
        goal: extent.count,
        window: WINDOW.max(burst as u64),
        burst,
        sizes: sizes.clone(),
        stamping: Stamping::Off,
        poll: true,
        seconds: extent.seconds.is_finite().then_some(extent.seconds),
    });
    let (meter, start) = (Meter::default(), Moment::now());
    echo.run(&mut rx, &mut tx, &meter)?;
    let seconds = start.seconds();
    send::finish(tx)?;
    let found = echo.findings();
    Ok(Flow {
        packets: echo.received(),
        bytes: meter.bytes(),
        seconds,
        lost: found.lost,
        corrupt: found.corrupt + found.reordered + found.duplicates + found.strays,
    })
}
