//! Whose request is next.
//!
//! Time of the driver's thread is shared between users, that of a user between its processes, that of a process between
//! its connections: each time whoever has had least. So a flood of requests costs others one request's time at most,
//! however many connections and processes it comes from.
//!
//! It is start-time fair queueing (Goyal, 1996): whoever comes back begins where the one served last began, so that
//! nobody saves up time, and nobody is paid back for time in which others had nothing to ask.

use std::collections::HashMap;
use std::hash::Hash;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asker {
    pub uid: u32,
    pub pid: u32,
    pub connection: u64,
}

/// All connections that have something to be read.
#[derive(Default)]
pub(super) struct Schedule {
    users: Level<u32>,
    processes: HashMap<u32, Level<u32>>,
    connections: HashMap<(u32, u32), Level<u64>>,
}

impl Schedule {
    /// There is something to be read.
    pub fn ready(&mut self, asker: Asker) {
        self.connections.entry((asker.uid, asker.pid)).or_default().ready(asker.connection);
        self.processes.entry(asker.uid).or_default().ready(asker.pid);
        self.users.ready(asker.uid);
    }

    /// Who is next; it stays so until it is charged for, or has nothing more to be read.
    pub fn next(&mut self) -> Option<Asker> {
        let uid = self.users.next()?;
        let pid = self.processes.get_mut(&uid)?.next()?;
        let connection = self.connections.get_mut(&(uid, pid))?.next()?;
        Some(Asker { uid, pid, connection })
    }

    /// Time was spent on somebody's behalf, in nanoseconds.
    pub fn charge(&mut self, asker: Asker, spent: u64) {
        let Asker { uid, pid, connection } = asker;
        self.users.charge(uid, spent);
        // Those who have left meanwhile are not remembered.
        if let Some(processes) = self.processes.get_mut(&uid) {
            processes.charge(pid, spent);
        }
        if let Some(connections) = self.connections.get_mut(&(uid, pid)) {
            connections.charge(connection, spent);
        }
    }

    /// There is nothing more to be read.
    pub fn rest(&mut self, asker: Asker) {
        self.remove(asker, Level::rest, Level::rest);
    }

    /// The connection has ended. What its process has had is remembered until the last one has.
    pub fn leave(&mut self, asker: Asker) {
        self.remove(asker, Level::rest, Level::forget);
        let process = (asker.uid, asker.pid);
        if self.connections.get(&process).is_some_and(Level::is_empty) {
            self.connections.remove(&process);
            let Some(processes) = self.processes.get_mut(&asker.uid) else { return };
            processes.forget(&asker.pid);
            if processes.is_empty() {
                self.processes.remove(&asker.uid);
                self.users.forget(&asker.uid);
            }
        }
    }

    /// Whether nobody has anything to be read.
    pub fn is_idle(&self) -> bool {
        self.users.waiting.is_empty()
    }

    fn remove(&mut self, asker: Asker, above: fn(&mut Level<u32>, &u32), below: fn(&mut Level<u64>, &u64)) {
        let Asker { uid, pid, connection } = asker;
        let Some(connections) = self.connections.get_mut(&(uid, pid)) else { return };
        below(connections, &connection);
        if !connections.waiting.is_empty() {
            return;
        }
        let Some(processes) = self.processes.get_mut(&uid) else { return };
        above(processes, &pid);
        if processes.waiting.is_empty() {
            above(&mut self.users, &uid);
        }
    }
}

/// Several that share one part of the time.
struct Level<K> {
    // Where the one began who was served last.
    now: u64,
    // Where each would begin.
    begins: HashMap<K, u64>,
    // Who waits, the next one last. A vector keeps its room: what is done behind a reply allocates nothing.
    waiting: Vec<(u64, K)>,
}

impl<K> Default for Level<K> {
    fn default() -> Self {
        Self { now: 0, begins: HashMap::new(), waiting: Vec::new() }
    }
}

impl<K: Copy + Ord + Hash> Level<K> {
    fn ready(&mut self, key: K) {
        let begin = self.begins.entry(key).or_default();
        if place(&self.waiting, (*begin, key)).is_err() {
            *begin = self.now.max(*begin);
            let entry = (*begin, key);
            self.insert(entry);
        }
    }

    fn insert(&mut self, entry: (u64, K)) {
        if let Err(at) = place(&self.waiting, entry) {
            self.waiting.insert(at, entry);
        }
    }

    /// Whether it was there.
    fn take(&mut self, entry: (u64, K)) -> bool {
        let found = place(&self.waiting, entry);
        found.is_ok_and(|at| self.waiting.remove(at) == entry)
    }

    fn next(&mut self) -> Option<K> {
        let &(begin, key) = self.waiting.last()?;
        self.now = self.now.max(begin);
        Some(key)
    }

    fn charge(&mut self, key: K, spent: u64) {
        // Time goes on for all who wait, also where those who are served leave at once: whoever comes begins later than they.
        self.now = self.now.saturating_add(spent / self.waiting.len().max(1) as u64);
        let Some(begin) = self.begins.get_mut(&key) else { return };
        let before = *begin;
        *begin = before.saturating_add(spent);
        let after = *begin;
        if self.take((before, key)) {
            self.insert((after, key));
        }
    }

    fn rest(&mut self, key: &K) {
        if let Some(&begin) = self.begins.get(key) {
            self.take((begin, *key));
        }
    }

    fn forget(&mut self, key: &K) {
        self.rest(key);
        self.begins.remove(key);
    }

    fn is_empty(&self) -> bool {
        self.begins.is_empty()
    }
}

/// Where an entry is, or belongs: the later it begins the further in front.
fn place<K: Ord>(waiting: &[(u64, K)], entry: (u64, K)) -> Result<usize, usize> {
    waiting.binary_search_by(|other| entry.cmp(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(uid: u32, pid: u32, connection: u64) -> Asker {
        Asker { uid, pid, connection }
    }

    /// Requests served of each, when all have always more to ask and each request takes `cost`.
    fn served(askers: &[(Asker, u64)], rounds: usize) -> Vec<u64> {
        let mut schedule = Schedule::default();
        askers.iter().for_each(|(asker, _)| schedule.ready(*asker));
        let mut time = vec![0; askers.len()];
        for _ in 0..rounds {
            let next = schedule.next().unwrap();
            let place = askers.iter().position(|(asker, _)| *asker == next).unwrap();
            time[place] += askers[place].1;
            schedule.charge(next, askers[place].1);
        }
        time
    }

    #[test]
    fn time_is_shared_by_user_then_process_then_connection() {
        // A user with one connection; one with a process of one and a process of two.
        let askers = [(asker(1, 1, 1), 10), (asker(2, 2, 2), 40), (asker(2, 3, 3), 5), (asker(2, 3, 4), 5)];
        let time = served(&askers, 100_000);
        let all: u64 = time.iter().sum();
        for (spent, parts) in time.iter().zip([2, 4, 8, 8]) {
            assert!(spent.abs_diff(all / parts) < 100, "{time:?}");
        }
    }

    #[test]
    fn one_who_asks_now_and_then_is_next_after_the_request_that_is_under_way() {
        let mut schedule = Schedule::default();
        let flood: Vec<Asker> = (0..1000).map(|number| asker(1, 10 + number as u32 % 8, number)).collect();
        flood.iter().for_each(|asker| schedule.ready(*asker));
        let quiet = asker(1, 1, 5000);
        for _ in 0..2000 {
            for _ in 0..50 {
                let next = schedule.next().unwrap();
                schedule.charge(next, 1000);
            }
            schedule.ready(quiet);
            let mut before = 0;
            while schedule.next() != Some(quiet) {
                let next = schedule.next().unwrap();
                schedule.charge(next, 1000);
                before += 1;
            }
            // Those that have had no more than it are its equals, and each has its turn.
            assert!(before <= 8, "{before} requests of the flood came first");
            schedule.charge(quiet, 10);
            schedule.rest(quiet);
        }
    }

    #[test]
    fn newcomers_without_end_are_not_served_before_one_who_waits() {
        let mut schedule = Schedule::default();
        let waits = asker(1, 1, 1);
        schedule.ready(waits);
        schedule.charge(waits, 5000);
        for number in 0..1000 {
            let new = asker(1, 100 + number, 1000 + u64::from(number));
            schedule.ready(new);
            let next = schedule.next().unwrap();
            schedule.charge(next, 100);
            schedule.leave(new);
            if next == waits {
                return;
            }
        }
        panic!("1,000 newcomers came first");
    }

    #[test]
    fn who_was_away_is_not_paid_back() {
        let mut schedule = Schedule::default();
        let (one, other) = (asker(1, 1, 1), asker(2, 2, 2));
        schedule.ready(one);
        for _ in 0..1000 {
            assert_eq!(schedule.next(), Some(one));
            schedule.charge(one, 10);
        }
        schedule.ready(other);
        let mut others = 0;
        for _ in 0..100 {
            let next = schedule.next().unwrap();
            others += u32::from(next == other);
            schedule.charge(next, 10);
        }
        assert!((49..=51).contains(&others), "{others}");
    }

    #[test]
    fn nothing_is_left_of_those_who_have_gone() {
        let mut schedule = Schedule::default();
        let all = [asker(1, 1, 1), asker(1, 1, 2), asker(1, 2, 3), asker(2, 3, 4)];
        for asker in all {
            schedule.ready(asker);
            schedule.ready(asker);
        }
        schedule.rest(all[0]);
        schedule.charge(all[0], 5);
        for asker in all {
            schedule.leave(asker);
            assert_ne!(schedule.next(), Some(asker));
        }
        schedule.leave(all[0]);
        assert!(schedule.is_idle() && schedule.next().is_none());
        assert!(schedule.users.is_empty() && schedule.processes.is_empty() && schedule.connections.is_empty());
    }
}
