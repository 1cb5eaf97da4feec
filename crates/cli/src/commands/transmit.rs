//! `millrace transmit`: the frames of a capture into transmit queues.

use std::path::PathBuf;

use clap::Args;
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::host::TxQueue;
use millrace_tool::idle::Idle;
use millrace_tool::lanes::{self, Lane, Tally};
use millrace_tool::meter::Meter;
use millrace_tool::options::{self, Shared};
use millrace_tool::output::note;
use millrace_tool::session::Session;
use millrace_tool::traffic::Rate;
use millrace_tool::{send, stop};

use crate::capture::Capture;
use crate::fate::Watch;
use crate::pace::Pace;

/// Options of `transmit`.
#[derive(Debug, Args)]
#[command(after_help = "\
The file is loaded first, so that reading it does not slow the card down. Each
queue of --queue sends all of it. --count ends the command after so many
frames, wherever it is in the file.

Examples:
  millrace transmit in.pcap
  millrace transmit in.pcap --loops 1000 --queue 0-3
  millrace transmit in.pcap --loops 0 --rate 10k")]
pub struct TransmitArgs {
    /// Capture to read
    file: PathBuf,
    /// How often to send it; 0 is for ever
    #[arg(long, value_name = "N", default_value = "1", value_parser = options::count_or_none)]
    loops: u64,
    /// Frames per second and queue, such as 10k or 2Mpps, or bits: 10Gbit [default: as many as the card takes]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &TransmitArgs) -> Result<(), Failure> {
    let capture = load(args)?;
    let mut shared = shared.clone();
    shared.count = goal(shared.count, args.loops, capture.len() as u64);
    let session = Session::open_running(&shared, "nobody receives what is sent")?;
    let queues = shared.queues();
    let watch = Watch::begin(&session, queues.indices())?;
    let work = |queue, meter: &Meter| lane(&session, &shared, args.rate, &capture, queue, meter);
    let all = lanes::run("transmit", &shared, work)?;
    watch.judge(all.frames)?;
    match capture.damage {
        // What could be read has been sent, but that is not all that was asked for.
        Some(damage) => Err(Failure::Found(damage)),
        None => Ok(()),
    }
}

fn load(args: &TransmitArgs) -> Result<Capture, Failure> {
    let capture = stop::at_once(|| Capture::load(&args.file, 1))?;
    if capture.skipped > 0 {
        note(format!("{} frames are left out: they are empty or longer than a card carries", capture.skipped));
    }
    if capture.is_empty() {
        let why = capture.damage.unwrap_or_else(|| "it holds no frames that a card carries".to_owned());
        return Err(Failure::Found(format!("nothing to send from {}: {why}", args.file.display())));
    }
    Ok(capture)
}

/// How many frames a queue is to send; `None` is for ever.
fn goal(count: Option<u64>, loops: u64, frames: u64) -> Option<u64> {
    let of_loops = if loops == 0 { None } else { Some(frames.saturating_mul(loops)) };
    match (count, of_loops) {
        (Some(count), Some(of_loops)) => Some(count.min(of_loops)),
        (count, of_loops) => count.or(of_loops),
    }
}

fn lane(
    session: &Session<'_>,
    shared: &Shared,
    rate: Option<Rate>,
    capture: &Capture,
    queue: u32,
    meter: &Meter,
) -> Lane {
    let start = Moment::now();
    let outcome = session.tx(queue).and_then(|mut tx| {
        transmit(&mut tx, shared, rate, capture, meter)?;
        send::finish(tx)?;
        lanes::outcome(meter.frames(), shared.count)
    });
    (Tally::of(meter, start), outcome)
}

fn transmit(
    tx: &mut TxQueue,
    shared: &Shared,
    rate: Option<Rate>,
    capture: &Capture,
    meter: &Meter,
) -> Result<(), Failure> {
    let (goal, most) = (shared.count.unwrap_or(u64::MAX), shared.burst_or(64));
    let (pace, mut idle) = (Pace::new(rate), Idle::new(shared.poll));
    let mut lens = Vec::with_capacity(most);
    let (mut sent, mut bytes, mut first) = (0, 0, 0);
    while sent < goal && !stop::asked() {
        let wanted = most.min(capture.len() - first).min(usize::try_from(goal - sent).unwrap_or(usize::MAX));
        lens.clear();
        lens.extend((first..first + wanted).map(|at| capture.frame(at).len() as u16));
        let count = pace.allow(sent, bytes, &lens);
        if count == 0 {
            send::flush(tx)?;
            continue;
        }
        lens.truncate(count);
        let count = send::burst(tx, &lens, |at, slot| slot.copy_from_slice(capture.frame(first + at)))?;
        if count == 0 {
            send::flush(tx)?;
            idle.await_room(tx)?;
            continue;
        }
        idle.busy();
        let len = send::bytes(&lens[..count]);
        sent += count as u64;
        bytes += len;
        first = (first + count) % capture.len();
        meter.add(count as u64, len);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_loops_and_count_is_the_goal() {
        assert_eq!(goal(None, 2, 10), Some(20));
        assert_eq!(goal(Some(15), 2, 10), Some(15));
        assert_eq!(goal(Some(50), 2, 10), Some(20));
        assert_eq!(goal(Some(50), 0, 10), Some(50));
        assert_eq!(goal(None, 0, 10), None);
    }
}
