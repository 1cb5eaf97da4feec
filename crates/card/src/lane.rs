//! The path of frames between the queues of a port and its wire. A lane belongs to one worker, so nothing here locks.
//!
//! ```text
//! loopback    tx[i] ring -> rx[i] ring                  one copy, straight from one ring to the other
//! port        tx[*] rings -> port,  port -> rx[first]   until there is a classifier, frames go to the first RX queue
//! ```

use crate::command::{Answer, Opener};
use crate::counters::{Counts, QueueDrop};
use crate::engine::{RxEngine, TxEngine};
use crate::mac::MacLane;
use crate::queue::Queue;
use millrace_abi::control::{CARD_SLEEPS_AT, QueueState, SOFTWARE_SLEEPS_AT};
use millrace_abi::queue::{Laggard, QueueId};
use millrace_dma::{Ordering, Span, Word32, fence};
use millrace_port::{Accept, Port};
use millrace_ring::shared::{Losses, Reclaimer};
use millrace_ring::wake::{Ringer, Sleeper};
use millrace_ring::{Delivery, EngineFault, FrameSink, Served, Verdict};
use std::sync::Arc;
use std::time::Instant;

/// Frames taken from one queue, or from the port, before the next has its turn.
const BUDGET: usize = 64;

/// An opener as the worker sees it.
struct Link {
    opener: Opener,
    // card_sleeps: ours.
    sleeper: Option<Sleeper>,
    // software_sleeps: the opener's.
    ringer: Option<Ringer>,
}

impl Link {
    fn new(opener: Opener) -> Self {
        let word = |at| -> Option<Word32> { opener.control.word32(at).ok() };
        let sleeper = word(CARD_SLEEPS_AT).map(Sleeper::new);
        let ringer = word(SOFTWARE_SLEEPS_AT).map(Ringer::new);
        Self { opener, sleeper, ringer }
    }
}

/// The openers of a queue.
#[derive(Default)]
struct Links(Vec<Link>);

impl Links {
    /// Signals every opener that sleeps. To be called after an update word was stored.
    #[inline(always)]
    fn wake(&self) {
        if self.0.is_empty() {
            return;
        }
        // One fence for all of them; pairs with the fence in `Sleeper::announce` on the openers' side.
        fence(Ordering::SeqCst);
        for link in &self.0 {
            if link.ringer.as_ref().is_some_and(Ringer::claim) {
                // A full eventfd is already readable.
                let _ = rustix::io::write(&link.opener.call, &1u64.to_ne_bytes());
            }
        }
    }

    fn signal_all(&self) {
        for link in &self.0 {
            let _ = rustix::io::write(&link.opener.call, &1u64.to_ne_bytes());
        }
    }

    fn mark_asleep(&self) {
        self.0.iter().filter_map(|link| link.sleeper.as_ref()).for_each(Sleeper::mark);
    }

    fn awake(&self) {
        self.0.iter().filter_map(|link| link.sleeper.as_ref()).for_each(Sleeper::awake);
    }

    fn show(&self, state: QueueState, fault: Option<EngineFault>) {
        for link in &self.0 {
            crate::queue::show_state(&link.opener.control, state, fault);
        }
        self.signal_all();
    }

    fn add(&mut self, opener: Opener, sleep: &crate::sleep::Sleep) {
        sleep.watch(&opener.kick);
        self.0.push(Link::new(opener));
    }

    fn remove(&mut self, id: u32, sleep: &crate::sleep::Sleep) -> Option<Opener> {
        let place = self.0.iter().position(|link| link.opener.id == id)?;
        let opener = self.0.swap_remove(place).opener;
        sleep.forget(&opener.kick);
        Some(opener)
    }

    fn take_all(&mut self, sleep: &crate::sleep::Sleep) -> Vec<Opener> {
        let openers: Vec<Opener> = self.0.drain(..).map(|link| link.opener).collect();
        openers.iter().for_each(|opener| sleep.forget(&opener.kick));
        openers
    }
}

/// An RX queue in its lane.
struct RxSlot {
    queue: Arc<Queue>,
    engine: Option<Box<RxEngine>>,
    // An engine that a fault has stopped; kept for whoever fetches it.
    dead: Option<Box<RxEngine>>,
    reclaimer: Option<Box<Reclaimer>>,
    links: Links,
    discard: bool,
    counts: Counts,
    unpublished: bool,
}

impl RxSlot {
    fn new(queue: Arc<Queue>) -> Self {
        let (links, counts) = (Links::default(), Counts::default());
        Self { queue, engine: None, dead: None, reclaimer: None, links, discard: false, counts, unpublished: false }
    }

    #[inline(always)]
    fn begin(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.sync();
        }
    }

    /// Writes a frame to the ring, or drops and counts it, or says that it has to wait.
    #[inline(always)]
    fn offer(&mut self, header: &[u8], frame: Span<'_>) -> Verdict {
        self.unpublished = true;
        let Some(engine) = &mut self.engine else { return self.not_running(frame) };
        match engine.deliver(header, frame) {
            Ok(Delivery::Stored) => {
                self.counts.passed += 1;
                self.counts.passed_bytes += frame.len() as u64;
                Verdict::Taken
            }
            Ok(Delivery::NoRoom) => self.no_room(header, frame),
            Ok(Delivery::TooLong) => {
                self.counts.drop_frame(QueueDrop::TooLong, frame.len());
                Verdict::Taken
            }
            Err(fault) => self.fault(frame, fault),
        }
    }

    #[cold]
    fn not_running(&mut self, frame: Span<'_>) -> Verdict {
        let reason = if self.dead.is_some() { QueueDrop::Faulted } else { QueueDrop::Stopped };
        self.counts.drop_frame(reason, frame.len());
        Verdict::Taken
    }

    #[cold]
    fn no_room(&mut self, header: &[u8], frame: Span<'_>) -> Verdict {
        self.make_visible();
        // Each turn gives something back, so the ring's size bounds them. A frame may need more than one.
        while self.reclaim() {
            let Some(engine) = &mut self.engine else { break };
            match engine.deliver(header, frame) {
                Ok(Delivery::Stored) => {
                    self.counts.passed += 1;
                    self.counts.passed_bytes += frame.len() as u64;
                    return Verdict::Taken;
                }
                Err(fault) => return self.fault(frame, fault),
                Ok(Delivery::NoRoom | Delivery::TooLong) => {}
            }
        }
        if self.discard {
            self.counts.drop_frame(QueueDrop::NoRoom, frame.len());
            return Verdict::Taken;
        }
        Verdict::Full
    }

    /// Gives the ring what all subscribers have passed.
    #[cold]
    fn reclaim(&mut self) -> bool {
        let Some(reclaimer) = &mut self.reclaimer else { return false };
        let (moved, evicted) = reclaimer.reclaim();
        for id in evicted.into_iter().flatten() {
            if let Some(link) = self.links.0.iter().find(|link| link.opener.id == id) {
                crate::queue::show_state(&link.opener.control, QueueState::Evicted, None);
                let _ = rustix::io::write(&link.opener.call, &1u64.to_ne_bytes());
            }
        }
        moved
    }

    #[cold]
    fn fault(&mut self, frame: Span<'_>, fault: EngineFault) -> Verdict {
        self.make_visible();
        self.counts.drop_frame(QueueDrop::Faulted, frame.len());
        self.counts.iotlb_faults += u64::from(fault.kind == millrace_abi::control::FaultKind::Unmapped);
        self.dead = self.engine.take();
        self.queue.has_faulted(fault);
        self.links.show(QueueState::Faulted(fault.kind), Some(fault));
        Verdict::Taken
    }

    #[inline(always)]
    fn make_visible(&mut self) {
        if let Some(engine) = &mut self.engine
            && engine.publish()
        {
            self.links.wake();
            if let Some(reclaimer) = &mut self.reclaimer {
                reclaimer.mark();
            }
        }
    }

    /// Ends a burst: what was delivered becomes visible, what was counted becomes readable.
    #[inline(always)]
    fn finish(&mut self) {
        if core::mem::take(&mut self.unpublished) {
            self.make_visible();
            if let Some(engine) = &self.engine {
                self.counts.pointers = engine.pointers();
                (self.counts.iotlb_hits, self.counts.iotlb_misses) = engine.iotlb_counts();
            }
            self.queue.counts.publish(&self.counts);
        }
    }
}

/// A ring of a TX queue in its lane. Ring 0 is the one that the registers show; each writer that shares the queue without
/// the driver in between has one more, and the worker gives them their turns.
struct TxSlot {
    queue: Arc<Queue>,
    ring: u32,
    // Place of the queue's counts, which its rings share.
    counts_at: usize,
    engine: Option<Box<TxEngine>>,
    dead: Option<Box<TxEngine>>,
    links: Links,
    // Hits and misses of the engine that are in the counts.
    translations: (u64, u64),
}

impl TxSlot {
    fn new(queue: Arc<Queue>, ring: u32, counts_at: usize) -> Self {
        let (links, translations) = (Links::default(), (0, 0));
        Self { queue, ring, counts_at, engine: None, dead: None, links, translations }
    }

    fn begin(&mut self, engine: Box<TxEngine>) {
        self.translations = engine.iotlb_counts();
        (self.engine, self.dead) = (Some(engine), None);
    }

    #[inline(always)]
    fn pending(&mut self) -> bool {
        self.engine.as_mut().is_some_and(|engine| engine.pending())
    }

    /// Takes over what a burst did, if it did anything: `served` does not name frames that were dropped behind the
    /// ring. `false` when the queue has to leave the active list.
    #[inline(always)]
    fn finish(&mut self, counts: &mut Counts, served: Served, moved: bool) -> bool {
        if moved {
            counts.passed += served.frames;
            counts.passed_bytes += served.bytes;
            counts.drops[QueueDrop::TooShort as usize] += served.too_short;
            counts.drops[QueueDrop::TooLong as usize] += served.too_long;
            if let Some(engine) = &self.engine {
                if self.ring == 0 {
                    counts.pointers = engine.pointers();
                }
                let (hits, misses) = engine.iotlb_counts();
                counts.iotlb_hits += hits - self.translations.0;
                counts.iotlb_misses += misses - self.translations.1;
                self.translations = (hits, misses);
            }
            self.links.wake();
            if let Some(fault) = served.fault {
                self.fault(counts, fault);
            }
            self.queue.counts.publish(counts);
        }
        served.fault.is_none()
    }

    /// A fault stops the ring that it is in; the queue only if that is the one of its registers.
    #[cold]
    fn fault(&mut self, counts: &mut Counts, fault: EngineFault) {
        counts.iotlb_faults += u64::from(fault.kind == millrace_abi::control::FaultKind::Unmapped);
        self.dead = self.engine.take();
        if self.ring == 0 {
            self.queue.has_faulted(fault);
        }
        self.links.show(QueueState::Faulted(fault.kind), Some(fault));
    }

    /// Stops the ring if that was asked for; it must be drained.
    #[cold]
    fn stop(&mut self) {
        self.dead = self.engine.take();
        if self.ring == 0 {
            self.queue.has_stopped();
        }
        self.links.show(QueueState::Stopped, None);
    }

    /// Takes everything off it, at once.
    fn halt(&mut self, sleep: &crate::sleep::Sleep, answer: &mut Answer) {
        answer.tx.extend(self.engine.take().or_else(|| self.dead.take()).map(|engine| *engine));
        self.links.show(QueueState::Stopped, None);
        answer.openers.extend(self.links.take_all(sleep));
    }
}

/// What is behind the queues.
enum Wire {
    Loopback,
    Port(Box<dyn Port>),
}

/// Queues and the wire behind them.
pub(crate) struct Lane {
    wire: Wire,
    mac: MacLane,
    // By index of their queues, ascending; behind them in `tx`, further rings of the same queues.
    rx: Vec<RxSlot>,
    tx: Vec<TxSlot>,
    tx_counts: Vec<Counts>,
    // Places in `tx` of the rings that run: the only ones a pass looks at.
    active_tx: Vec<usize>,
}

impl Lane {
    pub fn loopback(mac: MacLane, rx: Vec<Arc<Queue>>, tx: Vec<Arc<Queue>>) -> Self {
        Self::new(Wire::Loopback, mac, rx, tx)
    }

    pub fn port(mac: MacLane, port: Box<dyn Port>, rx: Vec<Arc<Queue>>, tx: Vec<Arc<Queue>>) -> Self {
        Self::new(Wire::Port(port), mac, rx, tx)
    }

    fn new(wire: Wire, mac: MacLane, rx: Vec<Arc<Queue>>, tx: Vec<Arc<Queue>>) -> Self {
        let (active_tx, tx_counts) = (Vec::with_capacity(tx.len()), vec![Counts::default(); tx.len()]);
        let rx = rx.into_iter().map(RxSlot::new).collect();
        let tx = tx.into_iter().enumerate().map(|(place, queue)| TxSlot::new(queue, 0, place)).collect();
        Self { wire, mac, rx, tx, tx_counts, active_tx }
    }

    /// Once through the lane. `true` when a frame moved or a queue stopped.
    #[inline]
    pub fn pass(&mut self) -> bool {
        let mut worked = false;
        let mut place = 0;
        while let Some(&at) = self.active_tx.get(place) {
            let slot = &mut self.tx[at];
            if slot.pending() {
                self.mac.refresh();
                let counts = &mut self.tx_counts[slot.counts_at];
                let (served, stays) = match &mut self.wire {
                    _ if !self.mac.lets_out() => refuse(slot, counts, &mut self.mac),
                    Wire::Loopback => loop_back(slot, counts, &mut self.rx, false, &mut self.mac),
                    Wire::Port(_) if self.mac.rules.looped => {
                        loop_back(slot, counts, &mut self.rx, true, &mut self.mac)
                    }
                    Wire::Port(port) => transmit(slot, counts, port.as_mut(), &mut self.mac),
                };
                worked |= served;
                if !stays {
                    self.active_tx.remove(place);
                    continue;
                }
            } else if slot.queue.stop_is_asked() && !slot.pending() {
                // Looked at again: what was sent before the stop was asked for must not be left behind.
                slot.stop();
                self.active_tx.remove(place);
                worked = true;
                continue;
            }
            place += 1;
        }
        if let Wire::Port(port) = &mut self.wire {
            worked |= receive(port.as_mut(), &mut self.rx, &mut self.mac);
        }
        worked
    }

    /// Queues that run.
    pub fn active_queues(&self) -> usize {
        self.active_tx.len() + self.rx.iter().filter(|slot| slot.engine.is_some()).count()
    }

    /// Sets every `card_sleeps`. The caller makes the fence, then passes once more before it sleeps.
    pub fn mark_asleep(&self) {
        self.active_tx.iter().for_each(|&at| self.tx[at].links.mark_asleep());
        self.rx.iter().filter(|slot| slot.engine.is_some()).for_each(|slot| slot.links.mark_asleep());
    }

    pub fn awake(&self) {
        self.active_tx.iter().for_each(|&at| self.tx[at].links.awake());
        self.rx.iter().filter(|slot| slot.engine.is_some()).for_each(|slot| slot.links.awake());
    }

    /// When the port wants to be looked at by the clock.
    pub fn next_due(&self) -> Option<Instant> {
        match &self.wire {
            Wire::Port(port) => port.next_due().filter(|_| self.may_receive(port.as_ref())),
            Wire::Loopback => None,
        }
    }

    fn may_receive(&self, port: &dyn Port) -> bool {
        !port.can_wait() || self.rx.first().is_some_and(|slot| slot.engine.is_some())
    }

    pub fn watch_port(&self, sleep: &crate::sleep::Sleep) {
        if let Wire::Port(port) = &self.wire
            && let Some(fd) = port.wake_fd()
        {
            sleep.watch_level(fd);
        }
    }

    /// Takes over changes of all domains, running or not.
    pub fn sync_domains(&mut self) {
        for slot in &mut self.rx {
            [&mut slot.engine, &mut slot.dead].into_iter().flatten().for_each(|engine| engine.sync());
        }
        for slot in &mut self.tx {
            [&mut slot.engine, &mut slot.dead].into_iter().flatten().for_each(|engine| engine.sync());
        }
    }

    fn rx_slot(&mut self, index: u32) -> Option<&mut RxSlot> {
        self.rx.iter_mut().find(|slot| slot.queue.id.index == index)
    }

    fn tx_place(&self, index: u32) -> Option<usize> {
        self.tx.iter().position(|slot| slot.queue.id.index == index)
    }

    /// Whether the queue is served by this lane.
    pub fn has(&self, queue: QueueId) -> bool {
        match queue.direction {
            millrace_abi::queue::Direction::Rx => self.rx.iter().any(|slot| slot.queue.id == queue),
            millrace_abi::queue::Direction::Tx => self.tx.iter().any(|slot| slot.queue.id == queue),
        }
    }

    pub fn start_tx(&mut self, index: u32, engine: Box<TxEngine>, openers: Vec<Opener>, sleep: &crate::sleep::Sleep) {
        let Some(place) = self.tx_place(index) else { return };
        let (slot, counts) = (&mut self.tx[place], &mut self.tx_counts[place]);
        counts.pointers = engine.pointers();
        slot.queue.counts.publish(counts);
        slot.begin(engine);
        openers.into_iter().for_each(|opener| slot.links.add(opener, sleep));
        slot.links.show(QueueState::Running, None);
        self.activate(place);
    }

    fn activate(&mut self, place: usize) {
        if !self.active_tx.contains(&place) {
            self.active_tx.push(place);
        }
    }

    /// Adds a ring to a TX queue that runs.
    pub fn add_ring(
        &mut self,
        index: u32,
        ring: u32,
        engine: Box<TxEngine>,
        opener: Opener,
        sleep: &crate::sleep::Sleep,
    ) -> bool {
        let Some(first) = self.tx_place(index) else { return false };
        let queue = self.tx[first].queue.clone();
        // A place that a ring of this queue has left, or one more.
        let left = |slot: &TxSlot| slot.ring != 0 && slot.counts_at == first && slot.links.0.is_empty();
        let place = self.tx.iter().position(left).unwrap_or(self.tx.len());
        if place == self.tx.len() {
            self.tx.push(TxSlot::new(queue, ring, first));
        }
        let slot = &mut self.tx[place];
        slot.ring = ring;
        slot.begin(engine);
        slot.links.add(opener, sleep);
        slot.links.show(QueueState::Running, None);
        self.activate(place);
        true
    }

    /// Takes a ring off a TX queue at once. What it held comes back.
    pub fn drop_ring(&mut self, index: u32, ring: u32, sleep: &crate::sleep::Sleep) -> Answer {
        let mut answer = Answer::default();
        let place = self.tx.iter().position(|slot| slot.queue.id.index == index && slot.ring == ring);
        if let Some(place) = place.filter(|_| ring != 0) {
            self.active_tx.retain(|&at| at != place);
            self.tx[place].halt(sleep, &mut answer);
            answer.done = true;
        }
        answer
    }

    pub fn start_rx(
        &mut self,
        index: u32,
        engine: Box<RxEngine>,
        reclaimer: Option<Box<Reclaimer>>,
        openers: Vec<Opener>,
        discard: bool,
        sleep: &crate::sleep::Sleep,
    ) {
        let Some(slot) = self.rx_slot(index) else { return };
        slot.engine = Some(engine);
        slot.reclaimer = reclaimer;
        slot.discard = discard;
        slot.dead = None;
        slot.unpublished = true;
        openers.into_iter().for_each(|opener| slot.links.add(opener, sleep));
        slot.links.show(QueueState::Running, None);
        slot.finish();
    }

    /// Stops a queue at once. What it held comes back.
    pub fn halt(&mut self, queue: QueueId, sleep: &crate::sleep::Sleep) -> Answer {
        let mut answer = Answer { done: true, ..Answer::default() };
        match queue.direction {
            millrace_abi::queue::Direction::Rx => {
                let Some(slot) = self.rx_slot(queue.index) else { return answer };
                slot.finish();
                answer.rx = slot.engine.take().or_else(|| slot.dead.take());
                answer.reclaimer = slot.reclaimer.take();
                slot.links.show(QueueState::Stopped, None);
                answer.openers = slot.links.take_all(sleep);
                slot.queue.has_stopped();
            }
            millrace_abi::queue::Direction::Tx => {
                let Some(first) = self.tx_place(queue.index) else { return answer };
                let tx = &mut self.tx;
                self.active_tx.retain(|&at| tx[at].counts_at != first);
                tx.iter_mut().filter(|slot| slot.counts_at == first).for_each(|slot| slot.halt(sleep, &mut answer));
                tx[first].queue.has_stopped();
            }
        }
        answer
    }

    pub fn join(
        &mut self,
        queue: QueueId,
        opener: Opener,
        cursor: Option<(Laggard, Arc<Losses>)>,
        sleep: &crate::sleep::Sleep,
    ) -> bool {
        let links = match queue.direction {
            millrace_abi::queue::Direction::Rx => {
                let Some(slot) = self.rx_slot(queue.index) else { return false };
                if let Some((policy, losses)) = cursor {
                    let word = opener.control.word64(millrace_abi::control::DOORBELL_AT);
                    let (Ok(word), Some(reclaimer)) = (word, &mut slot.reclaimer) else { return false };
                    if !reclaimer.join(opener.id, word, policy, losses) {
                        return false;
                    }
                }
                &mut slot.links
            }
            millrace_abi::queue::Direction::Tx => match self.tx_place(queue.index) {
                Some(place) => &mut self.tx[place].links,
                None => return false,
            },
        };
        crate::queue::show_state(&opener.control, QueueState::Running, None);
        links.add(opener, sleep);
        true
    }

    pub fn leave(&mut self, queue: QueueId, id: u32, sleep: &crate::sleep::Sleep) -> Option<Opener> {
        match queue.direction {
            millrace_abi::queue::Direction::Rx => {
                let slot = self.rx_slot(queue.index)?;
                if let Some(reclaimer) = &mut slot.reclaimer {
                    reclaimer.leave(id);
                }
                slot.links.remove(id, sleep)
            }
            millrace_abi::queue::Direction::Tx => {
                let place = self.tx_place(queue.index)?;
                self.tx[place].links.remove(id, sleep)
            }
        }
    }
}

/// One burst from a TX queue that a disabled MAC, or one without a link, takes and drops. Returns whether anything moved,
/// and whether the TX queue stays active.
#[cold]
fn refuse(tx: &mut TxSlot, counts: &mut Counts, mac: &mut MacLane) -> (bool, bool) {
    let Some(engine) = &mut tx.engine else { return (false, true) };
    let served = engine.serve(BUDGET, &mut |_: Span<'_>| Verdict::Taken);
    mac.tx.refuse(&mac.rules, served.frames, served.bytes);
    end_of_burst(tx, counts, served, mac)
}

/// One burst from a TX queue to the RX queue of the same index; if there is none, to the first where `or_first` says so.
/// Returns as [`refuse`].
#[inline(always)]
fn loop_back(
    tx: &mut TxSlot,
    counts: &mut Counts,
    rx: &mut [RxSlot],
    or_first: bool,
    mac: &mut MacLane,
) -> (bool, bool) {
    let place = tx.counts_at;
    let index = tx.queue.id.index;
    // RX and TX of a loopback lane mostly list the same indices, so the first guess is right.
    let at = match rx.get(place) {
        Some(slot) if slot.queue.id.index == index => Some(place),
        _ => rx.iter().position(|slot| slot.queue.id.index == index).or(or_first.then_some(0)),
    };
    let Some(engine) = &mut tx.engine else { return (false, true) };
    let Some(rx) = at.and_then(|at| rx.get_mut(at)) else {
        let served = engine.serve(BUDGET, &mut |_: Span<'_>| Verdict::Taken);
        counts.drops[QueueDrop::NoWire as usize] += served.frames;
        counts.dropped_bytes += served.bytes;
        return end_of_burst(tx, counts, Served { frames: 0, bytes: 0, ..served }, mac);
    };
    rx.begin();
    let MacLane { rules, rx: receiver, stamper, .. } = mac;
    let served = engine.serve(BUDGET, &mut |frame: Span<'_>| {
        receiver.admit(rules, frame, true, |frame| rx.offer(stamper.metadata(), frame))
    });
    rx.finish();
    mac.tx.loop_back(served.frames, served.bytes);
    end_of_burst(tx, counts, served, mac)
}

/// Publishes what the MAC counted, then what the queue did: who sees that a frame has left the ring finds it counted.
#[inline(always)]
fn end_of_burst(tx: &mut TxSlot, counts: &mut Counts, served: Served, mac: &mut MacLane) -> (bool, bool) {
    mac.publish();
    let moved = served != Served::default();
    (moved, tx.finish(counts, served, moved))
}

/// A port as the sink of a TX ring.
struct PortSink<'p>(&'p mut dyn Port);

impl FrameSink for PortSink<'_> {
    fn take(&mut self, frame: Span<'_>) -> Verdict {
        if self.take_burst(&[frame]) == 1 { Verdict::Taken } else { Verdict::Full }
    }

    #[inline(always)]
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        // What it dropped is in its counters, by reason.
        self.0.transmit_burst(frames).taken
    }
}

/// One burst from a TX queue to the port. Returns as [`refuse`].
#[inline(always)]
fn transmit(tx: &mut TxSlot, counts: &mut Counts, port: &mut dyn Port, mac: &mut MacLane) -> (bool, bool) {
    let Some(engine) = &mut tx.engine else { return (false, true) };
    let served = engine.serve(BUDGET, &mut PortSink(port));
    port.flush();
    mac.tx.hand_over(served.bytes);
    mac.mirror(port.counters());
    end_of_burst(tx, counts, served, mac)
}

/// One burst from the port to the first RX queue.
#[inline(always)]
fn receive(port: &mut dyn Port, rx: &mut [RxSlot], mac: &mut MacLane) -> bool {
    let Some(rx) = rx.first_mut() else { return false };
    let waits = port.can_wait();
    if rx.engine.is_none() && waits {
        // A source that can wait does so until somebody starts to listen.
        return false;
    }
    mac.refresh();
    rx.begin();
    let MacLane { rules, rx: receiver, stamper, .. } = mac;
    let taken = if rules.looped || !rules.link_up {
        port.receive(BUDGET, &mut |_: Span<'_>| {
            receiver.ignore(rules);
            Accept::Taken
        })
    } else {
        port.receive(BUDGET, &mut |frame: Span<'_>| match receiver
            .admit(rules, frame, waits, |frame| rx.offer(stamper.metadata(), frame))
        {
            Verdict::Taken => Accept::Taken,
            Verdict::Full => Accept::Full,
        })
    };
    rx.finish();
    mac.mirror(port.counters());
    mac.publish();
    taken > 0
}
