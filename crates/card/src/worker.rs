//! A thread that polls rings and port queues in their turns, and sleeps when all of them are quiet.

use crate::command::Command;
use crate::lane::{Answer, Lane, forward, wake_fence};
use crate::mailbox::{Mailbox, Message};
use crate::sleep::{News, Sleep};
use crate::turns::{Item, Look, Turns};
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
    pub lanes: Vec<Lane>,
    pub turns: Turns,
    pub mailbox: Arc<Mailbox>,
    pub counts: Arc<WorkerCounts>,
    pub sleep: Sleep,
    pub poll: bool,
    pub spin: Duration,
    /// What is hot while all of it is looked at: kept, so that falling asleep allocates nothing.
    pub hot: Vec<Item>,
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
            quiet += 1;
            if self.poll || quiet < PASSES_PER_LOOK {
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
        while self.turns.begin(group) {
            while let Some(item) = self.turns.next(group) {
                let (look, cost) = look_at(&mut self.lanes, item);
                worked |= look.is_work();
                if look == Look::Quiet && self.turns.are_few() {
                    self.lanes[item.lane()].anticipate(item);
                }
                if self.turns.note(group, look, cost) {
                    self.cool(group, item);
                }
            }
            group = self.turns.end(group);
            announce(&mut self.lanes);
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
        if let Some(ring) = self.lanes[item.lane()].cool(item) {
            self.turns.cool(group, ring);
        }
    }

    /// Hears now and then who has kicked and which launch times have come, and has some of those rings attended to in
    /// every pass. `true` when one is hot now.
    fn attend_cold(&mut self) -> bool {
        if self.turns.wants_news() {
            let news = self.sleep.look();
            self.hear(&news);
        }
        self.turns.serve_cold()
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
        if self.turns.next_launch().is_some() {
            self.turns.launch(Instant::now());
        }
    }

    /// Once through everything that is hot, whoever owes what: before the worker sleeps.
    fn pass_all(&mut self) -> bool {
        let mut worked = false;
        let mut hot = core::mem::take(&mut self.hot);
        hot.extend(self.turns.hot());
        for item in hot.drain(..) {
            let look = look_at(&mut self.lanes, item).0;
            worked |= look.is_work();
            if look == Look::Ended {
                self.turns.remove_if(|there| there == item);
            }
        }
        self.hot = hot;
        announce(&mut self.lanes);
        worked
    }

    /// The sleeper's side of `millrace_ring::wake`, for all queues at once: flags, one fence, one more pass. Cold rings
    /// have said that the card sleeps before.
    #[cold]
    fn fall_asleep(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.mark_asleep(&self.sleep));
        self.hot_rings().for_each(|(lane, place)| lane.openers(place).mark_asleep());
        // Pairs with the fence in `Ringer::must_signal`.
        fence(Ordering::SeqCst);
        let quiet = !self.pass_all() && !self.mailbox.is_waiting() && !self.turns.is_scanning();
        // Behind the pass, which may have met a frame that waits for its launch time.
        let port_queues = self.lanes.iter().filter_map(Lane::next_due);
        let rings = self.hot_rings().filter_map(|(lane, place)| lane.next_launch(place));
        let due = port_queues.chain(rings).chain(self.turns.next_launch()).min();
        let most = due.map(|due| due.saturating_duration_since(Instant::now()));
        if quiet && most != Some(Duration::ZERO) {
            let sleeps = self.counts.sleeps.load(Count::Relaxed);
            self.counts.sleeps.store(sleeps + 1, Count::Relaxed);
            let news = self.sleep.sleep(most);
            self.hear(&news);
        }
        self.lanes.iter_mut().for_each(|lane| lane.awake(&self.sleep));
        self.hot_rings().for_each(|(lane, place)| lane.openers(place).awake());
    }

    fn hot_rings(&self) -> impl Iterator<Item = (&Lane, usize)> {
        self.turns.hot().filter_map(|item| match item {
            Item::Ring(lane, place) => Some((&self.lanes[lane as usize], place as usize)),
            Item::PortQueue(..) => None,
        })
    }

    /// Carries out what the control side asks for. `false`: the thread ends.
    #[cold]
    fn obey(&mut self) -> bool {
        for _ in 0..AT_ONCE {
            let Some(Message { command, reply, .. }) = self.mailbox.take() else { break };
            if matches!(command, Command::Exit) {
                return false;
            }
            let answer = self.carry_out(command);
            let active = self.turns.rings() + self.lanes.iter().map(Lane::receiving_queues).sum::<usize>();
            self.counts.active.store(active as u64, Count::Relaxed);
            self.mailbox.answer(reply, answer);
        }
        true
    }

    fn carry_out(&mut self, command: Command) -> Answer {
        let (sleep, turns) = (&self.sleep, &mut self.turns);
        let done = Answer { done: true, ..Answer::default() };
        match command {
            Command::StartTx(index, engine, openers) => {
                let queue = millrace_abi::queue::QueueId::tx(index);
                let Some(lane) = self.lanes.iter_mut().find(|lane| lane.has(queue)) else { return Answer::default() };
                lane.start_tx(index, engine, openers, sleep, turns);
                done
            }
            Command::StartRx(index, engine, reclaimer, openers, discard) => {
                let queue = millrace_abi::queue::QueueId::rx(index);
                let Some(lane) = self.lanes.iter_mut().find(|lane| lane.has(queue)) else { return Answer::default() };
                lane.start_rx(index, engine, reclaimer, openers, discard, sleep);
                lane.settle_owners(turns);
                done
            }
            Command::Halt(queue) => match self.lanes.iter_mut().find(|lane| lane.has(queue)) {
                Some(lane) => lane.halt(queue, sleep, turns),
                None => Answer::default(),
            },
            Command::Join(queue, opener, cursor) => {
                let lane = self.lanes.iter_mut().find(|lane| lane.has(queue));
                let joined = lane.is_some_and(|lane| lane.join(queue, opener, cursor, sleep, turns));
                Answer { done: joined, ..Answer::default() }
            }
            Command::Leave(queue, id) => {
                let lane = self.lanes.iter_mut().find(|lane| lane.has(queue));
                let opener = lane.and_then(|lane| lane.leave(queue, id, sleep, turns));
                Answer { done: opener.is_some(), openers: opener.into_iter().collect(), ..Answer::default() }
            }
            Command::SetCall(queue, id, call) => {
                let lane = self.lanes.iter_mut().find(|lane| lane.has(queue));
                let known = lane.is_some_and(|lane| lane.set_call(queue, id, &call));
                Answer { done: known, ..Answer::default() }
            }
            Command::AddRing(index, ring, engine, opener) => {
                let queue = millrace_abi::queue::QueueId::tx(index);
                let lane = self.lanes.iter_mut().find(|lane| lane.has(queue));
                let added = lane.is_some_and(|lane| lane.add_ring((index, ring), engine, opener, sleep, turns));
                Answer { done: added, ..Answer::default() }
            }
            Command::DropRing(index, ring) => {
                let queue = millrace_abi::queue::QueueId::tx(index);
                let lane = self.lanes.iter_mut().find(|lane| lane.has(queue));
                lane.map(|lane| lane.drop_ring(index, ring, sleep, turns)).unwrap_or_default()
            }
            Command::Detach(port, what) => {
                let lane = self.lanes.get_mut(port);
                let detached = lane.map(|lane| Box::new(lane.detach(&what, sleep, turns)));
                Answer { done: detached.is_some(), detached, ..Answer::default() }
            }
            Command::Adopt(port, detached) => match self.lanes.get_mut(port) {
                Some(lane) => {
                    lane.adopt(*detached, sleep, turns);
                    done
                }
                None => Answer { detached: Some(detached), ..Answer::default() },
            },
            Command::Shape(port, loopback, patch) => {
                if let Some(lane) = self.lanes.get_mut(port) {
                    (lane.loopback, lane.patch) = (loopback, patch);
                }
                done
            }
            Command::Look(queue) => {
                if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.has(queue)) {
                    lane.look_at_queue(queue.index, turns);
                    announce(&mut self.lanes);
                }
                done
            }
            Command::Pass => {
                self.lanes.iter_mut().for_each(Lane::sync_domains);
                done
            }
            Command::Exit => done,
        }
    }
}

/// Wakes all who sleep and for whom something has come: at the end of an owner's turn, with one fence for all of them.
#[inline(always)]
fn announce(lanes: &mut [Lane]) {
    if lanes.iter().any(Lane::is_touched) {
        wake_fence();
        lanes.iter_mut().for_each(Lane::announce);
    }
}

/// One burst from one item.
#[inline(always)]
fn look_at(lanes: &mut [Lane], item: Item) -> (Look, u32) {
    match item {
        Item::Ring(lane, place) => lanes[lane as usize].look(place as usize),
        Item::PortQueue(lane, place) => look_at_port_queue(lanes, lane as usize, place as usize),
    }
}

#[inline(always)]
fn look_at_port_queue(lanes: &mut [Lane], lane: usize, place: usize) -> (Look, u32) {
    let seen = lanes[lane].look_at_port_queue(place);
    let Some(patch) = lanes[lane].patch.filter(|patch| patch.to != lane) else { return seen };
    let Ok([from, to]) = lanes.get_disjoint_mut([lane, patch.to]) else { return seen };
    match forward(from, place, to, patch) {
        Some(cost) => (Look::Busy, cost),
        None => seen,
    }
}

#[cfg(test)]
mod tests;
