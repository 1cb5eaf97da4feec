//! What the rules along the way of a frame say together.

use super::{End, Miss, Walk};
use crate::action::{Action, Class, Reason};
use crate::execute::emits;
use crate::field::Field;
use crate::key::Key;
use crate::rule::Rule;
use std::sync::Arc;

/// What goes on with a frame that has other headers.
const CARRIED: [Field; 5] = [Field::Reg0, Field::Reg1, Field::Reg2, Field::Reg3, Field::Metadata];

/// Another lookup, after the card has done the actions so far and taken a new key from the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    /// In which table.
    pub table: u8,
    /// The registers of the key as it was, and nothing else: all flows of a way share a verdict.
    key: Key,
}

impl Again {
    pub(crate) fn new(table: u8, key: &Key) -> Self {
        let mut again = Self { table, key: Key::ZERO };
        CARRIED.iter().for_each(|field| again.key.set(*field, key.get(*field)));
        again
    }

    /// Gives a new key the registers and metadata that rules have set before.
    pub fn resume(&self, key: &mut Key) {
        CARRIED.iter().for_each(|field| key.set(*field, self.key.get(*field)));
    }
}

/// What the rules along the way of a frame say together.
#[derive(Debug)]
pub struct Verdict {
    /// What to do, in this order: the actions of all rules on the way, without `goto_table` and `note`.
    pub actions: Vec<Action>,
    /// What becomes of the frame. With [`again`](Self::again), what is decided so far.
    pub class: Class,
    /// The rules on the way.
    pub rules: Vec<Arc<Rule>>,
    /// The table in which nothing matched, if the way ended there.
    pub missed: Option<u8>,
    /// Where to go on after the actions.
    pub again: Option<Again>,
    /// Tables that were searched, as bits, and those that saw another key than the first one.
    pub(crate) visited: u64,
    pub(crate) rewritten: u64,
    /// Without a rule for it, the frame goes where it went before there were rules.
    pub normal: bool,
    /// One party gets the frame at most, and that by the last action: those before it only change the frame, and so does the last one
    /// where the frame goes on [`again`](Self::again).
    pub single: bool,
}

/// See [`Verdict::single`].
fn is_single(actions: &[Action], goes_on: bool) -> bool {
    let changes = match actions.split_last() {
        Some((Action::Queue(_) | Action::Output(_), changes)) if !goes_on => changes,
        _ if goes_on => actions,
        _ => return false,
    };
    !changes.iter().any(emits)
}

impl Verdict {
    pub(crate) fn new(walk: Walk, rules: Vec<Arc<Rule>>, miss: Miss) -> Self {
        let said = rules.iter().flat_map(|rule| &rule.spec.actions);
        let mut actions: Vec<Action> = said
            .filter(|action| !matches!(action, Action::GotoTable(_) | Action::Note(_) | Action::Drop))
            .cloned()
            .collect();
        let missed = if let End::Miss(table) = walk.end { Some(table) } else { None };
        if missed.is_some() && miss == Miss::Punt {
            actions.push(Action::Punt(Reason::NoMatch));
        }
        let normal = missed.is_some() && miss == Miss::Normal;
        let class = if normal { Class::Process } else { Class::of(&actions) };
        let again = if let End::Again(again) = walk.end { Some(again) } else { None };
        let single = !normal && is_single(&actions, again.is_some());
        Self { actions, class, rules, missed, again, visited: walk.visited, rewritten: walk.rewritten, normal, single }
    }

    /// Whether a change of `rule` may change this verdict for `key`. A table that saw another key may have matched
    /// anything.
    pub(crate) fn depends_on(&self, rule: &Rule, key: &Key) -> bool {
        let table = 1 << rule.spec.table;
        self.visited & table != 0 && (self.rewritten & table != 0 || rule.matching.covers(key))
    }
}
