//! What has happened to the flow table, for those who watch: the last events, in a queue that never grows beyond its bound. Who
//! asks too late is told how many are lost.

use super::Owner;
use millrace_flow::language::Item;
use millrace_flow::matching::Match;
use millrace_flow::rule::Rule;
use millrace_flow::version::{Op, Part};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// How many events are kept: those of a file of rules, and of some time.
const KEPT: usize = 1 << 17;
/// How many bytes they may have together, with the rules that they are about.
const MAX_BYTES: usize = 192 << 20;

/// Why a rule has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No frame met it for its idle timeout.
    Idle,
    /// Its hard timeout is over.
    Hard,
    /// A transaction has removed it.
    Deleted,
    /// Its owner has gone.
    OwnerGone,
}

/// What has happened.
#[derive(Clone, Debug)]
pub enum Happened {
    /// A rule was added.
    Added(Arc<Rule>),
    /// A rule has other actions, or gave way to one with the same table, priority and match.
    Modified(Arc<Rule>),
    /// A rule has gone.
    Removed(Arc<Rule>, Why),
    /// A group, meter or miss is as this line says.
    Set(String),
    /// A group or meter has gone.
    Unset(Part),
}

impl Happened {
    /// Whether a rule has gone.
    fn is_removal(&self) -> bool {
        matches!(self, Self::Removed(..))
    }

    /// About how many bytes it keeps in memory.
    fn bytes(&self) -> usize {
        let own = match self {
            Self::Added(rule) | Self::Modified(rule) | Self::Removed(rule, _) => rule.bytes(),
            Self::Set(line) => line.len(),
            Self::Unset(_) => 0,
        };
        size_of::<Event>() + own
    }
}

/// Something that has happened.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its number, one more than that of the event before.
    pub number: u64,
    /// The version that came with it.
    pub version: u64,
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// What.
    pub happened: Happened,
    /// Whose rule it is.
    pub owner: Option<Owner>,
}

/// Events after one of them.
#[derive(Clone, Debug, Default)]
pub struct Since {
    /// The events, in order.
    pub events: Vec<Event>,
    /// How many there were before them that are not kept any more.
    pub lost: u64,
    /// Up to this one all were looked at.
    pub next: u64,
    /// The number of the last event, handed out or not.
    pub last: u64,
}

/// The last events.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<Event>,
    last: u64,
    /// The last one about a rule that has gone.
    last_removed: u64,
    /// Of the queue.
    bytes: usize,
}

type Place = (u8, u16, Match);

fn place(rule: &Rule) -> Place {
    (rule.spec.table, rule.spec.priority, rule.spec.matching)
}

/// What steps come to: a rule that gave way to another in its place has been modified, and one that came and went is nothing.
pub(super) fn happened(steps: &[Op], why: impl Fn(&Rule) -> Why) -> Vec<Happened> {
    // Where a rule has gone, and where it stands in the list. Most transactions have none.
    let mut removed: HashMap<Place, usize> = HashMap::new();
    let mut all: Vec<Option<Happened>> = Vec::with_capacity(steps.len());
    for step in steps {
        let happened = match step {
            Op::Insert(rule) => match removed.remove(&place(rule)) {
                Some(at) => {
                    all[at] = None;
                    Happened::Modified(Arc::clone(rule))
                }
                None => Happened::Added(Arc::clone(rule)),
            },
            Op::Remove(rule) => {
                removed.insert(place(rule), all.len());
                Happened::Removed(Arc::clone(rule), why(rule))
            }
            Op::Swap { new, .. } => Happened::Modified(Arc::clone(new)),
            Op::Miss { old, new } if old == new => continue,
            Op::Miss { new, .. } => Happened::Set(Item::Miss(*new).to_string()),
            Op::Group { id, old, new } => match (old, new) {
                (None, None) => continue,
                (Some(old), Some(new)) if Arc::ptr_eq(old, new) => continue,
                (_, Some(new)) => Happened::Set(Item::Group { number: *id, rss: new.spec() }.to_string()),
                (_, None) => Happened::Unset(Part::Group(*id)),
            },
            Op::Quic { id, old, new } => match (old, new) {
                (None, None) => continue,
                (Some(old), Some(new)) if Arc::ptr_eq(old, new) => continue,
                (_, Some(new)) => Happened::Set(Item::Quic { number: *id, steering: new.spec().clone() }.to_string()),
                (_, None) => Happened::Unset(Part::Quic(*id)),
            },
            Op::Meter { id, old, new } => match (old, new) {
                (None, None) => continue,
                (Some(old), Some(new)) if Arc::ptr_eq(old, new) => continue,
                (_, Some(new)) => Happened::Set(Item::Meter { number: *id, bucket: new.spec() }.to_string()),
                (_, None) => Happened::Unset(Part::Meter(*id)),
            },
        };
        all.push(Some(happened));
    }
    all.into_iter().flatten().collect()
}

impl Events {
    /// Takes down what was done.
    pub fn note(
        &mut self,
        version: u64,
        time_ns: u64,
        steps: &[Op],
        why: impl Fn(&Rule) -> Why,
        owner: impl Fn(u32) -> Owner,
    ) {
        for happened in happened(steps, why) {
            let owner = match &happened {
                Happened::Added(rule) | Happened::Modified(rule) | Happened::Removed(rule, _) => {
                    Some(owner(rule.author))
                }
                Happened::Set(_) | Happened::Unset(_) => None,
            };
            self.last += 1;
            if happened.is_removal() {
                self.last_removed = self.last;
            }
            self.bytes += happened.bytes();
            self.queue.push_back(Event { number: self.last, version, time_ns, happened, owner });
            while (self.queue.len() > KEPT || self.bytes > MAX_BYTES)
                && let Some(event) = self.queue.pop_front()
            {
                self.bytes -= event.happened.bytes();
            }
        }
    }

    /// The number of the last event; if `removed`, of the last rule that has gone.
    pub fn last(&self, removed: bool) -> u64 {
        if removed { self.last_removed } else { self.last }
    }

    /// The events after `after`, at most `most`; if `removed`, rules that have gone only.
    pub fn since(&self, after: u64, most: usize, removed: bool) -> Since {
        let before = self.last - self.queue.len() as u64;
        let lost = before.saturating_sub(after);
        let skip = after.saturating_sub(before).min(self.queue.len() as u64) as usize;
        let wanted = self.queue.iter().skip(skip).filter(|event| !removed || event.happened.is_removal());
        let events: Vec<Event> = wanted.take(most).cloned().collect();
        let next = events.last().filter(|_| events.len() == most).map_or(self.last, |event| event.number);
        Since { events, lost, next, last: self.last }
    }
}
