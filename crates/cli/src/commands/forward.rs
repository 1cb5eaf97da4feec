//! `millrace forward`: from one queue to the other and back, by descriptors.

use clap::Args;
use millrace::{Buffer, Pool, PoolRx, PoolTx};
use millrace_abi::queue::{Engine, QueueId};
use millrace_tool::clock::Moment;
use millrace_tool::echo::cannot_receive;
use millrace_tool::failure::{Failure, While};
use millrace_tool::lanes::{self, Lane, Tally};
use millrace_tool::meter::Meter;
use millrace_tool::options::Shared;
use millrace_tool::session::Session;
use millrace_tool::stop;

use std::time::Duration;

/// Descriptors of each ring.
const RING: u32 = 1024;
/// All four rings full, and a burst in each direction.
const BUFFERS: u32 = 4 * RING + 2048;
/// Empty rounds before the first nap, and how long it is: with two queues to listen to, nobody wakes us.
const SPINS: u32 = 2_000;
const NAP: Duration = Duration::from_micros(100);

/// What to forward.
#[derive(Args, Debug)]
#[command(after_help = "\
What is received on the first queue of --queue is sent on the second, and the
other way round, until --count frames or Ctrl-C. The queues are of engine dd and
share a pool of buffers, so that frames stay where they were received: only
descriptors move. A port that can (af_xdp, virtio-user) receives into that
pool, and af_xdp sends from it; `millrace stats` shows how often each frame was
copied.

Examples:
  millrace card --port af_xdp:eth0 --port af_xdp:eth1 --queues 2 --engine dd --listen /tmp/card &
  millrace forward --device unix:/tmp/card --queue 0,1
  millrace forward --buffer 4096 --count 1M")]
pub struct ForwardArgs {
    /// Bytes of a buffer: a frame, and 256 that af_xdp wants before it
    #[arg(long, value_name = "BYTES", default_value_t = 2048, value_parser = clap::value_parser!(u16).range(64..))]
    pub buffer: u16,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &ForwardArgs) -> Result<(), Failure> {
    let queues = shared.queue.clone().map_or_else(|| vec![0, 1], |queues| queues.indices().to_vec());
    let [one, other] = queues[..] else {
        return Err(Failure::Usage("forward goes from one queue to another: --queue 0,1".to_owned()));
    };
    let session = Session::open_running(shared, "nothing ever comes")?;
    for queue in [QueueId::rx(one), QueueId::tx(other), QueueId::rx(other), QueueId::tx(one)] {
        let engine = session.engine(queue)?;
        if engine != Engine::Dd {
            let text =
                format!("{queue} is a queue of {engine}, and only dd moves descriptors: give the card --engine dd");
            return Err(Failure::Usage(text));
        }
    }
    lanes::run_on("forward", shared, &[one], |_, meter| lane(&session, shared, args, [one, other], meter)).map(drop)
}

fn lane(session: &Session<'_>, shared: &Shared, args: &ForwardArgs, queues: [u32; 2], meter: &Meter) -> Lane {
    let start = Moment::now();
    let outcome = (|| {
        let pool = session.device.pool(BUFFERS, args.buffer.into());
        let pool = pool.doing(|| "cannot make a pool of buffers".to_owned())?;
        let mut ways =
            [Way::open(session, queues[0], queues[1], &pool)?, Way::open(session, queues[1], queues[0], &pool)?];
        forward(&mut ways, shared, meter)?;
        lanes::outcome(meter.frames(), shared.count)
    })();
    (Tally::of(meter, start), outcome)
}

/// One of the two directions.
struct Way {
    rx: PoolRx,
    tx: PoolTx,
    /// Received and not sent.
    held: Vec<Buffer>,
}

impl Way {
    fn open(session: &Session<'_>, from: u32, to: u32, pool: &Pool) -> Result<Self, Failure> {
        let failed = |queue: QueueId| move || format!("cannot start {queue}");
        let rx = session.device.rx(from).open_on(pool, RING).doing(failed(QueueId::rx(from)))?;
        let tx = session.device.tx(to).open_on(pool, RING).doing(failed(QueueId::tx(to)))?;
        Ok(Self { rx, tx, held: Vec::with_capacity(1024) })
    }

    /// Moves up to `most` frames one step further, and says how many were received and how many bytes they have.
    fn step(&mut self, most: usize) -> Result<(usize, u64), Failure> {
        let room = most.saturating_sub(self.held.len());
        let count = self.rx.receive(&mut self.held, room).doing(cannot_receive)?;
        let bytes = self.held[self.held.len() - count..].iter().map(|frame| frame.len() as u64).sum();
        if !self.held.is_empty() {
            self.tx.send(&mut self.held).doing(|| "cannot send".to_owned())?;
        }
        Ok((count, bytes))
    }
}

fn forward(ways: &mut [Way; 2], shared: &Shared, meter: &Meter) -> Result<(), Failure> {
    let (goal, most) = (shared.count.unwrap_or(u64::MAX), shared.burst_or(64));
    let (mut done, mut quiet) = (0, 0);
    while (done < goal || ways.iter().any(|way| !way.held.is_empty())) && !stop::asked() {
        let mut moved = false;
        for way in &mut *ways {
            let left = usize::try_from(goal - done).unwrap_or(usize::MAX);
            let (count, bytes) = way.step(most.min(left.saturating_add(way.held.len())))?;
            moved |= count > 0;
            done += count as u64;
            meter.add(count as u64, bytes);
        }
        quiet = if moved { 0 } else { quiet + 1 };
        if quiet > SPINS && !shared.poll {
            std::thread::sleep(NAP);
        }
    }
    Ok(())
}
