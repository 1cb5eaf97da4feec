//! Locks on components of the card, across programs (`specs/nfb-card.md` §1.5).

use std::collections::HashMap;

/// Who holds which features of which component.
///
/// A request that overlaps any held feature is refused, also to the holder itself: locks are not recursive. A lock ends
/// with its connection.
#[derive(Default)]
pub(crate) struct Locks {
    held: HashMap<String, Vec<(u64, u64)>>,
}

/// A lock that could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldBy {
    pub owner: u64,
}

impl Locks {
    pub fn lock(&mut self, component: &str, bits: u64, owner: u64) -> Result<(), HeldBy> {
        let held = self.held.entry(component.to_owned()).or_default();
        if let Some(&(owner, _)) = held.iter().find(|(_, other)| other & bits != 0) {
            return Err(HeldBy { owner });
        }
        held.push((owner, bits));
        Ok(())
    }

    /// How many locks an owner holds.
    pub fn count(&self, owner: u64) -> usize {
        self.held.values().flatten().filter(|&&(who, _)| who == owner).count()
    }

    /// `false` when the owner does not hold these features.
    pub fn unlock(&mut self, component: &str, bits: u64, owner: u64) -> bool {
        let Some(held) = self.held.get_mut(component) else { return false };
        let before = held.len();
        held.retain(|&(who, which)| who != owner || which != bits);
        let released = held.len() != before;
        if held.is_empty() {
            self.held.remove(component);
        }
        released
    }

    /// Releases everything that an owner holds.
    pub fn release_all(&mut self, owner: u64) {
        self.held.retain(|_, held| {
            held.retain(|&(who, _)| who != owner);
            !held.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_features_exclude_each_other() {
        let mut locks = Locks::default();
        locks.lock("/mac", 0b01, 1).unwrap();
        locks.lock("/mac", 0b10, 2).unwrap();
        assert_eq!(locks.lock("/mac", 0b11, 3), Err(HeldBy { owner: 1 }));
        assert_eq!(locks.lock("/mac", 0b01, 1), Err(HeldBy { owner: 1 }), "not recursive");
        locks.lock("/tsu", 0b01, 3).unwrap();
        assert!(!locks.unlock("/mac", 0b01, 2), "not the owner");
        assert!(locks.unlock("/mac", 0b01, 1));
        locks.lock("/mac", 0b01, 3).unwrap();
        locks.release_all(3);
        locks.lock("/mac", 0b01, 4).unwrap();
        locks.lock("/tsu", 0b01, 4).unwrap();
        locks.release_all(2);
        locks.release_all(4);
        assert!(locks.held.is_empty());
    }
}
