//! The card's half of a ring, whichever protocol it speaks.

use millrace_dma::{Iotlb, Span};
use millrace_ring::{Delivery, EngineFault, FrameSink, Served, medusa, sze};

/// A running TX queue.
pub(crate) enum TxEngine {
    Sze(sze::CardTx),
    Medusa(medusa::CardTx),
}

/// A running RX queue.
pub(crate) enum RxEngine {
    Sze(sze::CardRx),
    Medusa(medusa::CardRx),
}

impl TxEngine {
    #[inline(always)]
    pub fn pending(&mut self) -> bool {
        match self {
            TxEngine::Sze(engine) => engine.pending() != 0,
            TxEngine::Medusa(engine) => engine.pending() != 0,
        }
    }

    #[inline(always)]
    pub fn serve(&mut self, budget: usize, sink: &mut impl FrameSink) -> Served {
        match self {
            TxEngine::Sze(engine) => engine.serve(budget, sink),
            TxEngine::Medusa(engine) => engine.serve(budget, sink),
        }
    }

    pub fn iotlb(&self) -> &Iotlb {
        match self {
            TxEngine::Sze(engine) => engine.iotlb(),
            TxEngine::Medusa(engine) => engine.iotlb(),
        }
    }

    pub fn sync(&mut self) {
        match self {
            TxEngine::Sze(engine) => engine.sync(),
            TxEngine::Medusa(engine) => engine.sync(),
        }
    }

    /// HW or HDP, and 0.
    pub fn pointers(&self) -> [u32; 2] {
        match self {
            TxEngine::Sze(engine) => [engine.hw(), 0],
            TxEngine::Medusa(engine) => [engine.hdp(), 0],
        }
    }
}

impl RxEngine {
    #[inline(always)]
    pub fn sync(&mut self) {
        match self {
            RxEngine::Sze(engine) => engine.sync(),
            RxEngine::Medusa(engine) => engine.sync(),
        }
    }

    #[inline(always)]
    pub fn deliver(&mut self, header: &[u8], frame: Span<'_>) -> Result<Delivery, EngineFault> {
        match self {
            RxEngine::Sze(engine) => engine.deliver(header, frame),
            RxEngine::Medusa(engine) => engine.deliver(header, frame),
        }
    }

    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        match self {
            RxEngine::Sze(engine) => engine.publish(),
            RxEngine::Medusa(engine) => engine.publish(),
        }
    }

    pub fn iotlb(&self) -> &Iotlb {
        match self {
            RxEngine::Sze(engine) => engine.iotlb(),
            RxEngine::Medusa(engine) => engine.iotlb(),
        }
    }

    /// HW and 0, or HDP and HHP.
    pub fn pointers(&self) -> [u32; 2] {
        match self {
            RxEngine::Sze(engine) => [engine.hw(), 0],
            RxEngine::Medusa(engine) => [engine.hdp(), engine.hhp()],
        }
    }
}
