//! A port queue of a port in its lane, and the way of frames between it and the queues.

use super::BUDGET;
use super::lent::{self, OnLoan};
use super::rx::RxSlot;
use super::sink::{MacSink, RingTarget};
use super::tx::TxSlot;
use crate::counters::Counts;
use crate::mac::MacLane;
use crate::sleep::Sleep;
use crate::turns::cost;
use millrace_dma::Span;
use millrace_packet::offload::Offloads;
use millrace_port::{Accept, PortQueue};
use millrace_ring::FrameSink;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// One queue of what is plugged into a port.
pub(crate) struct PortSlot {
    /// Its number among the port queues of the port.
    pub number: u32,
    pub port: Box<dyn PortQueue>,
    /// What sends while `port` receives, if it can: for a port queue that is connected with itself.
    pub sender: Option<Box<dyn PortQueue>>,
    // What the worker sleeps on. An fd of our own: the port may have given up its by the time it is awake.
    watched: Option<OwnedFd>,
    /// Place in the lane of the RX queue that its frames go to.
    pub rx_at: Option<usize>,
    /// Memory of an application that `port` works on.
    pub on_loan: Option<OnLoan>,
}

impl PortSlot {
    pub fn new(number: u32, port: Box<dyn PortQueue>) -> Self {
        let sender = port.sender();
        Self { number, port, sender, watched: None, rx_at: None, on_loan: None }
    }

    pub fn prepare_sleep(&mut self, sleep: &Sleep) {
        self.port.prepare_sleep();
        self.watched = self.port.wake_fd().and_then(|fd| fd.try_clone_to_owned().ok());
        self.watched.iter().for_each(|fd| sleep.watch_level(fd));
    }

    /// When the port queue wants to be looked at by the clock, of a worker that is about to sleep.
    pub fn next_due(&self) -> Option<Instant> {
        // There was no fd to spare: better awake than deaf.
        let deaf = self.watched.is_none() && self.port.wake_fd().is_some();
        if deaf {
            return Some(Instant::now());
        }
        let sending = self.on_loan.as_ref().is_some_and(OnLoan::is_sending);
        let until_sent = sending.then(|| Instant::now() + lent::REAP_INTERVAL);
        self.port.next_due().into_iter().chain(until_sent).min()
    }

    pub fn awake(&mut self, sleep: &Sleep) {
        self.watched.take().iter().for_each(|fd| sleep.forget_level(fd));
        self.port.awake();
    }
}

/// A port as the sink of a TX ring.
struct PortSink<'p>(&'p mut dyn PortQueue);

impl FrameSink for PortSink<'_> {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        if self.take_burst(&[frame]) == 1 { Accept::Taken } else { Accept::Full }
    }

    #[inline(always)]
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        // What it dropped is in its counters, by reason.
        self.0.transmit_burst(frames).taken
    }
}

/// One burst from a TX queue, whose place in the lane this is, to a port queue. Returns as [`super::refuse`].
#[inline(always)]
pub(super) fn transmit(
    port_queue: &mut PortSlot,
    place: usize,
    tx: &mut TxSlot,
    counts: &mut Counts,
    mac: &mut MacLane,
) -> (bool, bool) {
    if lent::holds_next(port_queue, tx)
        && let Some(outcome) = lent::transmit(port_queue, place, tx, counts, mac)
    {
        return outcome;
    }
    let port = port_queue.port.as_mut();
    let Some(engine) = tx.engine.running_mut() else { return (false, true) };
    let copies = port.counters().tx_copies();
    let served = engine.serve(BUDGET, &mut PortSink(port));
    port.flush();
    counts.copies += port.counters().tx_copies() - copies;
    mac.tx.count_sent(served.bytes);
    super::end_of_burst(tx, counts, served, mac)
}

/// One burst from a port queue to its RX queue. Returns what it is charged with if there was anything.
#[inline(always)]
pub(super) fn receive(port_queue: &mut PortSlot, rx: &mut [RxSlot], mac: &mut MacLane) -> Option<u32> {
    let queue = port_queue.rx_at.and_then(|at| rx.get_mut(at))?;
    let waits = port_queue.port.can_wait();
    if !queue.is_running() && waits {
        // A source that can wait does so until somebody starts to listen.
        return None;
    }
    let bytes = queue.bytes();
    mac.refresh();
    queue.begin();
    let copies = port_queue.port.counters().rx_copies();
    let taken = if mac.is_cut_off() {
        receive_nothing(port_queue.port.as_mut(), mac)
    } else if port_queue.on_loan.is_some() {
        lent::receive(port_queue, queue, mac)
    } else {
        let MacLane { rules, rx: receiver, stamper, .. } = mac;
        let behind = RingTarget { queue, stamper };
        port_queue.port.receive(BUDGET, &mut MacSink { rules, receiver, waits, offloads: Offloads::NONE, behind })
    };
    queue.count_copies(port_queue.port.counters().rx_copies() - copies);
    queue.finish();
    mac.publish();
    (taken > 0).then(|| cost::of(taken as u64, queue.bytes() - bytes))
}

/// Takes frames from a port queue that the MAC does not listen to.
#[cold]
pub(super) fn receive_nothing(port: &mut dyn PortQueue, mac: &mut MacLane) -> usize {
    let MacLane { rules, rx: receiver, .. } = mac;
    port.receive(BUDGET, &mut |_: Span<'_>| {
        receiver.ignore(rules);
        Accept::Taken
    })
}
