//! SZE (`docs/spec/sze.md`), whose registers are others than those of the rest.

use super::QueueProtocol;
use crate::engine::{RxEngine, TxEngine};
use crate::queue::Queue;
use crate::queue::build::Build;
use crate::queue::error::StartError;
use crate::queue::registers::{Surroundings, half_of, minus, set_half, set_pointers};
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

    fn read32(&self, queue: &Queue, offset: u32) -> u32 {
        let latches = queue.latches();
        let counts = || minus(queue.status.counts.read(), &latches.zero);
        match Offset::new(offset) {
            s::CONTROL => latches.control,
            s::STATUS if queue.status.is_running() => {
                s::STATUS_RUNNING | s::STATUS_DESCRIPTORS_READY | s::STATUS_DATA_READY | s::STATUS_RING_READY
            }
            s::STATUS => 0,
            s::SW_POINTER => Queue::doorbell(&latches) as u32,
            s::HW_POINTER => queue.status.counts.read().pointers[0],
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

    fn write32(&self, queue: &Queue, offset: u32, value: u32, around: Surroundings<'_>) {
        let Surroundings { limits, discard, mailbox } = around;
        let mut latches = queue.latches();
        match Offset::new(offset) {
            s::CONTROL if value & s::CONTROL_START != 0 => {
                latches.control = value;
                let discard = discard || value & s::CONTROL_DISCARD != 0;
                queue.start(&mut latches, limits, discard, mailbox);
            }
            s::CONTROL => queue.ask_to_stop(latches, mailbox),
            s::SW_POINTER => set_pointers(&mut latches, u64::from(value), mailbox),
            s::RING_MASK => latches.ring_mask = value,
            s::IRQ => latches.irq = value,
            s::TIMEOUT => latches.timeout = value,
            s::MAX_REQUEST => latches.max_request = value,
            s::COUNTER_COMMAND if value == s::COUNTERS_RESET => latches.zero = queue.status.counts.read(),
            _ => {
                set_half(offset, s::DESC_BASE, value, &mut latches.desc_base);
                set_half(offset, s::UPDATE_BASE, value, &mut latches.update_base);
            }
        }
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
