//! Regions, read and written by message.

use super::{Session, kept};
use crate::configuration;
use crate::counters::count;
use crate::share::{Piece, Place, command};
use crate::wire::message::{Access, CONFIGURATION, MOST_DATA};
use millrace_abi::control::QueueState;
use millrace_abi::pci;
use millrace_abi::queue::QueueId;
use millrace_abi::register::{Controller, medusa};
use millrace_card::StartError;
use millrace_dma::{Ordering, Window};
use rustix::io::Errno;

impl Session {
    /// Size of a region in bytes; 0: there is none.
    pub(super) fn region_size(&self, region: u32) -> u64 {
        match region {
            CONFIGURATION => configuration::SIZE as u64,
            bar => self.function.bar(bar),
        }
    }

    /// Where an access begins in its region, and its length.
    fn checked(&self, access: Access) -> Result<(usize, usize), Errno> {
        let len = access.count as usize;
        let end = access.offset.checked_add(u64::from(access.count));
        if len > MOST_DATA || end.is_none_or(|end| end > self.region_size(access.region)) {
            return Err(Errno::INVAL);
        }
        count(&self.function.counting.region_accesses);
        Ok((access.offset as usize, len))
    }

    pub(super) fn read_region(&mut self, access: Access) -> Result<Vec<u8>, Errno> {
        let (offset, len) = self.checked(access)?;
        let mut bytes = vec![0; len];
        match access.region {
            CONFIGURATION => self.configuration.read(offset, &mut bytes),
            pci::REGISTERS_BAR => self.read_registers(offset as u32, &mut bytes),
            pci::DOORBELLS_BAR => read_words(self.doorbells.window(), offset, &mut bytes),
            pci::MSIX_BAR => self.read_msix(offset, &mut bytes),
            _ => {}
        }
        Ok(bytes)
    }

    pub(super) fn write_region(&mut self, access: Access, bytes: &[u8]) -> Result<(), Errno> {
        let (offset, len) = self.checked(access)?;
        let bytes = bytes.get(..len).ok_or(Errno::INVAL)?;
        match access.region {
            CONFIGURATION => self.write_configuration(offset, bytes),
            pci::REGISTERS_BAR => self.write_registers(offset as u32, bytes),
            pci::DOORBELLS_BAR => write_words(self.doorbells.window(), offset, bytes),
            // The pending bits are for reading.
            pci::MSIX_BAR => {
                self.changes.msix_table = true;
                self.msix_table.iter_mut().skip(offset).zip(bytes).for_each(|(to, from)| *to = *from);
            }
            _ => {}
        }
        Ok(())
    }

    fn write_configuration(&mut self, offset: usize, bytes: &[u8]) {
        self.changes.configuration = true;
        let asked = self.configuration.write(offset, bytes);
        if asked.reset {
            self.reset();
        } else if asked.master_off {
            self.halt();
        }
    }

    fn read_msix(&self, offset: usize, to: &mut [u8]) {
        let pending = configuration::pending_at(self.function.vectors()) as usize;
        for (at, byte) in (offset..).zip(to) {
            *byte = match at.checked_sub(pending) {
                None => self.msix_table.get(at).copied().unwrap_or(0),
                Some(at) => (0..8).map(|bit| u8::from(self.interrupts.is_pending((at * 8 + bit) as u32)) << bit).sum(),
            };
        }
    }

    fn read_registers(&mut self, address: u32, to: &mut [u8]) {
        let card = self.function.driver.card();
        for Piece { at, len, place } in self.function.share.pieces(address, to.len()) {
            let to = &mut to[at..at + len];
            match place {
                Place::Nothing => {}
                Place::TestSpace(offset) => to.copy_from_slice(&self.test_space[offset..offset + len]),
                Place::Clock { offset, .. } if (offset as usize) < size_of_val(&self.clock) => {
                    let bytes: Vec<u8> = self.clock.iter().flat_map(|word| word.to_le_bytes()).collect();
                    to.copy_from_slice(&bytes[offset as usize..offset as usize + len]);
                }
                Place::Queue { queue, address, offset } => {
                    card.read(address, to);
                    if !self.locked.contains(&queue) {
                        hide(card, queue, offset as usize, to);
                    }
                }
                Place::Registers { address, .. } | Place::Clock { address, .. } => {
                    card.read(address, to);
                }
            }
        }
    }

    fn write_registers(&mut self, address: u32, bytes: &[u8]) {
        let function = self.function.clone();
        for Piece { at, len, place } in function.share.pieces(address, bytes.len()) {
            let bytes = &bytes[at..at + len];
            let may_write = match place {
                Place::Nothing => continue,
                Place::TestSpace(offset) => {
                    self.changes.test_space = true;
                    self.test_space[offset..offset + len].copy_from_slice(bytes);
                    continue;
                }
                Place::Queue { queue, address, offset } => {
                    self.write_queue(queue, address, offset, bytes);
                    continue;
                }
                Place::Registers { writable, .. } => writable,
                Place::Clock { offset, .. } => {
                    let asked = command(offset, bytes).and_then(|command| function.driver.card().ask_clock(command));
                    if let Some(words) = asked {
                        self.clock = words;
                        self.changes.clock = true;
                    }
                    asked.is_some()
                }
            };
            match place {
                Place::Clock { .. } if may_write => {}
                Place::Registers { address, .. } if may_write => {
                    self.changes.ports = true;
                    function.driver.card().write(address, bytes);
                }
                _ => count(&function.counting.refused_registers),
            }
        }
    }

    /// Whether a write moves pointers of a queue that runs, and does nothing else: those are in its control page.
    fn is_doorbell(&self, queue: QueueId, offset: u32, len: usize) -> bool {
        let card = self.function.driver.card();
        let is_pointers = |engine| {
            let Controller { pointers, pointers_len, .. } = Controller::of(engine);
            offset >= pointers.bytes() && offset as usize + len <= pointers.bytes() as usize + pointers_len
        };
        card.state(queue) == Some(QueueState::Running) && card.engine(queue).is_some_and(is_pointers)
    }

    /// A write to the DMA controller of a queue, which becomes this machine's unless somebody has it.
    fn write_queue(&mut self, queue: QueueId, address: u32, offset: u32, bytes: &[u8]) {
        // CONTROL is the first register of all engines, and its lowest bit says START.
        let starts = offset == 0 && bytes.first().is_some_and(|byte| u32::from(*byte) & medusa::CONTROL_START != 0);
        let card = self.function.driver.card();
        if starts && !self.configuration.is_master() {
            count(&self.function.counting.starts_without_bus_master);
            return card.refuse(queue, StartError::NoBusMaster(queue));
        }
        if starts && self.cut {
            return card.refuse(queue, StartError::MemoryCut(queue));
        }
        if !self.take(queue) {
            count(&self.function.counting.refused_registers);
            if starts {
                self.function.driver.card().refuse(queue, StartError::Held(queue));
            }
            return;
        }
        if !self.is_doorbell(queue, offset, bytes.len()) {
            self.changes.add_queue(queue);
        }
        // CONTROL goes by the driver, everything else to the card at once.
        if let Ok(client) = self.client() {
            let _ = client.write(address, bytes);
        }
    }
}

/// Blanks in bytes that begin at `first` of a controller's block what software has put there: whoever else has the queue has given it addresses of his memory.
fn hide(card: &millrace_card::Card, queue: QueueId, first: usize, bytes: &mut [u8]) {
    for register in card.engine(queue).into_iter().flat_map(kept) {
        let at = register.offset.bytes() as usize;
        for byte in at..at + register.width.bytes() as usize {
            if let Some(byte) = byte.checked_sub(first).and_then(|at| bytes.get_mut(at)) {
                *byte = 0;
            }
        }
    }
}

/// Reads from doorbell pages, words as words.
fn read_words(window: &Window, offset: usize, to: &mut [u8]) {
    // Acquire: as who has the page mapped and looks at a word of the card's.
    match to.len() {
        8 if let Ok(word) = window.word64(offset) => {
            to.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
        }
        4 if let Ok(word) = window.word32(offset) => {
            to.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
        }
        len => {
            let len = len.min(window.len().saturating_sub(offset));
            if let Some(from) = window.span(offset, len) {
                from.read_into(&mut to[..len]);
            }
        }
    }
}

/// Writes to doorbell pages, words as words.
fn write_words(window: &Window, offset: usize, from: &[u8]) {
    // Release pairs with the Acquire by which a worker loads a doorbell.
    match from.len() {
        8 if let (Ok(word), Ok(bytes)) = (window.word64(offset), from.try_into()) => {
            word.store(u64::from_le_bytes(bytes), Ordering::Release);
        }
        4 if let (Ok(word), Ok(bytes)) = (window.word32(offset), from.try_into()) => {
            word.store(u32::from_le_bytes(bytes), Ordering::Release);
        }
        len => {
            let len = len.min(window.len().saturating_sub(offset));
            if let Some(to) = window.span_mut(offset, len) {
                to.write_from(&from[..len]);
            }
        }
    }
}
