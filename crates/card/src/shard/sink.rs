//! The receiving MAC as the sink of a port queue, and what may lie behind it.

use super::slots::RxSlot;
use crate::mac::{Receiver, Rules};
use crate::tsu::Stamper;
use millrace_clock::Ticks;
use millrace_dma::Span;
use millrace_packet::offload::{Offload, Offloads};
use millrace_port::{Accept, Sink};

/// Where frames go that a MAC has let in. A closure is one.
pub(super) trait Target {
    /// Takes a frame, or has no room for it.
    fn take(&mut self, frame: Span<'_>, offload: &Offload) -> Accept;

    /// What stamps the frames, if anything does.
    #[inline(always)]
    fn stamper(&mut self) -> Option<&mut Stamper> {
        None
    }

    /// Takes finished frames from the front and returns how many; fewer than there are means that there is no room.
    #[inline(always)]
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        let is_full = |&frame| self.take(frame, &Offload::default()) == Accept::Full;
        frames.iter().position(is_full).unwrap_or(frames.len())
    }
}

impl<F: FnMut(Span<'_>, &Offload) -> Accept> Target for F {
    #[inline(always)]
    fn take(&mut self, frame: Span<'_>, offload: &Offload) -> Accept {
        self(frame, offload)
    }
}

/// An RX queue; its frames begin with what the time-stamp unit says.
pub(super) struct RingTarget<'l> {
    pub queue: &'l mut RxSlot,
    pub stamper: &'l mut Stamper,
}

impl Target for RingTarget<'_> {
    #[inline(always)]
    fn stamper(&mut self) -> Option<&mut Stamper> {
        Some(self.stamper)
    }

    #[inline(always)]
    fn take(&mut self, frame: Span<'_>, _: &Offload) -> Accept {
        self.queue.offer(self.stamper.metadata(), frame)
    }

    #[inline(always)]
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        self.queue.offer_burst(self.stamper.metadata(), frames)
    }
}

/// Gives the frames that a MAC lets in to `behind`.
pub(super) struct MacSink<'l, T> {
    pub rules: &'l Rules,
    pub receiver: &'l mut Receiver,
    /// Whether the port queue holds back what is not taken; otherwise it drops it, and all behind it.
    pub waits: bool,
    /// What `behind` finishes by itself.
    pub offloads: Offloads,
    pub behind: T,
}

impl<T: Target> Sink for MacSink<'_, T> {
    #[inline(always)]
    fn take(&mut self, frame: Span<'_>) -> Accept {
        self.take_offloaded(frame, &Offload::default())
    }

    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        let Self { rules, receiver, waits, behind, .. } = self;
        receiver.admit_burst(rules, frames, *waits, |run| behind.take_burst(run))
    }

    fn wants_arrivals(&mut self) -> bool {
        self.behind.stamper().is_some_and(|stamper| stamper.is_enabled())
    }

    fn arrived(&mut self, monotonic_ns: u64) {
        if let Some(stamper) = self.behind.stamper() {
            stamper.arrived(Ticks::new(monotonic_ns));
        }
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    #[inline(always)]
    fn take_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> Accept {
        let (longest, behind) = (offload.longest(frame.len()), &mut self.behind);
        self.receiver.admit_as(self.rules, frame, longest, self.waits, |frame| behind.take(frame, offload))
    }
}
