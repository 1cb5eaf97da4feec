//! Frames with launch times. Their rings come from the wheel before, what they need is fetched some microseconds before, and when
//! their time has come they are served before anything else has its turn.
//!
//! Who has many of them at one time keeps nobody else from theirs: an owner is served ahead of its turn for as much as it may spend
//! in one, and what is more comes in its turns.

use super::{Worker, announce};
use crate::shard::Launch;
use crate::turns::{Armed, Item, Look, cost};
use std::hint::spin_loop;
use std::time::Duration;

/// How long before its time a ring comes from the wheel and is sorted among those that leave soon, in ns: as long as it takes with all
/// rings of a worker, while others have their turns.
const AHEAD: u64 = 2_000_000;
/// A ring that waits for no longer than so many ns is not put into the wheel.
const SHORTLY: u64 = AHEAD + 100_000;
/// What is armed comes within so many ns, unless the clock was set back.
const FAR: u64 = 4 * SHORTLY;
/// How long before its time what a ring needs is fetched, in ns: longer than memory takes, and not so long that it is lost again.
const FETCH: u64 = 8_000;
/// Within so many ns of a launch little is moved in the wheel at once.
const SOON: u64 = 32_000;
/// Within so many ns of a launch nobody else has a turn: it might last longer.
const NEAR: u64 = 500;
/// As long as a launch is further ahead than so many ns, there is time to fetch what it needs once more: others have had turns since.
const AGAIN: u64 = 200;
/// So many ns a ring waits itself for its launch time at most, when it is asked for it [`NEAR`] before.
const PATIENCE: u64 = NEAR + 100;
/// Launches one after the other, before others have a turn.
const AT_ONCE: usize = 32;

/// Rings that have been quiet for long and are not made cold, one after the other, because a launch is near: it takes some
/// microseconds. Where launches are always near, every so manyth is, so that rings do not keep their turns for ever.
const MOST_PUT_OFF: u32 = 15;

/// What was put off for launches.
#[derive(Default)]
pub(crate) struct PutOff(u32);

impl PutOff {
    /// Whether what could be done now had better be done later.
    pub fn puts_off(&mut self, is_near: bool) -> bool {
        self.0 = if is_near && self.0 < MOST_PUT_OFF { self.0 + 1 } else { 0 };
        self.0 > 0
    }
}

impl Worker {
    /// Whether a launch comes so soon that what takes some microseconds, and can wait, would make it late.
    #[inline(always)]
    pub(super) fn is_near(&self) -> bool {
        let first = self.turns.first_launch();
        first != u64::MAX && first < self.shard.clock.card().saturating_add(FETCH)
    }

    /// Arms rings whose launch times come soon.
    #[inline]
    pub(super) fn attend_waiting(&mut self) {
        let clock = &self.shard.clock;
        let (now, version) = (clock.ticks(), clock.version());
        if self.clock_version != version {
            self.clock_version = version;
            self.turns.judge_again();
        }
        let is_near = self.turns.first_launch() < clock.card().saturating_add(SOON);
        self.turns.serve_waiting(now, is_near);
    }

    /// The ring whose turn it was, and which was [noted](crate::turns::Turns::note), waits for its launch time.
    #[cold]
    pub(super) fn wait(&mut self, group: usize, item: Item) {
        let Some(Launch { at, order, until, left }) = self.shard.launch_of(item) else { return };
        let armed = Armed { at, order, item };
        if left <= SHORTLY {
            self.turns.arm_noted(group, armed);
            return;
        }
        if !self.turns.has_waiting() {
            self.clock_version = self.shard.clock.version();
        }
        self.turns.wait(group, armed, until - AHEAD);
    }

    /// Serves rings whose launch times have come, and waits for one that comes at once. `true` when a frame moved.
    #[inline(always)]
    pub(super) fn launch(&mut self) -> bool {
        self.turns.first_launch() != u64::MAX && self.launch_first()
    }

    #[cold]
    fn launch_first(&mut self) -> bool {
        let (mut worked, mut now) = (false, self.shard.clock.exactly());
        // Not once in each pass only: a pass may be long, and what comes many.
        let is_near = self.turns.first_launch() < now.saturating_add(SOON);
        self.turns.serve_waiting(self.shard.clock.ticks(), is_near);
        for _ in 0..AT_ONCE {
            if self.turns.first_launch() > now + FETCH && !self.has_changed(now) {
                break;
            }
            let Some((group, armed)) = self.turns.first_ahead() else { break };
            if armed.at > now + NEAR && !self.has_changed(now) {
                self.fetch(armed, now);
                break;
            }
            if armed.at > now + AGAIN {
                self.shard.prepare(armed.item);
            }
            if self.shard.can_wait(armed.item) {
                // What is done meanwhile need not be done when the time has come.
                self.turns.charge(group, cost::of_waiting(armed.at.saturating_sub(now).min(NEAR)));
                worked |= self.serve(group, PATIENCE);
                now = self.shard.clock.exactly();
                continue;
            }
            match self.wait_for(armed.at) {
                Some(waited) => {
                    self.turns.charge(group, cost::of_waiting(waited));
                    worked |= self.serve(group, 0);
                    now = self.shard.clock.exactly();
                }
                // It is judged again.
                None => {
                    self.turns.take_armed(group);
                    self.turns.heat_in(group, armed.item);
                }
            }
        }
        if worked {
            announce(&mut self.shard);
        }
        worked
    }

    /// Whether the clock was set back, or stands, so that what is armed does not come soon.
    fn has_changed(&self, now: u64) -> bool {
        self.turns.first_launch() > now + FAR || self.shard.clock.stands()
    }

    /// What a ring will need is fetched, once.
    fn fetch(&mut self, armed: Armed, now: u64) {
        if armed.at <= now + FETCH && self.fetched != Some(armed) {
            self.fetched = Some(armed);
            self.shard.prepare(armed.item);
        }
    }

    /// Waits for a time that comes within [`NEAR`], and says for how many ns; `None`: it does not come, because somebody has set the
    /// clock.
    fn wait_for(&self, at: u64) -> Option<u64> {
        let clock = &self.shard.clock;
        let began = clock.ticks();
        while clock.card() < at {
            if at - clock.card() > 2 * NEAR || clock.ticks() - began > 2 * NEAR {
                return None;
            }
            spin_loop();
            clock.begin();
        }
        Some(clock.ticks() - began)
    }

    /// Serves the first ring of a group, whose time has come, or does so within `patience` ns. Its frames that would come behind that of the next ring stay where they
    /// are: so those of an owner leave in the order of their times, and at equal times of their rings.
    fn serve(&mut self, group: usize, patience: u64) -> bool {
        let Some(Armed { item, order, .. }) = self.turns.take_armed(group) else { return false };
        let last = |next: Armed| next.at.saturating_sub(u64::from(next.order < order));
        let until = self.turns.first_of(group).map_or(u64::MAX, last);
        let (look, cost) = self.shard.launch(item, until, patience);
        self.turns.charge(group, cost);
        match self.shard.launch_of(item) {
            _ if look == Look::Ended => self.turns.has_ended(),
            // Its time has not come, because somebody has set the clock or changed the time, or there was no room. It is judged again.
            _ if patience > 0 && !look.is_work() => self.turns.heat_in(group, item),
            Some(Launch { at, order, left, .. }) if left <= SHORTLY => self.turns.arm(group, Armed { at, order, item }),
            _ => self.turns.heat_in(group, item),
        }
        look.is_work()
    }

    /// Serves rings of the group whose turn it is whose times have come, and which could not be served ahead of it.
    pub(super) fn launch_in_turn(&mut self, group: usize) -> bool {
        let mut worked = false;
        while let Some(armed) = self.turns.first_in_turn(group)
            && armed.at <= self.shard.clock.exactly()
        {
            worked |= self.serve(group, 0);
            // Others are punctual meanwhile.
            worked |= self.launch();
        }
        worked
    }

    /// Whether a launch is so near that the worker had better not sleep.
    pub(super) fn launches_soon(&self) -> bool {
        self.sleeps_for_launch().is_some_and(|most| most.is_zero())
    }

    /// How long the worker may sleep for rings that wait, or are armed; `None`: for ever.
    pub(super) fn sleeps_for_launch(&self) -> Option<Duration> {
        let clock = &self.shard.clock;
        let first = Some(self.turns.first_launch()).filter(|&first| first != u64::MAX);
        let armed = first.map(|first| clock.ticks_after(first.saturating_sub(clock.card())));
        // The wheel says it earlier.
        let waits = self.turns.next_due().map(|due| due.saturating_add(AHEAD));
        armed.into_iter().chain(waits).min().map(|until| self.shard.sleep_until(until, self.wakes.early()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_wait_is_put_off_while_a_launch_is_near_but_not_for_ever() {
        let mut put_off = PutOff::default();
        assert!(!put_off.puts_off(false));
        let done = (0..160).filter(|_| !put_off.puts_off(true)).count();
        assert_eq!(done, 160 / (MOST_PUT_OFF as usize + 1));
        assert!(put_off.puts_off(true) && !put_off.puts_off(false));
    }
}
