//! The engine waits for nobody but for memory: whoever takes pages out of what he has registered has it wait until that is done, and so does
//! whose pages are not in memory. What it has waited for a user's programs is added up, and halves every five minutes. With more than there may
//! be, his programs are put out, and he is let in again when it is less than a half of that.
//!
//! Time for which there is another reason (the card reads from a disk, or is short of memory) counts a tenth: nobody is put out because the machine
//! swaps a little, and nobody gets the thread by having his pages swapped.
//!
//! Whose memory it was is known when memory of one user was used between two looks at the clock. Otherwise nobody pays, and
//! each use of theirs is looked at for five minutes: copies between them go by parts, and memory of one is used at a time.

use super::service::{Number, PutOut, Service};
use crate::number::Moment;
use core::time::Duration;

/// How much the engine may have waited for memory of a program of the owner, or of all programs of another user.
const MOST: Duration = Duration::from_millis(250);
/// In which time it halves.
const HALF: Duration = Duration::from_secs(300);
/// Of time for which there is another reason, one part in so many counts.
const DOUBTFUL: u32 = 10;
/// For how long uses are looked at one by one, after the last time that it was not known whose memory it was.
const WATCHED: Duration = Duration::from_secs(300);
/// Shorter steps are not looked at.
const SHORT: Duration = Duration::from_micros(200);
/// For so long at once it is worth while to know for whom.
const LONG: Duration = Duration::from_millis(1);
/// And for so much in short times, within a time.
const OFTEN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Users of whom all is remembered.
const MANY: usize = 64;

/// The engine has waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// For so long.
    pub slept: Duration,
    /// For a disk, or the machine was short of memory.
    pub is_doubtful: bool,
}

impl Wait {
    /// As which it counts.
    fn counts(&self) -> Duration {
        if self.is_doubtful { self.slept / DOUBTFUL } else { self.slept }
    }

    /// Whether this alone is more than there may be.
    pub(super) fn is_too_long(&self) -> bool {
        self.counts() > MOST
    }
}

/// Looks how long the engine's thread has slept without having been asked to.
pub trait Watcher: Send {
    /// Counts from now on.
    fn restart(&mut self);

    /// For how long it has slept since then, or since it was asked the last time.
    fn waited(&mut self) -> Option<Wait>;

    /// Memory of one program is about to be used.
    fn begin(&mut self);

    /// It was used. For how long the thread has slept meanwhile.
    fn end(&mut self) -> Option<Wait>;
}

/// How long the engine has waited for somebody.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waited {
    nanoseconds: f64,
    at: Moment,
    /// It was too much, and is not yet less than a half of that.
    is_out: bool,
}

impl Waited {
    fn left(&self, now: Moment) -> f64 {
        let since = now.nanoseconds().saturating_sub(self.at.nanoseconds()) as f64;
        self.nanoseconds * (-since / HALF.as_nanos() as f64).exp2()
    }

    /// So much more. Whether it is too much.
    fn add(&mut self, now: Moment, wait: Wait) -> bool {
        (self.nanoseconds, self.at) = (self.left(now) + wait.counts().as_nanos() as f64, now);
        self.is_out |= self.nanoseconds > MOST.as_nanos() as f64;
        self.is_out
    }

    fn is_out(&self, now: Moment) -> bool {
        self.is_out && self.left(now) > MOST.as_nanos() as f64 / 2.0
    }
}

/// What the engine has waited for, beside what programs of the owner pay themselves.
#[derive(Default)]
pub(super) struct Waits {
    /// By user.
    users: rustc_hash::FxHashMap<u32, Waited>,
    /// Until when uses are looked at one by one.
    watched: Option<Moment>,
    /// Short times since then.
    often: (Moment, Duration),
}

impl Service {
    /// By what it is looked whether the engine waits for memory. Without it nobody pays for that.
    pub fn watch(&mut self, watcher: Box<dyn Watcher>) {
        self.engine.memory().watcher = Some(watcher);
    }

    /// The engine begins to work: what was before was no waiting for memory.
    pub fn restart_watch(&mut self) {
        let reach = self.engine.memory();
        reach.suspects.clear();
        if let Some(watcher) = &mut reach.watcher {
            watcher.restart();
        }
    }

    /// To be called after each step of work, which took so long.
    #[inline]
    pub fn look_for_waits(&mut self, now: Moment, took: Duration) {
        if took >= SHORT {
            self.look_closely(now);
        }
        self.engine.memory().suspects.clear();
    }

    fn look_closely(&mut self, now: Moment) {
        let reach = self.engine.memory();
        if self.waits.watched.is_some_and(|until| until <= now) {
            self.waits.watched = None;
            reach.suspects.unwatch_all();
        }
        let Some(wait) = reach.watcher.as_mut().and_then(|watcher| watcher.waited()) else { return };
        self.count_wait(wait);
        if wait.slept >= LONG {
            self.suspect(now, wait);
        } else if self.is_often(now, wait.slept) {
            self.watch_all(now);
        }
    }

    fn count_wait(&mut self, wait: Wait) {
        self.counters.waits += 1;
        self.counters.waited_us += wait.slept.as_micros() as u64;
    }

    fn is_often(&mut self, now: Moment, slept: Duration) -> bool {
        let (most, time) = OFTEN;
        let (since, sum) = &mut self.waits.often;
        if *since + time <= now {
            (*since, *sum) = (now, Duration::ZERO);
        }
        *sum += slept;
        *sum > most
    }

    /// The engine has waited for memory of one of those that it has used.
    fn suspect(&mut self, now: Moment, wait: Wait) {
        let Some(suspects) = self.engine.memory().suspects.suspects() else { return self.watch_all(now) };
        let of = |owner: &usize| self.program_of(*owner);
        let suspects: Vec<(usize, Number)> = suspects.iter().filter_map(|owner| Some((*owner, of(owner)?))).collect();
        let Some(&(_, first)) = suspects.first() else { return };
        let payer = |number: Number| {
            let account = self.processes.get(number.0).map(|process| process.owned.account)?;
            Some((account.uid, account.is_owner.then_some(number)))
        };
        if suspects.iter().all(|(_, number)| payer(*number) == payer(first)) {
            return self.charge(now, first, wait);
        }
        self.waits.watched = Some(now + WATCHED);
        suspects.iter().for_each(|(owner, _)| self.engine.memory().suspects.watch(*owner));
    }

    fn watch_all(&mut self, now: Moment) {
        self.waits.watched = Some(now + WATCHED);
        let reach = self.engine.memory();
        reach.regions.iter().for_each(|(owner, _)| reach.suspects.watch(owner));
    }

    fn program_of(&self, owner: usize) -> Option<Number> {
        let mut processes = self.processes.iter();
        processes.find(|(_, process)| process.memory == owner).map(|(number, _)| Number(number))
    }

    /// Whose memory was looked at one by one pays for that.
    pub(super) fn charge_watched(&mut self, now: Moment) {
        for (owner, wait) in core::mem::take(&mut self.engine.memory().waits) {
            self.count_wait(wait);
            if let Some(program) = self.program_of(owner) {
                self.charge(now, program, wait);
            }
        }
    }

    /// The engine has waited for memory of that program, which is put out if that was too often.
    fn charge(&mut self, now: Moment, program: Number, wait: Wait) {
        let Some(process) = self.processes.get_mut(program.0) else { return };
        let account = process.owned.account;
        let waited = match account.is_owner {
            true => &mut process.waited,
            false => {
                let users = &mut self.waits.users;
                // Of many, those who have as good as nothing are forgotten.
                if users.len() >= MANY && !users.contains_key(&account.uid) {
                    users.retain(|_, waited| waited.left(now) > 1e6);
                }
                users.entry(account.uid).or_default()
            }
        };
        if waited.add(now, wait) {
            self.counters.stalled += 1;
            let left = self.leave(now, program);
            self.put_out.push(PutOut { number: program, left, has_stalled: true });
        }
    }

    /// Whether a user is not to be let in, because the engine has waited for memory of his programs.
    pub fn is_out(&self, now: Moment, account: super::Account) -> bool {
        !account.is_owner && self.waits.users.get(&account.uid).is_some_and(|waited| waited.is_out(now))
    }
}
