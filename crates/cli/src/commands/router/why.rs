//! `millrace router why`: why a flow is fast, or is not: from the router's rules, and where there is none, from what Linux says.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use millrace_router::daemon::client::Client;
use millrace_router::daemon::parts::Part;
use millrace_router::daemon::protocol::{Answer, Filter, Request, RuleInfo, Status};
use millrace_router::kernel::conntrack::{self, Connection, protocol_name};
use millrace_router::kernel::policy::Policies;
use millrace_router::kernel::route;
use millrace_router::kernel::settings;
use millrace_router::kernel::socket::{Protocol, Questions};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use serde::Serialize;

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
and, if both ends are named, a route, a policy of IPsec? docs/router.md explains
each reason.

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
    let (flows, more) = looked_at_twice(&mut client, &filter, &status)?;
    if flows.is_empty() {
        let reasons = without_rule(args, &status);
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

fn looked_at_twice(client: &mut Client, filter: &Filter, status: &Status) -> Result<(Vec<Explained>, bool), Failure> {
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
        let idle = idle(&rule, status);
        let is_fast = rule.state == "active" && idle.is_none();
        let why = idle.map_or_else(|| sentence(&rule), |why| format!("slow: {why}"));
        Explained { is_fast, why, packets_per_s, bits_per_s, rule }
    };
    Ok((now.into_iter().map(explained).collect(), more))
}

/// Why a rule is not used, whatever its state: what has been switched off meanwhile.
fn idle(rule: &RuleInfo, status: &Status) -> Option<String> {
    if !status.is_on {
        return Some("the router is off; `millrace router on` switches it on".to_owned());
    }
    let part = if rule.source.0.is_ipv4() { Part::Ipv4 } else { Part::Ipv6 };
    if !rule.is_bridged && status.parts.is_some_and(|parts| !parts.has(part)) {
        let name = part.name();
        return Some(format!("the part {name} is switched off; `millrace router only all` switches it on"));
    }
    let is_of = |name: &str| name == rule.input || name == rule.output;
    let off = status.interfaces.iter().find(|interface| interface.off.is_some() && is_of(&interface.name))?;
    Some(format!("the fast path is off at {}: {}", off.name, off.why.as_deref().unwrap_or_default()))
}

fn sentence(rule: &RuleInfo) -> String {
    /// Linux forwards a packet sooner than that, unless it has not got any.
    const SOON: f64 = 1.0;
    let since = rule.state_s.map_or_else(String::new, |seconds| format!(" for {seconds:.0} s"));
    match rule.state.as_str() {
        "active" if rule.is_user => {
            format!("fast{since}: its packets go without Linux, through the engine in user space (IPsec)")
        }
        "active" => format!("fast{since}: its packets go without Linux"),
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

/// What Linux says about a flow that has no rule: what was asked, and the answer.
fn without_rule(args: &WhyArgs, status: &Status) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut say = |about: &str, said: String| found.push((about.to_owned(), said));
    if !status.is_on {
        say("router", "it is off: `millrace router on`".to_owned());
    }
    let parts = status.parts.map_or_else(String::new, |parts| parts.to_string());
    say("router", format!("mode {}, parts {parts}", status.mode));
    for interface in &status.interfaces {
        if let (Some(off), Some(why)) = (&interface.off, &interface.why) {
            say(&format!("interface {}", interface.name), format!("{off}: {why}"));
        }
    }
    if status.interfaces.iter().all(|interface| interface.off.is_some()) {
        say("interfaces", "the fast path is on at none, and so no flow can be fast".to_owned());
    }
    match connections(args) {
        Err(error) => say("conntrack", format!("cannot be asked: {error}")),
        Ok(all) if all.is_empty() => {
            say("conntrack", "has no such connection".to_owned());
            if is_ruled(args, status) {
                say("step state", no_conntrack(&status.hooks));
            }
        }
        Ok(all) => all.iter().for_each(|one| say("conntrack", told(one))),
    }
    if let Some(other) = args.other {
        for (from, to) in [(args.one.0, other.0), (other.0, args.one.0)] {
            say(&format!("route {from} > {to}"), routed(from, to, status));
        }
        let policies = Questions::open(Protocol::Xfrm).and_then(|mut questions| Policies::read(&mut questions));
        let protocol = args.protocol.unwrap_or(conntrack::TCP);
        if policies
            .is_ok_and(|all| all.concern(args.one.0, other.0, protocol) || all.concern(other.0, args.one.0, protocol))
        {
            say("policy", "a policy of IPsec is about it: Linux ciphers it".to_owned());
        }
    } else {
        say("route", "name both ends, and the routing tables are asked".to_owned());
    }
    say(
        "flow",
        "no packet of it has come by an interface of the router, or none that a rule could be made of: `millrace router status` counts what went to Linux, by step and reason".to_owned(),
    );
    found
}

/// Whether something of netfilter looks at its packets, so that conntrack has to know the flow.
fn is_ruled(args: &WhyArgs, status: &Status) -> bool {
    // `conntrack` for both versions of IP, or such as `conntrack, IPv6 route`.
    let (ipv4, ipv6) = status.mode.split_once(", IPv6 ").unwrap_or((&status.mode, &status.mode));
    (if args.one.0.is_ipv4() { ipv4 } else { ipv6 }) == "conntrack"
}

/// Why a flow that conntrack does not know stays with Linux, and what changes that.
fn no_conntrack(hooks: &[String]) -> String {
    let hooks = hooks.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
    let cause = match settings::number("netfilter/nf_conntrack_count") {
        Some(0) => "; it knows none at all, and so no rule seems to ask it: any rule with `ct state` changes that",
        None => "; this kernel has none (`modprobe nf_conntrack`)",
        _ => "",
    };
    format!("no-conntrack: rules look at forwarded packets ({hooks}), and conntrack has no entry for the flow{cause}")
}

/// The first connections that fit.
fn connections(args: &WhyArgs) -> Result<Vec<Connection>, String> {
    const SHOWN: usize = 5;
    let filter = Filter { one: Some(args.one), other: args.other, protocol: args.protocol };
    let mut questions = Questions::open(Protocol::Netfilter).map_err(|error| error.to_string())?;
    let found = std::cell::RefCell::new(Vec::new());
    let keep = |one: Connection| {
        let ends = |of: &conntrack::Tuple| [(of.source, of.source_port), (of.destination, of.destination_port)];
        let mut found = found.borrow_mut();
        if found.len() < SHOWN && filter.fits(one.original.protocol, ends(&one.original), ends(&one.reply)) {
            found.push(one);
        }
    };
    conntrack::list(&mut questions, || found.borrow_mut().clear(), keep).map_err(|error| error.to_string())?;
    Ok(found.into_inner())
}

fn told(one: &Connection) -> String {
    let has = |bit| one.status & bit != 0;
    let mut words = vec![one.original.to_string()];
    words.push(if has(conntrack::SEEN_REPLY) { "answered" } else { "not answered yet, and so not fast" }.to_owned());
    if one.original.protocol == conntrack::TCP && one.tcp_state != Some(3) {
        words.push("TCP is not established, or ends".to_owned());
    }
    if has(conntrack::HELPER) {
        words.push("a helper reads along".to_owned());
    }
    if has(conntrack::OFFLOADED) {
        words.push("a flow table of nftables forwards it already".to_owned());
    }
    words.join(", ")
}

fn routed(from: IpAddr, to: IpAddr, status: &Status) -> String {
    // As if it came by an interface of the router: by which, nobody knows. The first that gives a route counts.
    let inputs = status.interfaces.iter().map(|interface| interface.index).chain([0]);
    let mut last = String::new();
    for input in inputs {
        let found =
            Questions::open(Protocol::Route).and_then(|mut questions| route::find(&mut questions, from, to, input));
        match found {
            Ok(Some(route)) if route.kind == 1 => {
                let by = route.gateway.map_or_else(String::new, |gateway| format!(" by {gateway}"));
                let index = route.interface.unwrap_or_default();
                let known = status.interfaces.iter().find(|interface| interface.index == index);
                return format!(
                    "out of {}{by}",
                    known.map_or_else(|| format!("interface #{index}"), |one| one.name.clone())
                );
            }
            Ok(Some(route)) => last = format!("a route of kind {} (2 is this host itself)", route.kind),
            Ok(None) => last = "none".to_owned(),
            Err(error) => last = error.to_string(),
        }
    }
    last
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
