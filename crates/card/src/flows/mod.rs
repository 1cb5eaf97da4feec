//! The card's flow table: one for all ports, changed by transactions that workers see whole or not at all.
//!
//! ```text
//! driver --- changes, on whose behalf ---> Flows ---> Writer (crate flow) ---> published: workers
//!                                            |
//!                    book: what belongs to whom; what has a timeout
//!                    events: what has happened
//! ```
//!
//! * here: transactions, the end of owners and timeouts. `book`: owners of rules, groups and meters. `author`: what an owner may
//!   change. `events`: what has happened, for those who watch. `workers`: whether they classify. `neighbours`: the thread that finds
//!   neighbours of tunnels. `tap`: for those who listen.

mod author;
mod book;
mod events;
mod fair;
mod neighbours;
mod tap;
#[cfg(test)]
mod tests;
mod workers;

pub use author::{Agree, Authority};
pub use book::Owner;
pub use events::{Event, Happened, Since, Why};
pub(crate) use fair::Fair;
pub(crate) use tap::{HEAD, MOST_RULES, MOST_SENT, TapCounts};
pub use tap::{MAX_SNAP, MAX_TAP_RATE, Tap, TapError, TapFrame, TapSent, TapSpec, TapWants, Tapped};
pub(crate) use workers::coarse_ns;

use crate::card::Card;
use crate::shard::FlowCounts;
use author::Hand;
use book::Book;
use events::Events;
use millrace_flow::language::Item;
use millrace_flow::rule::Rule;
use millrace_flow::version::{Change, CommitError, Committed, Everybody, Filter, Limits, Op, Part, Writer};
use neighbours::{Neighbours, Tunnels};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The control side of the flow table.
pub(crate) struct Flows {
    state: Mutex<State>,
    // Whether workers classify; `None` until the first rule.
    active: Mutex<Option<bool>>,
    // Frames that waited for room when their port was unplugged.
    source_gone: AtomicU64,
    neighbours: Neighbours,
    // Of each worker.
    counts: Vec<Arc<FlowCounts>>,
    // What of the control side ended with a panic.
    bugs: AtomicU64,
    // How many listen to frames, and the number of the last one.
    taps: Arc<AtomicUsize>,
    last_tap: AtomicU64,
}

/// Most rules that are removed at once when their owner has gone, or their time is over: the rest waits for its turn.
const PART: usize = 2048;

struct State {
    writer: Writer,
    book: Book,
    events: Events,
    tunnels: Tunnels,
}

impl Flows {
    pub fn new(workers: usize) -> Self {
        let writer = Writer::new(workers, Limits::default());
        let state = State { writer, book: Book::default(), events: Events::default(), tunnels: Tunnels::default() };
        let counts = (0..workers).map(|_| Arc::default()).collect();
        Self {
            state: Mutex::new(state),
            active: Mutex::default(),
            source_gone: AtomicU64::new(0),
            neighbours: Neighbours::new(),
            counts,
            bugs: AtomicU64::new(0),
            taps: Arc::default(),
            last_tap: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transaction of an owner.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// What is to be done, in this order.
    pub changes: Vec<Change>,
    /// These are to be all that the owner has: of what else is his, rules go, and groups and meters that nobody's rules use.
    pub replace: bool,
    /// Whether it is only tried.
    pub dry_run: bool,
}

/// What a transaction has done.
#[derive(Clone, Debug)]
pub struct Done {
    /// Its version and numbers.
    pub committed: Committed,
    /// Its steps, in this order.
    pub steps: Arc<[Op]>,
}

impl Card {
    /// Does all changes to the flow table or none, for the card itself. Frames that come in after this returns meet the new
    /// version.
    ///
    /// # Errors
    /// The first change that cannot be, and why.
    pub fn change_flows(&self, changes: Vec<Change>) -> Result<Committed, CommitError> {
        let mut state = self.flows.state();
        let (committed, steps) = state.writer.commit_by(&Everybody, changes, now_ns())?;
        state.note(Owner::Card, committed.version, &steps, Why::Deleted);
        drop(state);
        self.settle_classifying();
        Ok(committed)
    }

    /// Has a look at the flow table, which nobody changes meanwhile.
    pub fn flows<R>(&self, look: impl FnOnce(&Writer) -> R) -> R {
        look(&self.flows.state().writer)
    }

    /// The same, with a function that says whose the rules of an author are.
    pub fn flows_and_owners<R>(&self, look: impl FnOnce(&Writer, &dyn Fn(Belongs) -> Owner) -> R) -> R {
        let state = self.flows.state();
        look(&state.writer, &|what| match what {
            Belongs::Author(author) => state.book.owner(author),
            Belongs::Part(part) => state.book.owner_of_part(part),
        })
    }

    /// Does a transaction on somebody's behalf. `agree` is told how many more rules each owner has by it, and may refuse.
    ///
    /// # Errors
    /// The first change that cannot be, or may not; nothing was done.
    pub fn change_flows_for(
        &self,
        authority: &Authority,
        transaction: Transaction,
        agree: &Agree<'_>,
    ) -> Result<Done, CommitError> {
        let mut state = self.flows.state();
        let State { writer, book, .. } = &mut *state;
        let number = book.author(authority.owner);
        let hand = Hand { authority, number, book, agree, dry_run: transaction.dry_run };
        let mut changes = without_repeats(writer, transaction.changes);
        if transaction.replace {
            changes = replacing(writer, &hand, changes);
        }
        let now = now_ns();
        let done = match transaction.dry_run {
            true => writer.try_out(&hand, changes, now),
            false => writer.commit_by(&hand, changes, now),
        };
        let (committed, steps) = match done {
            Ok(done) => done,
            Err(error) => {
                state.book.forget_idle(number);
                return Err(error);
            }
        };
        if !transaction.dry_run {
            state.note(authority.owner, committed.version, &steps, Why::Deleted);
            state.sweep();
        }
        state.book.forget_idle(number);
        drop(state);
        self.settle_classifying();
        Ok(Done { committed, steps })
    }

    /// Takes away what belongs to an owner who has gone: some of it, in one transaction; returned is whether there is more, which takes
    /// another call. Of each table those rules go first that win last, and tables in their order, so that a frame meets a table
    /// as it was or as it will be. A group or meter that rules of others use stays until the last of them has gone; whoever of the same user
    /// sets it up again meanwhile has it from then on.
    pub fn end_flows_of(&self, owner: Owner) -> bool {
        let more = self.flows.state().end_of(owner);
        self.settle_classifying();
        more
    }

    /// Removes rules whose time is over, some of them, in one transaction. Returned are their owners, and what there is to do later.
    pub fn expire_flows(&self) -> (Vec<Owner>, Later) {
        let mut state = self.flows.state();
        let now = now_ns();
        let over = state.book.over(now, PART);
        if !over.is_empty() {
            let why = |rule: &Rule| if is_hard(rule, now) { Why::Hard } else { Why::Idle };
            state.remove(&over, Vec::new(), why);
            state.sweep();
        }
        let mut owners: Vec<u32> = over.iter().map(|rule| rule.author).collect();
        owners.dedup();
        let owners = owners.into_iter().map(|author| state.book.owner(author)).collect();
        let later = match (over.len() < PART, state.book.has_timed()) {
            (false, true) => Later::AtOnce,
            (true, true) => Later::Some,
            (_, false) => Later::Nothing,
        };
        drop(state);
        self.settle_classifying();
        (owners, later)
    }

    /// What the rules of an owner count in a quota: 1 each, and more with many actions
    /// ([`units`](millrace_flow::rule::units)).
    pub fn rule_units_of(&self, owner: Owner) -> usize {
        self.flows.state().book.units_of(owner)
    }

    /// Something that was to be done to the flow table has ended with a panic.
    pub fn count_flow_bug(&self) {
        self.flows.bugs.fetch_add(1, Ordering::Relaxed);
    }

    /// How many rules each owner has, of those who have any.
    pub fn rules_of(&self, owner: Owner) -> usize {
        self.flows.state().book.rules_of(owner)
    }

    /// What has happened to the flow table after event `after`, at most `most` events; if `removed`, rules that have gone only.
    pub fn flow_events(&self, after: u64, most: usize, removed: bool) -> Since {
        self.flows.state().events.since(after, most, removed)
    }

    /// The number of the last event; if `removed`, of the last rule that has gone.
    pub fn last_flow_event(&self, removed: bool) -> u64 {
        self.flows.state().events.last(removed)
    }
}

/// Whether there are rules that have a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later {
    /// There is none.
    Nothing,
    /// Some.
    Some,
    /// Some, and of more of them it is over already.
    AtOnce,
}

/// What somebody may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belongs {
    /// The rules of this author.
    Author(u32),
    /// This group, this meter, or miss.
    Part(Part),
}

impl State {
    /// Takes down in book and events what was done.
    fn note(&mut self, owner: Owner, version: u64, steps: &[Op], why: Why) {
        self.note_each(owner, version, steps, |_| why);
    }

    fn note_each(&mut self, owner: Owner, version: u64, steps: &[Op], why: impl Fn(&Rule) -> Why) {
        self.book.note(owner, steps);
        self.tunnels.note(steps);
        self.events.note(version, unix_ns(), steps, why, |author| self.book.owner(author));
    }

    /// Removes these rules, and then these parts, whoever has them.
    fn remove(&mut self, rules: &[Arc<Rule>], parts: Vec<Part>, why: impl Fn(&Rule) -> Why) {
        let mut changes: Vec<Change> = rules.iter().map(|rule| Change::Delete(exactly(rule))).collect();
        changes.extend(parts.into_iter().map(gone));
        if changes.is_empty() {
            return;
        }
        // Rules that are there can be removed, and parts that none uses.
        match self.writer.commit_by(&Everybody, changes, now_ns()) {
            Ok((committed, steps)) => self.note_each(Owner::Card, committed.version, &steps, why),
            Err(error) => tracing::error!(%error, "rules that are over could not be removed"),
        }
    }

    /// Whether there is more of it.
    fn end_of(&mut self, owner: Owner) -> bool {
        let Some(number) = self.book.known(owner) else { return false };
        let own = self.book.last_of(owner, PART);
        if own.len() < self.book.rules_of(owner) {
            self.remove(&own, Vec::new(), |_| Why::OwnerGone);
            return true;
        }
        let mut uses: HashMap<Part, usize> = HashMap::new();
        let used = own.iter().flat_map(|rule| rule.spec.actions.iter().filter_map(Part::of));
        used.for_each(|part| *uses.entry(part).or_default() += 1);
        let by_others = |part: &Part| self.writer.uses(*part) > uses.get(part).copied().unwrap_or(0);
        let (stay, go): (Vec<Part>, Vec<Part>) = self.book.parts_of(number).into_iter().partition(by_others);
        self.remove(&own, go, |_| Why::OwnerGone);
        stay.into_iter().for_each(|part| self.book.orphan(part, owner));
        self.book.forget(owner);
        self.sweep();
        false
    }

    /// Removes groups and meters whose owner has gone and that no rule uses any more.
    fn sweep(&mut self) {
        let idle: Vec<Part> = self.book.orphans().filter(|part| !self.writer.is_used(*part)).collect();
        self.remove(&[], idle, |_| Why::OwnerGone);
    }
}

/// What steps come to, for people: the line of each rule, group or meter that was added, modified or removed.
pub fn flow_changes(steps: &[Op]) -> Vec<Happened> {
    events::happened(steps, |_| Why::Deleted)
}

/// Exactly this rule.
fn exactly(rule: &Rule) -> Filter {
    Filter {
        table: Some(rule.spec.table),
        priority: Some(rule.spec.priority),
        matching: rule.spec.matching,
        strict: true,
        ..Filter::default()
    }
}

/// What removes a part.
fn gone(part: Part) -> Change {
    match part {
        Part::Miss => Change::Miss(millrace_flow::table::Miss::Normal),
        Part::Group(id) => Change::Group(id, None),
        Part::Quic(id) => Change::Quic(id, None),
        Part::Meter(id) => Change::Meter(id, None),
    }
}

/// Groups and meters that rules use.
fn parts_of<'r>(rules: impl Iterator<Item = &'r Arc<Rule>>) -> HashSet<Part> {
    rules.flat_map(|rule| rule.spec.actions.iter().filter_map(Part::of)).collect()
}

/// The part that a change sets up or removes.
fn part_of(change: &Change) -> Option<Part> {
    match change {
        Change::Miss(_) => Some(Part::Miss),
        Change::Group(id, _) => Some(Part::Group(*id)),
        Change::Quic(id, _) => Some(Part::Quic(*id)),
        Change::Meter(id, _) => Some(Part::Meter(*id)),
        _ => None,
    }
}

/// What sets a group or meter up as it is already changes nothing: a bucket stays as full as it is.
fn without_repeats(writer: &Writer, mut changes: Vec<Change>) -> Vec<Change> {
    for change in &mut changes {
        match change {
            Change::Group(id, Some(new)) => {
                if let Some(old) = writer.group(*id).filter(|old| old.spec() == new.spec()) {
                    *new = Arc::clone(old);
                }
            }
            Change::Quic(id, Some(new)) => {
                // What is known of connections stays.
                if let Some(old) = writer.quic(*id).filter(|old| old.spec() == new.spec()) {
                    *new = Arc::clone(old);
                }
            }
            // Groups of both kinds have their numbers from one range.
            Change::Group(id, None) if writer.group(*id).is_none() && writer.quic(*id).is_some() => {
                *change = Change::Quic(*id, None);
            }
            Change::Meter(id, Some(new)) => {
                if let Some(old) = writer.meter(*id).filter(|old| old.spec() == new.spec()) {
                    *new = Arc::clone(old);
                }
            }
            _ => {}
        }
    }
    changes
}

/// The same changes, with everything else of the owner removed. Rules come after groups and meters, in one change, so that those
/// that stay keep their counters.
fn replacing(writer: &Writer, hand: &Hand<'_>, changes: Vec<Change>) -> Vec<Change> {
    let named: HashSet<Part> = changes.iter().filter_map(part_of).collect();
    let foreign = writer.each().filter(|rule| rule.author != hand.number);
    let used = parts_of(foreign);
    let over = hand.book.parts_of(hand.number).into_iter();
    let over: Vec<Part> = over.filter(|part| !named.contains(part) && !used.contains(part)).collect();
    let (mut rules, mut others) = (Vec::new(), Vec::new());
    for change in changes {
        match change {
            Change::Add(rule) | Change::Renew(rule) => rules.push(rule),
            other => others.push(other),
        }
    }
    others.push(Change::Replace(rules));
    others.extend(over.into_iter().map(gone));
    others
}

fn is_hard(rule: &Rule, now: u64) -> bool {
    let timeout = u64::from(rule.spec.hard_timeout) * 1_000_000_000;
    timeout > 0 && now.saturating_sub(rule.created_ns) >= timeout
}

/// The line of a group, meter or miss in the language of rules; none if there is no such thing.
pub fn line_of(writer: &Writer, part: Part) -> Option<String> {
    let item = match part {
        Part::Miss => Item::Miss(writer.miss()),
        Part::Group(number) => Item::Group { number, rss: writer.group(number)?.spec() },
        Part::Quic(number) => Item::Quic { number, steering: writer.quic(number)?.spec().clone() },
        Part::Meter(number) => Item::Meter { number, bucket: writer.meter(number)?.spec() },
    };
    Some(item.to_string())
}

/// The clock of timeouts, meters and counters of rules: nanoseconds of the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let since = Duration::try_from(now).unwrap_or_default();
    since.as_nanos() as u64
}

/// Nanoseconds since 1970, for people.
pub(crate) fn unix_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}
