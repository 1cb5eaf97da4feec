//! Two ports connected inside the card, or one with itself: what comes in at one goes out at the other.
//!
//! ```text
//! wire A -> MAC A (filters, counters) -> MAC B -> wire B        one copy, straight from one wire's memory to the other's
//! wire A -> MAC A -> wire A                                     reflected; by way of held frames, which is one copy more,
//!                                                               where a wire cannot send while it receives
//! ```
//!
//! Frames on which Linux left something to do (a checksum, segmentation) pass as they are if the other wire takes them.
//! A frame for which the other wire has no room waits if it can (a capture); otherwise it is dropped there, as a switch
//! does, and counted as `no-room`.

use super::BUDGET;
use super::Lane;
use super::sink::MacSink;
use super::wire::{Wire, receive_nothing};
use crate::mac::{MacLane, Receiver, Rules};
use crate::turns::cost;
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

/// One burst from the wire at place `at` of `from` to the wire of `to` that it is connected with. Returns what it is charged
/// with if there was anything.
#[inline(always)]
pub(crate) fn forward(from: &mut Lane, at: usize, to: &mut Lane, patch: Patch) -> Option<u32> {
    let wire = from.wires.get_mut(at)?;
    from.mac.refresh();
    to.mac.refresh();
    let number = wire.number.checked_rem(patch.wires);
    let outward = to.wires.iter_mut().find(|wire| Some(wire.number) == number);
    let (plugged, outward) = (outward.is_some(), outward.map(|wire| wire.port.as_mut()));
    let open = to.mac.lets_out() && !to.mac.rules.looped;
    let (taken, frames, bytes) = hand_on(wire.port.as_mut(), &mut from.mac, outward.filter(|_| open));
    if frames > 0 {
        to.mac.hand_over(open, plugged, frames, bytes);
    }
    from.mac.publish();
    (taken > 0).then(|| cost::of(taken as u64, bytes))
}

/// One burst from a wire behind a MAC to another, if there is one that is open. Returns how many frames were taken, and how
/// many and how many bytes of them the MAC has let in.
#[inline(always)]
fn hand_on(inward: &mut dyn Port, mac: &mut MacLane, outward: Option<&mut (dyn Port + 'static)>) -> (usize, u64, u64) {
    if mac.is_cut_off() {
        return (receive_nothing(inward, mac), 0, 0);
    }
    let MacLane { rules, rx: receiver, .. } = mac;
    let mut sink = WireSink { rules, receiver, port: outward, frames: 0, bytes: 0 };
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

    /// One burst from a wire back to itself, of which a frame is held until all have come. Returns as [`hand_on`].
    fn hand_back(&mut self, port: &mut dyn Port, mac: &mut MacLane) -> (usize, u64, u64) {
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

/// One burst from the wire at place `at` of a lane back to itself. Returns as [`forward`].
pub(super) fn reflect(lane: &mut Lane, at: usize) -> Option<u32> {
    let Lane { wires, mac, held, .. } = lane;
    let Wire { port, sender, .. } = wires.get_mut(at)?;
    mac.refresh();
    let open = mac.lets_out();
    let (taken, frames, bytes) = match sender {
        Some(sender) => hand_on(port.as_mut(), mac, Some(sender.as_mut()).filter(|_| open)),
        None if mac.is_cut_off() => (receive_nothing(port.as_mut(), mac), 0, 0),
        None => held.get_or_insert_with(Held::new).hand_back(port.as_mut(), mac),
    };
    if frames > 0 {
        mac.hand_over(open, true, frames, bytes);
    }
    mac.publish();
    (taken > 0).then(|| cost::of(taken as u64, bytes))
}
