//! Locks on components of the card, across programs (`docs/spec/nfb-card.md` §1.5).

use millrace_abi::queue::QueueId;
use std::collections::HashMap;

/// Who can hold a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A connection, for a program that asked for the lock.
    Client(u64),
    /// A queue that the driver has started, for as long as it runs: its openers come and go.
    Queue(QueueId),
}

/// Who holds which features of which component.
///
/// A request that overlaps any held feature is refused, also to the holder itself: locks are not recursive. A lock ends
/// with its connection.
#[derive(Default)]
pub(crate) struct Locks {
    held: HashMap<String, Vec<(Owner, u64)>>,
}

/// A lock that could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldBy {
    pub owner: Owner,
}

impl Locks {
    pub fn lock(&mut self, component: &str, bits: u64, owner: Owner) -> Result<(), HeldBy> {
        if let Some(owner) = self.holder(component, bits) {
            return Err(HeldBy { owner });
        }
        let held = self.held.entry(component.to_owned()).or_default();
        match held.iter_mut().find(|(who, _)| *who == owner) {
            Some((_, others)) => *others |= bits,
            None => held.push((owner, bits)),
        }
        Ok(())
    }

    /// Who holds one of these features.
    pub fn holder(&self, component: &str, bits: u64) -> Option<Owner> {
        self.held.get(component)?.iter().find(|(_, held)| held & bits != 0).map(|&(owner, _)| owner)
    }

    /// All that are held: component, features, holder; by component and by holder.
    pub fn all(&self) -> Vec<(String, u64, Owner)> {
        let of = |(component, held): (&String, &Vec<(Owner, u64)>)| {
            held.iter().map(|&(owner, bits)| (component.clone(), bits, owner)).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.held.iter().flat_map(of).collect();
        all.sort_by_key(|(component, bits, owner)| match *owner {
            Owner::Client(number) => (component.clone(), 0, number, *bits),
            Owner::Queue(queue) => (component.clone(), 1, queue.index.into(), *bits),
        });
        all
    }

    /// Ends those locks of programs that `which` chooses by component and connection, and says how many.
    pub fn end(&mut self, which: impl Fn(&str, u64) -> bool) -> usize {
        let mut ended = 0;
        self.held.retain(|component, held| {
            let before = held.len();
            held.retain(|&(owner, _)| !matches!(owner, Owner::Client(number) if which(component, number)));
            ended += before - held.len();
            !held.is_empty()
        });
        ended
    }

    /// On how many components an owner holds something.
    pub fn count(&self, owner: Owner) -> usize {
        self.held.values().flatten().filter(|&&(who, _)| who == owner).count()
    }

    /// Releases those of these features that the owner holds, locked together or not; `false` when it holds none.
    pub fn unlock(&mut self, component: &str, bits: u64, owner: Owner) -> bool {
        let Some(held) = self.held.get_mut(component) else { return false };
        let Some((_, mine)) = held.iter_mut().find(|(who, _)| *who == owner) else { return false };
        let released = *mine & bits != 0;
        *mine &= !bits;
        held.retain(|&(_, bits)| bits != 0);
        if held.is_empty() {
            self.held.remove(component);
        }
        released
    }

    /// Releases everything that an owner holds.
    pub fn release_all(&mut self, owner: Owner) {
        self.held.retain(|_, held| {
            held.retain(|&(who, _)| who != owner);
            !held.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Owner::Client;

    #[test]
    fn overlapping_features_exclude_each_other() {
        let mut locks = Locks::default();
        locks.lock("/mac", 0b01, Client(1)).unwrap();
        locks.lock("/mac", 0b10, Client(2)).unwrap();
        assert_eq!(locks.lock("/mac", 0b11, Client(3)), Err(HeldBy { owner: Client(1) }));
        assert_eq!(locks.lock("/mac", 0b01, Client(1)), Err(HeldBy { owner: Client(1) }), "not recursive");
        locks.lock("/tsu", 0b01, Client(3)).unwrap();
        assert!(!locks.unlock("/mac", 0b01, Client(2)), "not the owner");
        assert!(locks.unlock("/mac", 0b01, Client(1)));
        locks.lock("/mac", 0b01, Client(3)).unwrap();
        locks.release_all(Client(3));
        locks.lock("/mac", 0b01, Client(4)).unwrap();
        locks.lock("/tsu", 0b01, Client(4)).unwrap();
        locks.release_all(Client(2));
        locks.release_all(Client(4));
        assert!(locks.held.is_empty());
    }

    #[test]
    fn features_are_released_one_by_one_or_together() {
        let mut locks = Locks::default();
        locks.lock("/mac", 0b001, Client(1)).unwrap();
        locks.lock("/mac", 0b110, Client(1)).unwrap();
        assert_eq!(locks.count(Client(1)), 1);
        assert!(locks.unlock("/mac", 0b011, Client(1)), "of two requests");
        assert_eq!((locks.holder("/mac", 0b011), locks.holder("/mac", 0b100)), (None, Some(Client(1))));
        locks.lock("/mac", 0b001, Client(2)).unwrap();
        assert!(!locks.unlock("/mac", 0b010, Client(1)), "not locked any more");
        assert!(locks.unlock("/mac", u64::MAX, Client(1)));
        assert_eq!(locks.holder("/mac", u64::MAX), Some(Client(2)));
    }

    #[test]
    fn locks_of_programs_can_be_seen_and_ended_those_of_queues_seen() {
        let (mut locks, queue) = (Locks::default(), Owner::Queue(QueueId::rx(3)));
        locks.lock("/b", 2, Client(1)).unwrap();
        locks.lock("/a", 1, queue).unwrap();
        locks.lock("/b", 1, Client(4)).unwrap();
        let all = |locks: &Locks| locks.all().into_iter().map(|(path, bits, _)| format!("{path} {bits}")).collect();
        let seen: Vec<String> = all(&locks);
        assert_eq!(seen, ["/a 1", "/b 2", "/b 1"]);
        assert_eq!(locks.end(|component, _| component == "/a"), 0, "the queue runs on");
        assert_eq!(locks.end(|_, client| client == 4), 1);
        assert_eq!(locks.end(|component, _| component == "/b"), 1);
        let left: Vec<String> = all(&locks);
        assert_eq!(left, ["/a 1"]);
    }

    #[test]
    fn a_queue_holds_its_lock_whoever_leaves() {
        let (mut locks, queue) = (Locks::default(), Owner::Queue(QueueId::rx(3)));
        locks.lock("/rx3", 1, queue).unwrap();
        locks.release_all(Client(3));
        assert_eq!(locks.lock("/rx3", 1, Client(3)), Err(HeldBy { owner: queue }));
        assert!(!locks.unlock("/rx3", 1, Owner::Queue(QueueId::tx(3))));
        assert!(locks.unlock("/rx3", 1, queue));
        assert!(locks.held.is_empty());
    }
}
