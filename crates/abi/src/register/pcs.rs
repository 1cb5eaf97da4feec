//! The PCS and PMA of a port, mapped directly: 16-bit registers at device address * 0x10000 + register * 2
//! (`docs/spec/nfb-card.md` §2.6, IEEE 802.3 clause 45). Those that tools look at; all others read 0. `1.7` stands for register 7
//! of device 1.

use super::define::*;

registers! {
    block "pcs", section "2.6", size 0x40000;
    PMA_CONTROL = 0x10000, W16, RW, "1.0: bits 13, 6 and 5:2 speed, 15 reset, 11 low power, 0 local loopback";
    PMA_STATUS = 0x10002, W16, RO, "1.1: bit 7 fault, 2 link up since the last look, 1 low power possible";
    PMA_SPEED_ABILITY = 0x10008, W16, RO, "1.4: bit 0 10G, 3 50G, 8 40G, 9 100G, 11 25G, 12 200G, 15 400G";
    PMA_DEVICES = 0x1000a, W16, RO, "1.5: bit 1 there is a PMA, 3 a PCS";
    PMA_TYPE = 0x1000e, W16, RW, "1.7: type of the medium, low 7 bits; one of those that 1.13 has";
    PMA_STATUS_2 = 0x10010, W16, RO, "1.8: bit 11 TX fault, 10 RX fault, 9 see 1.11, 0 local loopback possible";
    PMA_ABILITY = 0x10016, W16, RO, "1.11: bit 10 see 1.13";
    PMA_ABILITY_100G = 0x1001a, W16, RO, "1.13: bit 7 100GBASE-SR4, 10 100GBASE-LR4, 15 remote loopback possible";
    FEC_CONTROL = 0x10190, W16, RW, "1.200: bit 2 RS-FEC on";
    FEC_STATUS = 0x10192, W16, RO, "1.201: bit 15 PCS lanes aligned, 14 FEC lanes aligned, 11:8 lanes locked";
    FEC_CORRECTED[2; 2] = 0x10194, W16, RO, "1.202: corrected codewords, low and high half; 0";
    FEC_UNCORRECTED[2; 2] = 0x10198, W16, RO, "1.204: uncorrected codewords, low and high half; 0";
    FEC_LANE_MAP = 0x1019c, W16, RO, "1.206: which lane each FEC lane came over, two bits each";
    FEC_SYMBOL_ERRORS[8; 2] = 0x101a4, W16, RO, "1.210: symbol errors of four lanes, low and high half; 0";
    PCS_CONTROL = 0x30000, W16, RW, "3.0: bits 13, 6 and 5:2 speed, 15 reset, 11 low power";
    PCS_STATUS = 0x30002, W16, RO, "3.1: bit 7 fault, 2 link up since the last look, 1 low power possible";
    PCS_SPEED_ABILITY = 0x30008, W16, RO, "3.4: bit 3 100G";
    PCS_DEVICES = 0x3000a, W16, RO, "3.5: as 1.5";
    PCS_TYPE = 0x3000e, W16, RO, "3.7: 5 100GBASE-R";
    PCS_STATUS_2 = 0x30010, W16, RO, "3.8: bit 11 TX fault, 10 RX fault, 5 100GBASE-R possible";
    BASER_STATUS = 0x30040, W16, RO, "3.32: bit 12 link up, 1 many bit errors, 0 blocks locked";
    BASER_STATUS_2 = 0x30042, W16, RO, "3.33: bit 15 blocks locked since the last look, 14 many bit errors";
    BIT_ERRORS = 0x30058, W16, RO, "3.44: bit errors, high part; 0";
    BLOCK_ERRORS = 0x3005a, W16, RO, "3.45: blocks with errors, high part; 0";
    LANES_ALIGNED = 0x30064, W16, RO, "3.50: bit 12 all lanes aligned, 7:0 blocks of lanes 7 to 0 locked";
    LANES_LOCKED = 0x30066, W16, RO, "3.51: blocks of lanes 19 to 8 locked";
    MARKERS_LOCKED[2; 2] = 0x30068, W16, RO, "3.52: markers of lanes 7 to 0 locked, then of lanes 19 to 8";
    LANE_ERRORS[20; 2] = 0x30190, W16, RO, "3.200: errors of each lane; 0";
    LANE_MAP[20; 2] = 0x30320, W16, RO, "3.400: which lane each came over";
}

/// [`PMA_CONTROL`], [`PCS_CONTROL`]: the two bits that say that the speed is in bits 5:2.
pub const CONTROL_SPEED_EXTENDED: u16 = 1 << 13 | 1 << 6;
/// [`PMA_CONTROL`], [`PCS_CONTROL`]: lowest bit of the speed code, which is four bits wide.
pub const CONTROL_SPEED_SHIFT: u32 = 2;
/// [`PMA_CONTROL`]: reset; DPDK sets it to take a link down.
pub const CONTROL_RESET: u16 = 1 << 15;
/// [`PMA_CONTROL`]: what is transmitted comes back at the PMA.
pub const CONTROL_LOCAL_LOOPBACK: u16 = 1 << 0;
/// [`PMA_CONTROL`], [`PCS_CONTROL`]: low power; no link.
pub const CONTROL_LOW_POWER: u16 = 1 << 11;
/// [`PMA_STATUS`], [`PCS_STATUS`]: the link was up whenever since the last read.
pub const STATUS_LINK_UP: u16 = 1 << 2;
/// [`PMA_STATUS`], [`PCS_STATUS`]: low power can be asked for.
pub const STATUS_LOW_POWER_ABILITY: u16 = 1 << 1;
/// [`PMA_STATUS`], [`PCS_STATUS`]: something is wrong, such as the link.
pub const STATUS_FAULT: u16 = 1 << 7;
/// [`PMA_STATUS_2`], [`PCS_STATUS_2`]: somebody is there to answer.
pub const STATUS_2_PRESENT: u16 = 1 << 15;
/// [`PMA_STATUS_2`], [`PCS_STATUS_2`]: nothing is received.
pub const STATUS_2_RX_FAULT: u16 = 1 << 10;
/// [`PMA_STATUS_2`]: faults of both directions can be told.
pub const STATUS_2_FAULT_ABILITIES: u16 = 1 << 13 | 1 << 12;
/// [`PMA_STATUS_2`]: [`PMA_ABILITY`] says more.
pub const STATUS_2_EXTENDED: u16 = 1 << 9;
/// [`PMA_STATUS_2`]: local loopback can be asked for.
pub const STATUS_2_LOCAL_LOOPBACK: u16 = 1 << 0;
/// [`PMA_ABILITY`]: [`PMA_ABILITY_100G`] says more.
pub const ABILITY_100G: u16 = 1 << 10;
/// [`PMA_TYPE`] and the bit of [`PMA_ABILITY_100G`] that goes with it: 100GBASE-SR4, 100GBASE-LR4.
pub const TYPES: [(u16, u16); 2] = [(0x2f, 1 << 7), (0x2a, 1 << 10)];
/// [`FEC_CONTROL`]: RS-FEC is on.
pub const FEC_ENABLE: u16 = 1 << 2;
/// Lanes of a 100GBASE-R PCS.
pub const LANES: u16 = 20;

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
