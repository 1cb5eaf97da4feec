//! From text to changes, and from what there is and what has happened to text.

use millrace_abi::flow::{
    FlowChange, FlowChanged, FlowCommitted, FlowCounts, FlowEvent, FlowFrame, FlowHeard, FlowKind, FlowOwner,
    FlowReason, FlowSent, FlowTap, FlowTapWants, FlowTunnel, MAX_FLOW_REPLY,
};
use millrace_card::{Done, Event, Happened, Owner, TapFrame, TapSent, TapSpec, TapWants, Tapped, Why, flow_changes};
use millrace_flow::language::{Item, ParseError, parse_filter, parse_modification};
use millrace_flow::rule::Rule;
use millrace_flow::version::{Change, Filter, Part};

/// Nanoseconds of the monotonic clock, which is that of the counters of rules.
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    std::time::Duration::try_from(now).unwrap_or_default().as_nanos() as u64
}

/// What is wrong with a line, and where.
fn said(error: ParseError) -> String {
    format!("column {}: {}", error.column(), error.message)
}

/// A change from its text.
pub(super) fn change(change: &FlowChange) -> Result<Change, String> {
    Ok(match change {
        FlowChange::Add(line) => Item::parse(line).map_err(said)?.change(now_ns())?,
        FlowChange::Renew(line) => match Item::parse(line).map_err(said)? {
            Item::Rule(rule) => Change::Renew(rule),
            _ => return Err("only a rule can be renewed: add it".to_owned()),
        },
        FlowChange::Delete(filter) => Change::Delete(parse_filter(filter).map_err(said)?),
        FlowChange::Modify(line) => modify(line)?,
        FlowChange::DeleteGroup(id) => Change::Group(*id, None),
        FlowChange::DeleteMeter(id) => Change::Meter(*id, None),
    })
}

/// `FILTER,actions=...`. With `cookie=N` without a mask the rules get this cookie too, as with `ovs-ofctl mod-flows`.
fn modify(line: &str) -> Result<Change, String> {
    let (filter, actions) = parse_modification(line).map_err(said)?;
    let (cookie, filter) = match filter.cookie {
        Some((cookie, u64::MAX)) => (Some(cookie), Filter { cookie: None, ..filter }),
        _ => (None, filter),
    };
    Ok(Change::Modify { filter, actions, cookie })
}

pub(super) fn owner(owner: Owner) -> FlowOwner {
    match owner {
        Owner::Card => FlowOwner::Card,
        Owner::User(uid) => FlowOwner::User(uid),
        Owner::Program { connection, pid, uid } => FlowOwner::Program { client: connection, pid, uid },
    }
}

pub(super) fn counts(rule: &Rule, now_ns: u64) -> FlowCounts {
    let hits = rule.counters.read();
    FlowCounts {
        number: rule.number(),
        packets: hits.packets,
        bytes: hits.bytes,
        lost: rule.counters.lost(),
        age_ns: now_ns.saturating_sub(rule.created_ns),
        idle_ns: now_ns.saturating_sub(hits.last_ns.max(rule.created_ns)),
    }
}

/// Kind, line and reason of what has happened.
fn shown(happened: &Happened) -> (FlowKind, String, Option<FlowReason>) {
    let reason = |why: &Why| match why {
        Why::Idle => FlowReason::Idle,
        Why::Hard => FlowReason::Hard,
        Why::Deleted => FlowReason::Delete,
        Why::OwnerGone => FlowReason::OwnerGone,
    };
    match happened {
        Happened::Added(rule) => (FlowKind::Added, rule.spec.to_string(), None),
        Happened::Modified(rule) => (FlowKind::Modified, rule.spec.to_string(), None),
        Happened::Removed(rule, why) => (FlowKind::Removed, rule.spec.to_string(), Some(reason(why))),
        Happened::Set(line) => (FlowKind::Added, line.clone(), None),
        Happened::Unset(part) => (FlowKind::Removed, unset(*part), None),
    }
}

/// A line without the keys of hashes and of ids of connections: who knows them can make flows that meet, or see which server an id
/// means.
pub(super) fn without_keys(line: &str) -> String {
    let mut pieces = line.split("key=");
    let mut shown = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find([',', ')', ' ', ';']).unwrap_or(piece.len());
        shown.push_str("key=hidden");
        shown.push_str(&piece[end..]);
    }
    shown
}

/// What somebody wants to hear.
pub(super) fn tap(wanted: FlowTap) -> TapSpec {
    let wants = match wanted.wants {
        FlowTapWants::All => TapWants::All,
        FlowTapWants::Port(port) => TapWants::Port(port),
        FlowTapWants::Queue(queue) => TapWants::Queue(queue),
        FlowTapWants::Rule(number) => TapWants::Rule(number),
        FlowTapWants::Cookie { cookie, mask } => TapWants::Cookie(cookie, mask),
        FlowTapWants::Expired => TapWants::Expired,
    };
    TapSpec { wants, snap: wanted.snap as usize, after: wanted.after, rate: wanted.rate }
}

/// What was heard.
pub(super) fn heard(tapped: Tapped) -> FlowHeard {
    let sent = |sent| match sent {
        TapSent::Queue(queue) => FlowSent::Queue(queue),
        TapSent::Port(port) => FlowSent::Port(port),
        TapSent::Host => FlowSent::Host,
    };
    let frame = |frame: TapFrame| FlowFrame {
        time_ns: frame.time_ns,
        version: frame.version,
        port: frame.port,
        tunnel: frame.tunnel.map(|tunnel| FlowTunnel { id: tunnel.id, src: tunnel.src, port: tunnel.port }),
        queue: frame.queue,
        len: frame.len,
        rules: frame.rules,
        sent: frame.sent.into_iter().map(sent).collect(),
        bytes: frame.bytes,
    };
    let Tapped { frames, lost, limited, more } = tapped;
    FlowHeard { frames: frames.into_iter().map(frame).collect(), lost, limited, more }
}

fn unset(part: Part) -> String {
    match part {
        Part::Miss => "miss=normal".to_owned(),
        Part::Group(id) | Part::Quic(id) => format!("group={id}"),
        Part::Meter(id) => format!("meter={id}"),
    }
}

/// What a transaction has done; numbers only, if that is enough.
pub(super) fn committed(done: &Done, brief: bool) -> FlowCommitted {
    let all = flow_changes(&done.steps);
    let mut told = FlowCommitted { version: done.committed.version, ..FlowCommitted::default() };
    let mut room = MAX_FLOW_REPLY;
    for happened in &all {
        match happened {
            Happened::Added(_) => told.added += 1,
            Happened::Modified(_) => told.modified += 1,
            Happened::Removed(..) => told.removed += 1,
            Happened::Set(_) | Happened::Unset(_) => {}
        }
        if brief || told.omitted > 0 {
            told.omitted += 1;
            continue;
        }
        let (kind, line, _) = shown(happened);
        match room.checked_sub(line.len() + 8) {
            Some(left) => {
                room = left;
                told.changed.push(FlowChanged { kind, line });
            }
            None => told.omitted += 1,
        }
    }
    told
}

/// Something that has happened.
pub(super) fn event(event: &Event, now_ns: u64) -> FlowEvent {
    let (kind, line, reason) = shown(&event.happened);
    let rule = match &event.happened {
        Happened::Removed(rule, _) => Some(counts(rule, now_ns)),
        _ => None,
    };
    let Event { number, version, time_ns, .. } = *event;
    FlowEvent { number, version, time_ns, kind, reason, line, owner: event.owner.map(owner), rule }
}

#[cfg(test)]
mod tests {
    use super::without_keys;

    #[test]
    fn keys_are_hidden_and_nothing_else() {
        let line = "group=2,quic,queues=0-3,lb(config=0,server_id=2,nonce=6,key=0x00ff),other=hash";
        let hidden = "group=2,quic,queues=0-3,lb(config=0,server_id=2,nonce=6,key=hidden),other=hash";
        assert_eq!(without_keys(line), hidden);
        assert_eq!(without_keys("group=1,rss,queues=0-3,key=0x6d5a"), "group=1,rss,queues=0-3,key=hidden");
        assert_eq!(without_keys("tcp,tcp_dst=80,actions=drop"), "tcp,tcp_dst=80,actions=drop");
    }
}
