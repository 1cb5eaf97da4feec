//! A thread that polls lanes, and sleeps when all of them are quiet.

use crate::command::{Answer, Command, Mailbox};
use crate::lane::{Lane, forward};
use crate::sleep::Sleep;
use millrace_dma::{Ordering, fence};
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
    pub mailbox: Arc<Mailbox>,
    pub counts: Arc<WorkerCounts>,
    pub sleep: Sleep,
    pub poll: bool,
    pub spin: Duration,
    /// Some ports are connected with each other.
    pub patched: bool,
}

/// Passes between two looks at the clock: a look costs as much as a pass over an idle queue.
const PASSES_PER_LOOK: u32 = 64;

impl Worker {
    pub fn run(mut self) {
        self.sleep.watch(&self.mailbox.wake);
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

    #[inline(always)]
    fn pass(&mut self) -> bool {
        let mut worked = false;
        for lane in &mut self.lanes {
            worked |= lane.pass();
        }
        if self.patched {
            worked |= self.pass_patches();
        }
        worked
    }

    /// Frames between ports that are connected with each other.
    fn pass_patches(&mut self) -> bool {
        let mut worked = false;
        for at in 0..self.lanes.len() {
            if let Some(patch) = self.lanes[at].patch
                && let Ok([from, to]) = self.lanes.get_disjoint_mut([at, patch.to])
            {
                worked |= forward(from, to, patch);
            }
        }
        worked
    }

    /// As [`Worker::pass`], and looks at every queue however quiet it was.
    fn pass_all(&mut self) -> bool {
        let worked = self.lanes.iter_mut().fold(false, |worked, lane| lane.pass_all() | worked);
        self.pass_patches() | worked
    }

    /// The sleeper's side of `millrace_ring::wake`, for all queues at once: flags, one fence, one more pass.
    #[cold]
    fn fall_asleep(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.mark_asleep(&self.sleep));
        // Pairs with the fence in `Ringer::must_signal`.
        fence(Ordering::SeqCst);
        let quiet = !self.pass_all() && !self.mailbox.is_waiting();
        // Behind the pass, which may have met a frame that waits for its launch time.
        let due = self.lanes.iter().filter_map(Lane::next_due).min();
        let most = due.map(|due| due.saturating_duration_since(Instant::now()));
        if quiet && most != Some(Duration::ZERO) {
            let sleeps = self.counts.sleeps.load(Count::Relaxed);
            self.counts.sleeps.store(sleeps + 1, Count::Relaxed);
            self.sleep.sleep(most);
        }
        self.lanes.iter_mut().for_each(|lane| lane.awake(&self.sleep));
    }

    /// Carries out what the control side asks for. `false`: the thread ends.
    #[cold]
    fn obey(&mut self) -> bool {
        let mut goes_on = true;
        // Whatever came, the control side may be waiting for the domains.
        self.lanes.iter_mut().for_each(Lane::sync_domains);
        for (command, reply) in self.mailbox.take() {
            goes_on &= !matches!(command, Command::Exit);
            let answer = self.carry_out(command);
            let active: usize = self.lanes.iter().map(Lane::active_queues).sum();
            self.counts.active.store(active as u64, Count::Relaxed);
            if let Some(reply) = reply {
                // Nobody listens any more: the answer is dropped here instead of there.
                let _ = reply.try_send(answer);
            }
        }
        goes_on
    }

    fn carry_out(&mut self, command: Command) -> Answer {
        let sleep = &self.sleep;
        let done = Answer { done: true, ..Answer::default() };
        match command {
            Command::StartTx(index, engine, openers) => {
                let queue = millrace_abi::queue::QueueId::tx(index);
                let Some(lane) = self.lanes.iter_mut().find(|lane| lane.has(queue)) else { return Answer::default() };
                lane.start_tx(index, engine, openers, sleep);
                done
            }
            Command::StartRx(index, engine, reclaimer, openers, discard) => {
                let queue = millrace_abi::queue::QueueId::rx(index);
                let Some(lane) = self.lanes.iter_mut().find(|lane| lane.has(queue)) else { return Answer::default() };
                lane.start_rx(index, engine, reclaimer, openers, discard, sleep);
                done
            }
            Command::Halt(queue) => match self.lanes.iter_mut().find(|lane| lane.has(queue)) {
                Some(lane) => lane.halt(queue, sleep),
                None => Answer::default(),
            },
            Command::Join(queue, opener, cursor) => {
                let lane = self.lanes.iter_mut().find(|lane| lane.has(queue));
                let joined = lane.is_some_and(|lane| lane.join(queue, opener, cursor, sleep));
                Answer { done: joined, ..Answer::default() }
            }
            Command::Leave(queue, id) => {
                let lane = self.lanes.iter_mut().find(|lane| lane.has(queue));
                let opener = lane.and_then(|lane| lane.leave(queue, id, sleep));
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
                let added = lane.is_some_and(|lane| lane.add_ring(index, ring, engine, opener, sleep));
                Answer { done: added, ..Answer::default() }
            }
            Command::DropRing(index, ring) => {
                let queue = millrace_abi::queue::QueueId::tx(index);
                let lane = self.lanes.iter_mut().find(|lane| lane.has(queue));
                lane.map(|lane| lane.drop_ring(index, ring, sleep)).unwrap_or_default()
            }
            Command::Pack(port, packing) => {
                let lane = self.lanes.get_mut(port);
                let parcel = lane.map(|lane| Box::new(lane.pack(&packing, sleep)));
                Answer { done: parcel.is_some(), parcel, ..Answer::default() }
            }
            Command::Unpack(port, parcel) => match self.lanes.get_mut(port) {
                Some(lane) => {
                    lane.unpack(*parcel, sleep);
                    done
                }
                None => Answer { parcel: Some(parcel), ..Answer::default() },
            },
            Command::Shape(port, loopback, patch) => {
                if let Some(lane) = self.lanes.get_mut(port) {
                    (lane.loopback, lane.patch) = (loopback, patch);
                }
                self.patched = self.lanes.iter().any(|lane| lane.patch.is_some());
                done
            }
            Command::Pass => {
                self.pass_all();
                done
            }
            Command::Exit => done,
        }
    }
}
