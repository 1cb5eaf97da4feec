//! `null`: a wire that nobody listens to and nobody speaks on.

use crate::{Burst, DropReason, MAX_FRAME_LEN, MIN_FRAME_LEN, PortCounters, PortQueue, Sink, TxOutcome};
use millrace_dma::Span;
use std::sync::Arc;

/// Takes every frame, brings nothing.
pub struct NullPort {
    wire: Void,
    counters: Arc<PortCounters>,
}

impl NullPort {
    /// A new one.
    pub fn new() -> Self {
        Self { wire: Void::new(), counters: Arc::default() }
    }
}

impl Default for NullPort {
    fn default() -> Self {
        Self::new()
    }
}

impl PortQueue for NullPort {
    fn transmit(&mut self, frame: Span<'_>) -> TxOutcome {
        self.wire.transmit(frame, &self.counters)
    }

    fn transmit_burst(&mut self, frames: &[Span<'_>]) -> Burst {
        self.wire.transmit_burst(frames, &self.counters)
    }

    fn receive(&mut self, _budget: usize, _sink: &mut dyn Sink) -> usize {
        0
    }

    fn can_wait(&self) -> bool {
        true
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

/// Where frames go that nobody receives.
///
/// They are copied all the same: a card that has sent a frame has fetched its bytes, and a measurement against a port
/// that looks only at lengths would flatter it.
pub(crate) struct Void {
    scratch: Box<[u8; MAX_FRAME_LEN]>,
}

impl Void {
    pub(crate) fn new() -> Self {
        Self { scratch: Box::new([0; MAX_FRAME_LEN]) }
    }

    pub(crate) fn transmit(&mut self, frame: Span<'_>, counters: &PortCounters) -> TxOutcome {
        if let Err(reason) = check_len(frame.len()) {
            counters.count_tx_drops(reason, 1);
            return TxOutcome::Dropped(reason);
        }
        let len = frame.read_into(&mut self.scratch[..]);
        // Without this the copy is dead and the optimiser may remove it.
        std::hint::black_box(&self.scratch[..len]);
        counters.count_tx(1, len as u64);
        TxOutcome::Sent
    }
}

impl Void {
    /// The same for frames that come together: counted once.
    pub(crate) fn transmit_burst(&mut self, frames: &[Span<'_>], counters: &PortCounters) -> Burst {
        let mut burst = Burst { taken: frames.len(), ..Burst::default() };
        let mut bytes = 0;
        for frame in frames {
            if let Err(reason) = check_len(frame.len()) {
                counters.count_tx_drops(reason, 1);
                burst.dropped += 1;
                burst.dropped_bytes += frame.len() as u64;
                continue;
            }
            let len = frame.read_into(&mut self.scratch[..]);
            // Without this the copy is dead and the optimiser may remove it.
            std::hint::black_box(&self.scratch[..len]);
            bytes += len as u64;
        }
        counters.count_tx(burst.taken as u64 - burst.dropped, bytes);
        burst
    }
}

/// Whether a port carries frames of this length.
pub(crate) fn check_len(len: usize) -> Result<(), DropReason> {
    if len > MAX_FRAME_LEN {
        Err(DropReason::TooLong)
    } else if len < MIN_FRAME_LEN {
        Err(DropReason::TooShort)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_is_a_frame_and_names_what_is_not() {
        let mut port = NullPort::new();
        let bytes = vec![0xab; MAX_FRAME_LEN + 1];
        let mut send = |len: usize| port.transmit(Span::from_slice(&bytes[..len]));
        assert_eq!(send(MIN_FRAME_LEN), TxOutcome::Sent);
        assert_eq!(send(MAX_FRAME_LEN), TxOutcome::Sent);
        assert_eq!(send(MIN_FRAME_LEN - 1), TxOutcome::Dropped(DropReason::TooShort));
        assert_eq!(send(0), TxOutcome::Dropped(DropReason::TooShort));
        assert_eq!(send(MAX_FRAME_LEN + 1), TxOutcome::Dropped(DropReason::TooLong));
        port.flush();
        let counters = port.counters();
        assert_eq!(counters.tx_frames(), 2);
        assert_eq!(counters.tx_bytes(), (MIN_FRAME_LEN + MAX_FRAME_LEN) as u64);
        assert_eq!(counters.tx_dropped(DropReason::TooShort), 2);
        assert_eq!(counters.tx_offered(), 5);
        assert_eq!(port.wire.scratch[..], bytes[..MAX_FRAME_LEN]);
    }

    #[test]
    fn brings_nothing() {
        let mut port = NullPort::new();
        assert_eq!(port.receive(32, &mut |_: Span<'_>| panic!("a frame from nowhere")), 0);
        assert_eq!(port.next_due(), None);
        assert!(port.wake_fd().is_none());
        assert!(port.can_wait());
    }
}
