//! The card's bus: which block answers at an address (`docs/spec/nfb-card.md` §1.4, §2.1). Addresses where nothing is read
//! as 0 and swallow writes, as hardware does.

use crate::affinity::Affinity;
use crate::cage::Cage;
use crate::mac::Mac;
use crate::phy::Phy;
use crate::queue::Queue;
use crate::tsu::Tsu;
use millrace_abi::queue::{Direction, QueueId};
use millrace_abi::register::{self, Controller, Offset, map::Component, medusa, transceiver};
use millrace_ring::FrameLimits;
use std::sync::{Arc, Mutex, PoisonError};

/// Everything that answers on the bus.
pub(crate) struct Bus {
    pub rx: Vec<Arc<Queue>>,
    pub tx: Vec<Arc<Queue>>,
    pub macs: Vec<Arc<Mac>>,
    pub tsu: Arc<Tsu>,
    pub phys: Vec<Phy>,
    pub cages: Vec<Cage>,
    pub affinity: Affinity,
    pub limits: FrameLimits,
    pub discard: bool,
    pub test_space: Mutex<Vec<u32>>,
}

impl Bus {
    pub fn queue(&self, id: QueueId) -> Option<&Arc<Queue>> {
        match id.direction {
            Direction::Rx => self.rx.get(id.index as usize),
            Direction::Tx => self.tx.get(id.index as usize),
        }
    }

    /// Reads bytes at a bus address; any length and alignment.
    pub fn read(&self, address: u32, to: &mut [u8]) {
        let mut at = u64::from(address);
        let mut rest = to;
        while !rest.is_empty() {
            let Ok(here) = u32::try_from(at) else { return rest.fill(0) };
            let width = width(here);
            let skip = here as usize % width;
            let word = self.read_register(here - skip as u32).to_le_bytes();
            let len = rest.len().min(width - skip);
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&word[skip..skip + len]);
            (at, rest) = (at + len as u64, later);
        }
    }

    /// Writes bytes at a bus address; any length and alignment. Eight bytes at a software pointer move both pointers at
    /// once.
    pub fn write(&self, address: u32, from: &[u8]) {
        if let Ok(bytes) = <[u8; 8]>::try_from(from)
            && let Some((Component::Dma(id), offset)) = Component::at(address)
            && Offset::new(offset) == medusa::SDP
            && let (Some(queue), Some(mailbox)) = (self.queue(id), self.affinity.mailbox(id))
            && Controller::of(queue.status.engine).pointers_len == 8
        {
            return queue.write_pointers(u64::from_le_bytes(bytes), mailbox);
        }
        match Component::at(address) {
            Some((Component::TxData(index), offset)) => return self.write_buffer(index, offset, from, false),
            Some((Component::TxHeaders(index), offset)) => return self.write_buffer(index, offset, from, true),
            _ => {}
        }
        let mut at = u64::from(address);
        let mut rest = from;
        while !rest.is_empty() {
            let Ok(here) = u32::try_from(at) else { return };
            let width = width(here);
            let skip = here as usize % width;
            let register_at = here - skip as u32;
            let len = rest.len().min(width - skip);
            let (now, later) = rest.split_at(len);
            (at, rest) = (at + len as u64, later);
            if let Some((Component::I2c(port), offset)) = Component::at(register_at) {
                if let Some(cage) = self.cages.get(port as usize) {
                    cage.write(offset + skip as u32, now);
                }
                continue;
            }
            let mut word = if len == width { [0; 4] } else { self.read_register(register_at).to_le_bytes() };
            word[skip..skip + len].copy_from_slice(now);
            self.write_register(register_at, u32::from_le_bytes(word));
        }
    }

    fn read_register(&self, address: u32) -> u32 {
        match Component::at(address) {
            Some((Component::Pcs(port), offset)) => {
                self.phys.get(port as usize).map_or(0, |phy| phy.read16(offset).into())
            }
            _ => self.read32(address),
        }
    }

    fn write_register(&self, address: u32, value: u32) {
        match Component::at(address) {
            Some((Component::Pcs(port), offset)) => {
                if let Some(phy) = self.phys.get(port as usize) {
                    phy.write16(offset, value as u16);
                }
            }
            _ => self.write32(address, value),
        }
    }

    /// One access goes to one buffer: what reaches behind its end is not written.
    fn write_buffer(&self, index: u32, offset: u32, from: &[u8], headers: bool) {
        let id = QueueId::tx(index);
        if let (Some(queue), Some(mailbox)) = (self.queue(id), self.affinity.mailbox(id)) {
            if headers {
                queue.write_headers(offset, from, mailbox);
            } else {
                queue.write_data(offset, from);
            }
        }
    }

    fn read32(&self, address: u32) -> u32 {
        let Some((component, offset)) = Component::at(address) else { return 0 };
        match component {
            Component::Dma(id) => self.queue(id).map_or(0, |queue| queue.read32(offset)),
            Component::RxMac(port) => self.macs.get(port as usize).map_or(0, |mac| mac.read_rx(offset)),
            Component::TxMac(port) => self.macs.get(port as usize).map_or(0, |mac| mac.read_tx(offset)),
            Component::TestSpace => self.test_word(offset, |word| *word),
            // Never `STATUS_ABSENT` where there is a port: there is a module in every cage.
            Component::Pmd(port) if (port as usize) < self.cages.len() => 0,
            Component::Pmd(_) => u32::from(transceiver::pmd::STATUS_ABSENT),
            Component::I2c(port) => self.cages.get(port as usize).map_or(0, |cage| cage.read32(offset)),
            Component::Tsu => self.tsu.read(offset),
            // Read and written by `read_register` and `write_register`.
            Component::Pcs(_) | Component::TxData(_) | Component::TxHeaders(_) => 0,
        }
    }

    fn write32(&self, address: u32, value: u32) {
        let Some((component, offset)) = Component::at(address) else { return };
        match component {
            Component::Dma(id) => {
                let _stay = self.affinity.stay();
                if let (Some(queue), Some(mailbox)) = (self.queue(id), self.affinity.mailbox(id)) {
                    queue.write32(offset, value, self.limits, self.discard, mailbox);
                }
            }
            Component::RxMac(port) => {
                if let Some(mac) = self.macs.get(port as usize) {
                    mac.write_rx(offset, value);
                }
            }
            Component::TxMac(port) => {
                if let Some(mac) = self.macs.get(port as usize) {
                    mac.write_tx(offset, value);
                }
            }
            Component::TestSpace => self.test_word(offset, |word| *word = value),
            Component::Tsu => {
                if self.tsu.write(offset, value) {
                    self.clock_has_changed();
                }
            }
            // The buffers are not reached in words, but by `write_buffer`.
            Component::I2c(_) | Component::Pmd(_) | Component::Pcs(_) => {}
            Component::TxData(_) | Component::TxHeaders(_) => {}
        }
    }

    /// A worker that sleeps until a launch time may have to get up for it earlier.
    pub fn clock_has_changed(&self) {
        self.affinity.rouse_all();
    }

    fn test_word<T: Default>(&self, offset: u32, f: impl FnOnce(&mut u32) -> T) -> T {
        let mut words = self.test_space.lock().unwrap_or_else(PoisonError::into_inner);
        words.get_mut(offset as usize / 4).map(f).unwrap_or_default()
    }

    /// A test space of the size that its block has.
    pub fn empty_test_space() -> Mutex<Vec<u32>> {
        Mutex::new(vec![0; register::test_space::BLOCK.size as usize / 4])
    }
}

/// How wide the registers at an address are, in bytes: 16 bits in a PCS, where looking at a register may change it and
/// a neighbour must not be looked at too; 32 bits elsewhere.
fn width(address: u32) -> usize {
    match Component::at(address) {
        Some((Component::Pcs(_), _)) => 2,
        _ => 4,
    }
}
