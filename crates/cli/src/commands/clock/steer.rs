//! `millrace clock set`, `millrace clock adjust`.

use super::compare::compare;
use super::moment::{Moment, difference, host_time, millionths, moment};
use clap::Args;
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::session::Session;

/// Options of `clock set`.
#[derive(Debug, Args)]
#[command(after_help = "\
It takes the right configure:clock, and is refused while a program leads the clock.

Examples:
  millrace clock set now
  millrace clock set 1700000000.25 --device unix:/tmp/card.sock")]
pub struct SetArgs {
    /// now: what this host's clock shows; or seconds since 1970
    #[arg(value_name = "TIME", value_parser = moment)]
    time: Moment,
}

/// Options of `clock adjust`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true), after_help = "\
It takes the right configure:clock. --step and --frequency are refused while a
program leads the clock; --oscillator is not: it is for tests of what leads it.

Examples:
  millrace clock adjust --step -250us
  millrace clock adjust --frequency 12.5      12.5 us more in each second
  millrace clock adjust --oscillator 100      a bad crystal")]
pub struct AdjustArgs {
    /// Move the clock by so much at once, such as 250ns, -1.5us, 20ms, 3s
    #[arg(long, value_name = "TIME", group = "what", allow_hyphen_values = true, value_parser = difference)]
    step: Option<i64>,
    /// Have it go faster than its nominal speed by so many millionths (at most 100000; 0: nominal)
    #[arg(long, value_name = "PPM", group = "what", allow_hyphen_values = true, value_parser = millionths)]
    frequency: Option<i64>,
    /// For tests: have its oscillator be wrong by so many millionths (at most 1000; 0: right)
    #[arg(long, value_name = "PPM", group = "what", allow_hyphen_values = true, value_parser = millionths)]
    oscillator: Option<i64>,
}

/// Sets it.
pub fn set(shared: &Shared, args: &SetArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "setting its clock is of no use to anybody")?;
    let refused = || "cannot set the clock".to_owned();
    let clock = session.device.clock().doing(refused)?;
    match args.time {
        Moment::At(time) => clock.set(time).doing(refused),
        Moment::Now => {
            clock.set(host_time()).doing(refused)?;
            // What the request took it is behind.
            let (offset, uncertain) = compare(&clock).map_err(millrace::Error::from).doing(refused)?;
            if offset.abs() > uncertain { clock.step(-offset).doing(refused) } else { Ok(()) }
        }
    }
}

/// Adjusts it.
pub fn adjust(shared: &Shared, args: &AdjustArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "adjusting its clock is of no use to anybody")?;
    let refused = || "cannot adjust the clock".to_owned();
    let clock = session.device.clock().doing(refused)?;
    args.oscillator.map_or(Ok(()), |ppm| clock.bend(ppm)).doing(refused)?;
    args.frequency.map_or(Ok(()), |ppm| clock.set_frequency(ppm)).doing(refused)?;
    args.step.map_or(Ok(()), |ns| clock.step(ns)).doing(refused)
}
