//! The card's half of a ring, whichever protocol it speaks.

use crate::pass_clock::PassClock;
use millrace_abi::handover::RingPlace;
use millrace_dma::Span;
use millrace_ring::{EngineFault, FrameSink, RxOutcome, Served, calypte, dd, medusa, sze};
use std::sync::Arc;
use std::time::Duration;

/// A running TX queue.
pub(crate) enum TxEngine {
    Sze(sze::CardTx),
    Medusa(medusa::CardTx),
    Calypte(calypte::CardTx),
    Dd(dd::CardTx),
}

/// A running RX queue.
pub(crate) enum RxEngine {
    Sze(sze::CardRx),
    Medusa(medusa::CardRx),
    Calypte(calypte::CardRx),
    Dd(dd::CardRx),
}

impl TxEngine {
    #[inline(always)]
    pub fn pending(&mut self) -> bool {
        match self {
            TxEngine::Sze(engine) => engine.pending() != 0,
            TxEngine::Medusa(engine) => engine.pending() != 0,
            TxEngine::Calypte(engine) => engine.pending(),
            TxEngine::Dd(engine) => engine.pending(),
        }
    }

    /// Asks for the cache lines that the next frame will most likely lie in, while nothing is there. SZE asks ahead in
    /// its stream as it goes.
    #[inline(always)]
    pub fn anticipate(&self) {
        match self {
            TxEngine::Sze(_) => {}
            TxEngine::Medusa(engine) => engine.anticipate(),
            TxEngine::Calypte(engine) => engine.anticipate(),
            TxEngine::Dd(engine) => engine.anticipate(),
        }
    }

    /// Whether nothing is left of what software has given to the card.
    pub fn is_drained(&mut self) -> bool {
        match self {
            TxEngine::Dd(engine) => engine.is_drained(),
            other => !other.pending(),
        }
    }

    /// Whether the next frame waits for its launch time.
    #[inline(always)]
    pub fn is_held(&self) -> bool {
        matches!(self, TxEngine::Dd(engine) if engine.is_held())
    }

    /// How long the next frame waits for its launch time, by the card's clock; `None`: it does not.
    pub fn launch_in(&self) -> Option<Duration> {
        let TxEngine::Dd(engine) = self else { return None };
        engine.launch_in()
    }

    /// The launch time for which the next frame waits, by the card's clock; `None`: it does not.
    #[inline(always)]
    pub fn held_until(&self) -> Option<u64> {
        let TxEngine::Dd(engine) = self else { return None };
        engine.held_until()
    }

    /// Asks for what handing over the next frame will need.
    pub fn prepare(&self) {
        if let TxEngine::Dd(engine) = self {
            engine.prepare();
        }
    }

    /// The launch time of the next frame has come; the next burst takes none with a later launch time than `until`.
    #[inline(always)]
    pub fn come_due(&mut self, until: u64, patience: u64) {
        if let TxEngine::Dd(engine) = self {
            engine.come_due(until, patience);
        }
    }

    /// Goes by the clock of this worker from now on.
    pub fn use_clock(&mut self, clock: &Arc<PassClock>) {
        if let TxEngine::Dd(engine) = self {
            engine.set_clock(clock.of_rings());
        }
    }

    #[inline(always)]
    pub fn serve(&mut self, budget: usize, sink: &mut impl FrameSink) -> Served {
        match self {
            TxEngine::Sze(engine) => engine.serve(budget, sink),
            TxEngine::Medusa(engine) => engine.serve(budget, sink),
            TxEngine::Calypte(engine) => engine.serve(budget, sink),
            TxEngine::Dd(engine) => engine.serve(budget, sink),
        }
    }

    /// Hits and misses of the translation cache. A Calypte queue has none: all its memory is known at START.
    pub fn iotlb_counts(&self) -> (u64, u64) {
        match self {
            TxEngine::Sze(engine) => engine.iotlb().counts(),
            TxEngine::Medusa(engine) => engine.iotlb().counts(),
            TxEngine::Calypte(_) => (0, 0),
            TxEngine::Dd(engine) => engine.iotlb().counts(),
        }
    }

    pub fn sync(&mut self) {
        match self {
            TxEngine::Sze(engine) => engine.sync(),
            TxEngine::Medusa(engine) => engine.sync(),
            TxEngine::Calypte(_) => {}
            TxEngine::Dd(engine) => engine.sync(),
        }
    }

    /// Where the ring stands, for another card that goes on with it. `None`: it cannot.
    pub fn place(&self) -> Option<RingPlace> {
        match self {
            TxEngine::Sze(engine) => Some(engine.place()),
            TxEngine::Medusa(engine) => Some(engine.place()),
            // Its buffers are of the card that is left.
            TxEngine::Calypte(_) => None,
            TxEngine::Dd(engine) => engine.resting_place(),
        }
    }

    /// Goes on from there, before anything was served.
    pub fn resume(&mut self, place: &RingPlace) {
        match self {
            TxEngine::Sze(engine) => engine.resume(place),
            TxEngine::Medusa(engine) => engine.resume(place),
            TxEngine::Calypte(_) => {}
            TxEngine::Dd(engine) => engine.resume(place),
        }
    }

    /// Says how far it is, where another card may have been killed before it did. RX queues publish whenever they begin.
    pub fn publish(&mut self) {
        if let TxEngine::Medusa(engine) = self {
            engine.publish();
        }
    }

    /// HW or HDP, and 0 or HHP; DD: HEAD and DONE.
    pub fn pointers(&self) -> [u32; 2] {
        match self {
            TxEngine::Sze(engine) => [engine.hw(), 0],
            TxEngine::Medusa(engine) => [engine.hdp(), 0],
            TxEngine::Calypte(engine) => [engine.hdp(), engine.hhp()],
            TxEngine::Dd(engine) => [engine.head(), engine.done()],
        }
    }
}

impl RxEngine {
    #[inline(always)]
    pub fn sync(&mut self) {
        match self {
            RxEngine::Sze(engine) => engine.sync(),
            RxEngine::Medusa(engine) => engine.sync(),
            RxEngine::Calypte(_) => {}
            RxEngine::Dd(engine) => engine.sync(),
        }
    }

    #[inline(always)]
    pub fn deliver(&mut self, header: &[u8], frame: Span<'_>) -> Result<RxOutcome, EngineFault> {
        match self {
            RxEngine::Sze(engine) => engine.deliver(header, frame),
            RxEngine::Medusa(engine) => engine.deliver(header, frame),
            RxEngine::Calypte(engine) => engine.deliver(header, frame),
            RxEngine::Dd(engine) => engine.deliver(header, frame),
        }
    }

    /// Writes frames from the front that need nothing but the next buffer, and returns how many. 0 says nothing: the next
    /// is for [`RxEngine::deliver`].
    #[inline(always)]
    pub fn deliver_run(&mut self, header: &[u8], frames: &[Span<'_>]) -> usize {
        match self {
            RxEngine::Medusa(engine) if header.is_empty() => engine.deliver_run(frames),
            RxEngine::Dd(engine) => engine.deliver_run(header, frames),
            RxEngine::Sze(_) | RxEngine::Medusa(_) | RxEngine::Calypte(_) => 0,
        }
    }

    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        match self {
            RxEngine::Sze(engine) => engine.publish(),
            RxEngine::Medusa(engine) => engine.publish(),
            RxEngine::Calypte(engine) => engine.publish(),
            RxEngine::Dd(engine) => engine.publish(),
        }
    }

    /// As for TX.
    pub fn iotlb_counts(&self) -> (u64, u64) {
        match self {
            RxEngine::Sze(engine) => engine.iotlb().counts(),
            RxEngine::Medusa(engine) => engine.iotlb().counts(),
            RxEngine::Calypte(_) => (0, 0),
            RxEngine::Dd(engine) => engine.iotlb().counts(),
        }
    }

    /// As for TX, when everything is published.
    pub fn place(&self) -> Option<RingPlace> {
        match self {
            RxEngine::Sze(engine) => Some(engine.place()),
            RxEngine::Medusa(engine) => Some(engine.place()),
            RxEngine::Calypte(_) => None,
            RxEngine::Dd(engine) => engine.resting_place(),
        }
    }

    /// Goes on from there, before anything was delivered.
    pub fn resume(&mut self, place: &RingPlace) {
        match self {
            RxEngine::Sze(engine) => engine.resume(place),
            RxEngine::Medusa(engine) => engine.resume(place),
            RxEngine::Calypte(_) => {}
            RxEngine::Dd(engine) => engine.resume(place),
        }
    }

    /// HW and 0, or HDP and HHP; DD: HEAD and DONE.
    pub fn pointers(&self) -> [u32; 2] {
        match self {
            RxEngine::Sze(engine) => [engine.hw(), 0],
            RxEngine::Medusa(engine) => [engine.hdp(), engine.hhp()],
            RxEngine::Calypte(engine) => [engine.hdp(), engine.hhp()],
            RxEngine::Dd(engine) => [engine.head(), engine.done()],
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use millrace_dma::{Domain, Iotlb, Iova, Region};
    use millrace_ring::FrameLimits;

    /// An engine that has nothing to do.
    pub fn tx() -> TxEngine {
        let memory = Region::heap(4096);
        let window = memory.window();
        let rings = medusa::TxRings {
            descriptors: window.slots64(0, 64).unwrap(),
            descriptors_at: Iova::new(0),
            doorbell: window.word64(1024).unwrap(),
            update: window.word64(2048).unwrap(),
        };
        let iotlb = Iotlb::new(Arc::new(Domain::new()));
        TxEngine::Medusa(medusa::CardTx::new(rings, FrameLimits::ETHERNET, iotlb).unwrap())
    }
}
