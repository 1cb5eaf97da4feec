//! Whose turn it is: whoever has had least of the thread's time of those who want something, by network and then by connection (start-time fair queueing;
//! Goyal, Vin and Cheng, 1996). What a turn took is known behind it: it is a debt, which is paid back while others have their turns. Who wants nothing saves up
//! [`CREDIT`] and no more, so that one who wants little does not wait for all of a crowd that begins together.

use super::places::Network;
use std::collections::BTreeMap;
use std::time::Duration;

/// What one may have more than those who want something all the time, when he comes.
pub const CREDIT: Duration = Duration::from_millis(50);

/// Who shares: networks of those who call, and each that is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// All connections from there.
    Network(Network),
    /// A controller that is called.
    Called(usize),
}

/// Accounts of all.
#[derive(Debug, Default)]
pub struct Shares {
    parties: Accounts<Party>,
    connections: BTreeMap<Party, Accounts<u64>>,
}

impl Shares {
    /// Who of those that want something is next.
    pub fn next(&self, wanting: impl Iterator<Item = (Party, u64)>) -> Option<(Party, u64)> {
        let had = |party: &Party, number: &u64| {
            self.connections.get(party).map_or(Duration::ZERO, |inside| inside.had(number))
        };
        wanting.min_by_key(|(party, number)| (self.parties.had(party), *party, had(party, number), *number))
    }

    /// The next one had a turn.
    pub fn had(&mut self, (party, number): (Party, u64), took: Duration) {
        self.parties.had_turn(party, took);
        self.connections.entry(party).or_default().had_turn(number, took);
        // Who has no debt is as one that has never come.
        let now = self.parties.now;
        self.parties.had.retain(|_, had| *had + CREDIT > now);
    }

    /// A connection has ended. The debt of its network stays.
    pub fn ended(&mut self, (party, number): (Party, u64)) {
        if let Some(inside) = self.connections.get_mut(&party) {
            inside.had.remove(&number);
            if inside.had.is_empty() {
                self.connections.remove(&party);
            }
        }
    }
}

/// What each has had.
#[derive(Debug)]
struct Accounts<K> {
    had: BTreeMap<K, Duration>,
    /// Where the one was who had the last turn: whoever wants something now and has had less begins a little before.
    now: Duration,
}

impl<K> Default for Accounts<K> {
    fn default() -> Self {
        Self { had: BTreeMap::new(), now: Duration::ZERO }
    }
}

impl<K: Ord + Copy> Accounts<K> {
    fn had(&self, who: &K) -> Duration {
        let least = self.now.saturating_sub(CREDIT);
        self.had.get(who).map_or(least, |had| least.max(*had))
    }

    fn had_turn(&mut self, who: K, took: Duration) {
        let begin = self.had(&who);
        self.now = self.now.max(begin);
        self.had.insert(who, begin + took);
    }
}
