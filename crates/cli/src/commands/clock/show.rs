//! `millrace clock show`.

use super::compare::compare;
use super::moment::written;
use crate::commands::stats::{pause, seconds};
use clap::Args;
use millrace::{Clock, ClockSnapshot, ClockState, Ticks, Time};
use millrace_abi::clock::SCALED_PER_PPM;
use millrace_tool::clock::Moment;
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Cell, Output, Row, is_screen};
use millrace_tool::session::Session;
use millrace_tool::stop;
use std::time::Duration;

/// Options of `clock show`.
#[derive(Debug, Args)]
#[command(after_help = "\
state: free (nobody leads the clock), acquiring, locked, holdover (it has lost
what it followed, state_s seconds ago, and goes on at the speed that it had),
master (others follow it). offset_ns, path_delay_ns: as measured when it was last
compared with what it follows, age_s seconds ago. frequency_ppm: how much faster
than nominal it is told to go; the oscillator is wrong by as much the other way.
host_offset_ns: the card's clock less CLOCK_REALTIME of this host.
All fields: docs/time.md.

Examples:
  millrace clock show
  millrace clock show --watch
  millrace clock show --watch 0.1 --count 50 --json")]
pub struct ShowArgs {
    /// Look again every SECONDS, until Ctrl-C or --count looks
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &ShowArgs) -> Result<(), Failure> {
    if args.watch.is_none() && shared.count.is_some() {
        return Err(Failure::Usage("--count says how often to look, and so needs --watch".to_owned()));
    }
    let session = Session::open_running(shared, "its clock is of no use to anybody")?;
    let unreadable = || "cannot read the clock".to_owned();
    let clock = session.device.clock().doing(unreadable)?;
    let reading = reading_ns(&clock).map_err(millrace::Error::from).doing(unreadable)?;
    let (output, mut looks) = (Output::new(shared.json), args.watch.map_or(1, |_| shared.count.unwrap_or(u64::MAX)));
    loop {
        let row = look(&clock, reading).map_err(millrace::Error::from).doing(unreadable)?;
        if args.watch.is_some() && is_screen() {
            output.text("\x1b[H\x1b[2J")?;
        }
        output.rows("clock", &[row])?;
        looks -= 1;
        if looks == 0 {
            return Ok(());
        }
        if let Some(gone) = session.device.wait_end(Duration::ZERO) {
            return Err(gone).doing(unreadable);
        }
        if stop::asked() || !pause(args.watch.unwrap_or_default()) {
            return if shared.count.is_some() { Err(Failure::Interrupted) } else { Ok(()) };
        }
    }
}

fn look(clock: &Clock, reading_ns: f64) -> Result<Row, millrace::PageError> {
    let (host_offset_ns, uncertain_ns) = compare(clock)?;
    let snapshot = clock.snapshot()?;
    let row = row(&snapshot, clock.now()?);
    Ok(row
        .cell("host_offset_ns", signed(host_offset_ns))
        .beside("host_uncertain_ns", signed(uncertain_ns))
        .beside("reading_ns", Cell::Number(reading_ns, 1))
        .beside("oscillator", Cell::Text(format!("CLOCK_MONOTONIC ({})", clock_source()))))
}

fn row(snapshot: &ClockSnapshot, now: Time) -> Row {
    let report = &snapshot.report;
    let since = |ticks: Ticks| Ticks::now().get().saturating_sub(ticks.get()) as f64 * 1e-9;
    let maybe = |value: Option<i64>| value.map_or(Cell::Missing, signed);
    let ppm = |scaled: i64| scaled as f64 / SCALED_PER_PPM as f64;
    let holdover = (report.state == ClockState::Holdover).then(|| since(snapshot.changed));
    Row::new()
        .both("time", written(now), now.total_nanoseconds() as f64 * 1e-9)
        .beside("time_ns", Cell::Count(now.total_nanoseconds()))
        .both("state", name(&report.state), report.state)
        .both("source", name(&report.source), report.source)
        .cell("offset_ns", maybe(report.offset_ns))
        .cell("path_delay_ns", maybe(report.path_delay_ns))
        .number("frequency_ppm", ppm(snapshot.scaled_ppm), 3)
        .number("state_s", since(snapshot.changed), 1)
        .maybe("age_s", snapshot.reported.map(since), 1)
        .beside("holdover_s", holdover.map_or(Cell::Missing, |seconds| Cell::Number(seconds, 3)))
        .count("steps", snapshot.steps)
        .beside("stamps", Cell::Both(String::new(), snapshot.stamps.into()))
        .beside("timescale", Cell::Text(if report.tai { "tai" } else { "utc" }.to_owned()))
        .beside("utc_offset_s", maybe(report.utc_offset.map(i64::from)))
        .beside("oscillator_ppm", Cell::Number(ppm(snapshot.drift), 3))
}

/// A state or a source as it is written in JSON.
pub fn name(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// A whole number that may be less than nothing.
pub fn signed(value: i64) -> Cell {
    Cell::Both(value.to_string(), value.into())
}

/// What one reading of the clock takes, in ns.
fn reading_ns(clock: &Clock) -> Result<f64, millrace::PageError> {
    const READINGS: u32 = 1_000;
    let begin = Moment::now();
    for _ in 0..READINGS {
        std::hint::black_box(clock.now()?);
    }
    Ok(begin.seconds() * 1e9 / f64::from(READINGS))
}

/// What the kernel counts time by. Only with `tsc`, and what virtual machines have in its place, is reading it no system call.
fn clock_source() -> String {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
