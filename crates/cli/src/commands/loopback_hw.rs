//! `millrace loopback-hw`: structured frames out, and a check of what comes back (`docs/spec/nfb-card.md` §6).

use clap::Args;
use millrace_packet::structured::{MIN_LEN, Stamping};
use millrace_tool::clock::Moment;
use millrace_tool::echo::{Echo, Plan};
use millrace_tool::failure::Failure;
use millrace_tool::lanes::{self, Lane, Tally};
use millrace_tool::meter::Meter;
use millrace_tool::options::{self, Shared};
use millrace_tool::session::Session;
use millrace_tool::{send, stop};

/// Frames sent unless `--count` says otherwise.
const DEFAULT_COUNT: u64 = 1_000_000;

/// Options of `loopback-hw`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs a card that sends back what it is sent: one's own, or a
`millrace card --port loopback`. Sends --count frames per queue, 1M by default.
Every frame is compared with what was sent; one that is lost, damaged, late or
repeated makes the command fail.

Examples:
  millrace loopback-hw
  millrace loopback-hw --size 64-1500 --count 10M --queue 0-3
  millrace loopback-hw --latency --burst 1 --window 1 --json")]
pub struct LoopbackHwArgs {
    /// Measure how long each frame takes, with a time stamp in its first 8 bytes
    #[arg(long, short = 'l')]
    latency: bool,
    /// Most frames on their way at once
    #[arg(long, value_name = "N", default_value = "512", value_parser = options::count)]
    window: u64,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &LoopbackHwArgs) -> Result<(), Failure> {
    let mut shared = shared.clone();
    shared.count.get_or_insert(DEFAULT_COUNT);
    let plan = plan(&shared, args)?;
    let session = Session::open(&shared)?;
    let all = lanes::run("loopback-hw", &shared, |queue, meter| lane(&session, plan.clone(), queue, meter))?;
    lanes::judge(&all)
}

fn plan(shared: &Shared, args: &LoopbackHwArgs) -> Result<Plan, Failure> {
    let sizes = shared.sizes_or(64);
    if (sizes.smallest() as usize) < MIN_LEN {
        return Err(Failure::Usage(format!("--size {sizes}: a frame needs {MIN_LEN} bytes to be checked")));
    }
    Ok(Plan {
        goal: shared.count.unwrap_or(DEFAULT_COUNT),
        window: args.window,
        burst: shared.burst_or(64),
        sizes,
        stamping: if args.latency { Stamping::On } else { Stamping::Off },
        poll: shared.poll,
        seconds: None,
    })
}

fn lane(session: &Session<'_>, plan: Plan, queue: u32, meter: &Meter) -> Lane {
    let start = Moment::now();
    let goal = plan.goal;
    let mut echo = Echo::new(plan);
    let outcome = (|| {
        let (mut rx, mut tx) = (session.rx(queue)?, session.tx(queue)?);
        echo.run(&mut rx, &mut tx, meter)?;
        send::finish(tx)?;
        // Who gave up since nothing came back was not interrupted: `judge` says what is lost.
        if stop::asked() { lanes::outcome(echo.sent(), Some(goal)) } else { Ok(()) }
    })();
    let tally = Tally::of(meter, start);
    (Tally { findings: Some(echo.findings()), latency: echo.latency(), ..tally }, outcome)
}
