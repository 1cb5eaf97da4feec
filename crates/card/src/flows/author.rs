//! What an owner may change.

use super::book::{Book, Owner};
use millrace_flow::rule::{Rule, units};
use millrace_flow::version::{Author, Op, Part, Refusal};
use std::collections::BTreeMap;

/// On whose behalf a transaction is made.
#[derive(Clone, Copy, Debug)]
pub struct Authority {
    /// Whose the rules are that it adds.
    pub owner: Owner,
    /// Whether what belongs to others is meant as well.
    pub everyone: bool,
}

/// Whether so many more units of rules ([`units`]) of each owner are all right; if not, why.
pub type Agree<'a> = dyn Fn(&[(Owner, i64)]) -> Result<(), String> + 'a;

/// The hand of an owner, which changes what is his.
pub(super) struct Hand<'a> {
    pub authority: &'a Authority,
    /// The number of the owner.
    pub number: u32,
    pub book: &'a Book,
    pub agree: &'a Agree<'a>,
    pub dry_run: bool,
}

impl Author for Hand<'_> {
    fn number(&self) -> u32 {
        self.number
    }

    fn owns(&self, rule: &Rule) -> bool {
        self.authority.everyone || rule.author == self.number
    }

    fn owns_part(&self, part: Part) -> bool {
        self.authority.everyone || self.book.may_set(part, self.authority.owner)
    }

    fn agree(&self, steps: &[Op]) -> Result<(), Refusal> {
        if self.dry_run {
            return Ok(());
        }
        let mut more: BTreeMap<u32, i64> = BTreeMap::new();
        for step in steps {
            match step {
                Op::Insert(rule) => *more.entry(rule.author).or_default() += cost(rule),
                Op::Remove(rule) => *more.entry(rule.author).or_default() -= cost(rule),
                Op::Swap { old, new } => *more.entry(new.author).or_default() += cost(new) - cost(old),
                _ => {}
            }
        }
        let more: Vec<(Owner, i64)> = more.into_iter().map(|(author, more)| (self.book.owner(author), more)).collect();
        (self.agree)(&more).map_err(Refusal::Quota)
    }
}

fn cost(rule: &Rule) -> i64 {
    units(&rule.spec.actions) as i64
}
