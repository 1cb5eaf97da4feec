//! Where a port puts the frames that come from its wire.

use millrace_dma::Span;
use millrace_packet::offload::{Offload, Offloads};
use millrace_ring::Accept;

/// What the card says to a frame that lies in a buffer which was [lent](crate::Lendable) to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Lent {
    /// The card has it, in its buffer: the port must not touch that any more.
    Kept,
    /// The card has it, or has dropped it; the port may use the buffer again.
    Done,
    /// As [`Accept::Full`].
    Full,
}

/// Takes frames that come from a wire. A closure over a [`Span`] is one.
pub trait Sink {
    /// Takes one frame, or has no room for it: a port that [can wait](crate::PortQueue::can_wait) offers the frame
    /// again then, any other drops it as [`DropReason::NoRoom`](crate::DropReason::NoRoom).
    fn take(&mut self, frame: Span<'_>) -> Accept;

    /// Takes frames from the front and returns how many; fewer than there are means that there is no room. A port that
    /// has several frames at hand calls this; if it cannot wait, it drops all that were not taken.
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        frames.iter().position(|&frame| self.take(frame) == Accept::Full).unwrap_or(frames.len())
    }

    /// Takes one frame from a port that puts them in memory of an application, `at` this offset in it.
    fn take_lent(&mut self, at: usize, frame: Span<'_>) -> Lent {
        let _ = at;
        match self.take(frame) {
            Accept::Taken => Lent::Done,
            Accept::Full => Lent::Full,
        }
    }

    /// Whether it wants to know when each frame came. A port whose kernel knows that then offers frames one by one, and says so
    /// before each of them ([`Sink::arrived`]).
    fn wants_arrivals(&mut self) -> bool {
        false
    }

    /// What is offered next came at this time, in ns of `CLOCK_MONOTONIC`. It may be somewhat wrong, and even in the future, when
    /// somebody sets the clock of the host.
    fn arrived(&mut self, monotonic_ns: u64) {
        let _ = monotonic_ns;
    }

    /// What may be left to do on a frame that is given to [`Sink::take_offloaded`].
    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    /// Takes one frame on which something is left to do, which [`Sink::offloads`] must include. Only such a frame with
    /// segments may be longer than [`MAX_FRAME_LEN`](crate::MAX_FRAME_LEN).
    fn take_offloaded(&mut self, frame: Span<'_>, offload: &Offload) -> Accept {
        let _ = (frame, offload);
        debug_assert!(false, "a sink without offloads was offered {offload:?}");
        Accept::Full
    }
}

impl<F: FnMut(Span<'_>) -> Accept> Sink for F {
    #[inline(always)]
    fn take(&mut self, frame: Span<'_>) -> Accept {
        self(frame)
    }
}
