//! What belongs to whom. Rules bear the number of their owner; groups, meters and miss are looked up here.

use millrace_flow::rule::{Rule, units};
use millrace_flow::table::Miss;
use millrace_flow::version::{Op, Part};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Whose a rule, a group or a meter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The card: it keeps what its user, root, or the file of its start have set up.
    Card,
    /// Another user, for whom the card keeps it.
    User(u32),
    /// A program, by its connection: it goes with it.
    Program {
        /// The number of the connection.
        connection: u64,
        /// Its process.
        pid: u32,
        /// Its user.
        uid: u32,
    },
}

impl Owner {
    /// The user behind it; none: the card's.
    fn user(self) -> Option<u32> {
        match self {
            Self::Card => None,
            Self::User(uid) | Self::Program { uid, .. } => Some(uid),
        }
    }
}

/// The number of the card itself.
const CARD: u32 = 0;

/// Whose a part is.
#[derive(Clone, Copy, Debug)]
struct Holder {
    owner: Owner,
    /// The owner has gone; the part stays as long as rules use it.
    orphan: bool,
}

/// The place of a rule among those of its owner: by table, the one that wins last.
type Place = (u8, u16, Reverse<u64>);

fn place(rule: &Rule) -> Place {
    (rule.spec.table, rule.spec.priority, Reverse(rule.number()))
}

/// The rules of an owner.
#[derive(Debug, Default)]
struct Owned {
    count: usize,
    /// What they count in a quota.
    units: usize,
    /// They, if they go with a program.
    all: BTreeMap<Place, Arc<Rule>>,
}

/// What belongs to whom, and which rules have a timeout.
#[derive(Debug, Default)]
pub(super) struct Book {
    numbers: HashMap<Owner, u32>,
    owners: HashMap<u32, Owner>,
    last: u32,
    /// By owner; those who have none are not there.
    rules: HashMap<u32, Owned>,
    parts: BTreeMap<Part, Holder>,
    /// By number.
    timed: HashMap<u64, Arc<Rule>>,
}

impl Book {
    /// The number of an owner, who gets one if he has none.
    pub fn author(&mut self, owner: Owner) -> u32 {
        if owner == Owner::Card {
            return CARD;
        }
        if let Some(number) = self.numbers.get(&owner) {
            return *number;
        }
        // After four billion owners numbers come again; those that are taken are passed over, and there are few.
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != CARD && !self.owners.contains_key(&self.last) {
                break;
            }
        }
        self.numbers.insert(owner, self.last);
        self.owners.insert(self.last, owner);
        self.last
    }

    /// The number of an owner, if he has one.
    pub fn known(&self, owner: Owner) -> Option<u32> {
        if owner == Owner::Card { Some(CARD) } else { self.numbers.get(&owner).copied() }
    }

    /// The owner with this number.
    pub fn owner(&self, number: u32) -> Owner {
        self.owners.get(&number).copied().unwrap_or(Owner::Card)
    }

    /// Whose a part is; what nobody has set up is the card's.
    pub fn owner_of_part(&self, part: Part) -> Owner {
        self.parts.get(&part).map_or(Owner::Card, |holder| holder.owner)
    }

    /// How many rules an owner has.
    pub fn rules_of(&self, owner: Owner) -> usize {
        self.owned(owner).map_or(0, |owned| owned.count)
    }

    /// What the rules of an owner count in a quota.
    pub fn units_of(&self, owner: Owner) -> usize {
        self.owned(owner).map_or(0, |owned| owned.units)
    }

    fn owned(&self, owner: Owner) -> Option<&Owned> {
        self.rules.get(&self.known(owner)?)
    }

    /// Rules of a program, at most `most`: of the first table in which it has any those that win last. As long as they are taken away in
    /// this order, every table says of a frame what it said before, or what it says without any rule of the program.
    pub fn last_of(&self, owner: Owner, most: usize) -> Vec<Arc<Rule>> {
        self.owned(owner).map_or(Vec::new(), |owned| owned.all.values().take(most).cloned().collect())
    }

    /// Whether an owner may set a part up: it is nobody's, or his, or one whose owner has gone, and he is of the same user.
    pub fn may_set(&self, part: Part, owner: Owner) -> bool {
        self.parts.get(&part).is_none_or(|holder| {
            holder.owner == owner || holder.orphan && (owner == Owner::Card || holder.owner.user() == owner.user())
        })
    }

    /// What an owner has besides rules.
    pub fn parts_of(&self, number: u32) -> Vec<Part> {
        let owner = self.owner(number);
        self.parts.iter().filter(|(_, holder)| holder.owner == owner && !holder.orphan).map(|(part, _)| *part).collect()
    }

    /// The owner of a part has gone, and rules of others use it.
    pub fn orphan(&mut self, part: Part, owner: Owner) {
        self.parts.insert(part, Holder { owner, orphan: true });
    }

    /// Parts whose owner has gone.
    pub fn orphans(&self) -> impl Iterator<Item = Part> + '_ {
        self.parts.iter().filter(|(_, holder)| holder.orphan).map(|(part, _)| *part)
    }

    /// Forgets an owner who has gone.
    pub fn forget(&mut self, owner: Owner) {
        if let Some(number) = self.numbers.remove(&owner) {
            self.owners.remove(&number);
            self.rules.remove(&number);
        }
    }

    /// Forgets a number if its owner has nothing.
    pub fn forget_idle(&mut self, number: u32) {
        let owner = self.owner(number);
        if number != CARD && !self.rules.contains_key(&number) && self.parts_of(number).is_empty() {
            self.forget(owner);
        }
    }

    /// Takes down what was done; groups and meters that were set up are `owner`'s.
    pub fn note(&mut self, owner: Owner, steps: &[Op]) {
        for step in steps {
            match step {
                Op::Insert(rule) => {
                    let goes = matches!(self.owner(rule.author), Owner::Program { .. });
                    let owned = self.rules.entry(rule.author).or_default();
                    owned.count += 1;
                    owned.units += units(&rule.spec.actions);
                    if goes {
                        owned.all.insert(place(rule), Arc::clone(rule));
                    }
                    self.time(rule);
                }
                Op::Remove(rule) => {
                    if let Some(owned) = self.rules.get_mut(&rule.author) {
                        owned.count -= 1;
                        owned.units = owned.units.saturating_sub(units(&rule.spec.actions));
                        owned.all.remove(&place(rule));
                        if owned.count == 0 {
                            self.rules.remove(&rule.author);
                        }
                    }
                    self.timed.remove(&rule.number());
                }
                Op::Swap { old, new } => {
                    if let Some(owned) = self.rules.get_mut(&new.author) {
                        owned.units += units(&new.spec.actions);
                        owned.units = owned.units.saturating_sub(units(&old.spec.actions));
                        owned.all.entry(place(new)).and_modify(|rule| *rule = Arc::clone(new));
                    }
                    self.timed.remove(&old.number());
                    self.time(new);
                }
                Op::Miss { new, .. } => self.hold(Part::Miss, owner, *new != Miss::Normal),
                Op::Group { id, new, .. } => self.hold(Part::Group(*id), owner, new.is_some()),
                Op::Quic { id, new, .. } => self.hold(Part::Quic(*id), owner, new.is_some()),
                Op::Meter { id, new, .. } => self.hold(Part::Meter(*id), owner, new.is_some()),
            }
        }
    }

    fn time(&mut self, rule: &Arc<Rule>) {
        if rule.spec.idle_timeout > 0 || rule.spec.hard_timeout > 0 {
            self.timed.insert(rule.number(), Arc::clone(rule));
        }
    }

    fn hold(&mut self, part: Part, owner: Owner, is_there: bool) {
        match is_there {
            true => drop(self.parts.insert(part, Holder { owner, orphan: false })),
            false => drop(self.parts.remove(&part)),
        }
    }

    /// Rules whose time is over, at most `most`.
    pub fn over(&self, now_ns: u64, most: usize) -> Vec<Arc<Rule>> {
        self.timed.values().filter(|rule| rule.is_over(now_ns)).take(most).cloned().collect()
    }

    /// Whether some rule has a timeout.
    pub fn has_timed(&self) -> bool {
        !self.timed.is_empty()
    }
}
