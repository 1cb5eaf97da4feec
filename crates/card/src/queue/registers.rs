//! Registers of a DMA controller, by offset: what a read returns and what a write does.

use super::{Latches, Queue};
use crate::counters::Counts;
use crate::mailbox::Mailbox;
use millrace_abi::register::{Offset, calypte as c, medusa as m};
use millrace_dma::Ordering;
use millrace_ring::FrameLimits;

/// What a write to CONTROL takes besides its value.
pub(super) struct Surroundings<'a> {
    pub limits: FrameLimits,
    pub discard: bool,
    pub mailbox: &'a Mailbox,
}

impl Queue {
    pub fn read32(&self, offset: u32) -> u32 {
        self.protocol.read32(self, offset)
    }

    pub fn write32(&self, offset: u32, value: u32, limits: FrameLimits, discard: bool, mailbox: &Mailbox) {
        self.protocol.write32(self, offset, value, Surroundings { limits, discard, mailbox });
    }

    /// A 64-bit write of SDP moves both pointers at once (§3.2).
    pub fn write_pointers(&self, value: u64, mailbox: &Mailbox) {
        set_pointers(&mut self.latches(), value, mailbox);
    }

    pub(super) fn doorbell(latches: &Latches) -> u64 {
        latches.attached.as_ref().map_or(latches.pointers, |attached| attached.doorbell.load(Ordering::Acquire))
    }

    /// MDP and MHP. Those of Calypte TX are the device's to say.
    fn masks(&self, latches: &Latches) -> [u32; 2] {
        if self.has_buffers() {
            return [c::TX_RING - 1, c::TX_HEADERS - 1];
        }
        latches.masks.map(|mask| if mask == m::MASK_PROBE { m::MASK_LIMIT } else { mask })
    }

    /// Medusa, and Calypte and DD, whose registers lie at the same offsets.
    pub(super) fn read_medusa(&self, offset: u32) -> u32 {
        let latches = self.latches();
        let strobed = &latches.strobed;
        match Offset::new(offset) {
            m::CONTROL => latches.control,
            m::STATUS => u32::from(self.status.is_running()) * m::STATUS_RUNNING,
            m::EXPER => latches.exper,
            m::SDP => Self::doorbell(&latches) as u32,
            m::SHP => (Self::doorbell(&latches) >> 32) as u32,
            m::HDP => self.status.counts.read().pointers[0],
            m::HHP => self.status.counts.read().pointers[1],
            m::TIMEOUT => latches.timeout,
            m::MDP => self.masks(&latches)[0],
            m::MHP => self.masks(&latches)[1],
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

    pub(super) fn write_medusa(&self, offset: u32, value: u32, around: Surroundings<'_>) {
        let Surroundings { limits, discard, mailbox } = around;
        let mut latches = self.latches();
        match Offset::new(offset) {
            m::CONTROL if value & m::CONTROL_START != 0 => self.start(&mut latches, limits, discard, mailbox),
            m::CONTROL => self.ask_to_stop(latches, mailbox),
            m::EXPER => latches.exper = value,
            m::TIMEOUT => latches.timeout = value,
            m::MDP => latches.masks[0] = value,
            m::MHP => latches.masks[1] = value,
            m::SDP => move_half(&mut latches, value, 0, mailbox),
            m::SHP => move_half(&mut latches, value, 32, mailbox),
            m::COUNTER_COMMAND => self.counter_command(&mut latches, value),
            _ => {
                set_half(offset, m::DESC_BASE, value, &mut latches.desc_base);
                set_half(offset, m::HDR_BASE, value, &mut latches.hdr_base);
                set_half(offset, m::UPDATE_BASE, value, &mut latches.update_base);
            }
        }
    }

    fn counter_command(&self, latches: &mut Latches, command: u32) {
        let now = self.status.counts.read();
        if command != m::COUNTERS_RESET {
            latches.strobed = minus(now, &latches.zero);
        } else {
            latches.strobed = Counts::default();
        }
        if command != m::COUNTERS_STROBE {
            latches.zero = now;
        }
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
    let others = Queue::doorbell(latches) & !(u64::from(u32::MAX) << shift);
    set_pointers(latches, others | u64::from(value) << shift, mailbox);
}

pub(super) fn set_pointers(latches: &mut Latches, pointers: u64, mailbox: &Mailbox) {
    match &latches.attached {
        Some(attached) => attached.ring(pointers, mailbox),
        None => latches.pointers = pointers,
    }
}

pub(super) fn minus(now: Counts, zero: &Counts) -> Counts {
    let mut drops = now.drops;
    drops.iter_mut().zip(zero.drops).for_each(|(drop, zero)| *drop -= zero);
    Counts {
        passed: now.passed - zero.passed,
        passed_bytes: now.passed_bytes - zero.passed_bytes,
        dropped_bytes: now.dropped_bytes - zero.dropped_bytes,
        drops,
        ..now
    }
}
