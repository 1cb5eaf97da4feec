//! `millrace clock follow`: leading a card's clock after another one.

use super::show::{name, signed};
use super::{host, ptp};
use clap::{Args, Subcommand};
use millrace::{ClockReport, ClockState};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Cell, Output, Row};

/// Options of `clock follow`.
#[derive(Debug, Args)]
pub struct FollowArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Follow the clock of this host, CLOCK_REALTIME
    Host(host::HostArgs),
    /// Follow a PTP master, or be one
    Ptp(ptp::PtpArgs),
}

/// Runs the command.
pub fn run(shared: &Shared, args: &FollowArgs) -> Result<(), Failure> {
    match &args.what {
        What::Host(args) => host::run(shared, args),
        What::Ptp(args) => ptp::run(shared, args),
    }
}

/// Tells who watches how the clock does, whenever its state changes.
pub struct Teller {
    output: Output,
    last: Option<ClockState>,
}

impl Teller {
    /// With nothing told yet.
    pub fn new(shared: &Shared) -> Self {
        Self { output: Output::new(shared.json), last: None }
    }

    /// Tells it, if the state is another one than before.
    pub fn tell(&mut self, report: &ClockReport) -> Result<(), Failure> {
        if self.last == Some(report.state) {
            return Ok(());
        }
        self.last = Some(report.state);
        let maybe = |value: Option<i64>| value.map_or(Cell::Missing, signed);
        if !self.output.is_json() {
            let words =
                |what: &str, value: Option<i64>| value.map_or_else(String::new, |ns| format!(", {what} {ns} ns"));
            let (offset, delay) = (words("offset", report.offset_ns), words("path delay", report.path_delay_ns));
            return Ok(self.output.text(&format!("{}{offset}{delay}\n", name(&report.state)))?);
        }
        let row = Row::new()
            .both("state", name(&report.state), report.state)
            .both("source", name(&report.source), report.source)
            .cell("offset_ns", maybe(report.offset_ns))
            .cell("path_delay_ns", maybe(report.path_delay_ns));
        Ok(self.output.rows("clock", &[row])?)
    }
}
