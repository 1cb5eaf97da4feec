//! What the engine has made: an index of its rules by flow, filled by its events; their counters, added up before they wrap; and their ageing.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::Reason;
use crate::engine::layout::rule_flag;
use crate::engine::{Engine, Event, EventKind, Rule, State};
use crate::kernel::conntrack::{Old, TCP, Tuple};

use super::protocol::RuleCounts;

/// Rules that are looked at in one turn.
const CHUNK: u32 = 1024;

/// The whole table is looked at once in that time: counters hold 2^28 packets and 2^36 bytes, which the fastest card fills in some five seconds.
const ROUND: Duration = Duration::from_secs(2);

/// A rule without packets for so long ends: its next packet makes another one.
const IDLE_TCP: Duration = Duration::from_secs(300);
const IDLE: Duration = Duration::from_secs(60);
/// When the table is fuller than three quarters.
const IDLE_WHEN_FULL: Duration = Duration::from_secs(10);

/// Bytes of a connection of TCP after which numbers that conntrack has noted are too old: at twice as many, after is before.
const OLD_NUMBERS: u64 = 1 << 30;
/// Bytes after which nothing is in the window that conntrack knows.
const OLD_WINDOW: u64 = 1 << 26;
/// The same for a rule that ends: its connection may have another one, and others before had as many.
const OLD_NUMBERS_OF_THE_ENDED: u64 = 1 << 20;

/// Names a rule: version 6 or not, and its number.
pub type Id = (bool, u32);

/// What is known of the rules.
pub struct Flows {
    by_tuple: HashMap<Tuple, Vec<Id>>,
    made: HashMap<Id, Made>,
    totals: HashMap<Id, Total>,
    /// Next hops of rules in force, by number, in this look at all of them.
    hops: HashSet<u16>,
    /// Connections of TCP whose rules were on trial in the look just now.
    on_trial: Vec<Tuple>,
    /// Connections of TCP of which conntrack's numbers were found too old in the look just now.
    old: Vec<(Tuple, Old)>,
    cursor: Cursor,
    counts: RuleCounts,
    counting: RuleCounts,
    /// Places in the tables.
    room: [u32; 2],
    /// Rules that ended because nobody used them.
    pub aged: u64,
    /// Rules that ended with their connection.
    pub ended: u64,
}

struct Made {
    tuple: Tuple,
    /// `CLOCK_MONOTONIC`, ns; 0: no event told of it.
    time: u64,
    /// Since when it is in its state, in the same way; no event tells that a rule in force was on trial again.
    since: u64,
    /// Its state and its generation when it was looked at last, and when that was; 0: never.
    seen: u32,
    looked: u64,
}

impl Made {
    /// Sees at `now` whether the rule is in another state than before, or has been.
    fn look(&mut self, rule: &Rule, now: u64) {
        const STATE_AND_GENERATION: u32 = 0xffff_00ff;
        let seen = rule.word & STATE_AND_GENERATION;
        // If an event has told of it meanwhile, that says when.
        if self.seen != 0 && self.seen != seen && self.since <= self.looked {
            self.since = now;
        }
        (self.seen, self.looked) = (seen, now);
    }
}

/// Packets and bytes of a rule, added up.
#[derive(Clone, Copy, Default)]
struct Total {
    word: u32,
    seen: (u64, u64),
    sum: (u64, u64),
    /// Bytes when conntrack's numbers, and its window, were found too old.
    old: u64,
    old_window: u64,
}

struct Cursor {
    is_v6: bool,
    at: u32,
}

impl Flows {
    /// For tables of so many rules of IPv4 and of IPv6.
    pub fn new(room: [u32; 2]) -> Self {
        Self {
            by_tuple: HashMap::new(),
            made: HashMap::new(),
            totals: HashMap::new(),
            hops: HashSet::new(),
            on_trial: Vec::new(),
            old: Vec::new(),
            cursor: Cursor { is_v6: false, at: 0 },
            counts: RuleCounts::default(),
            counting: RuleCounts::default(),
            room,
            aged: 0,
            ended: 0,
        }
    }

    /// How many rules there are, by the last look at all of them.
    pub fn counts(&self) -> RuleCounts {
        RuleCounts { room: u64::from(self.room[0]) + u64::from(self.room[1]), ..self.counts }
    }

    /// Takes in an event of the engine. `Some`: windows of this connection are not conntrack's to check any more.
    pub fn event(&mut self, event: &Event) -> Option<Tuple> {
        let id = (event.key.source.is_ipv6(), event.rule);
        match event.kind {
            EventKind::Ended => self.forget(id),
            EventKind::Made | EventKind::Active | EventKind::Refused | EventKind::Mismatch => {
                self.learn(id, tuple(&event.key), event.time)
            }
        }
        // While it is on trial all packets still go through Linux.
        (event.kind == EventKind::Made && event.key.protocol == TCP).then(|| tuple(&event.key))
    }

    fn learn(&mut self, id: Id, tuple: Tuple, time: u64) {
        if let Some(made) = self.made.get_mut(&id) {
            if made.tuple == tuple {
                made.since = time.max(made.since);
                return;
            }
            self.forget(id);
        }
        self.made.insert(id, Made { tuple, time, since: time, seen: 0, looked: 0 });
        let ids = self.by_tuple.entry(tuple).or_default();
        if !ids.contains(&id) {
            ids.push(id);
        }
    }

    fn forget(&mut self, id: Id) {
        let total = self.totals.remove(&id).unwrap_or_default();
        let Some(made) = self.made.remove(&id) else { return };
        // The next rule of this connection counts from nothing.
        if made.tuple.protocol == TCP && total.sum.1 - total.old >= OLD_NUMBERS_OF_THE_ENDED {
            self.old.push((made.tuple, Old::Acknowledged));
        }
        if let Some(ids) = self.by_tuple.get_mut(&made.tuple) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_tuple.remove(&made.tuple);
            }
        }
    }

    /// Forgets everything, when events have been lost: the table says what there is.
    pub fn start_again(&mut self) {
        self.by_tuple.clear();
        self.made.clear();
    }

    /// A packet has ended its rule that may end its connection: the rule of the other direction asks conntrack again, too.
    pub fn end_other_direction(&mut self, engine: &Engine, event: &Event) {
        if event.kind != EventKind::Ended || event.reason != Some(Reason::TcpFlags) {
            return;
        }
        // A dead rule can still be read for two seconds.
        let rule = engine.rule(event.key.source.is_ipv6(), event.rule).filter(|rule| rule.key == event.key);
        if let Some(rule) = rule {
            let other = Tuple {
                source: rule.new_destination,
                destination: rule.new_source,
                protocol: rule.key.protocol,
                source_port: rule.new_destination_port,
                destination_port: rule.new_source_port,
            };
            self.end(engine, &[other], engine.jiffies().unwrap_or_default());
        }
    }

    /// Ends the rules of a connection that is gone.
    pub fn end(&mut self, engine: &Engine, of: &[Tuple], jiffies: u32) {
        for tuple in of {
            for id in self.by_tuple.get(tuple).cloned().unwrap_or_default() {
                let rule = engine.rule(id.0, id.1).filter(|rule| self::tuple(&rule.key) == *tuple);
                if rule.is_some_and(|rule| engine.kill_at(&rule, jiffies).unwrap_or(false)) {
                    self.ended += 1;
                }
                self.forget(id);
            }
        }
    }

    /// Whether there is something to look at.
    pub fn is_busy(&self) -> bool {
        !self.made.is_empty() || self.counts.active + self.counts.trial + self.counts.refused > 0
    }

    /// How long to wait for the next part of the table.
    pub fn pace(&self) -> Duration {
        let parts = self.room.iter().map(|room| room.div_ceil(CHUNK)).sum::<u32>().max(1);
        if self.is_busy() { ROUND / parts } else { Duration::from_millis(250) }
    }

    /// The next hops that rules in force lead to, in the look at all of them that has just ended: interface and Ethernet address.
    pub fn used(&mut self, engine: &Engine) -> HashSet<(u32, [u8; 6])> {
        let numbers = std::mem::take(&mut self.hops);
        let used =
            engine.hops().filter(|(number, _)| u16::try_from(*number).is_ok_and(|number| numbers.contains(&number)));
        used.map(|(_, hop)| (hop.logical, hop.destination)).collect()
    }

    /// Looks at the next part of the table; whether that was the last. `hz`: jiffies of a second, `now`: the kernel's, `clock`: ns of `CLOCK_MONOTONIC`.
    pub fn turn(&mut self, engine: &Engine, now: u32, hz: u32, clock: u64) -> bool {
        let room = self.room[usize::from(self.cursor.is_v6)];
        let end = self.cursor.at.saturating_add(CHUNK).min(room);
        for number in self.cursor.at..end {
            if let Some(rule) = engine.rule(self.cursor.is_v6, number) {
                self.look_at(engine, &rule, now, hz, clock);
            }
        }
        self.cursor.at = end;
        if end < room {
            return false;
        }
        self.cursor.at = 0;
        self.cursor.is_v6 = !self.cursor.is_v6;
        if !self.cursor.is_v6 {
            self.counts = std::mem::take(&mut self.counting);
        }
        !self.cursor.is_v6
    }

    /// Connections of TCP whose rules were on trial in the last turn: conntrack may not have been told of them, for an event was lost.
    pub fn on_trial(&mut self) -> Vec<Tuple> {
        std::mem::take(&mut self.on_trial)
    }

    /// Connections of TCP that went on in the last turn for so long that conntrack's numbers are too old.
    /// At most so many: conntrack is told of each by itself.
    pub fn old(&mut self, most: usize) -> Vec<(Tuple, Old)> {
        self.old.drain(..most.min(self.old.len())).collect()
    }

    fn look_at(&mut self, engine: &Engine, rule: &Rule, now: u32, hz: u32, clock: u64) {
        let id = (rule.key.source.is_ipv6(), rule.number);
        match rule.state {
            State::Active => self.counting.active += 1,
            State::Trial => {
                self.counting.trial += 1;
                if rule.key.protocol == TCP {
                    self.on_trial.push(tuple(&rule.key));
                }
            }
            State::Refused => self.counting.refused += 1,
            // Another flow has taken its place, of which no event tells.
            State::Dead if self.made.contains_key(&id) => {
                self.aged += 1;
                self.forget(id);
                return;
            }
            State::Empty | State::Busy | State::Dead => return,
        }
        // One that no event told of.
        if self.made.get(&id).is_none_or(|made| made.tuple != tuple(&rule.key)) {
            self.learn(id, tuple(&rule.key), 0);
        }
        if let Some(made) = self.made.get_mut(&id) {
            made.look(rule, clock);
        }
        let (_, bytes) = self.add_up(rule);
        if let Some(total) = self.totals.get_mut(&id)
            && rule.key.protocol == TCP
            && bytes - total.old_window >= OLD_WINDOW
        {
            total.old_window = bytes;
            let old = if bytes - total.old >= OLD_NUMBERS { Old::Acknowledged } else { Old::Unacknowledged };
            if old == Old::Acknowledged {
                total.old = bytes;
            }
            self.old.push((tuple(&rule.key), old));
        }
        let idle = idle(rule, now, hz);
        if rule.state == State::Active && idle < 2 * ROUND {
            self.hops.insert(rule.hop);
        }
        if idle > self.patience(rule) && engine.kill(rule).unwrap_or(false) {
            self.aged += 1;
            self.forget(id);
        }
    }

    fn patience(&self, rule: &Rule) -> Duration {
        let full = self.counts.active + self.counts.trial + self.counts.refused > u64::from(self.room[0]) / 4 * 3;
        match rule.key.protocol {
            _ if full => IDLE_WHEN_FULL,
            TCP => IDLE_TCP,
            _ => IDLE,
        }
    }

    /// Packets and bytes of a rule since it was made.
    pub fn add_up(&mut self, rule: &Rule) -> (u64, u64) {
        const PACKETS: u64 = (1 << 28) - 1;
        const BYTES: u64 = (1 << 36) - 1;
        const GENERATION: u32 = 0xffff_0000;
        let id = (rule.key.source.is_ipv6(), rule.number);
        let total = self.totals.entry(id).or_default();
        let is_another = (total.word ^ rule.word) & GENERATION != 0 && rule.flags & rule_flag::AGAIN == 0;
        if is_another || total.word == 0 {
            *total = Total { word: rule.word, ..Total::default() };
        }
        total.sum.0 += rule.packets.wrapping_sub(total.seen.0) & PACKETS;
        total.sum.1 += rule.bytes.wrapping_sub(total.seen.1) & BYTES;
        (total.word, total.seen) = (rule.word, (rule.packets, rule.bytes));
        total.sum
    }

    /// Seconds since a rule was made, and since it is in its state, if that is known; `now` in ns of `CLOCK_MONOTONIC`.
    pub fn age(&mut self, rule: &Rule, now: u64) -> (Option<f64>, Option<f64>) {
        let Some(made) = self.made.get_mut(&(rule.key.source.is_ipv6(), rule.number)) else { return (None, None) };
        made.look(rule, now);
        let seconds = |time: u64| (time != 0).then(|| now.saturating_sub(time) as f64 / 1e9);
        (seconds(made.time), seconds(made.since))
    }
}

/// How long a rule has had no packet.
pub fn idle(rule: &Rule, now: u32, hz: u32) -> Duration {
    // The last packet may have come since the clock was read.
    let jiffies = now.wrapping_sub(rule.seen);
    if jiffies > u32::MAX / 2 {
        Duration::ZERO
    } else {
        Duration::from_secs_f64(f64::from(jiffies) / f64::from(hz.max(1)))
    }
}

/// A flow as conntrack names it.
pub fn tuple(key: &crate::engine::Key) -> Tuple {
    let [(source, source_port), (destination, destination_port)] = key.ends();
    Tuple { source, destination, protocol: key.protocol, source_port, destination_port }
}
