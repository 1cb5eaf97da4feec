//! Why a frame goes where it goes: per table, the rule that won, and of each better one the first field that differs.

#[cfg(test)]
mod tests;
mod text;

use crate::action::{Action, Class};
use crate::field::{Field, Wide, text as field_text};
use crate::key::Key;
use crate::quic;
use crate::rule::{Next, Rule};
use crate::table::Tables;
use crate::vni_map::Receiver;
use millrace_packet::parse::Layers;
use serde::Serialize;

/// So many better rules are named for each table, unless told otherwise.
pub const BETTER: usize = 10;

/// A better rule that did not match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Passed {
    /// The rule.
    pub rule: String,
    /// The first field of it that differs.
    pub field: &'static str,
    /// What the rule asks for.
    pub wants: String,
    /// What the frame has.
    pub has: String,
}

/// What happened in one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Which one.
    pub table: u8,
    /// The rule that won; none if nothing matched.
    pub rule: Option<String>,
    /// Better rules that did not match, the best first.
    pub better: Vec<Passed>,
    /// How many more of them there are.
    pub omitted: usize,
}

/// What a group that chooses by a hash made of the frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hashed {
    /// Which group.
    pub group: u32,
    /// The hash; none if nothing of the frame counts.
    pub hash: Option<u32>,
    /// Whether the headers within a tunnel were hashed.
    pub inner: bool,
    /// The queue, or the port.
    pub queue: u16,
    /// It is a port.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_port: bool,
}

/// What a QUIC group made of the frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Steered {
    /// Which group.
    pub group: u32,
    /// The queue; none: nobody gets it.
    pub queue: Option<u16>,
    /// Why.
    pub why: String,
}

impl Steered {
    /// What a group has said.
    pub fn new(group: u32, queue: Option<u16>, why: quic::Why) -> Self {
        let by_address = queue.is_some() && matches!(why, quic::Why::Unknown | quic::Why::NotQuic);
        let then = if by_address { "; by the hash of addresses and ports (other=hash)" } else { "" };
        Self { group, queue, why: format!("{why}{then}") }
    }

    /// What a group would say of a frame that comes now; none if it is no whole UDP packet.
    pub fn look(number: u32, group: &quic::Group, layers: &Layers, frame: &[u8]) -> Option<Self> {
        let (path, datagram) = quic::Path::received(layers, frame)?;
        let quic::Look { queue, why, by_stream } = group.look(&path, datagram);
        let mut steered = Self::new(number, queue, why);
        if by_stream {
            steered.why += "; a packet with a stream goes by its number, as the connection has keys";
        }
        Some(steered)
    }
}

/// Why a frame goes where it goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Under which version.
    pub version: u64,
    /// The fields that the frame has.
    #[serde(serialize_with = "as_object")]
    pub frame: Vec<(&'static str, String)>,
    /// Table after table.
    pub steps: Vec<Step>,
    /// What becomes of it.
    pub class: Class,
    /// What is done, in this order.
    pub actions: Vec<Action>,
    /// Queues that get it, named or chosen by a hash.
    pub queues: Vec<u16>,
    /// What groups that choose by a hash made of it.
    pub hashes: Vec<Hashed>,
    /// What the QUIC groups made of it: only whoever has the frame can say.
    pub steered: Vec<Steered>,
    /// The table where it goes on once its headers have changed.
    pub again: Option<u8>,
    /// Nothing matched, and it goes where it went before there were rules.
    pub normal: bool,
}

/// Names and values as one object.
fn as_object<S: serde::Serializer>(fields: &[(&'static str, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fields.iter().map(|(name, value)| (name, value)))
}

/// Explains what becomes of a frame with this key. `inner` is the key of what a tunnel carries, for groups that hash it;
/// `table` is 0, or that of [`Again`](crate::table::Again). Of each table at most `better` rules are named. Hashes are over the
/// frame as it came in.
pub fn explain(tables: &Tables, table: u8, key: &Key, inner: Option<&Key>, better: usize) -> Explanation {
    let mut rules = Vec::new();
    let walk = tables.walk(table, key, |rule, _| rules.push(std::sync::Arc::clone(rule)));
    let verdict = crate::table::Verdict::new(walk, rules, tables.miss());
    let hashes: Vec<Hashed> = verdict.actions.iter().filter_map(|action| hashed(tables, action, key, inner)).collect();
    // What `output` would send back is left out, and nobody gets it by that.
    let came_in = key.get(Field::InPort);
    let reflects = |action: &&Action| match action {
        Action::Output(port) => came_in == Wide::from(u64::from(*port)),
        Action::VxlanPort(port) => came_in == Wide::from(u64::from(port.number)),
        _ => false,
    };
    let class = match verdict.normal {
        true => verdict.class,
        false => Class::of(verdict.actions.iter().filter(|action| !reflects(action))),
    };
    let mut groups = hashes.iter();
    let queue = |action: &Action| match action {
        Action::Queue(queue) => Some(*queue),
        Action::Rss(_) | Action::Balance(_) => {
            groups.next().filter(|hashed| !hashed.is_port).map(|hashed| hashed.queue)
        }
        Action::VniMap(map) => match map.get(key.get(Field::TunId).0[0]) {
            Some(Receiver::Queue(queue)) => Some(queue),
            _ => None,
        },
        _ => None,
    };
    Explanation {
        version: tables.version(),
        frame: frame(key),
        steps: steps(tables, table, key, better),
        class,
        queues: verdict.actions.iter().filter_map(queue).collect(),
        actions: verdict.actions,
        hashes,
        steered: Vec::new(),
        again: verdict.again.map(|again| again.table),
        normal: verdict.normal,
    }
}

impl Explanation {
    /// The same with what QUIC groups would say of the frame, by the connections that they know. Nothing is learned of it.
    #[must_use]
    pub fn with_quic(mut self, tables: &Tables, layers: &Layers, frame: &[u8]) -> Self {
        let numbers =
            self.actions.iter().filter_map(|action| if let Action::Quic(id) = action { Some(*id) } else { None });
        self.steered = numbers.filter_map(|id| Steered::look(id, tables.quic(id)?, layers, frame)).collect();
        let (mut hashes, mut steered) = (self.hashes.iter(), self.steered.iter());
        let queue = |action: &Action| match action {
            Action::Queue(queue) => Some(*queue),
            Action::Rss(_) | Action::Balance(_) => {
                hashes.next().filter(|hashed| !hashed.is_port).map(|hashed| hashed.queue)
            }
            Action::Quic(_) => steered.next().and_then(|steered| steered.queue),
            _ => None,
        };
        self.queues = self.actions.iter().filter_map(queue).collect();
        self
    }
}

fn hashed(tables: &Tables, action: &Action, key: &Key, inner: Option<&Key>) -> Option<Hashed> {
    let (Action::Rss(number) | Action::Balance(number)) = action else { return None };
    let is_port = matches!(action, Action::Balance(_));
    let group = tables.group(*number)?;
    let within = inner.filter(|_| group.wants_inner());
    let hash = group.hash(within.unwrap_or(key));
    Some(Hashed { group: *number, hash, inner: within.is_some(), queue: group.queue(hash), is_port })
}

/// The fields that a frame has, as they are written.
fn frame(key: &Key) -> Vec<(&'static str, String)> {
    crate::matching::Match::of(key)
        .fields()
        .into_iter()
        .filter(|(_, value, _)| *value != crate::field::Wide::ZERO)
        .map(|(field, value, mask)| (field.name(), field_text::print(field, value, mask)))
        .collect()
}

fn steps(tables: &Tables, mut table: u8, key: &Key, better: usize) -> Vec<Step> {
    let mut key = *key;
    let mut steps = Vec::new();
    loop {
        let found = tables.find(table, &key);
        let rules = tables.rules(table);
        let passed = rules.iter().take_while(|rule| found.is_none_or(|found| rule.rank > found.rank));
        let count = passed.clone().count();
        steps.push(Step {
            table,
            rule: found.map(|rule| rule.spec.to_string()),
            better: passed.take(better).filter_map(|rule| differs(rule, &key)).collect(),
            omitted: count.saturating_sub(better),
        });
        let Some(Next::Table(next)) = found.map(|rule| rule.plan.next) else { return steps };
        if let Some(rule) = found {
            rule.plan.rewrite(&mut key);
        }
        table = next;
    }
}

/// The first field by which a key is not what a rule asks for.
fn differs(rule: &Rule, key: &Key) -> Option<Passed> {
    if rule.is_for_ports() && key.get(Field::InPort).0[0] >= u64::from(crate::rule::HIGH_PORTS) {
        let (wants, has) = ("a port of the card".to_owned(), has(Field::InPort, key));
        return Some(Passed { rule: rule.spec.to_string(), field: Field::InPort.name(), wants, has });
    }
    let asked = rule.spec.matching.fields();
    let (field, value, mask) = asked.into_iter().find(|(field, value, mask)| !holds(*field, *value, *mask, key))?;
    Some(Passed {
        rule: rule.spec.to_string(),
        field: field.name(),
        wants: field_text::print(field, value, mask),
        has: has(field, key),
    })
}

fn holds(field: Field, value: crate::field::Wide, mask: crate::field::Wide, key: &Key) -> bool {
    key.get(field).and(mask) == value && (!field.presence() || tagged(field, key))
}

fn tagged(field: Field, key: &Key) -> bool {
    let tag = if matches!(field, Field::DlVlan | Field::DlVlanPcp) { Field::VlanTci } else { Field::InnerVlanTci };
    key.get(tag).0[0] & crate::field::TAG_PRESENT != 0
}

/// What a frame has in a field.
fn has(field: Field, key: &Key) -> String {
    if field.presence() && !tagged(field, key) {
        "no tag".to_owned()
    } else {
        field_text::print(field, key.get(field), field.full())
    }
}
