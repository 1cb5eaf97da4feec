//! A thread that polls rings and port queues in their turns, and sleeps when all of them are quiet. `launches`: frames with
//! launch times, which do not wait for turns. `wakes`: how much earlier it has to be up for them.

mod launches;
mod wakes;

pub(crate) use launches::PutOff;
pub(crate) use wakes::Wakes;

use crate::command::Command;
use crate::mailbox::{Mailbox, Message};
use crate::shard::{Answer, Shard, wake_fence};
use crate::sleep::{News, Sleep};
use crate::turns::{Armed, Item, Look, Turns};
use millrace_abi::queue::QueueId;
use millrace_dma::{Ordering, fence};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Count};
use std::time::{Duration, Instant};

/// What a worker shows of itself.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct WorkerCounts {
    pub passes: AtomicU64,
    pub sleeps: AtomicU64,
    pub active: AtomicU64,
}

pub(crate) struct Worker {
    pub shard: Shard,
    pub turns: Turns,
    pub mailbox: Arc<Mailbox>,
    pub counts: Arc<WorkerCounts>,
    pub sleep: Sleep,
    pub poll: bool,
    pub spin: Duration,
    /// What is hot while all of it is looked at: kept, so that falling asleep allocates nothing.
    pub hot: Vec<Item>,
    /// Of which ring what it needs was fetched last.
    pub fetched: Option<Armed>,
    pub wakes: Wakes,
    pub put_off: PutOff,
    /// Of the card's clock by which rings wait.
    pub clock_version: u64,
}

/// Passes between two looks at the clock: a look costs as much as a pass over an idle queue.
const PASSES_PER_LOOK: u32 = 64;

/// Commands that are carried out before frames have their turn again.
const AT_ONCE: usize = 16;

impl Worker {
    pub fn run(&mut self) {
        self.sleep.watch(&self.mailbox.wake);
        self.sleep.watch(&self.mailbox.kick_any);
        let (mut idle_since, mut passes, mut quiet) = (None, 0u64, 0u32);
        loop {
            if self.mailbox.is_waiting() && !self.obey() {
                return;
            }
            passes += 1;
            if self.pass() {
                (idle_since, quiet) = (None, 0);
                continue;
            }
            quiet = quiet.wrapping_add(1);
            if quiet.is_multiple_of(PASSES_PER_LOOK) {
                self.shard.rest();
            }
            if self.poll || quiet < PASSES_PER_LOOK || self.launches_soon() {
                continue;
            }
            quiet = 0;
            self.counts.passes.store(passes, Count::Relaxed);
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= self.spin {
                self.fall_asleep();
                idle_since = None;
            }
        }
    }

    /// A turn for everybody. `true` when a frame moved or a queue stopped.
    #[inline(always)]
    fn pass(&mut self) -> bool {
        let (mut worked, mut group) = (false, 0);
        self.shard.begin_pass();
        if self.turns.has_waiting() {
            self.attend_waiting();
        }
        worked |= self.launch();
        while self.turns.begin(group) {
            worked |= self.turns.first_launch() != u64::MAX && self.launch_in_turn(group);
            loop {
                worked |= self.launch();
                let Some(item) = self.turns.next(group) else { break };
                let (look, cost) = self.shard.look(item);
                worked |= look.is_work();
                if look == Look::Quiet && self.turns.are_few() {
                    self.shard.anticipate(item);
                }
                if self.turns.note(group, look, cost) {
                    self.cool(group, item);
                }
                if look == Look::Waits {
                    self.wait(group, item);
                }
            }
            group = self.turns.end(group);
            announce(&mut self.shard);
        }
        if self.turns.has_cold() {
            worked |= self.attend_cold();
        }
        if !worked {
            self.turns.forgive();
        }
        worked
    }

    #[cold]
    fn cool(&mut self, group: usize, item: Item) {
        let is_near = self.is_near();
        if self.put_off.puts_off(is_near) {
            return;
        }
        if let Some(ring) = self.shard.cool(item) {
            self.turns.cool(group, ring);
        }
    }

    /// Hears now and then who has kicked, and has some of the rings behind that looked through in every pass. `true`
    /// when one is hot now.
    fn attend_cold(&mut self) -> bool {
        let is_near = self.is_near();
        if self.turns.wants_news(is_near) {
            let news = self.sleep.look();
            self.hear(&news);
        }
        self.turns.serve_cold(is_near)
    }

    #[cold]
    fn hear(&mut self, news: &News) {
        for fd in news.signalled() {
            if fd == self.mailbox.kick_any.as_raw_fd() {
                self.turns.kicked_all();
            } else {
                self.turns.kicked(Some(fd));
            }
        }
        if self.sleep.is_deaf() {
            self.turns.kicked_all();
        }
    }

    /// Once through everything that is hot, whoever owes what: before the worker sleeps.
    fn pass_all(&mut self) -> bool {
        let mut worked = false;
        let mut hot = core::mem::take(&mut self.hot);
        hot.extend(self.turns.hot());
        for item in hot.drain(..) {
            let look = self.shard.look(item).0;
            worked |= look.is_work();
            if look == Look::Ended {
                self.turns.remove(item);
            }
        }
        self.hot = hot;
        announce(&mut self.shard);
        worked
    }

    /// The sleeper's side of `millrace_ring::wake`, for all queues at once: flags, one fence, one more pass. Cold rings
    /// have said that the card sleeps before.
    #[cold]
    fn fall_asleep(&mut self) {
        self.shard.mark_asleep(self.turns.hot(), &self.sleep);
        // Pairs with the fence in `Ringer::must_signal`.
        fence(Ordering::SeqCst);
        self.shard.clock.begin();
        // The clock may have been set since the last pass, whose look at the mailbox has taken the news of it.
        if self.turns.has_waiting() {
            self.attend_waiting();
        }
        let has_time = !self.turns.is_scanning() && !self.turns.is_judging();
        let quiet = !self.pass_all() && !self.mailbox.is_waiting() && has_time && !self.shard.wants_more();
        // Behind the pass, which may have met a frame that waits for its launch time.
        let most = self.may_sleep();
        if quiet && most != Some(Duration::ZERO) {
            let sleeps = self.counts.sleeps.load(Count::Relaxed);
            self.counts.sleeps.store(sleeps + 1, Count::Relaxed);
            let began = Instant::now();
            let news = self.sleep.sleep(most);
            most.into_iter().for_each(|most| self.wakes.note(most, began.elapsed()));
            self.hear(&news);
        }
        self.shard.awake(self.turns.hot(), &self.sleep);
    }

    /// How long nothing has to be done by the clock; `None`: for ever.
    fn may_sleep(&self) -> Option<Duration> {
        // The pass has taken some time.
        self.shard.clock.begin();
        let now = Instant::now();
        let due = self
            .shard
            .next_due(self.turns.hot(), now, self.wakes.early())
            .map(|due| due.saturating_duration_since(now));
        due.into_iter().chain(self.sleeps_for_launch()).min()
    }

    /// Carries out what the control side asks for. `false`: the thread ends.
    #[cold]
    fn obey(&mut self) -> bool {
        // The worker may have slept since the last pass.
        self.shard.clock.begin();
        for _ in 0..AT_ONCE {
            let Some(Message { command, reply, .. }) = self.mailbox.take() else { break };
            if matches!(command, Command::Exit) {
                return false;
            }
            let answer = self.carry_out(command);
            let active = self.turns.rings() + self.shard.receiving_queues();
            self.counts.active.store(active as u64, Count::Relaxed);
            self.mailbox.answer(reply, answer);
        }
        true
    }

    fn carry_out(&mut self, command: Command) -> Answer {
        let Self { shard, sleep, turns, .. } = self;
        let done = |done| Answer { done, ..Answer::default() };
        match command {
            Command::StartTx(index, engine, openers) => {
                if !shard.has(QueueId::tx(index)) {
                    return done(false);
                }
                shard.start_tx(index, engine, openers, sleep, turns);
            }
            Command::StartRx(index, engine, reclaimer, openers, discard) => {
                if !shard.has(QueueId::rx(index)) {
                    return done(false);
                }
                shard.start_rx(index, engine, (reclaimer, discard), openers, sleep, turns);
            }
            Command::Halt(queue) => {
                return if shard.has(queue) { shard.halt(queue, sleep, turns) } else { done(false) };
            }
            Command::Freeze(queue) => return shard.freeze(queue, sleep, turns),
            Command::GoOnTx(index, engine, openers) => {
                return done(shard.go_on_tx(index, engine, openers, sleep, turns));
            }
            Command::GoOnRx(index, engine, openers, discard) => {
                return done(shard.go_on_rx(index, engine, openers, discard, sleep, turns));
            }
            Command::IsDrained(queue) => return done(shard.is_drained(queue)),
            Command::AddCounts(queue, counts) => return done(shard.add_counts(queue, &counts)),
            Command::Join(queue, opener, cursor) => return done(shard.join(queue, opener, cursor, sleep, turns)),
            Command::Leave(queue, id) => {
                let openers: Vec<_> = shard.leave(queue, id, sleep, turns).into_iter().collect();
                return Answer { done: !openers.is_empty(), openers, ..Answer::default() };
            }
            Command::SetCall(queue, id, call) => return done(shard.set_call(queue, id, &call)),
            Command::AddRing(index, ring, engine, opener) => {
                return done(shard.add_ring((index, ring), engine, opener, sleep, turns));
            }
            Command::DropRing(index, ring) => return shard.drop_ring(index, ring, sleep, turns),
            Command::Detach(port, what) => {
                let detached = Some(Box::new(shard.detach(port, &what, sleep, turns)));
                return Answer { detached, ..done(true) };
            }
            Command::Adopt(detached) => shard.adopt(*detached, sleep, turns),
            Command::Shape(port, shape) => shard.set_shape(port, shape),
            Command::Schedule(port, schedule) => {
                shard.set_schedule(port, schedule);
                // What waits for a gate may not have to any more, or for longer.
                turns.judge_again();
            }
            Command::Classify(classifying) => shard.set_classifying(classifying, turns),
            Command::Neighbours(ends) => shard.add_slow(*ends, turns),
            Command::Tap(tapper) => return done(shard.tap(*tapper)),
            Command::Untap(number) => return Answer { tapper: shard.untap(number), ..done(true) },
            Command::Look(queue) => {
                shard.look_at_queue(queue.index, turns);
                announce(shard);
            }
            Command::Pass => shard.sync_domains(),
            Command::Exit => {}
        }
        done(true)
    }
}

/// Wakes all who sleep and for whom something has come: at the end of an owner's turn, with one fence for all of them.
#[inline(always)]
fn announce(shard: &mut Shard) {
    if shard.is_touched() {
        wake_fence();
        shard.announce();
    }
}

#[cfg(test)]
mod tests;
