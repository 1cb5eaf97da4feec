//! The receiving MAC as the sink of a port queue.

use crate::mac::{Receiver, Rules};
use millrace_dma::Span;
use millrace_packet::offload::{Offload, Offloads};
use millrace_port::{Accept, Sink};

/// Gives the frames that a MAC lets in to `behind`.
pub(super) struct MacSink<'l, F> {
    pub rules: &'l Rules,
    pub receiver: &'l mut Receiver,
    /// Whether the port queue holds back what is not taken; otherwise it drops it, and all behind it.
    pub waits: bool,
    /// What `behind` finishes by itself.
    pub offloads: Offloads,
    pub behind: F,
}

impl<F: FnMut(Span<'_>, &Offload) -> Accept> Sink for MacSink<'_, F> {
    #[inline(always)]
    fn take(&mut self, frame: Span<'_>) -> Accept {
        self.take_offloaded(frame, &Offload::default())
    }

    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        for (at, &frame) in frames.iter().enumerate() {
            if self.take(frame) == Accept::Full {
                if !self.waits {
                    self.receiver.overrun(&frames[at + 1..]);
                }
                return at;
            }
        }
        frames.len()
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    #[inline(always)]
    fn take_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> Accept {
        let (longest, behind) = (offload.longest(frame.len()), &mut self.behind);
        self.receiver.admit_as(self.rules, frame, longest, self.waits, |frame| behind(frame, offload))
    }
}
