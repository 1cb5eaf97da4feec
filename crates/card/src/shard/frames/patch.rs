//! Two ports connected inside the card, or one with itself: what comes in at one goes out at the other.
//!
//! ```text
//! port queue A -> MAC A (filters, counters) -> MAC B -> port queue B    one copy, from one's memory to the other's
//! port queue A -> MAC A -> port queue A                                 reflected; by way of held frames, which is one
//!                                                                       copy more, where it cannot send while it
//!                                                                       receives
//! ```
//!
//! Frames on which Linux left something to do (a checksum, segmentation) pass as they are if the other port queue takes
//! them. A frame for which the other port queue has no room waits if it can (a capture); otherwise it is dropped there,
//! as a switch does, and counted as `no-room`.

use super::receive::receive_nothing;
use super::{BUDGET, Held};
use crate::mac::{MacLane, Receiver, Rules};
use crate::shard::slots::PortSlot;
use crate::shard::state::{Patch, Port, Shard};
use crate::turns::cost;
use millrace_dma::Span;
use millrace_packet::offload::{Offload, Offloads};
use millrace_port::{Accept, DropReason, PortQueue, Sink, TxOutcome};

impl Shard {
    /// One burst from a port queue to the port queue of the other port that it is connected with. Returns what it is charged with
    /// if there was anything.
    #[inline(always)]
    pub(super) fn forward(&mut self, at: usize, patch: Patch) -> Option<u32> {
        let Self { ports, port_queues, .. } = self;
        let PortSlot { port, number, .. } = port_queues[at];
        let Ok([from, to]) = ports.get_disjoint_mut([port, patch.to]) else { return None };
        from.mac.refresh();
        to.mac.refresh();
        let outward = number.checked_rem(patch.port_queues).and_then(|number| to.place(number));
        let open = to.mac.lets_out() && !to.mac.rules.looped;
        let (taken, frames, bytes) = match outward.filter(|_| open).and_then(|other| port_queues.get2_mut(at, other)) {
            Some((inward, outward)) => {
                forward_burst(inward.queue.as_mut(), &mut from.mac, Some(outward.queue.as_mut()))
            }
            None => forward_burst(port_queues[at].queue.as_mut(), &mut from.mac, None),
        };
        if frames > 0 {
            to.mac.count_sent(open, outward.is_some(), frames, bytes);
        }
        from.mac.publish();
        (taken > 0).then(|| cost::of(taken as u64, bytes))
    }

    /// One burst from a port queue back to itself. Returns as [`Shard::forward`].
    pub(super) fn reflect(&mut self, at: usize) -> Option<u32> {
        let PortSlot { port, queue, sender, .. } = &mut self.port_queues[at];
        let Port { mac, held, .. } = &mut self.ports[*port];
        mac.refresh();
        let open = mac.lets_out();
        let (taken, frames, bytes) = match sender {
            Some(sender) => forward_burst(queue.as_mut(), mac, Some(sender.as_mut()).filter(|_| open)),
            None if mac.is_cut_off() => (receive_nothing(queue.as_mut(), mac), 0, 0),
            None => held.get_or_insert_with(Held::new).reflect_held(queue.as_mut(), mac),
        };
        if frames > 0 {
            mac.count_sent(open, true, frames, bytes);
        }
        mac.publish();
        (taken > 0).then(|| cost::of(taken as u64, bytes))
    }
}

/// One burst from a port queue behind a MAC to another, if there is one that is open. Returns how many frames were
/// taken, and how many and how many bytes of them the MAC has let in.
#[inline(always)]
fn forward_burst(
    inward: &mut dyn PortQueue,
    mac: &mut MacLane,
    outward: Option<&mut (dyn PortQueue + 'static)>,
) -> (usize, u64, u64) {
    if mac.is_cut_off() {
        return (receive_nothing(inward, mac), 0, 0);
    }
    let MacLane { rules, rx: receiver, .. } = mac;
    let mut sink = PortQueueSink { rules, receiver, port: outward, frames: 0, bytes: 0 };
    let taken = if inward.can_wait() {
        inward.receive(BUDGET, &mut |frame: Span<'_>| sink.offer(frame))
    } else {
        inward.receive(BUDGET, &mut sink)
    };
    if sink.frames > 0
        && let Some(port) = &mut sink.port
    {
        port.flush();
    }
    (taken, sink.frames, sink.bytes)
}

/// The port queue of another port as the sink of a port.
struct PortQueueSink<'l> {
    rules: &'l Rules,
    receiver: &'l mut Receiver,
    /// None: the other MAC does not send, or has no port queue.
    port: Option<&'l mut (dyn PortQueue + 'static)>,
    // What the other MAC was given.
    frames: u64,
    bytes: u64,
}

impl PortQueueSink<'_> {
    fn admit(&mut self, frame: Span<'_>, longest: usize) -> bool {
        let mut passed = false;
        let _ = self.receiver.admit_as(self.rules, frame, longest, false, |frame| {
            passed = true;
            self.frames += 1;
            self.bytes += frame.len() as u64;
            Accept::Taken
        });
        passed
    }

    /// Takes a frame that can wait, or says that it has to.
    fn offer(&mut self, frame: Span<'_>) -> Accept {
        let Self { rules, receiver, port, frames, bytes } = self;
        receiver.admit(rules, frame, true, |frame| {
            if port.as_mut().is_some_and(|port| port.transmit(frame) == TxOutcome::Full) {
                return Accept::Full;
            }
            *frames += 1;
            *bytes += frame.len() as u64;
            Accept::Taken
        })
    }

    #[inline(always)]
    fn send(&mut self, frames: &[Span<'_>]) {
        if let Some(port) = &mut self.port {
            let taken = port.transmit_burst(frames).taken;
            let left = frames.len() - taken;
            if left > 0 {
                port.counters().count_tx_drops(DropReason::NoRoom, left as u64);
            }
        }
    }
}

impl Sink for PortQueueSink<'_> {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        self.take_burst(&[frame]);
        Accept::Taken
    }

    #[inline(always)]
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        // Runs of frames that the MAC lets in leave together: mostly all of them.
        let mut run = 0;
        for (at, &frame) in frames.iter().enumerate() {
            if !self.admit(frame, frame.len()) {
                self.send(&frames[run..at]);
                run = at + 1;
            }
        }
        if run < frames.len() {
            self.send(&frames[run..]);
        }
        frames.len()
    }

    fn offloads(&self) -> Offloads {
        self.port.as_ref().map_or(Offloads::NONE, |port| port.offloads())
    }

    fn take_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> Accept {
        if self.admit(frame, offload.longest(frame.len()))
            && let Some(port) = &mut self.port
            && port.transmit_offloaded(frame, offload) == TxOutcome::Full
        {
            port.counters().count_tx_drops(DropReason::NoRoom, 1);
        }
        Accept::Taken
    }
}
