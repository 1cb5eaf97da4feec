//! Which paths a pair has: those who have called make them, look for more, and make them again; the other end takes them.

use super::Hosts;
use super::discover::{Answer, Question};
use super::meet::GREETING;
use super::pair::{LATEST_SEARCH, Lane, Remote, Search, Stage};
use super::rail::Rail;
use super::record::{MOST_PATHS, Record};
use super::trunk::State;
use millrace_slurpoe::Address;
use std::time::{Duration, Instant};

/// How long after a failure a path is asked for again.
const AGAIN: Duration = Duration::from_millis(500);

impl Hosts {
    /// Which of the others it is that more paths are looked for to.
    pub(super) fn searches(&self, answer: &Answer) -> Option<u32> {
        let is_it = |remote: &Remote| {
            remote.search.number == answer.call && remote.called.as_ref().is_some_and(|called| called.0 == answer.id)
        };
        self.remotes.iter().find(|(_, remote)| is_it(remote)).map(|(id, _)| *id)
    }

    /// There may be one more path to an end that is known.
    pub(super) fn found(&mut self, id: u32, rail: usize, other: Address, answer: &Answer) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        if let Some(path) = remote.place_for(rail, answer.rail)
            && let Ok(shared) = self.rails[rail].share(&remote.memory)
        {
            let again = Instant::now();
            remote.lanes[path] = Some(Lane { rail, other, theirs: answer.rail, shared, key: 0, again });
        }
    }

    /// One that is known brings a path. Whether it is.
    pub(super) fn joins(
        &mut self,
        rail: usize,
        other: Address,
        (path, epoch, expected): (u8, u32, u32),
        (pair, key): (u64, u32),
    ) -> bool {
        let now = Instant::now();
        let at = usize::from(path);
        let is_it =
            |remote: &&mut Remote| remote.number == pair && !remote.has_called && remote.stage != Stage::Calling;
        let Some(remote) = self.remotes.values_mut().find(is_it) else { return false };
        let is_elsewhere = remote.path_of(rail, other).is_some_and(|known| known != at);
        if is_elsewhere {
            return false;
        }
        let Ok(shared) = self.rails[rail].share(&remote.memory) else { return false };
        // What it cannot know is no reason to lose the pair: a stranger may have said so.
        if remote.trunk.is_wanted(at, epoch, expected) != Ok(true) {
            return false;
        }
        self.counters.paths_begun += 1;
        let own_key = shared.key();
        remote.lanes[at] = Some(Lane { rail, other, theirs: 0, shared, key, again: now });
        remote.tell(at, &Record::Joined { path, epoch, pair, key: own_key });
        true
    }

    /// Asks for paths that are not there, and forgets those who have greeted and no more.
    pub(super) fn look_at_paths(&mut self, now: Instant) {
        let is_late = |remote: &Remote| remote.pair.is_none() && !remote.has_called && remote.begun + GREETING < now;
        let late: Vec<u32> = self.remotes.iter().filter(|(_, remote)| is_late(remote)).map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| drop(self.forget(id)));
        for remote in self.remotes.values_mut().filter(|remote| remote.has_called && remote.stage == Stage::Met) {
            if now >= remote.search.at && remote.lacks_paths(self.rails.len()) {
                let Search { number: call, pause, .. } = remote.search;
                (remote.search.at, remote.search.pause) = (now + pause, (pause * 2).min(LATEST_SEARCH));
                let target = remote.called.as_ref().map(|called| called.1.clone());
                let question = target.map(|target| Question { call, target }.write()).unwrap_or_default();
                for end in self.rails.iter().filter_map(Rail::end) {
                    let _ = end.tell(None, &question);
                }
            }
            for path in 0..MOST_PATHS {
                let is_due = |lane: &Lane| now >= lane.again;
                let may = remote.trunk.state(path) == State::Down && remote.trunk.may_begin(path);
                let Some(lane) = remote.lanes[path].as_mut().filter(|lane| may && is_due(lane)) else { continue };
                let Some(end) = self.rails[lane.rail].end() else { continue };
                match end.ask(lane.other) {
                    Ok(true) => {
                        // The rail may have been opened anew.
                        let Ok(shared) = self.rails[lane.rail].share(&remote.memory) else { continue };
                        lane.shared = shared;
                        let (key, epoch, expected) =
                            (lane.shared.key(), remote.trunk.join(path), remote.trunk.expected());
                        remote
                            .tell(path, &Record::Join { path: path as u8, epoch, pair: remote.number, key, expected });
                    }
                    Ok(false) => {}
                    Err(_) => lane.again = now + AGAIN,
                }
            }
        }
    }
}

/// Which rail of this end speaks with which of the other one: each with another, as far as there are; and each with one at least.
pub(super) fn assign(answers: &[(usize, Address, Answer)]) -> Vec<(usize, Address, u8)> {
    let mut paths: Vec<(usize, Address, u8)> = Vec::new();
    let uses = |paths: &[(usize, Address, u8)], theirs: u8| paths.iter().filter(|path| path.2 == theirs).count();
    let used = |paths: &[(usize, Address, u8)], own: usize| paths.iter().filter(|path| path.0 == own).count();
    let mut own: Vec<usize> = answers.iter().map(|answer| answer.0).collect();
    own.sort_unstable();
    own.dedup();
    for rail in own {
        let heard = answers.iter().filter(|answer| answer.0 == rail);
        if let Some((_, other, answer)) = heard.min_by_key(|(.., answer)| (uses(&paths, answer.rail), answer.rail)) {
            paths.push((rail, *other, answer.rail));
        }
    }
    let mut theirs: Vec<u8> = answers.iter().map(|(.., answer)| answer.rail).collect();
    theirs.sort_unstable();
    theirs.dedup();
    for rail in theirs {
        if uses(&paths, rail) == 0 {
            let heard = answers.iter().filter(|(.., answer)| answer.rail == rail);
            if let Some((own, other, _)) = heard.min_by_key(|(own, ..)| (used(&paths, *own), *own)) {
                paths.push((*own, *other, rail));
            }
        }
    }
    paths.truncate(MOST_PATHS);
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_are_joined_each_with_another() {
        let answer = |own: usize, theirs: u8| {
            let answer = Answer { call: 0, id: 1, user: 0, rail: theirs, rails: 2, host: "h".into() };
            (own, Address([2, 0, 0, 0, 0, theirs]), answer)
        };
        let joined = |answers: &[(usize, u8)]| -> Vec<(usize, u8)> {
            let answers: Vec<_> = answers.iter().map(|(own, theirs)| answer(*own, *theirs)).collect();
            assign(&answers).into_iter().map(|(own, other, theirs)| (own, theirs.min(other.0[5]))).collect()
        };
        assert_eq!(joined(&[(0, 0)]), [(0, 0)]);
        assert_eq!(joined(&[(1, 0), (0, 1), (0, 0), (1, 1)]), [(0, 0), (1, 1)]);
        assert_eq!(joined(&[(0, 1), (1, 0)]), [(0, 1), (1, 0)], "two wires");
        assert_eq!(joined(&[(0, 0), (1, 0)]), [(0, 0), (1, 0)], "the other end has one");
        assert_eq!(joined(&[(0, 1), (0, 0)]), [(0, 0), (0, 1)], "this end has one");
        assert_eq!(joined(&[]), []);
    }
}
