//! `millrace read`: receive frames and count them, perhaps check them.

use clap::Args;
use millrace_packet::structured::{Checker, Stamping};
use millrace_tool::clock::Moment;
use millrace_tool::echo::cannot_receive;
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::RxQueue;
use millrace_tool::idle::Idle;
use millrace_tool::lanes::{self, Lane, Tally};
use millrace_tool::meter::Meter;
use millrace_tool::options::Shared;
use millrace_tool::session::Session;
use millrace_tool::sharing::SharingArgs;
use millrace_tool::stop;

/// Options of `read`.
#[derive(Debug, Args)]
#[command(after_help = "\
Receives --count frames per queue, or frames until Ctrl-C.

Examples:
  millrace read --device unix:/tmp/card.sock --queue 0-3
  millrace read --device embedded:port=generator --count 1M --check
  millrace read --share drop     beside other readers, without delaying them")]
pub struct ReadArgs {
    /// Check that the frames are structured ones without gaps, beginning with the first that comes
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    sharing: SharingArgs,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &ReadArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "nothing ever comes")?;
    let all = lanes::run("read", shared, |queue, meter| lane(&session, shared, args, queue, meter))?;
    lanes::judge(&all)
}

fn lane(session: &Session<'_>, shared: &Shared, args: &ReadArgs, queue: u32, meter: &Meter) -> Lane {
    let mut start = Moment::now();
    let mut checker = args.check.then(|| Checker::joining(Stamping::Off));
    let outcome = session.rx_shared(queue, args.sharing).and_then(|mut rx| {
        read(&mut rx, shared, meter, checker.as_mut(), &mut start)?;
        lanes::outcome(meter.frames(), shared.count)
    });
    let findings = checker.map(|checker| *checker.findings());
    (Tally { findings, ..Tally::of(meter, start) }, outcome)
}

/// `start` is put off until the first frame is there: how long others take to begin is no part of a rate.
fn read(
    rx: &mut RxQueue,
    shared: &Shared,
    meter: &Meter,
    mut checker: Option<&mut Checker>,
    start: &mut Moment,
) -> Result<(), Failure> {
    let (goal, most) = (shared.count.unwrap_or(u64::MAX), shared.burst_or(64));
    let mut idle = Idle::new(shared.poll);
    let mut got = 0;
    while got < goal && !stop::asked() {
        let burst = rx.get(most.min(usize::try_from(goal - got).unwrap_or(usize::MAX))).doing(cannot_receive)?;
        if burst.is_empty() {
            drop(burst);
            idle.await_frame(rx)?;
            if got == 0 {
                *start = Moment::now();
            }
            continue;
        }
        let mut bytes = 0;
        for packet in burst.iter() {
            bytes += packet.data.len() as u64;
            if let Some(checker) = checker.as_deref_mut() {
                let _ = checker.check(packet.data);
            }
        }
        idle.busy();
        got += burst.len() as u64;
        meter.add(burst.len() as u64, bytes);
    }
    Ok(())
}
