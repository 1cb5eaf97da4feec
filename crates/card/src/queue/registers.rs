//! Registers of a DMA controller, by offset: what a read returns and what a write does. Those of Medusa are here, and
//! Calypte and DD have theirs at the same offsets; SZE has its own in `protocol/sze.rs`.

use super::latches::Latches;
use crate::counters::Counts;
use crate::mailbox::Mailbox;
use crate::queue_status::QueueStatus;
use millrace_abi::register::{Offset, calypte as c, medusa as m};

/// What the registers of a queue show.
pub(super) struct View<'a> {
    pub latches: &'a Latches,
    pub status: &'a QueueStatus,
    /// Software writes frames into buffers of the device.
    pub has_buffers: bool,
}

/// What a write has to do with.
pub(super) struct Target<'a> {
    pub latches: &'a mut Latches,
    pub status: &'a QueueStatus,
    pub mailbox: &'a Mailbox,
}

/// What a write asks for beyond what it leaves in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Nothing,
    Start {
        /// An RX queue without room drops.
        discard: bool,
    },
    Stop,
}

/// MDP and MHP. Those of Calypte TX are the device's to say.
fn masks(view: &View<'_>) -> [u32; 2] {
    if view.has_buffers {
        return [c::TX_RING - 1, c::TX_HEADERS - 1];
    }
    view.latches.masks.map(|mask| if mask == m::MASK_PROBE { m::MASK_LIMIT } else { mask })
}

/// Reads a register of Medusa.
pub(super) fn read(view: &View<'_>, offset: u32) -> u32 {
    let &View { latches, status, .. } = view;
    let strobed = &latches.strobed;
    match Offset::new(offset) {
        m::CONTROL => latches.control,
        m::STATUS => u32::from(status.is_running()) * m::STATUS_RUNNING,
        m::EXPER => latches.exper,
        m::SDP => latches.doorbell() as u32,
        m::SHP => (latches.doorbell() >> 32) as u32,
        m::HDP => status.counts.read().pointers[0],
        m::HHP => status.counts.read().pointers[1],
        m::TIMEOUT => latches.timeout,
        m::MDP => masks(view)[0],
        m::MHP => masks(view)[1],
        _ => half_of(offset, m::DESC_BASE, latches.desc_base)
            .or_else(|| half_of(offset, m::HDR_BASE, latches.hdr_base))
            .or_else(|| half_of(offset, m::UPDATE_BASE, latches.update_base))
            .or_else(|| half_of(offset, m::PASSED_FRAMES, strobed.passed))
            .or_else(|| half_of(offset, m::PASSED_BYTES, strobed.passed_bytes))
            .or_else(|| half_of(offset, m::DISCARDED_FRAMES, strobed.dropped()))
            .or_else(|| half_of(offset, m::DISCARDED_BYTES, strobed.dropped_bytes))
            .unwrap_or(0),
    }
}

/// Writes a register of Medusa.
pub(super) fn write(target: Target<'_>, offset: u32, value: u32) -> Asked {
    let Target { latches, status, mailbox } = target;
    match Offset::new(offset) {
        m::CONTROL if value & m::CONTROL_START != 0 => return Asked::Start { discard: false },
        m::CONTROL => return Asked::Stop,
        m::EXPER => latches.exper = value,
        m::TIMEOUT => latches.timeout = value,
        m::MDP => latches.masks[0] = value,
        m::MHP => latches.masks[1] = value,
        m::SDP => move_half(latches, value, 0, mailbox),
        m::SHP => move_half(latches, value, 32, mailbox),
        m::COUNTER_COMMAND => counter_command(latches, status.counts.read(), value),
        _ => {
            set_half(offset, m::DESC_BASE, value, &mut latches.desc_base);
            set_half(offset, m::HDR_BASE, value, &mut latches.hdr_base);
            set_half(offset, m::UPDATE_BASE, value, &mut latches.update_base);
        }
    }
    Asked::Nothing
}

fn counter_command(latches: &mut Latches, now: Counts, command: u32) {
    if command != m::COUNTERS_RESET {
        latches.strobed = minus(now, &latches.zero);
    } else {
        latches.strobed = Counts::default();
    }
    if command != m::COUNTERS_STROBE {
        latches.zero = now;
    }
}

/// The half of a 64-bit register that lies at `offset`.
pub(super) fn half_of(offset: u32, register: Offset, value: u64) -> Option<u32> {
    match offset.checked_sub(register.bytes())? {
        0 => Some(value as u32),
        4 => Some((value >> 32) as u32),
        _ => None,
    }
}

pub(super) fn set_half(offset: u32, register: Offset, value: u32, to: &mut u64) {
    match offset.checked_sub(register.bytes()) {
        Some(0) => *to = *to & !0xffff_ffff | u64::from(value),
        Some(4) => *to = *to & 0xffff_ffff | u64::from(value) << 32,
        _ => {}
    }
}

fn move_half(latches: &mut Latches, value: u32, shift: u32, mailbox: &Mailbox) {
    let others = latches.doorbell() & !(u64::from(u32::MAX) << shift);
    latches.set_pointers(others | u64::from(value) << shift, mailbox);
}

pub(super) fn minus(now: Counts, zero: &Counts) -> Counts {
    let mut drops = now.drops;
    drops.iter_mut().zip(zero.drops).for_each(|(drop, zero)| *drop = drop.saturating_sub(zero));
    Counts {
        passed: now.passed.saturating_sub(zero.passed),
        passed_bytes: now.passed_bytes.saturating_sub(zero.passed_bytes),
        dropped_bytes: now.dropped_bytes.saturating_sub(zero.dropped_bytes),
        drops,
        ..now
    }
}
