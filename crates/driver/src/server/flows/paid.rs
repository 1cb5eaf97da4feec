//! What rules cost: units of the quota `rules` of the user whose they are, and of the program. A rule is one, and more with many
//! actions.

use super::super::quotas::{Account, Charge, Ledger};
use millrace_abi::access::{Amounts, Names, Resource};
use millrace_card::Owner;
use std::cell::RefCell;
use std::collections::HashMap;

/// What owners have been charged for their rules.
pub(super) struct Paid {
    ledger: Ledger,
    names: Names,
    charges: RefCell<HashMap<Owner, Charge>>,
}

/// The account that pays for the rules of an owner; the card's are free.
fn account(owner: Owner) -> Option<Account> {
    let owner_of_card = |uid| uid == 0 || uid == rustix::process::geteuid().as_raw();
    match owner {
        Owner::Card => None,
        Owner::User(uid) => Some(Account { uid, pid: 0, owner: owner_of_card(uid) }),
        Owner::Program { uid, pid, .. } => Some(Account { uid, pid, owner: owner_of_card(uid) }),
    }
}

fn rules(count: u64) -> Amounts {
    Amounts::default().with(Resource::Rules, count)
}

impl Paid {
    pub fn new(ledger: Ledger, names: Names) -> Self {
        Self { ledger, names, charges: RefCell::default() }
    }

    /// Charges an account for units of rules that are no owner's yet.
    pub fn charge(&self, account: Account, count: u64) -> Result<Charge, String> {
        self.ledger
            .charge(account, rules(count))
            .map_err(|exceeded| exceeded.text(&self.names.of_user(account.uid), account))
    }

    /// Gives back what a charge has beyond so many rules.
    pub fn shrink(charge: &mut Charge, to: u64) {
        charge.give_back(&rules(charge.amounts().of(Resource::Rules).saturating_sub(to)));
    }

    /// Charges an account for an fd that the card keeps.
    pub fn charge_fd(&self, account: Account) -> Result<Charge, String> {
        let wanted = Amounts::default().with(Resource::Fds, 1);
        self.ledger.charge(account, wanted).map_err(|exceeded| exceeded.text(&self.names.of_user(account.uid), account))
    }

    /// Charges an account for memory that the card keeps for it.
    pub fn charge_memory(&self, account: Account, bytes: u64) -> Result<Charge, String> {
        let wanted = Amounts::default().with(Resource::Memory, bytes);
        self.ledger.charge(account, wanted).map_err(|exceeded| exceeded.text(&self.names.of_user(account.uid), account))
    }

    /// Charges owners for the units that they have more; all of them or none. What they have less is given back by
    /// [`settle`](Self::settle), when they have it no more.
    pub fn grow(&self, more: &[(Owner, i64)]) -> Result<(), String> {
        let mut new = Vec::new();
        for &(owner, more) in more {
            if let (Some(account), Ok(more @ 1..)) = (account(owner), u64::try_from(more)) {
                new.push((owner, self.charge(account, more)?));
            }
        }
        let mut charges = self.charges.borrow_mut();
        for (owner, charge) in new {
            match charges.get_mut(&owner) {
                Some(paid) => paid.merge(charge),
                None => drop(charges.insert(owner, charge)),
            }
        }
        Ok(())
    }

    /// Gives back what an owner has been charged for beyond the rules that he has.
    pub fn settle(&self, owner: Owner, has: u64) {
        let mut charges = self.charges.borrow_mut();
        let Some(charge) = charges.get_mut(&owner) else { return };
        Self::shrink(charge, has);
        if has == 0 {
            charges.remove(&owner);
        }
    }
}
