//! `millrace message latency`: pings to somebody who listens.

use clap::Args;
use millrace_message::channel::Taken;
use millrace_message::control::MOST_EAGER;
use millrace_tool::clock::Moment;
use millrace_tool::distribution::Distribution;
use millrace_tool::failure::Failure;
use millrace_tool::lanes::latency_cells;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::stop;

use super::talk::{Call, EXACT, PING, What};

/// Round trips before those that count, and without --count.
const WARM_UP: u64 = 1000;
const COUNT: u64 = 100_000;

/// Options of `message latency`.
#[derive(Debug, Args)]
#[command(after_help = "\
Sends a message of --bytes bytes to `millrace message listen NAME`, which sends it
back, --count times, one after the other. Times are those of half a round trip. Both
sides look without sleeping, so that each needs a core; who listens answers one at
a time.

Examples:
  millrace message latency solver
  millrace message latency solver --bytes 64KiB --count 10k --json
  millrace message latency solver --card")]
pub struct LatencyArgs {
    /// Endpoint to ask
    name: String,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", value_parser = super::bytes, default_value = "8")]
    bytes: u64,
    #[command(flatten)]
    rails: super::RailArgs,
    #[command(flatten)]
    card: super::side::CardArgs,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &LatencyArgs) -> Result<(), Failure> {
    let size = args.bytes.max(1);
    let count = shared.count.unwrap_or(COUNT);
    let call = Call::begin(&args.name, (&args.rails, &args.card), size, What::Pings)?;
    // The second one is that of long messages, which are there before they are asked for.
    let (mut times, mut buffers) = (Distribution::new(), [vec![7; size as usize], vec![0; size as usize]]);
    let warm_up = WARM_UP.min(count);
    let mut made = 0;
    while made < warm_up + count && !stop::asked() {
        let start = Moment::now();
        buffers = ping(&call, buffers)?;
        if made >= warm_up {
            times.record(Moment::now().nanos_since(start) / 2);
        }
        made += 1;
    }
    if !call.endpoint.own().is_some_and(|own| own.send_short(call.peer, PING, &[])) {
        let last = call.endpoint.send(call.peer, PING, Vec::new(), None)?;
        call.wait(last)?;
    }
    let row = Row::new()
        .tag("command", "message latency")
        .text("to", &args.name)
        .count("bytes_each", size)
        .count("count", made.saturating_sub(warm_up));
    Output::new(shared.json).rows("message latency, one way", &[latency_cells(row, &times)])?;
    if made < warm_up + count { Err(Failure::Interrupted) } else { Ok(()) }
}

/// There and back. Gives the buffers back.
fn ping(call: &Call, [mut buffer, room]: [Vec<u8>; 2]) -> Result<[Vec<u8>; 2], Failure> {
    let Some(own) = call.endpoint.own().filter(|_| buffer.len() <= MOST_EAGER) else {
        let back = call.endpoint.receive(Some(call.peer), PING, EXACT, room)?;
        let sent = call.endpoint.send(call.peer, PING, buffer, None)?;
        return Ok([call.wait(back)?.buffer, call.wait(sent)?.buffer]);
    };
    while !own.send_short(call.peer, PING, &buffer) {
        own.progress();
        if stop::asked() {
            return Ok([buffer, room]);
        }
    }
    let mut looks = 0_u32;
    loop {
        match own.receive_short(call.peer, PING, EXACT, &mut buffer) {
            Ok(Some(Taken::Message { .. })) => return Ok([buffer, room]),
            Ok(Some(Taken::TooLong { .. })) => {
                return Err(Failure::Found("what came back is longer than what was sent".to_owned()));
            }
            Ok(None) => {}
            Err(error) => return Err(Failure::Found(error.to_string())),
        }
        looks += 1;
        if looks.is_multiple_of(1 << 16) && stop::asked() {
            return Ok([buffer, room]);
        }
        core::hint::spin_loop();
    }
}
