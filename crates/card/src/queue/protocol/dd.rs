//! DD (`docs/spec/dd.md`).

use super::queue_protocol::QueueProtocol;
use crate::engine::{RxEngine, TxEngine};
use crate::queue::build::Build;
use crate::queue::error::StartError;
use millrace_abi::register::dd as d;
use millrace_clock::Ticks;
use millrace_dma::{Access, Iova};
use millrace_ring::dd;

pub(super) struct Dd;

impl QueueProtocol for Dd {
    fn tx(&self, mut build: Build<'_>) -> Result<TxEngine, StartError> {
        let (ring, at) = ring(&mut build)?;
        let tsu = build.tsu.clone();
        // Until a worker has it and gives it its own.
        let clock = Box::new(move || tsu.timebase().at(Ticks::now()).total_nanoseconds());
        Ok(TxEngine::Dd(dd::CardTx::new(ring, at, build.limits, build.iotlb(), clock)))
    }

    fn rx(&self, mut build: Build<'_>) -> Result<RxEngine, StartError> {
        let (ring, at) = ring(&mut build)?;
        Ok(RxEngine::Dd(dd::CardRx::new(ring, at, build.limits, build.iotlb())))
    }
}

/// The descriptor ring, which both sides write.
fn ring(build: &mut Build<'_>) -> Result<(dd::Ring, Iova), StartError> {
    let entries = Build::entries(build.latches.masks[0])?;
    let (at, bytes) = (build.latches.desc_base, entries as usize * dd::DESCRIPTOR);
    let words = build.ring(at, bytes, d::RING_ALIGN.into(), Access::ReadWrite)?.slots64(0, bytes as u32 / 8);
    let words = words.map_err(|_| StartError::Unaligned(Iova::new(at)))?;
    Ok((dd::Ring::new(words).ok_or(StartError::Size(entries.into()))?, Iova::new(at)))
}
