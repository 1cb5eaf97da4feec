//! The PCS and PMA of a port, mapped directly: 16-bit registers at device address * 0x10000 + register * 2
//! (`specs/nfb-card.md` §2.6). Only those that tools need; all others read 0.

use super::define::*;

registers! {
    block "pcs", section "2.6", size 0x40000;
    PMA_CONTROL = 0x10000, W16, RW, "1.0: bits 13, 6 and 5:2 speed, 15 reset, 11 low power, 0 local loopback";
    PMA_STATUS = 0x10002, W16, RO, "1.1: bit 2 link up, 7 fault";
    PMA_SPEED_ABILITY = 0x10008, W16, RO, "1.4: bit 0 10G, 3 50G, 8 40G, 9 100G, 11 25G, 12 200G, 15 400G";
    PMA_TYPE = 0x1000e, W16, RO, "1.7: type of the medium, low 7 bits";
    PMA_STATUS_2 = 0x10010, W16, RO, "1.8: bit 11 TX fault, 10 RX fault, 0 local loopback possible";
    PMA_FEC_CONTROL = 0x10190, W16, RW, "1.200: bit 2 RS-FEC on";
    PCS_CONTROL = 0x30000, W16, RW, "3.0: bits 13, 6 and 5:2 speed, 15 reset";
    PCS_STATUS = 0x30002, W16, RO, "3.1: bit 2 link up, 7 fault";
}

/// [`PMA_CONTROL`], [`PCS_CONTROL`]: the two bits that say that the speed is in bits 5:2.
pub const CONTROL_SPEED_EXTENDED: u16 = 1 << 13 | 1 << 6;
/// [`PMA_CONTROL`], [`PCS_CONTROL`]: lowest bit of the speed code, which is four bits wide.
pub const CONTROL_SPEED_SHIFT: u32 = 2;
/// [`PMA_CONTROL`]: reset; DPDK sets it to take a link down.
pub const CONTROL_RESET: u16 = 1 << 15;
/// [`PMA_CONTROL`]: what is transmitted comes back at the PMA.
pub const CONTROL_LOCAL_LOOPBACK: u16 = 1 << 0;
/// [`PMA_STATUS`], [`PCS_STATUS`]: the link is up.
pub const STATUS_LINK_UP: u16 = 1 << 2;

/// Speed code of [`PMA_CONTROL`] for a speed in Gbit/s.
pub const fn pma_speed_code(gbps: u32) -> Option<u16> {
    Some(match gbps {
        10 => 0,
        40 => 2,
        100 => 3,
        25 => 4,
        50 => 5,
        200 => 8,
        400 => 9,
        _ => return None,
    })
}

/// Speed code of [`PCS_CONTROL`] for a speed in Gbit/s.
pub const fn pcs_speed_code(gbps: u32) -> Option<u16> {
    Some(match gbps {
        10 => 0,
        40 => 3,
        100 => 4,
        25 => 5,
        50 => 6,
        200 => 9,
        400 => 10,
        _ => return None,
    })
}

/// Bit of [`PMA_SPEED_ABILITY`] for a speed in Gbit/s; 0 for one that has none.
pub const fn speed_ability(gbps: u32) -> u16 {
    match gbps {
        10 => 1 << 0,
        50 => 1 << 3,
        40 => 1 << 8,
        100 => 1 << 9,
        25 => 1 << 11,
        200 => 1 << 12,
        400 => 1 << 15,
        _ => 0,
    }
}
