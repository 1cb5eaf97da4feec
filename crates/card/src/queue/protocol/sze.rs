//! SZE (`docs/spec/sze.md`), whose registers are others than those of the rest.

use super::queue_protocol::QueueProtocol;
use crate::engine::{RxEngine, TxEngine};
use crate::queue::build::Build;
use crate::queue::error::StartError;
use crate::queue::registers::{Asked, Target, View, half_of, minus, set_half};
use millrace_abi::register::{Offset, sze as s};
use millrace_dma::{Access, Iotlb, Iova};
use millrace_ring::sze;

pub(super) struct Sze;

impl QueueProtocol for Sze {
    fn tx(&self, mut build: Build<'_>) -> Result<TxEngine, StartError> {
        let (rings, iotlb) = rings(&mut build)?;
        sze::CardTx::new(rings, build.limits, iotlb).ok_or(StartError::Size(0)).map(TxEngine::Sze)
    }

    fn rx(&self, mut build: Build<'_>) -> Result<RxEngine, StartError> {
        let (rings, iotlb) = rings(&mut build)?;
        sze::CardRx::new(rings, build.limits, iotlb).ok_or(StartError::Size(0)).map(RxEngine::Sze)
    }

    fn read32(&self, view: &View<'_>, offset: u32) -> u32 {
        let &View { latches, status, .. } = view;
        let counts = || minus(status.counts.read(), &latches.zero);
        match Offset::new(offset) {
            s::CONTROL => latches.control,
            s::STATUS if status.is_running() => {
                s::STATUS_RUNNING | s::STATUS_DESCRIPTORS_READY | s::STATUS_DATA_READY | s::STATUS_RING_READY
            }
            s::STATUS => 0,
            s::SW_POINTER => latches.doorbell() as u32,
            s::HW_POINTER => status.counts.read().pointers[0],
            s::RING_MASK => latches.ring_mask,
            s::IRQ => latches.irq,
            s::TIMEOUT => latches.timeout,
            s::MAX_REQUEST => latches.max_request,
            _ => half_of(offset, s::DESC_BASE, latches.desc_base)
                .or_else(|| half_of(offset, s::UPDATE_BASE, latches.update_base))
                .or_else(|| half_of(offset, s::PASSED_FRAMES, counts().passed))
                .or_else(|| half_of(offset, s::DISCARDED_FRAMES, counts().dropped()))
                .unwrap_or(0),
        }
    }

    fn write32(&self, target: Target<'_>, offset: u32, value: u32) -> Asked {
        let Target { latches, status, mailbox } = target;
        match Offset::new(offset) {
            s::CONTROL if value & s::CONTROL_START != 0 => {
                latches.control = value;
                return Asked::Start { discard: value & s::CONTROL_DISCARD != 0 };
            }
            s::CONTROL => return Asked::Stop,
            s::SW_POINTER => latches.set_pointers(u64::from(value), mailbox),
            s::RING_MASK => latches.ring_mask = value,
            s::IRQ => latches.irq = value,
            s::TIMEOUT => latches.timeout = value,
            s::MAX_REQUEST => latches.max_request = value,
            s::COUNTER_COMMAND if value == s::COUNTERS_RESET => latches.zero = status.counts.read(),
            _ => {
                set_half(offset, s::DESC_BASE, value, &mut latches.desc_base);
                set_half(offset, s::UPDATE_BASE, value, &mut latches.update_base);
            }
        }
        Asked::Nothing
    }
}

/// The rings of a queue, and what translates their addresses.
fn rings(build: &mut Build<'_>) -> Result<(sze::Rings, Iotlb), StartError> {
    let size = u64::from(build.latches.ring_mask) + 1;
    let fits = size.is_power_of_two() && (4096..=1 << 30).contains(&size);
    if !fits {
        return Err(StartError::Size(size));
    }
    let descriptors_at = Iova::new(build.latches.desc_base);
    // The list is read as the card goes along; that it begins somewhere is checked here.
    build.ring(build.latches.desc_base, 8, 8, Access::Read)?;
    let update = build.update()?;
    let doorbell = build.attached.doorbell.clone();
    Ok((sze::Rings { descriptors_at, size: size as u32, doorbell, update }, build.iotlb()))
}
