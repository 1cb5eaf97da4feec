//! What the engine has made: an index of its rules by flow, filled by its events; their counters, added up before they wrap; and their ageing.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::Reason;
use crate::engine::layout::rule_flag;
use crate::engine::{Engine, Event, EventKind, Rule, State};
use crate::kernel::conntrack::{Old, TCP, Tuple};

use super::protocol::RuleCounts;
use super::unseen::{Ended, Unseen};

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
/// The same for a connection that has no rule, and of which nothing more is remembered: it may have others, and had others before.
const OLD_NUMBERS_OF_THE_FORGOTTEN: u64 = 1 << 20;

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
    /// Connections of TCP whose rules have ended.
    without: Ended,
    cursor: Cursor,
    counts: RuleCounts,
    counting: RuleCounts,
    /// Places in the tables.
    room: [u32; 2],
    /// Rules that ended because nobody used them; those that made room for others are counted by the engine.
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
    /// Of TCP: what conntrack has not seen, of this rule and of those before it.
    unseen: Unseen,
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
            without: Ended::default(),
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
            EventKind::Ended => self.forget(id, Some(tuple(&event.key))),
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
            self.forget(id, None);
        }
        self.made.insert(id, Made { tuple, time, since: time, seen: 0, looked: 0 });
        let ids = self.by_tuple.entry(tuple).or_default();
        if !ids.contains(&id) {
            ids.push(id);
        }
    }

    /// `tuple`: of which flow it was, where no event told of it.
    fn forget(&mut self, id: Id, tuple: Option<Tuple>) {
        let total = self.totals.remove(&id).unwrap_or_default();
        let Some(tuple) = self.made.remove(&id).map(|made| made.tuple).or(tuple) else { return };
        if tuple.protocol == TCP {
            let forgotten = self.without.keep(tuple, total.unseen);
            let is_old = |unseen: &Unseen| unseen.numbers >= OLD_NUMBERS_OF_THE_FORGOTTEN;
            let old = forgotten.into_iter().filter(|(_, unseen)| is_old(unseen));
            self.old.extend(old.map(|(tuple, _)| (tuple, Old::Acknowledged)));
        }
        if let Some(ids) = self.by_tuple.get_mut(&tuple) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_tuple.remove(&tuple);
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
    pub fn gone(&mut self, engine: &Engine, of: &[Tuple], jiffies: u32) {
        self.end(engine, of, jiffies);
        for tuple in of {
            self.without.take(tuple);
        }
    }

    fn end(&mut self, engine: &Engine, of: &[Tuple], jiffies: u32) {
        for tuple in of {
            for id in self.by_tuple.get(tuple).cloned().unwrap_or_default() {
                let rule = engine.rule(id.0, id.1).filter(|rule| self::tuple(&rule.key) == *tuple);
                if rule.is_some_and(|rule| engine.kill_at(&rule, jiffies).unwrap_or(false)) {
                    self.ended += 1;
                }
                self.forget(id, None);
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
            // It has made room for another, or was ended with all others, of which no event tells.
            State::Dead if self.made.contains_key(&id) => {
                self.forget(id, None);
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
        self.add_up(rule);
        if let Some(total) = self.totals.get_mut(&id)
            && let Some(old) = too_old(&mut total.unseen).filter(|_| rule.key.protocol == TCP)
        {
            self.old.push((tuple(&rule.key), old));
        }
        let idle = idle(rule, now, hz);
        if rule.state == State::Active && idle < 2 * ROUND {
            self.hops.insert(rule.hop);
        }
        if idle > self.patience(rule) && engine.kill(rule).unwrap_or(false) {
            self.aged += 1;
            self.forget(id, None);
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
            // Of the same flow, if no event has told otherwise.
            let mut unseen = total.unseen;
            if rule.key.protocol == TCP {
                let before = self.without.take(&tuple(&rule.key));
                unseen.numbers += before.numbers;
                unseen.window += before.window;
            }
            *total = Total { word: rule.word, unseen, ..Total::default() };
        }
        let bytes = rule.bytes.wrapping_sub(total.seen.1) & BYTES;
        total.sum.0 += rule.packets.wrapping_sub(total.seen.0) & PACKETS;
        total.sum.1 += bytes;
        total.unseen.add(bytes);
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

/// What of conntrack's is too old by now, which counts from here again then.
fn too_old(unseen: &mut Unseen) -> Option<Old> {
    if unseen.window < OLD_WINDOW {
        return None;
    }
    unseen.window = 0;
    if unseen.numbers < OLD_NUMBERS {
        return Some(Old::Unacknowledged);
    }
    unseen.numbers = 0;
    Some(Old::Acknowledged)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(word: u32, bytes: u64, port: u16) -> Rule {
        let key = crate::engine::Key {
            input: 1,
            source: std::net::Ipv4Addr::LOCALHOST.into(),
            destination: std::net::Ipv4Addr::LOCALHOST.into(),
            source_port: port,
            destination_port: 2,
            protocol: TCP,
            dscp: 0,
        };
        Rule {
            number: 7,
            word,
            key,
            state: State::Active,
            flags: 0,
            reason: 0,
            epoch: 1,
            hop: 0,
            hop_epoch: 0,
            new_source: key.source,
            new_destination: key.destination,
            new_source_port: port,
            new_destination_port: 2,
            new_dscp: 0,
            packets: 1,
            bytes,
            seen: 1,
        }
    }

    fn ended(rule: &Rule) -> Event {
        let reason = Some(Reason::TcpFlags);
        Event { time: 1, rule: rule.number, kind: EventKind::Ended, reason, key: rule.key }
    }

    /// What is told to conntrack after so many bytes of each rule, one after the other, of the same connection.
    fn told(bytes: u64, rules: u32) -> Vec<Old> {
        let mut flows = Flows::new([1024, 1024]);
        for number in 0..rules {
            let rule = rule(1 | number << 16, bytes, 1);
            flows.learn((false, rule.number), tuple(&rule.key), 1);
            flows.add_up(&rule);
            let unseen = &mut flows.totals.get_mut(&(false, rule.number)).unwrap().unseen;
            let old = too_old(unseen);
            flows.old.extend(old.map(|old| (tuple(&rule.key), old)));
            flows.event(&ended(&rule));
        }
        flows.old(100).into_iter().map(|(_, old)| old).collect()
    }

    #[test]
    fn what_conntrack_has_not_seen_is_counted_over_all_rules_of_a_connection() {
        assert_eq!(told(2 << 20, 1), [], "a reset after two megabytes has to have the right number");
        assert_eq!(told(OLD_WINDOW / 2, 1), []);
        assert_eq!(told(OLD_WINDOW / 2, 2), [Old::Unacknowledged]);
        let rules = (OLD_NUMBERS / OLD_WINDOW) as u32;
        let told = told(OLD_WINDOW, rules);
        assert_eq!(told.len(), rules as usize);
        assert_eq!(told.iter().position(|old| *old == Old::Acknowledged), Some(told.len() - 1));
    }

    #[test]
    fn of_events_that_were_lost_the_bytes_stay() {
        let mut flows = Flows::new([1024, 1024]);
        let (first, second) = (rule(1, 100, 1), rule(1 | 1 << 16, 10, 1));
        flows.add_up(&first);
        flows.start_again();
        flows.event(&ended(&first));
        flows.add_up(&second);
        assert_eq!(flows.totals[&(false, second.number)].unseen.numbers, 110);
        assert_eq!(flows.aged, 0);
    }
}
