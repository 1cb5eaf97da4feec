//! `virtio-user:PATH[,client|server,queues=N]`: a wire into somebody else's switch, plugged in as a virtual machine would be.
//!
//! At the other end is a vhost-user back end: a port of Open vSwitch or of DPDK's `net_vhost`, or the `vhost-user` port
//! of another card. The card is the virtio driver: rings and buffers lie in memory of ours, which the other side maps.
//! A frame to it is copied once, into a buffer; one from it goes to the card from where the other side has put it,
//! unless it lies in several buffers or something is left to do on it, which the card cannot take. It is a live wire: a
//! frame for which the card has no room is dropped. A frame for which the other side has given back no buffer waits in
//! the card.
//!
//! Each pair of queues is a port of its own. A thread per socket looks for the other side and brings the queues up
//! ([`Device`], which `millrace bench peers` uses as well); they reach the worker through a slot with a lock that the
//! worker only ever tries. Every connection has fresh memory: who had the last one can do no harm to this one. Nothing
//! that the other side writes is believed ([`millrace_ring::virtio::driver`]); a queue in which it does what no device
//! may do is stopped, the reason stands in `mode`, and the next connection begins anew.

mod connection;
mod device;
mod lent;
mod lent_queue;
mod loans;
mod memory;
mod pair;
mod queue;
#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
mod tests;

pub use device::{Device, DeviceError, Pair, Wishes};
pub use memory::{Buffers, Layout, Shared};
pub use millrace_ring::virtio::driver::{Agreed, CAPACITY, Size};

use crate::null::check_len;
use crate::peer::{ControlThread, Run, SocketError, in_runs, show_stop};
use crate::unfinished::{check_unfinished_len, deliver};
use crate::{
    Burst, DropReason, Lendable, MAX_FRAME_LEN, MIN_FRAME_LEN, PortCounters, PortQueue, Sink, TxOutcome,
    spec::VirtioUserSpec,
};
use loans::Loans;
use millrace_dma::Span;
use millrace_packet::offload::{Offload, Offloads, VIRTIO_HEADER_LEN};
use millrace_ring::virtio::NetHeader;
use millrace_ring::virtio::driver::{RxQueue, TxQueue};
use pair::settle;
use queue::{BATCH, Queue, Received, Stopped};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// One pair of queues of a device that somebody else serves.
pub struct VirtioUserPort {
    pair: Arc<pair::Pair>,
    /// Its number.
    number: usize,
    /// Something was stored that the other side does not see yet.
    unpublished: bool,
    /// Frames are received into memory of an application.
    works_on_pool: bool,
    wire: Arc<Wire>,
}

/// What the pairs of a wire have in common.
struct Wire {
    loans: Arc<Loans>,
    control: ControlThread,
}

/// Begins to look for the other side, and makes a port for each pair of queues.
///
/// # Errors
/// [`SocketError`].
pub fn open(spec: &VirtioUserSpec) -> Result<Vec<VirtioUserPort>, SocketError> {
    let failed = |source: rustix::io::Errno| SocketError::System {
        step: "prepare",
        path: PathBuf::from(&spec.path),
        source: source.into(),
    };
    let pairs = (0..spec.queues).map(|_| pair::Pair::new().map(Arc::new)).collect::<Result<Vec<_>, _>>();
    let pairs: Arc<[_]> = pairs.map_err(failed)?.into();
    let loans = Arc::new(Loans::new(pairs.len()).map_err(failed)?);
    let control = connection::start(spec, pairs.clone(), loans.clone())?;
    let wire = Arc::new(Wire { loans, control });
    let port = |(number, pair): (usize, &Arc<pair::Pair>)| VirtioUserPort::new(number, pair.clone(), wire.clone());
    Ok(pairs.iter().enumerate().map(port).collect())
}

/// Frames on their way from a ring to the card.
struct Receiver<'a> {
    queue: &'a mut Queue<RxQueue>,
    sink: &'a mut dyn Sink,
    counters: &'a PortCounters,
    found: Received,
}

impl Receiver<'_> {
    fn run(mut self, budget: usize) -> Received {
        let mut left = budget;
        while left > 0 && !self.found.full {
            let count = self.queue.ring.poll(left.min(BATCH));
            if count == 0 {
                break;
            }
            left -= count;
            let mut at = 0;
            while at < count && !self.found.full {
                at += match self.take_run(at, count) {
                    0 => self.take_other(at),
                    taken => taken,
                };
            }
            // The card is full, and it is a live wire.
            self.found.no_room += (count - at) as u64;
        }
        self.queue.ring.recycle();
        self.found
    }

    /// Whether something may be left to do on a frame.
    #[inline(always)]
    fn is_unfinished(&self, at: usize) -> bool {
        self.queue.unfinished && !NetHeader::decode(self.queue.ring.header(at)).is_plain()
    }

    /// Gives the complete frames of legal length from `at` on to the card, up to the first other, and says how many
    /// they were.
    #[inline(always)]
    fn take_run(&mut self, at: usize, end: usize) -> usize {
        let mut frames = [Span::EMPTY; BATCH];
        let (mut count, mut bytes) = (0, 0);
        while at + count < end && !self.is_unfinished(at + count) {
            let frame = self.queue.ring.frame(at + count);
            if !(MIN_FRAME_LEN..=MAX_FRAME_LEN).contains(&frame.len()) {
                break;
            }
            frame.prefetch();
            self.found.copies += u64::from(self.queue.ring.is_merged(at + count));
            bytes += frame.len() as u64;
            frames[count] = frame;
            count += 1;
        }
        if count == 0 {
            return 0;
        }
        let taken = self.sink.take_burst(&frames[..count]).min(count);
        if taken < count {
            bytes = frames[..taken].iter().map(|frame| frame.len() as u64).sum();
            self.found.no_room += (count - taken) as u64;
            self.found.full = true;
        }
        self.found.frames += taken as u64;
        self.found.bytes += bytes;
        count
    }

    /// Deals with one frame that has no legal length or is not finished.
    #[cold]
    fn take_other(&mut self, at: usize) -> usize {
        if self.is_unfinished(at) {
            let header = self.queue.ring.header(at);
            let (header, _) = header.split_first_chunk::<VIRTIO_HEADER_LEN>().expect("the shorter of the two headers");
            let frame = self.queue.ring.frame_mut(at);
            let delivered = deliver(header, frame, self.sink.offloads(), self.sink, self.counters);
            self.found.copies += 1;
            self.found.unfinished += delivered.taken;
            self.found.full |= delivered.full;
        } else if self.queue.ring.frame(at).len() < MIN_FRAME_LEN {
            self.found.too_short += 1;
        } else {
            self.found.too_long += 1;
        }
        1
    }
}

impl VirtioUserPort {
    fn new(number: usize, pair: Arc<pair::Pair>, wire: Arc<Wire>) -> Self {
        Self { pair, number, unpublished: false, works_on_pool: false, wire }
    }

    /// Counts what came.
    #[inline(always)]
    fn count(&self, found: &Received) {
        let counters = &self.pair.counters;
        if found.frames > 0 {
            counters.count_rx(found.frames, found.bytes);
        }
        if found.no_room | found.too_short | found.too_long | found.copies != 0 {
            counters.count_rx_drops(DropReason::NoRoom, found.no_room);
            counters.count_rx_drops(DropReason::TooShort, found.too_short);
            counters.count_rx_drops(DropReason::TooLong, found.too_long);
            counters.count_rx_copies(found.copies);
        }
    }

    /// Has the other side signal frames, or not.
    fn want_frame_signals(&self, wanted: bool) {
        if let Some(mut slot) = self.pair.rx.enter()
            && let Some(queue) = slot.as_mut()
        {
            queue.ring.want_signal(wanted);
        }
        if self.works_on_pool
            && let Some(mut slot) = self.pair.lent.enter()
            && let Some(lent) = slot.as_mut()
        {
            lent.queue.ring.want_signal(wanted);
        }
    }

    /// What the other side has done last is lost.
    #[cold]
    fn show_receive_stop(&self, reason: Stopped) {
        self.pair.counters.count_rx_drops(DropReason::BadRing, 1);
        show_stop(&self.pair.counters, "receive", reason);
    }

    fn dropped(&self, reason: DropReason) -> TxOutcome {
        self.pair.counters.count_tx_drops(reason, 1);
        TxOutcome::Dropped(reason)
    }

    /// Ends the queue if the other side has broken it: what is in it is lost.
    #[inline(always)]
    fn check(&self, queue: &mut Queue<TxQueue>) {
        if let Some(reason) = queue.ended() {
            settle(queue, &self.pair.counters, DropReason::BadRing);
            show_stop(&self.pair.counters, "transmit", reason);
        }
    }

    /// Stores frames of legal length, from the front, as far as there is room.
    #[inline(always)]
    fn store(&mut self, frames: &[Span<'_>], publish: bool) -> Burst {
        let Some(mut slot) = self.pair.tx.enter() else { return Burst::default() };
        let Some(queue) = slot.as_mut().filter(|queue| queue.stopped.is_none()) else {
            self.pair.counters.count_tx_drops(DropReason::LinkDown, frames.len() as u64);
            let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
            return Burst { taken: frames.len(), dropped: frames.len() as u64, dropped_bytes: bytes };
        };
        queue.ring.room();
        let (mut count, mut bytes) = (0, 0);
        for &frame in frames {
            if !queue.ring.push(frame, None) {
                self.pair.starve(queue);
                break;
            }
            count += 1;
            bytes += frame.len() as u64;
        }
        if publish {
            queue.publish();
        }
        self.unpublished = !publish;
        self.pair.counters.count_tx(count as u64, bytes);
        self.pair.counters.count_tx_copies(count as u64);
        self.check(queue);
        Burst { taken: count, ..Burst::default() }
    }
}

impl PortQueue for VirtioUserPort {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        if let Err(reason) = check_len(frame.len()) {
            return self.dropped(reason);
        }
        match self.store(&[frame], false) {
            Burst { taken: 0, .. } => TxOutcome::Full,
            Burst { dropped: 0, .. } => TxOutcome::Sent,
            _ => TxOutcome::Dropped(DropReason::LinkDown),
        }
    }

    #[inline]
    fn transmit_burst(&mut self, frames: &[Span<'_>]) -> Burst {
        in_runs(frames, |run| match run {
            Run::Legal(frames) => self.store(frames, true),
            Run::Dropped(reason) => {
                self.pair.counters.count_tx_drops(reason, 1);
                Burst::default()
            }
        })
    }

    fn sender(&self) -> Option<Box<dyn PortQueue>> {
        Some(Box::new(Self::new(self.number, self.pair.clone(), self.wire.clone())))
    }

    fn lendable(&mut self) -> Option<&mut dyn Lendable> {
        Some(self)
    }

    fn flush(&mut self) {
        if !self.unpublished {
            return;
        }
        if let Some(mut slot) = self.pair.tx.enter() {
            self.unpublished = false;
            if let Some(queue) = slot.as_mut().filter(|queue| queue.stopped.is_none()) {
                queue.publish();
            }
        }
    }

    fn offloads(&self) -> Offloads {
        self.pair.offloads.get()
    }

    fn transmit_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> TxOutcome {
        if let Err(reason) = check_unfinished_len(frame.len(), offload) {
            return self.dropped(reason);
        }
        let Some(mut slot) = self.pair.tx.enter() else { return TxOutcome::Full };
        let Some(queue) = slot.as_mut().filter(|queue| queue.stopped.is_none()) else {
            return self.dropped(DropReason::LinkDown);
        };
        // Under the lock: the other side may have changed since the card asked.
        if !self.pair.offloads.get().include(offload) {
            return self.dropped(DropReason::Offload);
        }
        if queue.ring.pieces(frame.len()).is_none() {
            return self.dropped(DropReason::TooLong);
        }
        let mut header = [0; NetHeader::LEN];
        header[..VIRTIO_HEADER_LEN].copy_from_slice(&offload.to_virtio());
        queue.ring.room();
        let stored = queue.ring.push(frame, Some(&header));
        if stored {
            self.unpublished = true;
            self.pair.counters.count_tx(1, frame.len() as u64);
            self.pair.counters.count_tx_copies(1);
        } else {
            self.pair.starve(queue);
        }
        self.check(queue);
        if stored { TxOutcome::Sent } else { TxOutcome::Full }
    }

    #[inline]
    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        if self.works_on_pool {
            return self.receive_lent(budget, sink);
        }
        let Some(mut slot) = self.pair.rx.enter() else { return 0 };
        let Some(queue) = slot.as_mut().filter(|queue| queue.stopped.is_none()) else { return 0 };
        let counters = &self.pair.counters;
        let found = Receiver { queue, sink, counters, found: Received::default() }.run(budget);
        self.count(&found);
        if let Some(reason) = queue.publish() {
            self.show_receive_stop(reason);
        }
        found.frames as usize + found.unfinished
    }

    fn can_wait(&self) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.pair.wake.fd().as_fd())
    }

    fn prepare_sleep(&mut self) {
        // A slot that the control thread is at: it wakes us when it is done. That something has come already is seen
        // when the worker looks once more before it sleeps.
        self.want_frame_signals(true);
        if let Some(mut slot) = self.pair.tx.enter()
            && let Some(queue) = slot.as_mut()
        {
            queue.set_asleep(true);
        }
    }

    fn awake(&mut self) {
        self.pair.wake.drain();
        self.want_frame_signals(false);
        if let Some(mut slot) = self.pair.tx.enter()
            && let Some(queue) = slot.as_mut()
        {
            queue.set_asleep(false);
        }
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.pair.counters
    }
}
