//! Two ports connected inside the card, or one with itself: what comes in at one goes out at the other.
//!
//! ```text
//! wire A -> MAC A (filters, counters) -> MAC B -> wire B        one copy, straight from one wire's memory to the other's
//! wire A -> MAC A -> held frames -> MAC A -> wire A             reflected: a wire cannot send while it receives
//! ```
//!
//! Frames on which Linux left something to do (a checksum, segmentation) pass as they are if the other wire takes them.
//! A frame for which the other wire has no room waits if it can (a capture); otherwise it is dropped there, as a switch
//! does, and counted as `no-room`.

use super::BUDGET;
use super::Lane;
use super::sink::MacSink;
use super::wire::receive_nothing;
use crate::mac::{MacLane, Receiver, Rules};
use millrace_dma::Span;
use millrace_packet::offload::{Offload, Offloads};
use millrace_port::{Accept, DropReason, MAX_FRAME_LEN, Port, Sink, Taken};
use millrace_ring::Verdict;

/// Where what comes in at a port goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// Index of the other port, or of the same.
    pub to: usize,
    /// How many wires that one has: wire `n` is connected with wire `n % wires`.
    pub wires: u32,
}

/// One burst from every wire of `from` to the wire of `to` that it is connected with.
#[inline(always)]
pub(crate) fn forward(from: &mut Lane, to: &mut Lane, patch: Patch) -> bool {
    let mut worked = false;
    for wire in &mut from.wires {
        let inward = wire.port.as_mut();
        from.mac.refresh();
        if from.mac.is_cut_off() {
            worked |= receive_nothing(inward, &mut from.mac) > 0;
            from.mac.publish();
            continue;
        }
        to.mac.refresh();
        let number = wire.number.checked_rem(patch.wires);
        let outward = to.wires.iter_mut().find(|wire| Some(wire.number) == number);
        let open = to.mac.lets_out() && !to.mac.rules.looped;
        let MacLane { rules, rx: receiver, .. } = &mut from.mac;
        let port = outward.filter(|_| open).map(|wire| wire.port.as_mut());
        let mut sink = WireSink { rules, receiver, port, frames: 0, bytes: 0 };
        let taken = if inward.can_wait() {
            inward.receive(BUDGET, &mut |frame: Span<'_>| sink.offer(frame))
        } else {
            inward.receive(BUDGET, &mut sink)
        };
        let WireSink { frames, bytes, port, .. } = sink;
        if frames > 0 {
            let plugged = port.is_some();
            port.into_iter().for_each(|port| port.flush());
            to.mac.hand_over(open, plugged, frames, bytes);
        }
        from.mac.publish();
        worked |= taken > 0;
    }
    worked
}

/// The wire of another port as the sink of a port.
struct WireSink<'l> {
    rules: &'l Rules,
    receiver: &'l mut Receiver,
    /// None: the other MAC does not send, or has no wire.
    port: Option<&'l mut (dyn Port + 'static)>,
    // What the other MAC was given.
    frames: u64,
    bytes: u64,
}

impl WireSink<'_> {
    fn admit(&mut self, frame: Span<'_>, longest: usize) -> bool {
        let mut passed = false;
        let _ = self.receiver.admit_as(self.rules, frame, longest, false, |frame| {
            passed = true;
            self.frames += 1;
            self.bytes += frame.len() as u64;
            Verdict::Taken
        });
        passed
    }

    /// Takes a frame that can wait, or says that it has to.
    fn offer(&mut self, frame: Span<'_>) -> Accept {
        let Self { rules, receiver, port, frames, bytes } = self;
        let verdict = receiver.admit(rules, frame, true, |frame| {
            if port.as_mut().is_some_and(|port| port.transmit(frame) == Taken::Full) {
                return Verdict::Full;
            }
            *frames += 1;
            *bytes += frame.len() as u64;
            Verdict::Taken
        });
        match verdict {
            Verdict::Taken => Accept::Taken,
            Verdict::Full => Accept::Full,
        }
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

impl Sink for WireSink<'_> {
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
            && port.transmit_offloaded(frame, offload) == Taken::Full
        {
            port.counters().count_tx_drops(DropReason::NoRoom, 1);
        }
        Accept::Taken
    }
}

/// Frames between the two halves of a wire that is connected with itself.
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
        // The longest that a wire offers is a large frame of Linux, 64 KiB and its headers.
        let bytes = vec![0; BUDGET * 2048 + 4 * MAX_FRAME_LEN.next_power_of_two() + 4096].into_boxed_slice();
        Self { bytes, frames: Vec::with_capacity(BUDGET) }
    }

    fn end(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.at + frame.len)
    }

    fn hold(&mut self, frame: Span<'_>, offload: Offload) -> Verdict {
        let (at, len) = (self.end(), frame.len());
        let Some(room) = self.bytes.get_mut(at..at + len).filter(|_| self.frames.len() < BUDGET) else {
            return Verdict::Full;
        };
        frame.read_into(room);
        self.frames.push(Frame { at, len, offload });
        Verdict::Taken
    }

    fn span(&self, frame: &Frame) -> Span<'_> {
        Span::from_slice(&self.bytes[frame.at..frame.at + frame.len])
    }

    /// Gives everything to the wire.
    fn send(&self, port: &mut dyn Port) {
        let mut rest = &self.frames[..];
        while let Some(first) = rest.first() {
            let taken = if first.offload.is_done() {
                let mut plain = [Span::from_slice(&[]); BUDGET];
                let run = rest.iter().take_while(|frame| frame.offload.is_done()).count();
                plain.iter_mut().zip(&rest[..run]).for_each(|(span, frame)| *span = self.span(frame));
                port.transmit_burst(&plain[..run]).taken
            } else {
                usize::from(port.transmit_offloaded(self.span(first), &first.offload) != Taken::Full)
            };
            if taken == 0 {
                port.counters().count_tx_drops(DropReason::NoRoom, rest.len() as u64);
                return;
            }
            rest = &rest[taken..];
        }
    }
}

/// One burst from every wire of a lane back to itself.
pub(super) fn reflect(lane: &mut Lane) -> bool {
    let mut worked = false;
    let Lane { wires, mac, held, .. } = lane;
    let held = held.get_or_insert_with(Held::new);
    for wire in wires {
        let port = wire.port.as_mut();
        mac.refresh();
        if mac.is_cut_off() {
            worked |= receive_nothing(port, mac) > 0;
            mac.publish();
            continue;
        }
        held.frames.clear();
        let (offloads, waits) = (port.offloads(), port.can_wait());
        let behind = |frame: Span<'_>, offload: &Offload| held.hold(frame, *offload);
        let mut sink = MacSink { rules: &mac.rules, receiver: &mut mac.rx, waits, offloads, behind };
        let taken = port.receive(BUDGET, &mut sink);
        if !held.frames.is_empty() {
            let open = mac.lets_out();
            if open {
                port.counters().count_rx_copies(held.frames.len() as u64);
                held.send(port);
                port.flush();
            }
            mac.hand_over(open, true, held.frames.len() as u64, held.end() as u64);
        }
        mac.publish();
        worked |= taken > 0;
    }
    worked
}
