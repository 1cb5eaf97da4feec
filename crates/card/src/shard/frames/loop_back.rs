//! From TX rings of a port that loops back to its RX rings: one copy, straight from one ring to the other.

use super::send::Nowhere;
use super::{BUDGET, end_of_burst};
use crate::counters::{Counts, QueueDrop};
use crate::mac::{MacLane, Receiver, Rules};
use crate::shard::slots::{RxSlot, TxSlot};
use crate::shard::state::{NOWHERE, Port, Touched};
use crate::tsu::Stamper;
use millrace_dma::Span;
use millrace_port::Accept;
use millrace_ring::{FrameSink, Served};
use slab::Slab;

/// The place of the RX queue of the same index as the TX queue; if this worker serves none, of the first where the MAC loops back.
#[inline(always)]
pub(super) fn target(port: &Port, tx: &TxSlot, rx: &Slab<RxSlot>, rx_places: &[u32]) -> Option<usize> {
    let index = tx.queue.id.index;
    let same = rx_places.get(index as usize).copied().unwrap_or(NOWHERE);
    if rx.get(same as usize).is_some_and(|slot| slot.port == tx.port) {
        return Some(same as usize);
    }
    let first = if port.mac.rules.looped { port.first_rx } else { NOWHERE };
    rx_places.get(first as usize).map(|&place| place as usize)
}

/// One burst from a TX queue to the RX queue at place `to`. Returns whether anything moved, and whether the TX queue stays
/// active.
#[inline(always)]
pub(super) fn loop_back(
    tx: &mut TxSlot,
    counts: &mut Counts,
    to: Option<usize>,
    rx: &mut Slab<RxSlot>,
    touched: &mut Vec<Touched>,
    mac: &mut MacLane,
) -> (bool, bool) {
    let Some(engine) = tx.engine.running_mut() else { return (false, true) };
    let Some((to, rx)) = to.and_then(|to| Some((to, rx.get_mut(to)?))) else {
        let served = engine.serve(BUDGET, &mut Nowhere);
        counts.drops[QueueDrop::NoRxQueue as usize] += served.frames;
        counts.dropped_bytes += served.bytes;
        return end_of_burst(tx, counts, Served { frames: 0, bytes: 0, dropped: served.frames, ..served }, mac);
    };
    rx.begin();
    let MacLane { rules, rx: receiver, stamper, .. } = mac;
    let served = engine.serve(BUDGET, &mut LoopSink { rules, receiver, stamper, rx });
    rx.finish();
    if rx.touch() {
        touched.push(Touched::Rx(to as u32));
    }
    mac.tx.loop_back(served.frames, served.bytes);
    end_of_burst(tx, counts, served, mac)
}

/// The RX queue of a loopback as the sink of the TX ring.
struct LoopSink<'l> {
    rules: &'l Rules,
    receiver: &'l mut Receiver,
    stamper: &'l mut Stamper,
    rx: &'l mut RxSlot,
}

impl FrameSink for LoopSink<'_> {
    #[inline(always)]
    fn take(&mut self, frame: Span<'_>) -> Accept {
        let Self { rules, receiver, stamper, rx } = self;
        receiver.admit(rules, frame, true, |frame| rx.offer(stamper.metadata(), frame))
    }

    /// The receiver sees the frames before the sender gets its buffers back: somebody waits for the former.
    #[inline(always)]
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        let taken = match frames {
            // For one frame nothing is set up.
            &[frame] => usize::from(self.take(frame) == Accept::Taken),
            _ => {
                let Self { rules, receiver, stamper, rx } = self;
                receiver.admit_burst(rules, frames, true, |run| rx.offer_burst(stamper.metadata(), run))
            }
        };
        self.rx.show();
        taken
    }
}
