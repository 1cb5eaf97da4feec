//! A port queue: how the card gives frames to what is plugged in, and gets them.

use crate::counters::{DropReason, PortCounters};
use crate::lend::Lendable;
use crate::sink::Sink;
use millrace_dma::Span;
use millrace_packet::offload::{Offload, Offloads};
use std::{os::fd::BorrowedFd, sync::Arc, time::Instant};

/// The longest frame that a port carries, in bytes without FCS (`docs/spec/nfb-card.md` §2.1: `frame_size_max`).
pub const MAX_FRAME_LEN: usize = 0x3fff;

/// The shortest frame that a port carries, in bytes: an Ethernet header. Ports do not pad; a capture comes back byte
/// for byte.
pub const MIN_FRAME_LEN: usize = 14;

/// What became of a frame that was given to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TxOutcome {
    /// It is on its way; the bytes have been copied.
    Sent,
    /// No room at the moment; offer the same frame again later.
    Full,
    /// It is gone, and counted under this reason.
    Dropped(DropReason),
}

/// What became of frames that were given to a port together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Burst {
    /// Frames that the card has no more to do with, from the front: sent or dropped.
    pub taken: usize,
    /// How many of them were dropped, and counted by reason in the port's counters.
    pub dropped: u64,
    /// Bytes of those.
    pub dropped_bytes: u64,
}

/// Frames in and out of the card.
///
/// A port with several queues of its own (`queues=N`) is opened as several port queues, which have nothing in common on the
/// data path. One worker of the card owns a port queue and is the only one to call it; [`PortQueue::counters`] may be read
/// from anywhere.
///
/// For both directions, at every moment: frames offered = frames passed + the sum of the drop counters. (Where faults
/// are made on purpose, [frames that come twice](crate::Event::FaultDuplicate) are added on the left.)
pub trait PortQueue: Send {
    /// Takes one frame towards the wire.
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome;

    /// Takes frames towards the wire, from the front, as far as there is room. A port that can do better than one by
    /// one does it here.
    fn transmit_burst(&mut self, frames: &[Span<'_>]) -> Burst {
        let mut burst = Burst::default();
        for &frame in frames {
            match self.transmit(frame) {
                TxOutcome::Sent => {}
                TxOutcome::Full => break,
                TxOutcome::Dropped(_) => {
                    burst.dropped += 1;
                    burst.dropped_bytes += frame.len() as u64;
                }
            }
            burst.taken += 1;
        }
        burst
    }

    /// A second handle that sends on the same wire while this one receives, for ports whose two directions have nothing
    /// in common; it counts with the counters of this one, and belongs to the same worker.
    fn sender(&self) -> Option<Box<dyn PortQueue>> {
        None
    }

    /// This port, if it can work on memory of an application.
    fn lendable(&mut self) -> Option<&mut dyn Lendable> {
        None
    }

    /// Ends a burst of [`PortQueue::transmit`]: what was collected may leave now.
    fn flush(&mut self) {}

    /// From now on until it is asked by [`PortQueue::departed`], it is to find out when frames leave.
    fn watch_departures(&mut self) {}

    /// When the last one of the frames left that were sent since [`PortQueue::watch_departures`], in ns of `CLOCK_MONOTONIC`, if
    /// the port knows that of all of them.
    fn departed(&mut self) -> Option<u64> {
        None
    }

    /// What may be left to do on a frame that is given to [`PortQueue::transmit_offloaded`].
    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    /// Takes one frame towards the wire on which something is left to do, which [`PortQueue::offloads`] must include.
    /// Only such a frame with segments may be longer than [`MAX_FRAME_LEN`].
    fn transmit_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> TxOutcome {
        let _ = (frame, offload);
        self.counters().count_tx_drops(DropReason::Offload, 1);
        TxOutcome::Dropped(DropReason::Offload)
    }

    /// Offers frames from the wire to `sink` until there are none, `budget` of them have been looked at, or the card is
    /// full, and returns how many the card took. What the sink does not want to finish ([`Sink::offloads`]), the port
    /// finishes.
    fn receive(&mut self, budget: usize, sink: &mut dyn Sink) -> usize;

    /// Whether the source may be held back without loss (a capture at full speed, a generator). Otherwise it is a live
    /// wire, real or imitated, and a frame that the card has no room for is dropped and counted.
    fn can_wait(&self) -> bool;

    /// An fd that is readable when [`PortQueue::receive`] would yield something.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The worker is about to sleep: from now on [`PortQueue::wake_fd`] has to be signalled by whatever comes. The
    /// worker calls
    /// [`PortQueue::receive`] once more before it sleeps, so that what came until now is not missed. For ports that ask
    /// the other side not to signal while they poll.
    fn prepare_sleep(&mut self) {}

    /// The worker polls again.
    fn awake(&mut self) {}

    /// When to call [`PortQueue::receive`] next by the clock: a moment in the past means now, `None` never (or when
    /// [`PortQueue::wake_fd`] says so). A port that writes to a file also asks for a call in order to bring it up to
    /// date.
    fn next_due(&self) -> Option<Instant> {
        None
    }

    /// What passed and what did not. The worker that owns the port is the single writer.
    fn counters(&self) -> &Arc<PortCounters>;
}
