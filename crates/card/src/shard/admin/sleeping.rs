//! Falling asleep, and waking up.

use crate::shard::slots::PortSlot;
use crate::shard::state::{NOWHERE, Shard};
use crate::sleep::Sleep;
use crate::turns::{ColdRing, Item};
use std::time::{Duration, Instant};

impl Shard {
    /// A ring was quiet for long; see [`TxSlot::cool`](crate::shard::TxSlot::cool). Nothing else is ever cold.
    #[cold]
    pub fn cool(&mut self, item: Item) -> Option<ColdRing> {
        match item {
            Item::Ring(at) => self.tx[at as usize].cool(item),
            Item::PortQueue(_) | Item::Crossing(_) => None,
        }
    }

    /// Sets `card_sleeps` of these TX rings and of those RX queues for whose room somebody waits, and has every port queue signal
    /// what comes. The caller makes the fence, then passes once more before it sleeps, unless [`Shard::wants_more`]. A port queue
    /// is watched only as long as that: Linux looks for whom to wake at every frame of a socket that somebody watches.
    pub fn mark_asleep(&mut self, hot: impl Iterator<Item = Item>, sleep: &Sleep) {
        self.mark_wanted();
        self.port_queues.iter_mut().for_each(|(_, port_queue)| port_queue.prepare_sleep(sleep));
        for item in hot {
            if let Item::Ring(at) = item {
                self.tx[at as usize].openers.mark_asleep();
            }
        }
        if let Some(classifying) = &mut self.classifying {
            classifying.mark_asleep();
        }
    }

    /// Room in an RX queue is for frames that wait for it: whoever found none has noted that in each pass before. A port that
    /// works on a pool wants every buffer that is posted.
    fn mark_wanted(&mut self) {
        let Self { wanted, marked, port_queues, rx, rx_places, .. } = self;
        marked.clear();
        wanted.take_all(|queue| marked.push(queue));
        let on_loan = port_queues.iter().filter_map(|(_, slot)| slot.on_loan.as_ref());
        marked.extend(on_loan.map(|on_loan| on_loan.loan.queue.index));
        marked.sort_unstable();
        // Those that have gone, or do not run any more, are nobody's.
        marked.retain(|&queue| {
            let slot = rx_places.get(queue as usize).and_then(|&place| rx.get(place as usize));
            let slot = slot.filter(|slot| slot.is_running());
            slot.inspect(|slot| slot.openers.mark_asleep()).is_some()
        });
    }

    /// Whether the pass since [`Shard::mark_asleep`] has found no room in an RX queue that does not say that the card sleeps: its
    /// program would not wake it.
    pub fn wants_more(&self) -> bool {
        self.wanted.has_others(&self.marked)
    }

    /// There is nothing to do for a while: shows what was counted.
    pub fn rest(&mut self) {
        if let Some(classifying) = &mut self.classifying {
            classifying.show();
        }
    }

    /// The opposite of [`Shard::mark_asleep`].
    pub fn awake(&mut self, hot: impl Iterator<Item = Item>, sleep: &Sleep) {
        for queue in self.marked.drain(..) {
            let place = self.rx_places.get(queue as usize).map_or(NOWHERE, |&place| place);
            self.rx.get(place as usize).into_iter().for_each(|slot| slot.openers.awake());
        }
        self.port_queues.iter_mut().for_each(|(_, port_queue)| port_queue.awake(sleep));
        for item in hot {
            if let Item::Ring(at) = item {
                self.tx[at as usize].openers.awake();
            }
        }
        if let Some(classifying) = &mut self.classifying {
            classifying.awake();
        }
    }

    /// RX queues that run.
    pub fn receiving_queues(&self) -> usize {
        self.receiving
    }

    /// When the ring's next frame wants to leave, in ns of the oscillator; `None`: there is none that waits.
    fn launch_at(&self, item: Item) -> Option<u64> {
        let Item::Ring(at) = item else { return None };
        let left = self.tx[at as usize].launch_in(&self.clock)?;
        Some(self.clock.ticks_after(left.as_nanos() as u64))
    }

    /// How long a worker may sleep for what leaves at `until`, in ns of the oscillator, to be up so much earlier.
    pub fn sleep_until(&self, until: u64, early: Duration) -> Duration {
        Duration::from_nanos(until.saturating_sub(self.clock.ticks())).saturating_sub(early)
    }

    /// When a port queue, or a frame with a launch time in one of these rings, wants to be looked at by the clock: such a
    /// frame so much earlier.
    pub fn next_due(&self, hot: impl Iterator<Item = Item>, now: Instant, early: Duration) -> Option<Instant> {
        let port_queues = self.port_queues.iter().map(|(_, port_queue)| port_queue);
        let port_queues = port_queues.filter(|port_queue| self.may_receive(port_queue)).filter_map(PortSlot::next_due);
        let in_ports = self.port_queues.iter().filter_map(|(_, slot)| slot.parked.as_ref());
        let in_ports = in_ports.map(|parked| now + parked.retry_after());
        // A ring with frames that are parked has turns.
        let rings = hot.filter_map(|item| {
            let Item::Ring(at) = item else { return None };
            let retry = self.tx[at as usize].parked.as_ref().map(|parked| now + parked.retry_after());
            retry.into_iter().chain(self.launch_at(item).map(|until| now + self.sleep_until(until, early))).min()
        });
        port_queues.chain(rings).chain(in_ports).min()
    }

    fn may_receive(&self, port_queue: &PortSlot) -> bool {
        let listens = || port_queue.rx_at.is_some_and(|at| self.rx[at].is_running());
        let patched = self.ports[port_queue.port].shape.patch.is_some();
        let plays = self.has_rules() && port_queue.parked.is_none();
        patched || !port_queue.queue.can_wait() || listens() || plays
    }
}
