//! Queues that a program starts by itself, through the registers, on memory of its own (`docs/spec/nfb-card.md` §5): CESNET's
//! DPDK driver with `queue_driver=native`, `DmaCtrlNdp` of pynfb.
//!
//! Such a driver knows nothing of sessions. It locks the DMA controller, writes addresses of its own process to the
//! registers and START to CONTROL; the card has to find the memory. That works where the card is in the same process,
//! and nowhere else: the driver sees every write to a CONTROL register, and attaches the process's address space to the
//! queue on behalf of the connection that the write came through. A [`Guest`] brings its memory with it: a machine whose
//! driver knows the card as a PCI function.

use millrace_abi::control::{DOORBELL_AT, MAGIC, MAGIC_AT, PAGE_SIZE};
use millrace_abi::queue::QueueId;
use millrace_abi::register::{Controller, calypte, map, medusa, sze};
use millrace_card::{Attachment, Card, Opener, StartError};
use millrace_dma::{Domain, Ordering, Pages, Region, Window};
use millrace_port::Bell;
use std::collections::HashMap;
use std::sync::Arc;

/// Feature of a DMA controller that is locked while its queue runs.
pub(crate) const RUNNING: u64 = 1;

/// A machine whose driver starts queues through the registers, on memory that it has described.
pub struct Guest {
    /// Its memory, by the addresses that its driver writes into registers and descriptors.
    pub domain: Arc<Domain>,
    /// What tells it from programs and other machines when workers give turns: a number that no process has.
    pub owner: u32,
    /// The process that emulates it, by which users know it; 0: nobody knows.
    pub pid: u32,
    /// Whether another card goes on with it when this one is killed.
    pub is_kept: bool,
    /// The queues that it may start.
    pub queues: HashMap<QueueId, GuestQueue>,
}

/// What a machine has of a queue.
pub struct GuestQueue {
    /// The control page, which the machine's driver may have mapped.
    pub control: Window,
    /// A socket that is sent a byte when the driver sleeps and something has come.
    pub call: Arc<Bell>,
}

/// Whose memory a connection may start queues on.
#[derive(Clone)]
pub(crate) enum Own {
    /// That of this process.
    Process,
    /// That of a machine.
    Guest(Arc<Guest>),
}

/// A queue that was started through the registers.
pub(crate) struct Native {
    /// The connection that started it.
    pub client: u64,
    /// Whether the driver has locked the controller for a program that did not.
    pub locked: bool,
}

/// The queue whose CONTROL register holds the address.
pub(crate) fn control_at(address: u32) -> Option<QueueId> {
    // CONTROL lies at 0 in the blocks of all engines.
    const { assert!(medusa::CONTROL.bytes() | calypte::CONTROL.bytes() | sze::CONTROL.bytes() == 0) };
    map::queue_at(address).filter(|&id| map::dma_base(id) == Some(address & !3))
}

/// The parts of a write, each inside one 32-bit register, in order.
pub(crate) fn words(address: u32, bytes: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let (mut at, mut rest) = (address, bytes);
    core::iter::from_fn(move || {
        let (word, later) = rest.split_at(rest.len().min(4 - at as usize % 4));
        let here = at;
        (at, rest) = (at.wrapping_add(word.len() as u32), later);
        (!word.is_empty()).then_some((here, word))
    })
}

/// Whether a write concerns the driver.
pub(crate) fn touches_control(address: u32, bytes: &[u8]) -> bool {
    // Blocks of DMA controllers lie at multiples of their size, and begin with CONTROL.
    const SIZE: u64 = medusa::BLOCK.size as u64;
    let first = u64::from(address);
    let blocks = (first / SIZE * SIZE..first + bytes.len() as u64).step_by(SIZE as usize);
    !bytes.is_empty() && blocks.filter(|block| block + 4 > first).any(|block| control_at(block as u32).is_some())
}

/// Whether the part of a write to CONTROL that begins at `at` says START, which is bit 0 in all engines.
pub(crate) fn is_start(at: u32, word: &[u8]) -> bool {
    at.is_multiple_of(4) && word.first().is_some_and(|byte| u32::from(*byte) & medusa::CONTROL_START != 0)
}

/// Gives a queue the memory that the connection may start it on.
pub(crate) fn attach(card: &Card, id: QueueId, own: &Own) -> Result<(), StartError> {
    let refused = || StartError::NoMemory(id);
    let (domain, control, owner, call, is_noted) = match own {
        // Nobody waits for this opener.
        Own::Process => {
            let control = Region::allocate(PAGE_SIZE, Pages::Ordinary).map_err(|_| refused())?.window().clone();
            (Arc::new(Domain::own_process()), control, std::process::id(), None, false)
        }
        Own::Guest(guest) => {
            let GuestQueue { control, call } = guest.queues.get(&id).ok_or(StartError::NotAttached(id))?;
            (guest.domain.clone(), control.clone(), guest.owner, Some(call.clone()), guest.is_kept)
        }
    };
    let word = |at| control.word64(at).map_err(|_| refused());
    word(MAGIC_AT)?.store(MAGIC, Ordering::Relaxed);
    // One that goes on where another card has stopped has been rung meanwhile.
    if !card.is_to_resume(id) {
        word(DOORBELL_AT)?.store(pointers(card, id), Ordering::Relaxed);
    }
    // Nobody kicks through this opener: it says when the worker sleeps, so that a doorbell register wakes it only then.
    let opener = Opener { id: 0, owner, control: control.clone(), kick: None, call };
    card.attach(id, Attachment { domain, control, reclaimer: None, openers: vec![opener], buffers: None, is_noted })
}

/// Where the software pointers of a queue are on the bus, and how many bytes they have.
fn pointers_at(card: &Card, id: QueueId) -> Option<(u32, usize)> {
    let controller = Controller::of(card.engine(id)?);
    Some((controller.pointers.at(map::dma_base(id)?), controller.pointers_len))
}

/// The software pointers as software has left them in the registers.
fn pointers(card: &Card, id: QueueId) -> u64 {
    let mut bytes = [0; 8];
    if let Some((at, len)) = pointers_at(card, id) {
        card.read(at, &mut bytes[..len]);
    }
    u64::from_le_bytes(bytes)
}

/// Nothing is left of what software has put into the pointers of a queue that does not run, and has no memory any more.
pub(crate) fn clear_pointers(card: &Card, id: QueueId) {
    if let Some((at, len)) = pointers_at(card, id) {
        card.write(at, &[0; 8][..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_divided_at_registers() {
        let bytes: Vec<u8> = (0..10).collect();
        let parts: Vec<_> = words(0x7e, &bytes).collect();
        assert_eq!(parts, [(0x7e, &bytes[..2]), (0x80, &bytes[2..6]), (0x84, &bytes[6..])]);
        assert_eq!(words(0, &[]).count(), 0);
        assert_eq!(words(u32::MAX, &bytes[..2]).map(|(at, _)| at).collect::<Vec<_>>(), [u32::MAX, 0]);
    }

    #[test]
    fn only_control_registers_concern_the_driver() {
        let base = map::dma_base(QueueId::tx(3)).unwrap();
        assert_eq!(control_at(base), Some(QueueId::tx(3)));
        assert_eq!(control_at(base + 3), Some(QueueId::tx(3)));
        assert_eq!(control_at(base + 4), None);
        assert!(touches_control(base, &[1, 0, 0, 0]));
        assert!(touches_control(base - 4, &[0; 8]), "the end of a longer write");
        assert!(touches_control(base + 0x7c, &[0; 5]), "the next queue");
        assert!(!touches_control(medusa::SDP.at(base), &[0; 8]), "pointers do not");
        assert!(!touches_control(base, &[]) && !touches_control(base + 1, &[]));
        assert!(touches_control(base + 3, &[1]) && !touches_control(base + 4, &[0; 0x7c]));
        assert!(touches_control(base + 4, &[0; 0x7d]) && !touches_control(u32::MAX, &[0; 8]));
        assert!(!touches_control(0x1000, &[0; 4096]));
        assert!(is_start(base, &[1]) && is_start(base, &[3, 0, 0, 0]));
        assert!(!is_start(base, &[2, 0, 0, 0]) && !is_start(base + 1, &[1]) && !is_start(base, &[]));
    }
}
