//! A port as its MAC registers show it (`specs/nfb-card.md` §2.4, §2.5). MACs are enabled from the start, so that a
//! program that never heard of them sees packets (trap T20).

use millrace_abi::register::{Offset, rxmac as r, txmac as t};
use millrace_port::{DropReason, PortCounters};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of the FCS: the registers count it although no frame carries it here.
const FCS: u64 = 4;
const GBPS: u32 = 100;

/// The MACs of one port.
pub(crate) struct Mac {
    rx_enabled: AtomicBool,
    tx_enabled: AtomicBool,
    rx_disabled_drops: AtomicU64,
    tx_disabled_drops: AtomicU64,
    // One per lane of the port.
    counters: Vec<Arc<PortCounters>>,
    latches: Mutex<Latches>,
}

struct Latches {
    error_mask: u32,
    length_min: u32,
    length_max: u32,
    filter: u32,
    table: [u64; r::MAC_TABLE_ENTRIES as usize],
    rx_zero: Side,
    rx_strobed: Side,
    tx_zero: Side,
    tx_strobed: Side,
}

/// Counters of one direction at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Side {
    pub total: u64,
    pub passed: u64,
    pub octets: u64,
    pub overflowed: u64,
    pub length: u64,
    pub link_down: u64,
    pub failed: u64,
    pub disabled: u64,
}

impl Side {
    fn dropped(&self) -> u64 {
        self.total - self.passed
    }

    // Saturating: a frame that a disabled half takes shows for a moment as passed, so `passed` may go back by a burst.
    fn minus(self, zero: &Self) -> Self {
        Self {
            total: self.total.saturating_sub(zero.total),
            passed: self.passed.saturating_sub(zero.passed),
            octets: self.octets.saturating_sub(zero.octets),
            overflowed: self.overflowed.saturating_sub(zero.overflowed),
            length: self.length.saturating_sub(zero.length),
            link_down: self.link_down.saturating_sub(zero.link_down),
            failed: self.failed.saturating_sub(zero.failed),
            disabled: self.disabled.saturating_sub(zero.disabled),
        }
    }
}

impl Mac {
    pub fn new(counters: Vec<Arc<PortCounters>>, longest: u16) -> Self {
        let latches = Latches {
            error_mask: r::ERROR_TOO_SHORT | r::ERROR_TOO_LONG,
            length_min: r::LENGTH_MIN_DEFAULT,
            length_max: u32::from(longest) + FCS as u32,
            filter: r::FILTER_PROMISCUOUS,
            table: [0; r::MAC_TABLE_ENTRIES as usize],
            rx_zero: Side::default(),
            rx_strobed: Side::default(),
            tx_zero: Side::default(),
            tx_strobed: Side::default(),
        };
        Self {
            rx_enabled: AtomicBool::new(true),
            tx_enabled: AtomicBool::new(true),
            rx_disabled_drops: AtomicU64::new(0),
            tx_disabled_drops: AtomicU64::new(0),
            counters,
            latches: Mutex::new(latches),
        }
    }

    #[inline(always)]
    pub fn rx_enabled(&self) -> bool {
        self.rx_enabled.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub fn tx_enabled(&self) -> bool {
        self.tx_enabled.load(Ordering::Relaxed)
    }

    /// A frame came in while the receiving half was disabled.
    pub fn drop_rx(&self) {
        self.rx_disabled_drops.fetch_add(1, Ordering::Relaxed);
    }

    /// Frames were to go out while a half that they needed was disabled.
    pub fn drop_tx(&self, frames: u64) {
        self.tx_disabled_drops.fetch_add(frames, Ordering::Relaxed);
    }

    fn dropped(counters: &[Arc<PortCounters>], rx: bool, reasons: &[DropReason]) -> u64 {
        let of = |one: &PortCounters, reason| if rx { one.rx_dropped(reason) } else { one.tx_dropped(reason) };
        counters.iter().flat_map(|one| reasons.iter().map(move |&reason| of(one, reason))).sum()
    }

    /// What came in since the card started.
    pub fn rx(&self) -> Side {
        let all = &self.counters;
        let disabled = self.rx_disabled_drops.load(Ordering::Relaxed);
        // What came in while the half was disabled was taken from the port and goes no further.
        let passed = all.iter().map(|one| one.rx_frames()).sum::<u64>().saturating_sub(disabled);
        let overflowed = Self::dropped(all, true, &[DropReason::NoRoom]);
        let length = Self::dropped(all, true, &[DropReason::TooLong, DropReason::TooShort]);
        let failures = [DropReason::Truncated, DropReason::Damaged, DropReason::ReadFailed, DropReason::WriteFailed];
        let failed = Self::dropped(all, true, &failures);
        let link_down = Self::dropped(all, true, &[DropReason::LinkDown]);
        Side {
            total: passed + disabled + overflowed + length + failed + link_down,
            passed,
            octets: all.iter().map(|one| one.rx_bytes()).sum::<u64>() + FCS * passed,
            overflowed,
            length,
            link_down,
            failed,
            disabled,
        }
    }

    /// What went out since the card started.
    pub fn tx(&self) -> Side {
        let all = &self.counters;
        let disabled = self.tx_disabled_drops.load(Ordering::Relaxed);
        let passed = all.iter().map(|one| one.tx_frames()).sum::<u64>();
        let overflowed = Self::dropped(all, false, &[DropReason::NoRoom]);
        let length = Self::dropped(all, false, &[DropReason::TooLong, DropReason::TooShort]);
        let failures = [DropReason::Truncated, DropReason::Damaged, DropReason::ReadFailed, DropReason::WriteFailed];
        let failed = Self::dropped(all, false, &failures);
        let link_down = Self::dropped(all, false, &[DropReason::LinkDown]);
        Side {
            total: passed + disabled + overflowed + length + failed + link_down,
            passed,
            octets: all.iter().map(|one| one.tx_bytes()).sum::<u64>() + FCS * passed,
            overflowed,
            length,
            link_down,
            failed,
            disabled,
        }
    }

    fn latches(&self) -> std::sync::MutexGuard<'_, Latches> {
        self.latches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn read_rx(&self, offset: u32) -> u32 {
        let latches = self.latches();
        let side = &latches.rx_strobed;
        let pairs = [
            (r::TOTAL_LOW, r::TOTAL_HIGH, side.total),
            (r::RECEIVED_LOW, r::RECEIVED_HIGH, side.passed),
            (r::DROPPED_LOW, r::DROPPED_HIGH, side.dropped()),
            (r::OVERFLOWED_LOW, r::OVERFLOWED_HIGH, side.overflowed),
            (r::OCTETS_LOW, r::OCTETS_HIGH, side.octets),
        ];
        let wide = [
            (r::RECEIVED_OCTETS, side.octets),
            (r::DROPPED_ERROR, side.failed),
            (r::DROPPED_DISABLED, side.disabled),
            (r::DROPPED_LENGTH, side.length),
        ];
        match Offset::new(offset) {
            r::ENABLE => u32::from(self.rx_enabled()),
            r::ERROR_MASK => latches.error_mask,
            r::STATUS => {
                r::STATUS_LINK_UP
                    | r::speed_code(GBPS) << r::STATUS_SPEED_SHIFT
                    | r::MAC_TABLE_ENTRIES << r::STATUS_TABLE_SHIFT
                    | (u32::from(side.overflowed > 0) * r::STATUS_OVERFLOW)
            }
            r::LENGTH_MIN => latches.length_min,
            r::LENGTH_MAX => latches.length_max,
            r::FILTER => latches.filter,
            _ => match table_entry(offset) {
                Some((entry, half)) => (latches.table[entry] >> (32 * half)) as u32,
                None => pick(offset, &pairs, &wide),
            },
        }
    }

    pub fn write_rx(&self, offset: u32, value: u32) {
        if Offset::new(offset) == r::ENABLE {
            self.rx_enabled.store(value & 1 != 0, Ordering::Relaxed);
            return;
        }
        let now = self.rx();
        let mut latches = self.latches();
        match Offset::new(offset) {
            r::ERROR_MASK => latches.error_mask = value,
            r::COMMAND if value == r::COMMAND_STROBE => latches.rx_strobed = now.minus(&latches.rx_zero),
            r::COMMAND if value == r::COMMAND_RESET => (latches.rx_zero, latches.rx_strobed) = (now, Side::default()),
            r::LENGTH_MIN => latches.length_min = value,
            r::LENGTH_MAX => latches.length_max = value,
            r::FILTER => latches.filter = value,
            _ => {
                if let Some((entry, half)) = table_entry(offset) {
                    let keep = !(u64::from(u32::MAX) << (32 * half));
                    latches.table[entry] = latches.table[entry] & keep | u64::from(value) << (32 * half);
                }
            }
        }
    }

    pub fn read_tx(&self, offset: u32) -> u32 {
        let latches = self.latches();
        let side = &latches.tx_strobed;
        let pairs = [
            (t::TOTAL_LOW, t::TOTAL_HIGH, side.total),
            (t::SENT_OCTETS_LOW, t::SENT_OCTETS_HIGH, side.octets),
            (t::DROPPED_LOW, t::DROPPED_HIGH, side.dropped()),
            (t::SENT_LOW, t::SENT_HIGH, side.passed),
        ];
        let wide = [
            (t::TOTAL_OCTETS, side.octets),
            (t::DROPPED_LINK_DOWN, side.link_down),
            (t::DROPPED_LENGTH, side.length),
            (t::DROPPED_DISABLED, side.disabled),
        ];
        match Offset::new(offset) {
            t::ENABLE => u32::from(self.tx_enabled()),
            t::STATUS => t::STATUS_LINK_UP | r::speed_code(GBPS) << t::STATUS_SPEED_SHIFT,
            _ => pick(offset, &pairs, &wide),
        }
    }

    pub fn write_tx(&self, offset: u32, value: u32) {
        let now = self.tx();
        let mut latches = self.latches();
        match Offset::new(offset) {
            t::ENABLE => self.tx_enabled.store(value & 1 != 0, Ordering::Relaxed),
            t::COMMAND if value == t::COMMAND_STROBE => latches.tx_strobed = now.minus(&latches.tx_zero),
            t::COMMAND if value == t::COMMAND_RESET => (latches.tx_zero, latches.tx_strobed) = (now, Side::default()),
            _ => {}
        }
    }
}

/// The address table entry at an offset, and which half of it.
fn table_entry(offset: u32) -> Option<(usize, u32)> {
    let within = offset.checked_sub(r::MAC_TABLE.bytes())?;
    (within < r::MAC_TABLE_ENTRIES * 8).then_some(((within / 8) as usize, within % 8 / 4))
}

/// The word at an offset among counters in two separate halves and counters in 64 bits.
fn pick(offset: u32, pairs: &[(Offset, Offset, u64)], wide: &[(Offset, u64)]) -> u32 {
    let at = Offset::new(offset);
    let narrow = pairs.iter().find_map(|&(low, high, value)| match at {
        _ if at == low => Some(value as u32),
        _ if at == high => Some((value >> 32) as u32),
        _ => None,
    });
    let half = || {
        wide.iter().find_map(|&(register, value)| match offset.checked_sub(register.bytes())? {
            0 => Some(value as u32),
            4 => Some((value >> 32) as u32),
            _ => None,
        })
    };
    narrow.or_else(half).unwrap_or(0)
}
