//! `millrace clock follow host`: a servo between the host's clock and the card's.

use super::compare::compare;
use super::follow::Teller;
use super::moment::difference;
use crate::commands::stats::{pause, seconds};
use clap::Args;
use millrace::{Clock, ClockReport, ClockSource, ClockState};
use millrace_abi::clock::SCALED_PER_PPM;
use millrace_clock::{Correction, Servo, Ticks};
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::session::Session;
use millrace_tool::stop;
use std::time::Duration;

/// What the servo may steer by, in millionths: what clocks of hosts are led by, too.
const MOST_PPM: f64 = 1_000.0;
/// In which time offsets go away, in s.
const SECONDS: f64 = 1.0;
/// How near the middle one of the last offsets is, in ns, and how many times in a row, for the clock to be locked.
const NEAR: i64 = 5_000;
const SETTLED: u32 = 4;

/// Options of `clock follow host`.
#[derive(Debug, Args)]
#[command(after_help = "\
Compares both clocks and steers the card's; how that goes is told by `millrace
clock show`, and here when the state changes. It takes the right configure:clock.
When it ends the clock goes on at the speed that it had, and says holdover.

Examples:
  millrace clock follow host
  millrace clock follow host --interval 1 --json")]
pub struct HostArgs {
    /// Seconds between two comparisons
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = seconds)]
    interval: Duration,
    /// What is further off than this is stepped, and not led there by speed
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = difference)]
    step: i64,
    /// Be so far from the host's clock; 37s is TAI, and 10s to 127s are called that
    #[arg(long, value_name = "TIME", default_value = "0s", allow_hyphen_values = true, value_parser = difference)]
    apart: i64,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &HostArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "leading its clock is of no use to anybody")?;
    let refused = || "cannot lead the clock".to_owned();
    let clock = session.device.clock().doing(refused)?;
    let leader = clock.lead().doing(refused)?;
    let ppm = clock.snapshot().map_err(millrace::Error::from).doing(refused)?.scaled_ppm as f64 / SCALED_PER_PPM as f64;
    let (mut servo, mut teller) = (Servo::new(args.step, MOST_PPM, SECONDS, ppm), Teller::new(shared));
    let mut settled = 0;
    while !stop::asked() {
        let report = correct(&clock, &mut servo, args.apart, &mut settled).doing(refused)?;
        leader.report(report, true).doing(refused)?;
        teller.tell(&report)?;
        if !pause(args.interval) {
            break;
        }
    }
    // What it goes on with is what the oscillator is wrong by, and not what the last correction was.
    clock.set_frequency_ppm(servo.holdover()).doing(refused)
}

/// A clock that is so many ns ahead of UTC shows TAI if these are whole seconds, and as many as TAI may be ahead: 10 since 1972, and no
/// more for long than fit in a byte.
fn tai_less_utc(apart: i64) -> Option<i16> {
    let seconds = apart / 1_000_000_000;
    let is_tai = apart % 1_000_000_000 == 0 && (10..=127).contains(&seconds);
    is_tai.then_some(seconds as i16)
}

fn correct(clock: &Clock, servo: &mut Servo, apart: i64, settled: &mut u32) -> Result<ClockReport, millrace::Error> {
    let offset = compare(clock)?.0.saturating_sub(apart);
    match servo.sample(Ticks::now().get(), offset) {
        Correction::Step(ns, ppm) => clock.set_frequency_ppm(ppm).and_then(|()| clock.step(ns))?,
        Correction::Frequency(ppm) => clock.set_frequency_ppm(ppm)?,
    }
    let is_near = servo.offset().is_some_and(|middle| middle.abs() <= NEAR);
    *settled = if is_near { settled.saturating_add(1) } else { 0 };
    let state = if *settled >= SETTLED { ClockState::Locked } else { ClockState::Acquiring };
    let utc_offset = tai_less_utc(apart);
    let report = ClockReport { state, source: ClockSource::Host, offset_ns: Some(offset), ..ClockReport::default() };
    Ok(ClockReport { utc_offset, tai: utc_offset.is_some(), ..report })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_as_tai_has_them_are_tai() {
        assert_eq!(tai_less_utc(37_000_000_000), Some(37));
        for other in [0, 37_000_000_001, -37_000_000_000, 3_600_000_000_000, 1_000_000_000] {
            assert_eq!(tai_less_utc(other), None);
        }
    }
}
