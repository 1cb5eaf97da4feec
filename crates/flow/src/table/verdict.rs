//! What the rules along the way of a frame say together.

use super::{End, Miss, Walk};
use crate::action::{Action, Class, Reason};
use crate::field::Field;
use crate::key::Key;
use crate::rule::Rule;
use std::sync::Arc;

/// Another lookup, after the card has done the actions so far and taken a new key from the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    /// In which table.
    pub table: u8,
    /// The key as it was; only [`resume`](Self::resume) looks at its registers.
    key: Key,
}

impl Again {
    pub(crate) fn new(table: u8, key: &Key) -> Self {
        Self { table, key: *key }
    }

    /// Gives a new key the registers and metadata that rules have set before.
    pub fn resume(&self, key: &mut Key) {
        for field in [Field::Reg0, Field::Reg1, Field::Reg2, Field::Reg3, Field::Metadata] {
            key.set(field, self.key.get(field));
        }
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
        Self { actions, class, rules, missed, again, visited: walk.visited, rewritten: walk.rewritten, normal }
    }

    /// Whether a change of `rule` may change this verdict for `key`. A table that saw another key may have matched
    /// anything.
    pub(crate) fn depends_on(&self, rule: &Rule, key: &Key) -> bool {
        let table = 1 << rule.spec.table;
        self.visited & table != 0 && (self.rewritten & table != 0 || rule.spec.matching.covers(key))
    }
}
