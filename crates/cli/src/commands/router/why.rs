//! `millrace router why`: why a flow is fast, or is not: from the router's rules, and where there is none, from what Linux says.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use millrace_router::daemon::client::Client;
use millrace_router::daemon::protocol::{Answer, Filter, Request, RuleInfo};
use millrace_router::kernel::conntrack::protocol_name;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use serde::Serialize;

use super::linux::{self, Flow};
use super::rules::{end, output_of, shown, step, translated};
use super::{Which, refused, strange};

/// Flows that are explained at most; more are counted.
const MOST: usize = 32;

/// How long packets are counted, for how fast a flow is.
const WHILE: Duration = Duration::from_millis(500);

/// Options of `router why`.
#[derive(Debug, Args)]
#[command(after_help = "\
Names the step and the reason for which packets of the flow go to Linux, or how
many go without it, since when, and how fast (counted for half a second). Both
directions are shown, each of which is a rule. Addresses behind NAT are found too.

Where the router has no rule, Linux is asked: is there a connection in conntrack,
and, if both ends are known, a route, a policy of IPsec? And it is counted for half
a second what goes to Linux for which reason. docs/router.md explains each reason.

Examples:
  millrace router why 10.0.0.5:443
  millrace router why 10.0.0.5:443 192.168.1.7:50000 --protocol udp
  millrace router why 10.0.0.5 --json")]
pub struct WhyArgs {
    /// One end of the flow
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = end)]
    one: (IpAddr, u16),
    /// The other
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = end)]
    other: Option<(IpAddr, u16)>,
    /// tcp, udp, icmp, icmpv6 or a number
    #[arg(long, value_name = "NAME", value_parser = protocol)]
    protocol: Option<u8>,
    #[command(flatten)]
    which: Which,
}

fn protocol(word: &str) -> Result<u8, String> {
    let known = [1, 6, 17, 58].into_iter().find(|&number| protocol_name(number) == word);
    known.or_else(|| word.parse().ok()).ok_or_else(|| "expected tcp, udp, icmp, icmpv6 or a number".to_owned())
}

/// One direction of a flow, explained.
#[derive(Serialize)]
struct Explained {
    is_fast: bool,
    /// In a sentence.
    why: String,
    packets_per_s: f64,
    bits_per_s: f64,
    rule: RuleInfo,
}

/// Runs the command.
pub fn run(shared: &Shared, args: &WhyArgs) -> Result<(), Failure> {
    let output = Output::new(shared.json);
    let filter = Filter { one: Some(args.one), other: args.other, protocol: args.protocol };
    let mut client = args.which.connect()?;
    let Answer::Status(status) = client.ask(Request::Status).map_err(|error| refused(&error))? else {
        return Err(strange());
    };
    let (flows, more) = looked_at_twice(&mut client, &filter)?;
    if flows.is_empty() {
        let flow = Flow { one: args.one, other: args.other, protocol: args.protocol };
        let reasons = linux::about(&flow, &status, &mut client);
        let rows: Vec<Row> =
            reasons.iter().map(|(about, said)| Row::new().text("about", about).text("found", said)).collect();
        return Ok(output.rows("there is no rule for it", &rows)?);
    }
    if more {
        millrace_tool::output::note(format!("these are the first {MOST} flows; name both ends to see one"));
    }
    if output.is_json() {
        return Ok(flows.iter().try_for_each(|flow| output.object(flow))?);
    }
    output.rows("why", &flows.iter().map(row).collect::<Vec<_>>())?;
    let lines: String = flows
        .iter()
        .map(|flow| format!("  {} > {}: {}\n", shown(flow.rule.source), shown(flow.rule.destination), flow.why))
        .collect();
    Ok(output.text(&lines)?)
}

fn looked_at_twice(client: &mut Client, filter: &Filter) -> Result<(Vec<Explained>, bool), Failure> {
    let mut look = || {
        let (mut found, mut more) = (Vec::new(), false);
        client
            .rules(filter, |rule| {
                more = found.len() == MOST;
                if !more {
                    found.push(rule);
                }
                !more
            })
            .map(|()| (found, more))
            .map_err(|error| refused(&error))
    };
    let (before, _) = look()?;
    if before.is_empty() {
        return Ok((Vec::new(), false));
    }
    let begin = Instant::now();
    thread::sleep(WHILE);
    let (now, more) = look()?;
    let seconds = begin.elapsed().as_secs_f64();
    let explained = |rule: RuleInfo| {
        let earlier = before.iter().find(|other| (other.id, other.source) == (rule.id, rule.source));
        let rate = |of: fn(&RuleInfo) -> u64| {
            earlier.map_or(0.0, |earlier| of(&rule).saturating_sub(of(earlier)) as f64 / seconds)
        };
        let (packets_per_s, bits_per_s) = (rate(|rule| rule.packets), 8.0 * rate(|rule| rule.bytes));
        Explained { is_fast: rule.state == "active", why: sentence(&rule), packets_per_s, bits_per_s, rule }
    };
    Ok((now.into_iter().map(explained).collect(), more))
}

fn sentence(rule: &RuleInfo) -> String {
    /// Linux forwards a packet sooner than that, unless it has not got any.
    const SOON: f64 = 1.0;
    /// And a flow that goes on has a packet sooner than that.
    const LATELY: f64 = 5.0;
    let none_lately = match rule.idle_s {
        idle if rule.state == "active" && idle >= LATELY => format!("; it has had none for {idle:.0} s"),
        _ => String::new(),
    };
    let since = rule.state_s.map_or_else(String::new, |seconds| format!(" for {seconds:.0} s"));
    match rule.state.as_str() {
        "active" if rule.is_user => {
            format!("fast{since}: its packets go without Linux, through the engine in user space (IPsec){none_lately}")
        }
        "active" => format!("fast{since}: its packets go without Linux{none_lately}"),
        "off" => format!("slow: {}", rule.meaning),
        "doubt" => format!("not now: {}", rule.meaning),
        "trial" if rule.state_s.is_some_and(|seconds| seconds >= SOON) => format!(
            "not yet{since}: the rule is on trial, and Linux has sent no packet of the flow on since then: it drops them or keeps them, or none has come"
        ),
        "trial" => format!("not yet{since}: the rule is on trial, and Linux shows what it does with the flow"),
        _ => format!("slow{since}, by step {} ({}): {}", step(rule.step), rule.reason, rule.meaning),
    }
}

fn row(flow: &Explained) -> Row {
    let rule = &flow.rule;
    Row::new()
        .text("state", &rule.state)
        .text("protocol", protocol_name(rule.protocol))
        .text("from", shown(rule.source))
        .text("to", shown(rule.destination))
        .text("becomes", translated(rule))
        .text("in", &rule.input)
        .text("out", output_of(rule))
        .text("step", step(rule.step))
        .text("reason", if rule.reason.is_empty() { "-" } else { &rule.reason })
        .maybe("since_s", rule.state_s, 1)
        .count("packets", rule.packets)
        .number("kpps", flow.packets_per_s / 1e3, 1)
        .number("mbit_s", flow.bits_per_s / 1e6, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_have_names_or_numbers() {
        assert_eq!((protocol("tcp"), protocol("icmpv6"), protocol("47")), (Ok(6), Ok(58), Ok(47)));
        assert!(protocol("wood").is_err() && protocol("256").is_err());
    }
}
