//! `millrace generate`: structured frames into transmit queues.

use clap::Args;
use millrace_packet::structured::{self, Sequence};
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::host::TxQueue;
use millrace_tool::idle::Idle;
use millrace_tool::lanes::{self, Lane, Tally};
use millrace_tool::list::Sizes;
use millrace_tool::meter::Meter;
use millrace_tool::options::Shared;
use millrace_tool::session::Session;
use millrace_tool::traffic::Rate;
use millrace_tool::{send, stop};

use crate::fate::Watch;
use crate::pace::Pace;

/// Options of `generate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Sends --count frames per queue, or frames until Ctrl-C. Their contents are
those that `millrace read --check` and `millrace loopback-hw` check.

Examples:
  millrace generate --count 1M --size 64-1500
  millrace generate --queue 0-3 --rate 100k --json")]
pub struct GenerateArgs {
    /// Frames per second and queue, such as 10k or 2Mpps, or bits: 10Gbit [default: as many as the card takes]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &GenerateArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "nobody receives what is sent")?;
    let queues = shared.queues();
    let watch = Watch::begin(&session, queues.indices())?;
    let all = lanes::run("generate", shared, |queue, meter| lane(&session, shared, args, queue, meter))?;
    watch.judge(all.frames)
}

fn lane(session: &Session<'_>, shared: &Shared, args: &GenerateArgs, queue: u32, meter: &Meter) -> Lane {
    let start = Moment::now();
    let outcome = session.tx(queue).and_then(|mut tx| {
        Generator::new(shared, args.rate).send(&mut tx, shared.count, meter)?;
        send::finish(tx)?;
        lanes::outcome(meter.frames(), shared.count)
    });
    (Tally::of(meter, start), outcome)
}

struct Generator {
    sizes: Sizes,
    random: fastrand::Rng,
    lens: Vec<u16>,
    next: Sequence,
    pace: Pace,
    idle: Idle,
}

impl Generator {
    fn new(shared: &Shared, rate: Option<Rate>) -> Self {
        Self {
            sizes: shared.sizes_or(64),
            random: fastrand::Rng::new(),
            lens: vec![0; shared.burst_or(64)],
            next: Sequence::ZERO,
            pace: Pace::new(rate),
            idle: Idle::new(shared.poll),
        }
    }

    fn send(&mut self, tx: &mut TxQueue, goal: Option<u64>, meter: &Meter) -> Result<(), Failure> {
        let goal = goal.unwrap_or(u64::MAX);
        let (mut sent, mut bytes) = (0, 0);
        while sent < goal && !stop::asked() {
            let wanted = self.lens.len().min(usize::try_from(goal - sent).unwrap_or(usize::MAX));
            self.sizes.pick(&mut self.random, &mut self.lens[..wanted]);
            let count = self.pace.allow(sent, bytes, &self.lens[..wanted]);
            if count == 0 {
                // A pause begins: what was put must not wait in the queue until it ends.
                send::flush(tx)?;
                continue;
            }
            let count = self.burst(tx, count)?;
            if count > 0 {
                self.idle.busy();
                let len = send::bytes(&self.lens[..count]);
                sent += count as u64;
                bytes += len;
                meter.add(count as u64, len);
            } else {
                send::flush(tx)?;
                self.idle.await_room(tx)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn burst(&mut self, tx: &mut TxQueue, count: usize) -> Result<usize, Failure> {
        let next = self.next;
        let sent = send::burst(tx, &self.lens[..count], |at, slot| structured::fill(slot, next.offset(at as i64)))?;
        self.next = next.offset(sent as i64);
        Ok(sent)
    }
}
