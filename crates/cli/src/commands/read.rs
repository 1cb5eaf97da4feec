//! `millrace read`: receive frames and count them, perhaps check them.

use clap::Args;
use millrace_abi::queue::{Joiners, Laggard, Sharing};
use millrace_packet::structured::{Checker, Stamping};

use crate::args::Shared;
use crate::clock::Moment;
use crate::echo::cannot_receive;
use crate::failure::{Failure, While};
use crate::host::RxQueue;
use crate::idle::Idle;
use crate::lanes::{self, Lane, Tally};
use crate::progress::Meter;
use crate::session::Session;
use crate::stop;

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

/// Whether a receive queue is shared.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct SharingArgs {
    /// Share the queue with up to 15 other readers; if this one falls behind: block them, drop its frames, or evict it
    #[arg(long, value_name = "block|drop|evict")]
    share: Option<Laggard>,
    /// With --share, as the first: what those may choose who join, such as drop,evict or none
    /// [default: drop and evict; programs of the same user also block]
    #[arg(long, value_name = "LIST", requires = "share")]
    joiners: Option<Joiners>,
}

impl SharingArgs {
    /// How to open the queue.
    pub fn sharing(self) -> Sharing {
        self.share.map_or(Sharing::Exclusive, Sharing::Shared)
    }

    /// What those may choose who join it.
    pub fn joiners(self) -> Option<Joiners> {
        self.joiners
    }
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
        lanes::outcome(meter.packets(), shared.count)
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
