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

use super::BUDGET;
use super::Lane;
use super::port_slot::{PortSlot, receive_nothing};
use super::sink::MacSink;
use crate::mac::{MacLane, Receiver, Rules};
use crate::turns::cost;
use millrace_dma::Span;
use millrace_packet::offload::{Offload, Offloads};
use millrace_port::{Accept, DropReason, MAX_FRAME_LEN, PortQueue, Sink, TxOutcome};

/// Where what comes in at a port goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// Index of the other port, or of the same.
    pub to: usize,
    /// How many port queues that one has: port queue `n` is connected with port queue `n % port_queues`.
    pub port_queues: u32,
}

/// One burst from the port queue at place `at` of `from` to the port queue of `to` that it is connected with. Returns
/// what it is charged with if there was anything.
#[inline(always)]
pub(crate) fn forward(from: &mut Lane, at: usize, to: &mut Lane, patch: Patch) -> Option<u32> {
    let port_queue = from.port_queues.get_mut(at)?;
    from.mac.refresh();
    to.mac.refresh();
    let number = port_queue.number.checked_rem(patch.port_queues);
    let outward = to.port_queues.iter_mut().find(|port_queue| Some(port_queue.number) == number);
    let (plugged, outward) = (outward.is_some(), outward.map(|port_queue| port_queue.port.as_mut()));
    let open = to.mac.lets_out() && !to.mac.rules.looped;
    let (taken, frames, bytes) = forward_burst(port_queue.port.as_mut(), &mut from.mac, outward.filter(|_| open));
    if frames > 0 {
        to.mac.count_sent(open, plugged, frames, bytes);
    }
    from.mac.publish();
    (taken > 0).then(|| cost::of(taken as u64, bytes))
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

/// Frames between the two halves of a port queue that is connected with itself.
pub(super) struct Held {
    bytes: Box<[u8]>,
    frames: Vec<Frame>,
}

struct Frame {
    at: usize,
    len: usize,
    offload: Offload,
}

impl Held {
    pub fn new() -> Self {
        // The longest that a port queue offers is a large frame of Linux, 64 KiB and its headers.
        let bytes = vec![0; BUDGET * 2048 + 4 * MAX_FRAME_LEN.next_power_of_two() + 4096].into_boxed_slice();
        Self { bytes, frames: Vec::with_capacity(BUDGET) }
    }

    fn end(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.at + frame.len)
    }

    fn hold(&mut self, frame: Span<'_>, offload: Offload) -> Accept {
        let (at, len) = (self.end(), frame.len());
        let Some(room) = self.bytes.get_mut(at..at + len).filter(|_| self.frames.len() < BUDGET) else {
            return Accept::Full;
        };
        frame.read_into(room);
        self.frames.push(Frame { at, len, offload });
        Accept::Taken
    }

    fn span(&self, frame: &Frame) -> Span<'_> {
        Span::from_slice(&self.bytes[frame.at..frame.at + frame.len])
    }

    /// One burst from a port queue back to itself, of which a frame is held until all have come. Returns as
    /// [`forward_burst`].
    fn reflect_held(&mut self, port: &mut dyn PortQueue, mac: &mut MacLane) -> (usize, u64, u64) {
        self.frames.clear();
        let (offloads, waits, open) = (port.offloads(), port.can_wait(), mac.lets_out());
        let behind = |frame: Span<'_>, offload: &Offload| self.hold(frame, *offload);
        let mut sink = MacSink { rules: &mac.rules, receiver: &mut mac.rx, waits, offloads, behind };
        let taken = port.receive(BUDGET, &mut sink);
        if !self.frames.is_empty() && open {
            port.counters().count_rx_copies(self.frames.len() as u64);
            self.send(port);
            port.flush();
        }
        (taken, self.frames.len() as u64, self.end() as u64)
    }

    /// Gives everything to the port queue.
    fn send(&self, port: &mut dyn PortQueue) {
        let mut rest = &self.frames[..];
        while let Some(first) = rest.first() {
            let taken = if first.offload.is_done() {
                let mut plain = [Span::from_slice(&[]); BUDGET];
                let run = rest.iter().take_while(|frame| frame.offload.is_done()).count();
                plain.iter_mut().zip(&rest[..run]).for_each(|(span, frame)| *span = self.span(frame));
                port.transmit_burst(&plain[..run]).taken
            } else {
                usize::from(port.transmit_offloaded(self.span(first), &first.offload) != TxOutcome::Full)
            };
            if taken == 0 {
                port.counters().count_tx_drops(DropReason::NoRoom, rest.len() as u64);
                return;
            }
            rest = &rest[taken..];
        }
    }
}

/// One burst from the port queue at place `at` of a lane back to itself. Returns as [`forward`].
pub(super) fn reflect(lane: &mut Lane, at: usize) -> Option<u32> {
    let Lane { port_queues, mac, held, .. } = lane;
    let PortSlot { port, sender, .. } = port_queues.get_mut(at)?;
    mac.refresh();
    let open = mac.lets_out();
    let (taken, frames, bytes) = match sender {
        Some(sender) => forward_burst(port.as_mut(), mac, Some(sender.as_mut()).filter(|_| open)),
        None if mac.is_cut_off() => (receive_nothing(port.as_mut(), mac), 0, 0),
        None => held.get_or_insert_with(Held::new).reflect_held(port.as_mut(), mac),
    };
    if frames > 0 {
        mac.count_sent(open, true, frames, bytes);
    }
    mac.publish();
    (taken > 0).then(|| cost::of(taken as u64, bytes))
}
