//! What people and programs are told: a line each time something happens.

use std::time::Duration;

use millrace_pppoe::{Event, Failure as Why, Session};
use millrace_tool::failure::Failure;
use millrace_tool::output::{Output, put};
use serde_json::{Map, Value, json};

/// Says what has happened.
pub(super) fn tell(output: Output, event: &Event) -> Result<(), Failure> {
    if output.is_json() {
        return Ok(output.object(&object(event))?);
    }
    Ok(put(&format!("{}\n", line(event)))?)
}

fn line(event: &Event) -> String {
    match event {
        Event::Looking => "looking for an access concentrator".to_owned(),
        Event::Asked(ac, name) => format!("{name} ({ac}) offers a session"),
        Event::Given(session) => format!("session {session:#06x}"),
        Event::Up(session) => format!("up: {}", described(session)),
        Event::Changed(session) => format!("changed: {}", described(session)),
        Event::SmallOnly => "packets of more than 1492 bytes do not get through; the MTU is 1492".to_owned(),
        Event::Down(why) => format!("down: {why}"),
        Event::Failed(why) => format!("no session: {why}"),
        Event::Waiting(wait) => format!("again in {:.1} s", wait.as_secs_f64()),
        Event::Closed => "ended".to_owned(),
    }
}

fn described(session: &Session) -> String {
    let mut parts = Vec::new();
    if let Some(ipv4) = session.ipv4 {
        parts.push(ends(&ipv4.own, ipv4.peer.as_ref()));
    }
    if let Some(ipv6) = session.ipv6 {
        parts.push(ends(&ipv6.own, ipv6.peer.as_ref()));
    }
    parts.push(format!("MTU {}", session.mtu));
    if !session.dns.is_empty() {
        let servers: Vec<_> = session.dns.iter().map(ToString::to_string).collect();
        parts.push(format!("DNS {}", servers.join(" ")));
    }
    parts.push(match session.method {
        Some(method) => method.to_string(),
        None => "not asked who we are".to_owned(),
    });
    parts.join(", ")
}

fn ends<A: std::fmt::Display>(own: &A, peer: Option<&A>) -> String {
    peer.map_or_else(|| own.to_string(), |peer| format!("{own} to {peer}"))
}

fn object(event: &Event) -> Value {
    match event {
        Event::Looking => json!({"event": "looking"}),
        Event::Asked(ac, name) => json!({"event": "asked", "ac": ac.to_string(), "ac_name": name}),
        Event::Given(session) => json!({"event": "given", "session": session}),
        Event::Up(session) => with("up", session),
        Event::Changed(session) => with("changed", session),
        Event::SmallOnly => json!({"event": "small-only", "mtu": millrace_pppoe::USUAL_MTU}),
        Event::Down(why) => because("down", why),
        Event::Failed(why) => because("failed", why),
        Event::Waiting(wait) => json!({"event": "waiting", "seconds": rounded(*wait)}),
        Event::Closed => json!({"event": "closed"}),
    }
}

fn with(name: &str, session: &Session) -> Value {
    let mut object = Map::from_iter([("event".to_owned(), name.into())]);
    if let Ok(Value::Object(fields)) = serde_json::to_value(session) {
        object.extend(fields);
    }
    object.into()
}

fn because(name: &str, why: &Why) -> Value {
    json!({"event": name, "reason": why.name(), "text": why.to_string()})
}

fn rounded(wait: Duration) -> f64 {
    (wait.as_secs_f64() * 1000.0).round() / 1000.0
}
