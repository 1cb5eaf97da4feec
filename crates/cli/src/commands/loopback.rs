//! `millrace loopback`: every frame received goes out again.

use millrace_tool::clock::Moment;
use millrace_tool::echo::cannot_receive;
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{RxQueue, TxQueue};
use millrace_tool::idle::Idle;
use millrace_tool::lanes::{self, Lane, Tally};
use millrace_tool::meter::Meter;
/// Runs the command.
use millrace_tool::options::Shared;
use millrace_tool::session::Session;
use millrace_tool::{send, stop};

pub fn run(shared: &Shared) -> Result<(), Failure> {
    let session = Session::open_running(shared, "nothing ever comes")?;
    lanes::run("loopback", shared, |queue, meter| lane(&session, shared, queue, meter)).map(drop)
}

fn lane(session: &Session<'_>, shared: &Shared, queue: u32, meter: &Meter) -> Lane {
    let start = Moment::now();
    let outcome = (|| {
        let (mut rx, mut tx) = (session.rx(queue)?, session.tx(queue)?);
        copy(&mut rx, &mut tx, shared, meter)?;
        send::finish(tx)?;
        lanes::outcome(meter.frames(), shared.count)
    })();
    (Tally::of(meter, start), outcome)
}

fn copy(rx: &mut RxQueue, tx: &mut TxQueue, shared: &Shared, meter: &Meter) -> Result<(), Failure> {
    let (goal, most) = (shared.count.unwrap_or(u64::MAX), shared.burst_or(64));
    let (mut waiting_rx, mut waiting_tx) = (Idle::new(shared.poll), Idle::new(shared.poll));
    let mut lens = Vec::with_capacity(most);
    let mut done = 0;
    while done < goal && !stop::asked() {
        let burst = rx.get(most.min(usize::try_from(goal - done).unwrap_or(usize::MAX))).doing(cannot_receive)?;
        if burst.is_empty() {
            drop(burst);
            waiting_rx.await_frame(rx)?;
            continue;
        }
        waiting_rx.busy();
        lens.clear();
        lens.extend(burst.iter().map(|packet| packet.data.len() as u16));
        // The frames stay where they are until all of them are on the other side.
        let mut copied = 0;
        while copied < lens.len() {
            let count = send::burst(tx, &lens[copied..], |at, slot| slot.copy_from_slice(&burst[copied + at]))?;
            copied += count;
            if count == 0 {
                if stop::asked() {
                    return Ok(());
                }
                send::flush(tx)?;
                waiting_tx.await_room(tx)?;
            }
        }
        waiting_tx.busy();
        send::flush(tx)?;
        done += lens.len() as u64;
        meter.add(lens.len() as u64, send::bytes(&lens));
    }
    Ok(())
}
