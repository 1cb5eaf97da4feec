//! `millrace router status` and `watch`: how the router is.

use std::time::{Duration, SystemTime};

use clap::Args;
use millrace_pppoe::MacAddress;
use millrace_router::daemon::client::Client;
use millrace_router::daemon::options::Share;
use millrace_router::daemon::protocol::{Answer, Counter, Interface, Request, Session, Status};
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row, is_screen};
use millrace_tool::stop;
use serde::Serialize;

use super::{Which, refused, strange};
use crate::commands::stats::{pause, seconds, time_of_day};

const EXPLAINED: &str = "\
Interfaces, with the reason where the fast path is not on; rules; and why packets
went to Linux, by step and reason (docs/router.md has all of them). Behind `to say`
stands what Linux would better be told.

Examples:
  millrace router status
  millrace router status --watch
  millrace router status --json";

/// Options of `router status`.
#[derive(Debug, Args)]
#[command(after_help = EXPLAINED)]
pub struct StatusArgs {
    /// Look again every SECONDS, until Ctrl-C or --count looks
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
    #[command(flatten)]
    which: Which,
}

/// Options of `router watch`.
#[derive(Debug, Args)]
#[command(after_help = EXPLAINED)]
pub struct WatchArgs {
    /// How often
    #[arg(value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    every: Duration,
    #[command(flatten)]
    which: Which,
}

/// One look.
#[derive(Serialize)]
struct Look {
    /// Packets that went without Linux.
    fast: u64,
    /// Those that were looked at and went to Linux.
    slow: u64,
    #[serde(flatten)]
    status: Status,
    counters: Vec<Counter>,
    #[serde(skip)]
    at: Moment,
}

/// Runs `router status`.
pub fn run(shared: &Shared, args: &StatusArgs) -> Result<(), Failure> {
    if args.watch.is_none() && shared.count.is_some() {
        return Err(Failure::Usage("--count says how often to look, and so needs --watch".to_owned()));
    }
    looks(shared, &args.which, args.watch)
}

/// Runs `router watch`.
pub fn watch(shared: &Shared, args: &WatchArgs) -> Result<(), Failure> {
    looks(shared, &args.which, Some(args.every))
}

fn looks(shared: &Shared, which: &Which, every: Option<Duration>) -> Result<(), Failure> {
    let mut client = stop::at_once(|| which.connect())?;
    let mut left = every.map_or(1, |_| shared.count.unwrap_or(u64::MAX));
    let mut before = None;
    loop {
        let look = stop::at_once(|| look(&mut client))?;
        show(shared, &look, before.as_ref(), every.is_some())?;
        before = Some(look);
        left -= 1;
        if left == 0 {
            return Ok(());
        }
        if stop::asked() || !pause(every.unwrap_or_default()) {
            return if shared.count.is_some() { Err(Failure::Interrupted) } else { Ok(()) };
        }
    }
}

/// Whether packets that are counted so did not go through Linux.
fn is_done(reason: &str) -> bool {
    matches!(reason, "fast" | "error-sent" | "error-limited")
}

fn look(client: &mut Client) -> Result<Look, Failure> {
    let Answer::Status(status) = client.ask(Request::Status).map_err(|error| refused(&error))? else {
        return Err(strange());
    };
    let Answer::Counters(counters) = client.ask(Request::Counters).map_err(|error| refused(&error))? else {
        return Err(strange());
    };
    let packets =
        |is_fast: bool| counters.iter().filter(|one| is_done(&one.reason) == is_fast).map(|one| one.packets).sum();
    Ok(Look { fast: packets(true), slow: packets(false), status: *status, counters, at: Moment::now() })
}

fn show(shared: &Shared, look: &Look, before: Option<&Look>, watched: bool) -> Result<(), Failure> {
    let output = Output::new(shared.json);
    if output.is_json() {
        return Ok(output.object(look)?);
    }
    if watched {
        let clear = if is_screen() { "\x1b[H\x1b[2J" } else { "" };
        output.text(&format!("{clear}{}\n\n", time_of_day(SystemTime::now())))?;
    }
    output.rows("router", &[router_row(look, before)])?;
    output.rows("interfaces", &look.status.interfaces.iter().map(interface_row).collect::<Vec<_>>())?;
    let sessions: Vec<Row> = look.status.sessions.iter().map(session_row).collect();
    if !sessions.is_empty() {
        output.rows("sessions", &sessions)?;
    }
    let waiting: Vec<Row> = look.status.awaited.iter().map(|name| Row::new().text("name", name)).collect();
    if !waiting.is_empty() {
        output.rows("awaited, and not there yet", &waiting)?;
    }
    let lost = lost_rows(&look.status);
    if !lost.is_empty() {
        output.rows("lost, or without room", &lost)?;
    }
    let mut counters: Vec<&Counter> = look.counters.iter().filter(|one| one.packets > 0).collect();
    counters.sort_by_key(|one| (one.step, std::cmp::Reverse(one.packets)));
    output.rows(
        "packets by step and reason",
        &counters.into_iter().map(|one| counter_row(one, look, before)).collect::<Vec<_>>(),
    )?;
    let say = |what: &String, command: &String| Row::new().text("to_say", what).text("command", command);
    let missing = String::new();
    let said: Vec<Row> = (look.status.advice.iter().map(|advice| say(&advice.what, &advice.command)))
        .chain(look.status.missing.iter().map(|what| say(what, &missing)))
        .collect();
    if !said.is_empty() && !watched {
        output.rows("what would help", &said)?;
    }
    Ok(())
}

fn router_row(look: &Look, before: Option<&Look>) -> Row {
    let status = &look.status;
    let rate = |of: fn(&Look) -> u64| {
        before.map(|before| {
            of(look).saturating_sub(of(before)) as f64 * 1e3 / look.at.nanos_since(before.at).max(1) as f64
        })
    };
    Row::new()
        .text("is", if status.is_on { "on" } else { "off" })
        .text("mode", &status.mode)
        .text("parts", status.parts.map_or_else(String::new, |parts| parts.to_string()))
        .count("active", status.rules.active)
        .count("trial", status.rules.trial)
        .count("refused", status.rules.refused)
        .count("fast", look.fast)
        .count("slow", look.slow)
        .maybe("fast_mpps", rate(|look| look.fast), 3)
        .maybe("slow_mpps", rate(|look| look.slow), 3)
        .count("epoch", status.epoch.into())
        .number("delay_p99_us", status.delay.p99_us, 1)
        .text("compared", Share(status.compare))
        .number("uptime_s", status.uptime_s, 0)
}

/// What the router has missed, as far as there is something.
fn lost_rows(status: &Status) -> Vec<Row> {
    let overruns = status.overruns.iter().map(|(socket, count)| {
        let unread = socket == "unread";
        let meaning =
            if unread { "Linux could not be asked; it was asked again" } else { "events were lost; all was read anew" };
        (socket.as_str(), *count, meaning)
    });
    let others = [
        ("events", status.lost_events, "events of the engine had no room; its table was read"),
        ("left-out", status.left_out, "no room for a neighbour or an entry of a bridge: through Linux"),
        ("turned-away", status.turned_away, "clients that were refused, let go or cut off"),
        ("uncopied", status.uncopied, "no room for the copy of a packet that was to be compared"),
        ("renewals", status.renewals, "the table of next hops was nearly full; all rules were made again"),
        ("not-liberal", status.not_liberal, "connections whose windows conntrack still checks"),
    ];
    let row = |(what, count, meaning): (&str, u64, &str)| {
        Row::new().text("what", what).count("count", count).text("meaning", meaning)
    };
    overruns.chain(others).filter(|(_, count, _)| *count > 0).map(row).collect()
}

fn interface_row(interface: &Interface) -> Row {
    Row::new()
        .text("name", &interface.name)
        .text("place", interface.place.map_or("-", |place| place.name()))
        .text("is", interface.off.as_deref().unwrap_or("on"))
        .maybe_count("fast", interface.fast)
        .text("why", interface.why.as_deref().unwrap_or_default())
}

fn session_row(session: &Session) -> Row {
    Row::new()
        .text("name", &session.name)
        .text("interface", &session.interface)
        .text("session", format!("{:#06x}", session.session))
        .text("ac", MacAddress(session.ac))
}

fn counter_row(counter: &Counter, look: &Look, before: Option<&Look>) -> Row {
    let earlier = before.and_then(|before| {
        let same = before.counters.iter().find(|one| one.step == counter.step && one.reason == counter.reason)?;
        Some((same.packets, look.at.nanos_since(before.at)))
    });
    let row =
        Row::new().text("step", counter.step_name()).text("reason", &counter.reason).count("packets", counter.packets);
    let row = match earlier {
        Some((packets, nanos)) => {
            row.number("per_s", counter.packets.saturating_sub(packets) as f64 * 1e9 / nanos.max(1) as f64, 0)
        }
        None => row,
    };
    row.text("meaning", &counter.meaning)
}
