//! `millrace router rules`: what the router has made of what Linux did.

use std::net::IpAddr;

use clap::Args;
use millrace_router::daemon::protocol::{Filter, RuleInfo};
use millrace_router::kernel::conntrack::protocol_name;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};

use super::{Which, refused};

/// Options of `router rules`.
#[derive(Debug, Args)]
#[command(after_help = "\
A rule is one direction of a flow. States: active (packets go without Linux),
trial (Linux shows what it does with them; `out` has a question mark), refused
(Linux does something that a rule cannot, which the last column names; router.md
among the documents has all reasons), off (something is switched off), doubt
(something has changed in Linux since its last packet, and the next one shows anew
what Linux does).

Packets and bytes are those that went without Linux.

Examples:
  millrace router rules
  millrace router rules 10.0.0.5
  millrace router rules 10.0.0.5:443 --json
  millrace router rules --limit 1000000 --json | wc -l")]
pub struct RulesArgs {
    /// Only flows of this address, or of a port of it, such as 10.0.0.5:443 or [2001:db8::1]:443
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = end)]
    end: Option<(IpAddr, u16)>,
    /// Show at most so many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    #[command(flatten)]
    which: Which,
}

/// An address, with a port or without (0).
pub fn end(text: &str) -> Result<(IpAddr, u16), String> {
    let address = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = address.parse::<IpAddr>() {
        return Ok((address, 0));
    }
    let socket: std::net::SocketAddr = text
        .parse()
        .map_err(|_| "expected an address, such as 10.0.0.5, 10.0.0.5:443 or [2001:db8::1]:443".to_owned())?;
    Ok((socket.ip(), socket.port()))
}

/// Runs the command.
pub fn run(shared: &Shared, args: &RulesArgs) -> Result<(), Failure> {
    let output = Output::new(shared.json);
    let filter = Filter { one: args.end, ..Filter::default() };
    let (mut rows, mut more, mut broken) = (Vec::new(), 0_u64, None);
    args.which
        .connect()?
        .rules(&filter, |rule| {
            if rows.len() as u64 >= args.limit {
                more += 1;
                // Counting on would take as long as listing.
                return false;
            }
            match output.is_json() {
                // A line each at once: there may be a hundred thousand.
                true => {
                    if let Err(error) = output.object(&rule) {
                        broken = Some(error);
                        return false;
                    }
                    rows.push(Row::new());
                }
                false => rows.push(row(&rule)),
            }
            true
        })
        .map_err(|error| refused(&error))?;
    if let Some(error) = broken {
        return Err(error.into());
    }
    if !output.is_json() {
        output.rows("rules", &rows)?;
    }
    if more > 0 {
        millrace_tool::output::note(format!("there are more than {} rules; --limit shows them", rows.len()));
    }
    Ok(())
}

/// One end of a flow; ports of 0 are none.
pub fn shown(end: (IpAddr, u16)) -> String {
    if end.1 == 0 { end.0.to_string() } else { std::net::SocketAddr::from(end).to_string() }
}

/// What the flow becomes, if that is something else.
pub fn translated(rule: &RuleInfo) -> String {
    let is_same = rule.source == rule.new_source && rule.destination == rule.new_destination;
    match is_same {
        true => "-".to_owned(),
        false => format!("{} > {}", shown(rule.new_source), shown(rule.new_destination)),
    }
}

/// Where packets leave; with a question mark what Linux has not shown yet.
pub fn output_of(rule: &RuleInfo) -> String {
    match (rule.output.as_str(), rule.state.as_str()) {
        ("", _) => "-".to_owned(),
        (name, "trial") => format!("{name}?"),
        (name, _) => name.to_owned(),
    }
}

fn row(rule: &RuleInfo) -> Row {
    let why = if rule.reason.is_empty() { String::new() } else { format!("{}: {}", step(rule.step), rule.reason) };
    Row::new()
        .text("state", &rule.state)
        .text("protocol", protocol_name(rule.protocol))
        .text("from", shown(rule.source))
        .text("to", shown(rule.destination))
        .text("becomes", translated(rule))
        .text("in", &rule.input)
        .text("out", output_of(rule))
        .count("packets", rule.packets)
        .count("bytes", rule.bytes)
        .number("idle_s", rule.idle_s, 1)
        .text("why", why)
}

/// The name of a step by its number.
pub fn step(number: u8) -> &'static str {
    millrace_router::Step::ALL.iter().find(|step| **step as u8 == number).map_or("-", |step| step.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_have_ports_or_not() {
        assert_eq!(end("10.0.0.5"), Ok(("10.0.0.5".parse().unwrap(), 0)));
        assert_eq!(end("10.0.0.5:443"), Ok(("10.0.0.5".parse().unwrap(), 443)));
        assert_eq!(end("[::1]:443"), end("[::1]:443"));
        assert_eq!(end("::1").map(shown), Ok("::1".to_owned()));
        assert_eq!(end("[::1]:443").map(shown), Ok("[::1]:443".to_owned()));
        assert!(end("host:443").is_err());
    }
}
