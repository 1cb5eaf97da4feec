//! The flow table of a card, as the switch asks for it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use millrace::flow::{FlowChange, FlowEvent, FlowFrame, FlowKind, FlowReason, FlowTap, FlowTapWants, FlowTunnel};
use millrace::{Device, Direction, ErrorCode, FlowListener, FlowWatch};
use millrace_agent::switch::datapath::{
    Change, Counts, Datapath, FlowKey, Gone, PortInfo, QueueInfo, Rejected, Snapshot, Why,
};
use millrace_agent::switch::tunnels::{FirstTable, Whose, whose_before};
use millrace_agent::switch::{Heard, PUNTS};
use millrace_driver::ClientError;
use millrace_flow::language::{Item, parse_rule};
use millrace_flow::{Action, RuleSpec, Tunnel};
use millrace_tool::output::note;

use super::packets::Sender;
use super::state::Had;

/// Most bytes of a packet that a controller gets.
const SNAP: u32 = 16 * 1024;

/// How long what was seen of all rules is used again: whoever asks often does not make the card list them each time.
const FRESH: Duration = Duration::from_millis(100);

/// How long until rules of the agent's own are put back once more, and until somebody tries again to listen who could not.
const MENDED: Duration = Duration::from_millis(500);

/// Packets that were lost: for controllers, and of controllers.
pub struct Losses {
    pub unheard: u64,
    pub unsent: u64,
}

/// Listens to packets for controllers.
struct Ear {
    listener: FlowListener,
    /// What it has missed so far.
    missed: u64,
}

/// A card.
pub struct Card<'a> {
    device: &'a Device,
    watch: FlowWatch,
    /// More has become of rules than was told at once.
    has_more: bool,
    /// Some of it was not told.
    has_lost: bool,
    sender: Sender,
    /// What stands in front of the tables of controllers, if there are tunnels.
    first: Option<FirstTable>,
    /// Until rules are taken over: whether the agent before had such a table, if that is not as now.
    before: Option<bool>,
    /// The version with which rules were taken over: what has become of any until then is of no entry that is there now.
    from: u64,
    /// What entries have had before their rules were others.
    had: Had,
    /// Numbers of its rules, which no entry has.
    own: HashSet<u64>,
    /// Those of its rules that somebody has deleted, and when some were put back last.
    torn: HashSet<FlowKey>,
    mended: Option<Instant>,
    ports: u32,
    /// To packets that rules send to controllers, and to those whose time to live was at its end.
    ears: [Option<Ear>; 2],
    /// It was said that nobody can listen.
    is_deaf: bool,
    /// Nobody tries to listen before.
    listens_from: Option<Instant>,
    /// Packets for controllers that were not heard.
    unheard: u64,
    /// What was seen last, as long as nothing is changed.
    seen: Option<(Instant, Snapshot)>,
    /// Why the card is of no use any more.
    pub gone: Option<String>,
}

impl<'a> Card<'a> {
    /// Watches what becomes of rules from now on.
    pub fn new(device: &'a Device, first: Option<FirstTable>) -> Result<Self, millrace::Error> {
        // What is added and modified is known: it is done here.
        let watch = device.flows().watch_removed()?;
        Ok(Self {
            device,
            watch,
            has_more: false,
            has_lost: false,
            sender: Sender::default(),
            first,
            before: None,
            from: 0,
            had: Had::new(),
            own: HashSet::new(),
            torn: HashSet::new(),
            mended: None,
            ports: 0,
            ears: [None, None],
            is_deaf: false,
            listens_from: None,
            unheard: 0,
            seen: None,
            gone: None,
        })
    }

    /// What can be read when something has become of rules.
    pub fn watched(&self) -> &FlowWatch {
        &self.watch
    }

    /// Whether there is more of it, whatever can be read.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Whether something has become of rules that was not told, since so much has happened. It is said once.
    pub fn has_lost(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    /// What has become of rules.
    pub fn happened(&mut self) -> Vec<Gone> {
        match self.watch.next(Duration::ZERO) {
            Ok(events) => {
                self.has_more = events.more;
                self.has_lost |= events.lost > 0;
                let of_now: Vec<_> =
                    events.events.iter().filter_map(gone).filter(|gone| gone.version > self.from).collect();
                of_now.into_iter().filter_map(|gone| self.of_entry(gone)).collect()
            }
            Err(error) => {
                self.unanswered(error);
                Vec::new()
            }
        }
    }

    /// Listens to packets that rules send to controllers, and to those whose time to live was at its end, or does so no more. Whether it listens.
    pub fn listen(&mut self, wanted: [bool; 2], rate: u32) -> bool {
        let kinds = [FlowTapWants::Cookie { cookie: PUNTS, mask: PUNTS }, FlowTapWants::Expired];
        // A connection has one tap at a time, and the next ends it: the second has a connection of its own. To a card inside this program there is no
        // other one.
        let is_inside = self.device.name().starts_with("embedded");
        let wanted = [wanted[0], wanted[1] && !(is_inside && wanted[0])];
        self.ears.iter_mut().zip(wanted).filter(|(_, wanted)| !wanted).for_each(|(ear, _)| *ear = None);
        for (at, wants) in kinds.into_iter().enumerate().filter(|(at, _)| wanted[*at]) {
            if self.ears[at].is_some() || self.listens_from.is_some_and(|from| Instant::now() < from) {
                continue;
            }
            let tap = FlowTap { wants, snap: SNAP, after: true, rate };
            let listener = match at == 0 || is_inside {
                true => self.device.flows().tap(tap),
                false => Device::open(self.device.name()).and_then(|other| other.flows().tap(tap)),
            };
            match listener {
                Ok(listener) => self.ears[at] = Some(Ear { listener, missed: 0 }),
                Err(error) => {
                    self.listens_from = Some(Instant::now() + MENDED);
                    if !std::mem::replace(&mut self.is_deaf, true) {
                        note(format!("controllers get no packets: {error}"));
                    }
                }
            }
        }
        self.ears.iter().any(Option::is_some)
    }

    /// Packets for controllers.
    pub fn heard(&mut self) -> Vec<Heard> {
        let mut all = Vec::new();
        for (place, is_expired) in self.ears.iter_mut().zip([false, true]) {
            let Some(ear) = place else { continue };
            let Ok(heard) = ear.listener.next(Duration::ZERO) else {
                *place = None;
                continue;
            };
            // Both are sums since it began to listen.
            let missed = heard.lost + heard.limited;
            self.unheard += missed.saturating_sub(std::mem::replace(&mut ear.missed, missed));
            for mut heard in heard.frames.into_iter().filter_map(packet) {
                heard.rules.retain(|rule| !self.own.contains(rule));
                all.push(Heard { is_expired, ..heard });
            }
        }
        all
    }

    /// Whether tables of controllers are one further in the card.
    pub fn is_behind(&self) -> bool {
        self.first.is_some()
    }

    /// What entries have had before their rules were others.
    pub fn had(&self) -> &Had {
        &self.had
    }

    /// The rules that are there are those of an agent before.
    pub fn read_as(&mut self, is_behind: Option<bool>, had: Had) {
        self.before = is_behind.filter(|before| *before != self.is_behind());
        self.had = had;
    }

    /// Makes these all rules that the card keeps for this user. What meets no entry is dropped, as section 5.4 has it. Whether they are in other
    /// tables than they were: what they have had goes on.
    pub fn take_over(&mut self, changes: &[Change]) -> Result<bool, Rejected> {
        let moves = self.before.is_some();
        let had: HashMap<_, _> = if moves { self.snapshot()?.rules.into_iter().collect() } else { HashMap::new() };
        let transaction = self.device.flows().transaction().keep().brief().replace().add("miss=drop");
        let own = self.first.iter().flat_map(FirstTable::rules).map(|rule| FlowChange::Add(rule.to_string()));
        let own = own.collect::<Vec<_>>();
        let done = transaction.changes(own).changes(changes.iter().map(|change| self.in_words(change))).commit();
        self.from = done.map_err(|error| self.rejected(error))?.version;
        (self.before, self.seen) = (None, None);
        if !moves {
            if self.first.is_some() || !self.had.is_empty() {
                // Rules may have gone while nobody was there.
                let there: HashSet<_> = self.snapshot()?.rules.iter().map(|(_, counts)| counts.number).collect();
                self.had.retain(|rule, _| there.contains(rule));
            }
            return Ok(false);
        }
        self.had.clear();
        for (key, now) in self.snapshot()?.rules {
            if let Some(had) = had.get(&key) {
                // Where a rule stayed it may have been another entry's: the difference counts, whatever its sign.
                self.had.insert(now.number, [had.packets.wrapping_sub(now.packets), had.bytes.wrapping_sub(now.bytes)]);
            }
        }
        self.seen = None;
        Ok(true)
    }

    fn in_words(&self, change: &Change) -> FlowChange {
        match &self.first {
            Some(first) => in_words(&first.behind(change)),
            None => in_words(change),
        }
    }

    /// The same with what the entry has had before its rule was another.
    fn with_had(&self, counts: Counts) -> Counts {
        let [packets, bytes] = self.had.get(&counts.number).copied().unwrap_or_default();
        let (packets, bytes) = (counts.packets.wrapping_add(packets), counts.bytes.wrapping_add(bytes));
        Counts { packets, bytes, ..counts }
    }

    fn whose(&self, key: FlowKey) -> Whose {
        if let Some(is_behind) = self.before {
            return whose_before(&key, is_behind);
        }
        self.first.as_ref().map_or(Whose::Entry(key), |first| first.whose(&key))
    }

    /// A rule of an entry that has gone. One of the first table is noted.
    fn of_entry(&mut self, gone: Gone) -> Option<Gone> {
        match self.whose(gone.key) {
            Whose::Entry(key) => {
                let counts = self.with_had(gone.counts);
                self.had.remove(&counts.number);
                Some(Gone { key, counts, ..gone })
            }
            Whose::Tunnel(_) | Whose::Rest => {
                self.torn.insert(gone.key);
                None
            }
        }
    }

    /// Puts back rules of the first table that somebody has deleted: without them nothing comes out of a tunnel, or into the other tables. Who
    /// deletes them again and again does not keep the agent busy: it is done twice a second at most.
    pub fn mend(&mut self) {
        if self.torn.is_empty() || self.mended.is_some_and(|at| at.elapsed() < MENDED) {
            return;
        }
        self.mended = Some(Instant::now());
        let torn = std::mem::take(&mut self.torn);
        let own = self.first.iter().flat_map(FirstTable::rules).filter(|rule| torn.contains(&FlowKey::of(rule)));
        let own: Vec<_> = own.map(|rule| FlowChange::Add(rule.to_string())).collect();
        if let Err(error) = self.device.flows().transaction().keep().brief().changes(own).commit() {
            note(format!("rules of the agent's own were deleted, and cannot be set up again: {error}"));
        }
        // Their numbers are others now.
        self.seen = None;
        let _ = self.snapshot();
    }

    /// Packets that were lost between the card and controllers.
    pub fn losses(&self) -> Losses {
        Losses { unheard: self.unheard, unsent: self.sender.unsent() }
    }

    /// A question was not answered. A card that is late is asked again; only one that has gone has gone.
    fn unanswered(&mut self, error: millrace::Error) -> Rejected {
        match error {
            millrace::Error::Client(ClientError::Silent { .. }) => Rejected::Gone(error.to_string()),
            other => self.rejected(other),
        }
    }

    /// A change was not done; or nobody knows: then the agent ends, and the next one sets all of it up.
    fn rejected(&mut self, error: millrace::Error) -> Rejected {
        let text = error.to_string();
        match error {
            millrace::Error::Client(ClientError::Refused { code, .. }) => match code {
                ErrorCode::Quota => Rejected::Full(text),
                ErrorCode::Denied | ErrorCode::Busy => Rejected::Denied(text),
                _ => Rejected::Invalid(text),
            },
            _ => {
                self.gone = Some(text.clone());
                Rejected::Gone(text)
            }
        }
    }
}

impl Datapath for Card<'_> {
    fn commit(&mut self, changes: &[Change]) -> Result<u64, Rejected> {
        self.seen = None;
        let words = changes.iter().map(|change| self.in_words(change));
        let transaction = self.device.flows().transaction().keep().brief().changes(words);
        transaction.commit().map(|done| done.version).map_err(|error| self.rejected(error))
    }

    fn snapshot(&mut self) -> Result<Snapshot, Rejected> {
        if let Some((at, snapshot)) = &self.seen
            && at.elapsed() < FRESH
        {
            return Ok(snapshot.clone());
        }
        let flows = self.device.flows();
        let entries = flows.list("").map_err(|error| self.unanswered(error))?;
        let info = flows.info().map_err(|error| self.unanswered(error))?;
        let mut snapshot = Snapshot { unmatched: info.unmatched, ..Snapshot::default() };
        let mut own: HashSet<_> = self.first.iter().flat_map(FirstTable::rules).map(FlowKey::of).collect();
        for entry in entries {
            if let Some(had) = entry.rule {
                let Ok(rule) = parse_rule(&entry.line) else { continue };
                let (packets, bytes, age_ns, number) = (had.packets, had.bytes, had.age_ns, had.number);
                let counts = Counts { packets, bytes, age_ns, number };
                let key = FlowKey::of(&rule);
                match self.whose(key) {
                    Whose::Entry(key) => {
                        snapshot.rules.push((key, self.with_had(counts)));
                        continue;
                    }
                    Whose::Tunnel(port) => snapshot.tunnels.push((port, counts)),
                    Whose::Rest => {}
                }
                self.own.insert(number);
                own.remove(&key);
            } else if let Some(dropped) = entry.metered
                && let Some(number) = meter_number(&entry.line)
            {
                snapshot.metered.push((number, dropped));
            }
        }
        // Those that are not there have been deleted, told or not.
        if self.before.is_none() {
            self.torn.extend(own);
        }
        self.seen = Some((Instant::now(), snapshot.clone()));
        Ok(snapshot)
    }

    fn ports(&mut self) -> Result<(Vec<PortInfo>, Vec<QueueInfo>), Rejected> {
        let stats = self.device.stats().map_err(|error| self.unanswered(error))?;
        self.ports = stats.ports.len() as u32;
        let ports = stats.ports.iter().map(|port| {
            let sum = |counts: &[millrace::stats::Count]| counts.iter().map(|count| count.count).sum();
            let counters = [
                port.rx_frames,
                port.tx_frames,
                port.rx_bytes,
                port.tx_bytes,
                sum(&port.rx_drops),
                sum(&port.tx_drops),
            ];
            let plugged = port.spec != "none";
            PortInfo { port: port.port, name: name(&port.spec, port.port), plugged, link: port.link, counters }
        });
        let host = stats.queues.iter().filter(|queue| queue.queue.direction == Direction::Rx);
        let queues = host.map(|queue| QueueInfo {
            queue: queue.queue.index,
            packets: queue.passed,
            bytes: queue.passed_bytes,
            errors: queue.drops.iter().map(|count| count.count).sum(),
        });
        Ok((ports.collect(), queues.collect()))
    }

    fn send(&mut self, frame: &[u8], in_port: u32, actions: &[Action]) -> Result<(), Rejected> {
        let sent = self.sender.send(self.device, self.ports, frame, in_port, actions);
        // A queue that cannot be had is no end of the card.
        sent.map(|_| ()).map_err(|error| Rejected::Invalid(error.to_string()))
    }
}

/// What a controller is told of a frame. One that nobody got, because of a meter, is not told.
fn packet(frame: FlowFrame) -> Option<Heard> {
    let FlowFrame { port, rules, len, bytes, sent, tunnel, .. } = frame;
    let tunnel = tunnel.map(|FlowTunnel { id, src, port }| Tunnel { id, src, port });
    (!sent.is_empty()).then_some(Heard { port, tunnel, rules, is_expired: false, len, bytes })
}

/// The name of a port: what is plugged in, without its kind, up to 15 bytes.
fn name(spec: &str, port: u32) -> String {
    let inside = spec.split_once(':').map_or("", |(_, inside)| inside);
    let short = inside.split(',').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    let fits: String = short.chars().filter(char::is_ascii_graphic).take(15).collect();
    if fits.is_empty() { format!("port{port}") } else { fits }
}

fn meter_number(line: &str) -> Option<u32> {
    line.strip_prefix("meter=")?.split(',').next()?.parse().ok()
}

/// A change in the language of rules.
fn in_words(change: &Change) -> FlowChange {
    match change {
        Change::Add(rule) => FlowChange::Add(rule.to_string()),
        Change::Renew(rule) => FlowChange::Renew(rule.to_string()),
        // A cookie without a mask is the new one.
        Change::Modify(rule) => FlowChange::Modify(format!(
            "{},cookie={:#x},actions={}",
            exactly(&FlowKey::of(rule)),
            rule.cookie,
            actions(rule)
        )),
        Change::Delete(key) => FlowChange::Delete(exactly(key)),
        Change::Group(number, rss) => FlowChange::Add(Item::Group { number: *number, rss: rss.clone() }.to_string()),
        Change::DeleteGroup(number) => FlowChange::DeleteGroup(*number),
        Change::Meter(number, bucket) => FlowChange::Add(Item::Meter { number: *number, bucket: *bucket }.to_string()),
        Change::DeleteMeter(number) => FlowChange::DeleteMeter(*number),
    }
}

fn exactly(key: &FlowKey) -> String {
    let matching = key.matching.to_string();
    let comma = if matching.is_empty() { "" } else { "," };
    format!("table={},priority={},strict{comma}{matching}", key.table, key.priority)
}

fn actions(rule: &RuleSpec) -> String {
    rule.actions.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn gone(event: &FlowEvent) -> Option<Gone> {
    let had = event.rule.filter(|_| event.kind == FlowKind::Removed)?;
    let rule = parse_rule(&event.line).ok()?;
    let why = match event.reason {
        Some(FlowReason::Idle) => Why::Idle,
        Some(FlowReason::Hard) => Why::Hard,
        _ => Why::Delete,
    };
    let (packets, bytes, age_ns, number) = (had.packets, had.bytes, had.age_ns, had.number);
    Some(Gone {
        key: FlowKey::of(&rule),
        version: event.version,
        why,
        counts: Counts { packets, bytes, age_ns, number },
    })
}
