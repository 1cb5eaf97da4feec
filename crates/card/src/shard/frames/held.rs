//! Frames between the two halves of a port queue that is connected with itself and cannot send while it receives.

use super::BUDGET;
use crate::mac::MacLane;
use crate::shard::sink::MacSink;
use millrace_dma::Span;
use millrace_packet::offload::Offload;
use millrace_port::{Accept, DropReason, MAX_FRAME_LEN, PortQueue, TxOutcome};

/// Frames between the two halves of a port queue that is connected with itself.
pub(crate) struct Held {
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
    pub fn reflect_held(&mut self, port: &mut dyn PortQueue, mac: &mut MacLane) -> (usize, u64, u64) {
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
