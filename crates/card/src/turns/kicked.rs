//! Whose flags are looked at next: turns go round between owners, and then between the kicks of each. So nobody waits
//! longer because another has many kicks.

use super::cold::Kick;
use super::item::Owner;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// Kicks with flags to look at.
#[derive(Default)]
pub(super) struct Kicked {
    owners: BTreeMap<Owner, Kicks>,
    // Who had the last turn.
    last: Option<Owner>,
}

/// Those of one owner. Never empty.
#[derive(Default)]
struct Kicks {
    waiting: BTreeSet<Kick>,
    // Which had the last turn.
    last: Option<Kick>,
}

impl Kicked {
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// `true` when it was not there.
    pub fn add(&mut self, kick: Kick, owner: Owner) -> bool {
        self.owners.entry(owner).or_default().waiting.insert(kick)
    }

    pub fn remove(&mut self, kick: Kick, owner: Owner) {
        let Some(kicks) = self.owners.get_mut(&owner) else { return };
        kicks.waiting.remove(&kick);
        if kicks.waiting.is_empty() {
            self.owners.remove(&owner);
        }
    }

    /// Whose turn it is. It is over with this call.
    pub fn next(&mut self) -> Option<(Kick, Owner)> {
        let after = self.last.map_or(Unbounded, Excluded);
        let owner = self.owners.range((after, Unbounded)).chain(&self.owners).map(|(&owner, _)| owner).next()?;
        self.last = Some(owner);
        let Kicks { waiting, last } = self.owners.get_mut(&owner)?;
        let after = last.map_or(Unbounded, Excluded);
        let kick = waiting.range((after, Unbounded)).chain(&*waiting).next().copied()?;
        *last = Some(kick);
        Some((kick, owner))
    }
}
