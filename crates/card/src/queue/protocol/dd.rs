//! DD (`docs/spec/dd.md`).

use super::queue_protocol::QueueProtocol;
use crate::engine::{RxEngine, TxEngine};
use crate::queue::build::Build;
use crate::queue::error::StartError;
use crate::queue::registers::{self, Asked, Target, View};
use millrace_abi::launch::LaunchPolicy;
use millrace_abi::register::{Offset, dd as d};
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
        let engine = dd::CardTx::new(ring, at, build.limits, build.iotlb(), clock);
        let counts = build.launches.cloned().unwrap_or_default();
        Ok(TxEngine::Dd(engine.launching(build.latches.launch, counts)))
    }

    fn rx(&self, mut build: Build<'_>) -> Result<RxEngine, StartError> {
        let (ring, at) = ring(&mut build)?;
        Ok(RxEngine::Dd(dd::CardRx::new(ring, at, build.limits, build.iotlb())))
    }

    fn read32(&self, view: &View<'_>, offset: u32) -> u32 {
        let [launch, slack] = view.latches.launch.to_registers();
        match Offset::new(offset) {
            d::LAUNCH => launch,
            d::SLACK => slack,
            _ => registers::read(view, offset),
        }
    }

    fn write32(&self, target: Target<'_>, offset: u32, value: u32) -> Asked {
        let [launch, slack] = target.latches.launch.to_registers();
        let registers = match Offset::new(offset) {
            d::LAUNCH => [value, slack],
            d::SLACK => [launch, value],
            _ => return registers::write(target, offset, value),
        };
        target.latches.launch = LaunchPolicy::of_registers(registers);
        Asked::Nothing
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
