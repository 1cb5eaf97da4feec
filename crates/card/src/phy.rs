//! The PCS and PMA of a port (`docs/spec/nfb-card.md` §2.6): a link that is always there unless software puts one of the
//! two into reset or low power, without errors, and with a loopback at the PMA that carries traffic.

use crate::mac::{GBPS, Mac};
use millrace_abi::register::{Offset, pcs as r};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Phy {
    mac: Arc<Mac>,
    state: Mutex<State>,
}

struct State {
    // What the port queues behind the port say, as of this access.
    wire_up: bool,
    pma_control: u16,
    pcs_control: u16,
    pma_type: u16,
    fec_control: u16,
    // The link was down since the register was last read.
    pma_was_down: bool,
    pcs_was_down: bool,
    blocks_were_down: bool,
}

const BLOCKS_LOW: u16 = 0xff;
const BLOCKS_HIGH: u16 = 0xfff;
const ALL_ALIGNED: u16 = 1 << 12;

impl State {
    /// Neither in reset nor in low power.
    fn is_on(&self) -> bool {
        (self.pma_control | self.pcs_control) & (r::CONTROL_RESET | r::CONTROL_LOW_POWER) == 0
    }

    fn link_up(&self) -> bool {
        self.wire_up && self.is_on()
    }

    fn if_up(&self, bits: u16) -> u16 {
        if self.link_up() { bits } else { 0 }
    }

    fn if_down(&self, bits: u16) -> u16 {
        bits - self.if_up(bits)
    }

    /// Bits that say whether the link was up all the time since the last look (clause 45: latching low).
    fn status(&self, was_down: bool) -> u16 {
        let link = if was_down { 0 } else { self.if_up(r::STATUS_LINK_UP) };
        link | self.if_down(r::STATUS_FAULT) | r::STATUS_LOW_POWER_ABILITY
    }
}

impl Phy {
    pub fn new(mac: Arc<Mac>) -> Self {
        let state = State {
            wire_up: true,
            pma_control: 0,
            pcs_control: 0,
            pma_type: r::TYPES[0].0,
            fec_control: r::FEC_ENABLE,
            pma_was_down: false,
            pcs_was_down: false,
            blocks_were_down: false,
        };
        Self { mac, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.wire_up = self.mac.link();
        state
    }

    /// Reads one register; some remember what happened until they are read.
    pub fn read16(&self, offset: u32) -> u16 {
        let mut state = self.state();
        let speed = |code: Option<u16>| r::CONTROL_SPEED_EXTENDED | code.unwrap_or(0) << r::CONTROL_SPEED_SHIFT;
        match Offset::new(offset) {
            r::PMA_CONTROL => speed(r::pma_speed_code(GBPS)) | state.pma_control,
            r::PMA_STATUS => {
                let was_down = core::mem::take(&mut state.pma_was_down);
                state.pma_was_down = !state.link_up();
                state.status(was_down)
            }
            r::PMA_SPEED_ABILITY => r::speed_ability(GBPS),
            r::PMA_DEVICES | r::PCS_DEVICES => 1 << 1 | 1 << 3,
            r::PMA_TYPE => state.pma_type,
            r::PMA_STATUS_2 => {
                let abilities = r::STATUS_2_FAULT_ABILITIES | r::STATUS_2_EXTENDED | r::STATUS_2_LOCAL_LOOPBACK;
                r::STATUS_2_PRESENT | abilities | state.if_down(r::STATUS_2_RX_FAULT)
            }
            r::PMA_ABILITY => r::ABILITY_100G,
            r::PMA_ABILITY_100G => r::TYPES.iter().map(|(_, ability)| ability).sum(),
            r::FEC_CONTROL => state.fec_control,
            r::FEC_STATUS if state.fec_control & r::FEC_ENABLE != 0 => state.if_up(0b11 << 14 | 0xf << 8),
            // Lane i came over lane i, two bits each.
            r::FEC_LANE_MAP => 0b11_10_01_00,
            r::PCS_CONTROL => speed(r::pcs_speed_code(GBPS)) | state.pcs_control,
            r::PCS_STATUS => {
                let was_down = core::mem::take(&mut state.pcs_was_down);
                state.pcs_was_down = !state.link_up();
                state.status(was_down)
            }
            r::PCS_SPEED_ABILITY => 1 << 3,
            r::PCS_TYPE => 5,
            r::PCS_STATUS_2 => r::STATUS_2_PRESENT | 1 << 5 | state.if_down(r::STATUS_2_RX_FAULT),
            r::BASER_STATUS => state.if_up(1 << 12 | 1),
            r::BASER_STATUS_2 => {
                let was_down = core::mem::take(&mut state.blocks_were_down);
                state.blocks_were_down = !state.link_up();
                if was_down { 0 } else { state.if_up(1 << 15) }
            }
            r::LANES_ALIGNED => state.if_up(ALL_ALIGNED | BLOCKS_LOW),
            r::LANES_LOCKED => state.if_up(BLOCKS_HIGH),
            _ => match lane_register(offset) {
                Some((r::MARKERS_LOCKED, lane)) => state.if_up([BLOCKS_LOW, BLOCKS_HIGH][usize::from(lane)]),
                Some((r::LANE_MAP, lane)) => lane,
                _ => 0,
            },
        }
    }

    /// Writes one register.
    pub fn write16(&self, offset: u32, value: u16) {
        let mut state = self.state();
        let power = r::CONTROL_RESET | r::CONTROL_LOW_POWER;
        match Offset::new(offset) {
            r::PMA_CONTROL => state.pma_control = value & (power | r::CONTROL_LOCAL_LOOPBACK),
            r::PCS_CONTROL => state.pcs_control = value & power,
            r::FEC_CONTROL => state.fec_control = value & r::FEC_ENABLE,
            r::PMA_TYPE => {
                if r::TYPES.iter().any(|(of_type, _)| *of_type == value) {
                    state.pma_type = value;
                }
            }
            _ => return,
        }
        if !state.link_up() {
            (state.pma_was_down, state.pcs_was_down, state.blocks_were_down) = (true, true, true);
        }
        // Under the lock, so that the MAC follows the last write.
        self.mac.set_link(state.is_on(), state.pma_control & r::CONTROL_LOCAL_LOOPBACK != 0);
    }
}

/// The register of a group, and which of the group, at an offset.
fn lane_register(offset: u32) -> Option<(Offset, u16)> {
    let location = r::BLOCK.locate(offset, millrace_abi::register::Way::Read)?;
    Some((location.register.offset, location.index as u16))
}
