//! `millrace flow watch`: what happens to the rules of a card.

use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use millrace::flow::{FlowEvent, FlowEvents};
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, note};
use millrace_tool::stop;
use serde::Serialize;

use super::change::{open, sign};
use super::list::owner;
use crate::commands::stats::time_of_day;

/// How long one wait is at most: after it Ctrl-C is looked at.
const WAIT: Duration = Duration::from_millis(100);

/// Options of `flow watch`.
#[derive(Debug, Args)]
#[command(after_help = "\
A line for each rule, group or meter that is added (+), modified (~) or removed (-), as it
happens: the time, the version, whose it is, and why a rule has gone: idle or hard
(its timeout), delete, or owner-gone (its program has ended). What comes faster than
this command reads is lost in the end, and it says how much.

Examples:
  millrace flow watch
  millrace flow watch --json --count 10")]
pub struct WatchArgs {}

/// What is lost, as JSON.
#[derive(Serialize)]
struct Lost {
    lost: u64,
}

/// Runs the command.
pub fn run(shared: &Shared, _: &WatchArgs) -> Result<(), Failure> {
    let session = open(shared)?;
    let doing = || "cannot watch the rules".to_owned();
    let mut watch = session.device.flows().watch().doing(doing)?;
    let output = Output::new(shared.json);
    if !shared.json {
        note("watching; Ctrl-C ends it");
    }
    let mut left = shared.count.unwrap_or(u64::MAX);
    while !stop::asked() {
        let FlowEvents { events, lost, .. } = watch.next(WAIT).doing(doing)?;
        if lost > 0 {
            output.object(&Lost { lost })?;
            output.text(&format!("... {lost} events are lost\n"))?;
        }
        for event in &events {
            output.object(event)?;
            output.text(&line(event))?;
            left -= 1;
            if left == 0 {
                return Ok(());
            }
        }
    }
    // Without an end of its own, Ctrl-C is how it ends.
    if shared.count.is_some() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// An event for people.
fn line(event: &FlowEvent) -> String {
    let time = time_of_day(UNIX_EPOCH + Duration::from_nanos(event.time_ns));
    let whose = event.owner.as_ref().map(|whose| format!(" ({})", owner(whose))).unwrap_or_default();
    let reason = event.reason.map(|reason| format!(" {}", reason.name())).unwrap_or_default();
    let had =
        event.rule.map(|rule| format!(" after {} packets, {} bytes", rule.packets, rule.bytes)).unwrap_or_default();
    format!("{time} version {} {} {}{whose}{reason}{had}\n", event.version, sign(event.kind), event.line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace::flow::{FlowCounts, FlowKind, FlowOwner, FlowReason};

    #[test]
    fn an_event_is_a_line() {
        let event = FlowEvent {
            number: 1,
            version: 7,
            time_ns: 3_600_000_000_000,
            kind: FlowKind::Removed,
            reason: Some(FlowReason::OwnerGone),
            line: "table=0,priority=1,actions=drop".to_owned(),
            owner: Some(FlowOwner::Program { client: 3, pid: 77, uid: 0 }),
            rule: Some(FlowCounts { packets: 2, bytes: 120, ..FlowCounts::default() }),
        };
        let wanted = "01:00:00 UTC version 7 - table=0,priority=1,actions=drop (process 77) owner-gone after 2 packets, 120 bytes\n";
        assert_eq!(line(&event), wanted);
    }
}
