//! What Linux, and the router's counters, say about a flow that has no rule.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use millrace_router::daemon::client::Client;
use millrace_router::daemon::protocol::{Answer, Counter, Filter, Interface, Request, Status};
use millrace_router::kernel::conntrack::{self, Connection};
use millrace_router::kernel::mirror::Mirror;
use millrace_router::kernel::policy::Policies;
use millrace_router::kernel::route;
use millrace_router::kernel::settings;
use millrace_router::kernel::socket::{Protocol, Questions};

use super::rules::step;

/// How long packets are counted.
const WHILE: Duration = Duration::from_millis(500);

/// Which flow.
pub struct Flow {
    /// One end; port 0: any.
    pub one: (IpAddr, u16),
    /// The other.
    pub other: Option<(IpAddr, u16)>,
    /// Protocol in IP.
    pub protocol: Option<u8>,
}

/// What was asked, and the answer.
type Found = Vec<(String, String)>;

/// All that can be said about it.
pub fn about(flow: &Flow, status: &Status, client: &mut Client) -> Found {
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
    let is_on = status.is_on && status.interfaces.iter().any(|interface| interface.off.is_none());
    if status.interfaces.iter().all(|interface| interface.off.is_some()) {
        say("interfaces", "the fast path is on at none, and so no flow can be fast".to_owned());
    }
    let known = connections(flow);
    match &known {
        Err(error) => say("conntrack", format!("cannot be asked: {error}")),
        Ok(all) if all.is_empty() => {
            say("conntrack", "has no such connection".to_owned());
            if is_ruled(flow, status) {
                say("step state", no_conntrack(&status.hooks));
            }
        }
        Ok(all) => all.iter().for_each(|one| say("conntrack", told(one))),
    }
    let ways = ways(flow, known.unwrap_or_default().first());
    if ways.is_empty() {
        say("route", "name both ends, and the routing tables are asked".to_owned());
    }
    for &(from, to) in &ways {
        say(&format!("route {from} > {to}"), routed(from, to, &status.interfaces));
    }
    if is_protected(flow, &ways) {
        say("policy", "a policy of IPsec is about it: Linux ciphers it".to_owned());
    }
    if is_on {
        say("flow", never_seen(client));
    }
    found
}

/// Directions whose ends are known, as they are routed: from conntrack, or named.
fn ways(flow: &Flow, known: Option<&Connection>) -> Vec<(IpAddr, IpAddr)> {
    match (flow.other, known) {
        // Where a packet goes is translated before it is routed, and from where it comes after that.
        (_, Some(known)) => {
            let (one, other) = (known.original.source, known.reply.source);
            vec![(one, other), (other, one)]
        }
        (Some(other), None) => vec![(flow.one.0, other.0), (other.0, flow.one.0)],
        (None, None) => Vec::new(),
    }
}

/// That there is no rule, and what the packets were that came just now.
fn never_seen(client: &mut Client) -> String {
    let mut look = || match client.ask(Request::Counters) {
        Ok(Answer::Counters(all)) => all,
        _ => Vec::new(),
    };
    let before = look();
    thread::sleep(WHILE);
    let now = look();
    let none = "the router has made no rule for it: no packet of it has come by one of its interfaces, or each went to Linux before";
    let most = grown(&before, &now);
    if most.is_empty() {
        return format!("{none}; in the last half second no packet at all has gone to Linux");
    }
    let words: Vec<String> = most
        .iter()
        .map(|(counter, packets)| format!("{packets} for {} (step {})", counter.reason, step(counter.step)))
        .collect();
    format!("{none}; of all flows, packets to Linux in the last half second: {}", words.join(", "))
}

/// The reasons for which most packets have gone to Linux between two looks.
fn grown<'a>(before: &[Counter], now: &'a [Counter]) -> Vec<(&'a Counter, u64)> {
    const SHOWN: usize = 3;
    let of = |counter: &Counter| before.iter().find(|one| one.reason == counter.reason).map_or(0, |one| one.packets);
    let mut all: Vec<(&Counter, u64)> = now
        .iter()
        .filter(|counter| counter.reason != "fast")
        .map(|counter| (counter, counter.packets.saturating_sub(of(counter))))
        .filter(|(_, packets)| *packets > 0)
        .collect();
    all.sort_by_key(|(_, packets)| std::cmp::Reverse(*packets));
    all.truncate(SHOWN);
    all
}

/// Whether something of netfilter looks at its packets, so that conntrack has to know the flow.
fn is_ruled(flow: &Flow, status: &Status) -> bool {
    // `conntrack` for both versions of IP, or such as `conntrack, IPv6 route`.
    let (ipv4, ipv6) = status.mode.split_once(", IPv6 ").unwrap_or((&status.mode, &status.mode));
    (if flow.one.0.is_ipv4() { ipv4 } else { ipv6 }) == "conntrack"
}

/// Why a flow that conntrack does not know stays with Linux, and what changes that.
fn no_conntrack(hooks: &[String]) -> String {
    let hooks = hooks.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
    let cause = match settings::number("netfilter/nf_conntrack_count") {
        Some(0) => {
            "; it knows none at all: no rule asks it, which any rule with `ct state` changes, or a rule drops whatever came"
        }
        None => "; this kernel has none (`modprobe nf_conntrack`)",
        _ => "; so it is where a rule drops the flow",
    };
    format!("no-conntrack: rules look at forwarded packets ({hooks}), and conntrack has no entry for the flow{cause}")
}

/// The first connections that fit.
fn connections(flow: &Flow) -> Result<Vec<Connection>, String> {
    const SHOWN: usize = 5;
    let filter = Filter { one: Some(flow.one), other: flow.other, protocol: flow.protocol };
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

/// Whether a policy of IPsec is about one of the ways.
fn is_protected(flow: &Flow, ways: &[(IpAddr, IpAddr)]) -> bool {
    let policies = Questions::open(Protocol::Xfrm).and_then(|mut questions| Policies::read(&mut questions));
    let protocol = flow.protocol.unwrap_or(conntrack::TCP);
    policies.is_ok_and(|all| ways.iter().any(|&(from, to)| all.concern(from, to, protocol)))
}

/// The way that Linux would send it.
fn routed(from: IpAddr, to: IpAddr, interfaces: &[Interface]) -> String {
    const UNICAST: u8 = 1;
    let Ok(mut questions) = Questions::open(Protocol::Route) else { return "cannot be asked".to_owned() };
    // As if it came by an interface of the router: by which, nobody knows. The first that gives a route counts.
    let inputs = interfaces.iter().map(|interface| interface.index).chain([0]);
    let mut last = String::new();
    for input in inputs {
        match route::find(&mut questions, from, to, input) {
            Ok(Some(route)) if route.kind == UNICAST => {
                let by = route.gateway.map_or_else(String::new, |gateway| format!(" by {gateway}"));
                let index = route.interface.unwrap_or_default();
                let name = Mirror::read(&mut questions).map_or_else(|_| format!("#{index}"), |all| all.name_of(index));
                return format!("out of {name}{by}");
            }
            Ok(Some(route)) => last = kind(route.kind),
            Ok(None) => last = "none".to_owned(),
            Err(error) => last = error.to_string(),
        }
    }
    last
}

/// A kind of route in words (`man 8 ip-route`).
fn kind(number: u8) -> String {
    let name = match number {
        2 => "to this host itself (local): such a flow is never forwarded",
        3 => "a broadcast",
        4 => "an anycast address of this host",
        5 => "a group (multicast)",
        6 => "a blackhole route: Linux drops it",
        7 => "an unreachable route: Linux drops it, and tells the sender",
        8 => "a prohibit route: Linux drops it, and tells the sender",
        _ => return format!("a route of kind {number}, which the fast path does not know"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_asked_for_as_packets_are_routed() {
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let tuple = |source, destination| conntrack::Tuple {
            source: address(source),
            destination: address(destination),
            protocol: 6,
            source_port: 1,
            destination_port: 2,
        };
        let known = |original, reply| Connection {
            original,
            reply,
            status: 0,
            zone: 0,
            mark: 0,
            timeout: None,
            id: 0,
            tcp_state: None,
            is_liberal: false,
        };
        // Masqueraded: the answer goes to the router's own address 9, and by the table to 1.
        let masqueraded = known(tuple(1, 2), tuple(2, 9));
        let flow = Flow { one: (address(1), 0), other: Some((address(2), 0)), protocol: None };
        let both = vec![(address(1), address(2)), (address(2), address(1))];
        assert_eq!((ways(&flow, Some(&masqueraded)), ways(&flow, None)), (both.clone(), both));
        // And to another host than it is addressed to.
        let redirected = known(tuple(1, 9), tuple(2, 1));
        assert_eq!(ways(&flow, Some(&redirected)), [(address(1), address(2)), (address(2), address(1))]);
    }

    #[test]
    fn what_has_grown_most_comes_first() {
        let counter =
            |reason: &str, packets| Counter { step: 1, reason: reason.to_owned(), meaning: String::new(), packets };
        let before = [counter("a", 5), counter("b", 7), counter("fast", 1)];
        let now =
            [counter("a", 6), counter("b", 7), counter("fast", 900), counter("c", 9), counter("d", 3), counter("e", 2)];
        let names: Vec<_> =
            grown(&before, &now).into_iter().map(|(one, packets)| (one.reason.as_str(), packets)).collect();
        assert_eq!(names, [("c", 9), ("d", 3), ("e", 2)]);
        assert!(grown(&now, &now).is_empty());
    }
}
