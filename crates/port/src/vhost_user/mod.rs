//! `vhost-user:PATH[,server|client,queues=N]`: a wire to a virtual machine, or to a DPDK program with `net_virtio_user`.
//!
//! At the other end is a virtio network driver, whose memory is mapped here: its queues are served where they lie. A
//! frame from the driver goes to the card from where the driver has put it, without a copy unless it lies in several
//! pieces; a frame to the driver is copied once, into its buffers. It is a live wire: a frame for which the card has no
//! room is dropped. A frame for which the driver has no buffers waits in the card.
//!
//! Each pair of queues is a port of its own. A thread per socket speaks the protocol (crate `vhost`); what it
//! decides reaches the worker through a slot with a lock, so that the worker never waits and the thread never for more
//! than a burst. The driver is not trusted: see [`millrace_ring::virtio`] for its rings and
//! [`millrace_dma::ForeignRegion`] for its memory. A ring that is wrong is stopped, its reason is in `mode`, and the
//! driver may set it up again.

mod backend;
mod connection;
mod early;
mod memory;
mod queue;
#[cfg(test)]
mod tests;

use crate::peer::{ControlThread, Run, SocketError, in_runs, show_stop};
use crate::unfinished::{check_unfinished_len, deliver};
use crate::{Burst, DropReason, PortCounters, PortQueue, Sink, TxOutcome, spec::VhostUserSpec};
use millrace_dma::Span;
use millrace_packet::offload::{Offload, Offloads, VIRTIO_HEADER_LEN};
use millrace_ring::virtio::{NetHeader, NetSink, Sent};
use queue::{Pair, Stopped};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// One pair of queues of a vhost-user device.
pub struct VhostUserPort {
    pair: Arc<Pair>,
    /// Something was stored that the driver does not see yet.
    unpublished: bool,
    _control: Arc<ControlThread>,
}

/// Opens the socket and makes a port for each pair of queues.
///
/// # Errors
/// [`SocketError`].
pub fn open(spec: &VhostUserSpec) -> Result<Vec<VhostUserPort>, SocketError> {
    let failed = |source: rustix::io::Errno| SocketError::System {
        step: "prepare",
        path: PathBuf::from(&spec.path),
        source: source.into(),
    };
    let pairs = (0..spec.queues).map(|_| Pair::new().map(Arc::new)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let pairs: Arc<[Arc<Pair>]> = pairs.into();
    let control = Arc::new(connection::start(spec, pairs.clone())?);
    let port = |pair: &Arc<Pair>| VhostUserPort { pair: pair.clone(), unpublished: false, _control: control.clone() };
    Ok(pairs.iter().map(port).collect())
}

/// What the ring hands out, on its way to the card.
struct ToCard<'a> {
    sink: &'a mut dyn Sink,
    counters: &'a PortCounters,
    /// Frames taken of those that were not finished.
    taken: usize,
}

impl NetSink for ToCard<'_> {
    #[inline(always)]
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        self.sink.take_burst(frames)
    }

    fn take_unfinished(&mut self, header: &[u8; NetHeader::LEN], frame: &mut [u8]) -> bool {
        let (header, _) = header.split_first_chunk().expect("the shorter of the two headers");
        let delivered = deliver(header, frame, self.sink.offloads(), self.sink, self.counters);
        self.taken += delivered.taken;
        !delivered.full
    }
}

impl VhostUserPort {
    /// Counts what came, and notes why nothing more will.
    #[inline(always)]
    fn count(&self, sent: &Sent) {
        let counters = &self.pair.counters;
        if sent.frames > 0 {
            counters.count_rx(sent.frames, sent.bytes);
        }
        let drops = sent.no_room | sent.too_short | sent.too_long | sent.copies;
        if drops != 0 || sent.fault.is_some() {
            self.count_rest(sent);
        }
    }

    #[cold]
    fn count_rest(&self, sent: &Sent) {
        let counters = &self.pair.counters;
        counters.count_rx_drops(DropReason::NoRoom, sent.no_room);
        counters.count_rx_drops(DropReason::TooShort, sent.too_short);
        counters.count_rx_drops(DropReason::TooLong, sent.too_long);
        counters.count_rx_drops(DropReason::BadRing, u64::from(sent.fault.is_some()));
        counters.count_rx_copies(sent.copies);
    }

    fn dropped(&self, reason: DropReason) -> TxOutcome {
        self.pair.counters.count_tx_drops(reason, 1);
        TxOutcome::Dropped(reason)
    }

    /// Takes frames while no queue runs: nobody is there to wait for.
    #[cold]
    fn drop_all(&self, reason: DropReason, frames: &[Span<'_>]) -> Burst {
        self.pair.counters.count_tx_drops(reason, frames.len() as u64);
        let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
        Burst { taken: frames.len(), dropped: frames.len() as u64, dropped_bytes: bytes }
    }

    /// Stores frames of legal length; what they become is counted.
    #[inline(always)]
    fn store(&mut self, frames: &[Span<'_>], publish: bool) -> Burst {
        let Some(mut slot) = self.pair.rx.enter() else { return Burst::default() };
        let Some(queue) = slot.as_mut() else { return self.drop_all(DropReason::LinkDown, frames) };
        if queue.stopped.is_some() {
            return self.drop_all(DropReason::LinkDown, frames);
        }
        let delivered = queue.device.deliver(frames);
        if publish {
            queue.device.publish();
            self.unpublished = false;
            if queue.device.must_notify() {
                queue.signal();
            }
        } else {
            self.unpublished = true;
        }
        let reason = delivered.fault.map(Stopped::Fault).or_else(|| queue.memory.was_cut().then_some(Stopped::Cut));
        if let Some(reason) = reason {
            queue.stop(reason);
            show_stop(&self.pair.counters, "receive", reason);
        }
        drop(slot);
        let burst =
            Burst { taken: delivered.taken, dropped: delivered.too_long, dropped_bytes: delivered.too_long_bytes };
        let bytes: u64 = frames[..burst.taken].iter().map(|frame| frame.len() as u64).sum();
        self.pair.counters.count_tx(burst.taken as u64 - burst.dropped, bytes - burst.dropped_bytes);
        self.pair.counters.count_tx_copies(burst.taken as u64 - burst.dropped);
        if burst.dropped > 0 {
            self.pair.counters.count_tx_drops(DropReason::TooLong, burst.dropped);
        }
        burst
    }
}

impl PortQueue for VhostUserPort {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        if let Err(reason) = crate::null::check_len(frame.len()) {
            return self.dropped(reason);
        }
        match self.store(&[frame], false) {
            Burst { taken: 0, .. } => TxOutcome::Full,
            Burst { dropped: 0, .. } => TxOutcome::Sent,
            _ if self.pair.counters.link() => TxOutcome::Dropped(DropReason::TooLong),
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
        let (pair, control) = (self.pair.clone(), self._control.clone());
        Some(Box::new(Self { pair, unpublished: false, _control: control }))
    }

    fn flush(&mut self) {
        if !self.unpublished {
            return;
        }
        if let Some(mut slot) = self.pair.rx.enter() {
            self.unpublished = false;
            if let Some(queue) = slot.as_mut() {
                queue.device.publish();
                if queue.device.must_notify() {
                    queue.signal();
                }
            }
        }
    }

    #[inline]
    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let Some(mut slot) = self.pair.tx.enter() else { return 0 };
        let Some(queue) = slot.as_mut() else { return 0 };
        if queue.stopped.is_some() {
            return 0;
        }
        let mut card = ToCard { sink, counters: &self.pair.counters, taken: 0 };
        let sent = queue.device.serve(budget, &mut card);
        let unfinished = card.taken;
        if queue.device.must_notify() {
            queue.signal();
        }
        let reason = sent.fault.map(Stopped::Fault).or_else(|| queue.memory.was_cut().then_some(Stopped::Cut));
        if let Some(reason) = reason {
            queue.stop(reason);
            show_stop(&self.pair.counters, "transmit", reason);
        }
        drop(slot);
        self.count(&sent);
        sent.frames as usize + unfinished
    }

    fn offloads(&self) -> Offloads {
        self.pair.offloads.get()
    }

    fn transmit_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> TxOutcome {
        if let Err(reason) = check_unfinished_len(frame.len(), offload) {
            return self.dropped(reason);
        }
        let Some(mut slot) = self.pair.rx.enter() else { return TxOutcome::Full };
        let Some(queue) = slot.as_mut().filter(|queue| queue.stopped.is_none()) else {
            return self.dropped(DropReason::LinkDown);
        };
        // Under the lock: the driver may have changed since the card asked.
        if !self.pair.offloads.get().include(offload) {
            return self.dropped(DropReason::Offload);
        }
        let mut header = [0; NetHeader::LEN];
        header[..VIRTIO_HEADER_LEN].copy_from_slice(&offload.to_virtio());
        let delivered = queue.device.deliver_unfinished(NetHeader::decode(header), frame);
        self.unpublished = true;
        if let Some(fault) = delivered.fault {
            queue.stop(Stopped::Fault(fault));
            show_stop(&self.pair.counters, "receive", Stopped::Fault(fault));
        }
        drop(slot);
        if delivered.too_long > 0 {
            return self.dropped(DropReason::TooLong);
        }
        if delivered.taken == 0 {
            return TxOutcome::Full;
        }
        self.pair.counters.count_tx(1, frame.len() as u64);
        self.pair.counters.count_tx_copies(1);
        TxOutcome::Sent
    }

    fn can_wait(&self) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.pair.wake.fd().as_fd())
    }

    fn prepare_sleep(&mut self) {
        self.want_notifications(true);
    }

    fn awake(&mut self) {
        self.pair.wake.drain();
        self.want_notifications(false);
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.pair.counters
    }
}

impl VhostUserPort {
    /// Of frames, and of buffers for them.
    fn want_notifications(&self, wanted: bool) {
        // A slot that the control thread is at: it signals when it is done.
        if let Some(mut slot) = self.pair.tx.enter()
            && let Some(queue) = slot.as_mut()
        {
            queue.device.want_notifications(wanted);
        }
        if let Some(mut slot) = self.pair.rx.enter()
            && let Some(queue) = slot.as_mut()
        {
            queue.device.want_notifications(wanted);
        }
    }
}
