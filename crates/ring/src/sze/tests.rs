//! Both halves of SZE on one thread, over one piece of memory.

mod golden;
mod hostile;
mod order;
mod stream;

use super::*;
use crate::{Accept, EngineFault, FrameLimits, RxOutcome, Served};
use millrace_abi::control::FaultKind;
use millrace_dma::{Access, Domain, Iotlb, Iova, Ordering, Region, Span, Window, Word64};
use std::sync::Arc;

/// What an NFB card takes for SZE: 57 to 16383 bytes.
const LIMITS: FrameLimits = FrameLimits { min: 57, max: 0x3fff };
const LIST_AT: Iova = Iova::new(0x10_0000);
const RING_AT: Iova = Iova::new(0x4000_0000);
const PAGE: u64 = 4096;

/// The memory of one queue.
struct Memory {
    /// The descriptor list, at [`LIST_AT`].
    list: Window,
    /// The ring, mapped twice in a row.
    ring: Window,
    size: u32,
    doorbell: Word64,
    update: Word64,
    domain: Arc<Domain>,
}

impl Memory {
    /// A ring in one piece at [`RING_AT`], its descriptor list beginning at byte `offset`.
    fn new(size: u32, offset: u64) -> Self {
        let memory = Self::unmapped(size);
        let ring = memory.ring.part(0, size as usize).unwrap();
        memory.domain.map(ring, Access::ReadWrite, Some(RING_AT)).unwrap();
        memory.write_list(&descriptor_list(RING_AT, u64::from(size), offset, LIST_AT));
        memory
    }

    /// A ring of which every page lies somewhere else, with a type 1 descriptor between any two of them.
    fn scattered(size: u32) -> Self {
        let memory = Self::unmapped(size);
        let mut list = Vec::new();
        for page in 0..u64::from(size) / PAGE {
            let at = RING_AT.plus(0x10_0000 * (page ^ 1));
            let window = memory.ring.part((page * PAGE) as usize, PAGE as usize).unwrap();
            memory.domain.map(window, Access::ReadWrite, Some(at)).unwrap();
            list.push(Descriptor::Pages { at, count: 1 }.encode());
            list.push(Descriptor::Next(LIST_AT.plus(list.len() as u64 * 8 + 8)).encode());
        }
        *list.last_mut().unwrap() = Descriptor::Next(LIST_AT).encode();
        memory.write_list(&list);
        memory
    }

    fn unmapped(size: u32) -> Self {
        let words = Region::heap(128);
        let list = Region::heap(PAGE as usize).window().clone();
        let domain = Arc::new(Domain::new());
        domain.map(list.clone(), Access::Read, Some(LIST_AT)).unwrap();
        Self {
            list,
            ring: Region::allocate_doubled(size as usize).unwrap().window().clone(),
            size,
            doorbell: words.window().word64(0).unwrap(),
            update: words.window().word64(64).unwrap(),
            domain,
        }
    }

    fn write_list(&self, words: &[u64]) {
        let slots = self.list.slots64(0, 512).unwrap();
        for (slot, &word) in words.iter().enumerate() {
            slots.store(slot as u32, word);
        }
    }

    fn rings(&self) -> Rings {
        let (doorbell, update) = (self.doorbell.clone(), self.update.clone());
        Rings { descriptors_at: LIST_AT, size: self.size, doorbell, update }
    }

    fn card_tx(&self) -> CardTx {
        CardTx::new(self.rings(), LIMITS, Iotlb::new(self.domain.clone())).unwrap()
    }

    fn card_rx(&self) -> CardRx {
        CardRx::new(self.rings(), LIMITS, Iotlb::new(self.domain.clone())).unwrap()
    }

    fn host_tx(&self, base: u32) -> HostTx {
        HostTx::new(self.ring.clone(), base, self.doorbell.clone(), self.update.clone()).unwrap()
    }

    fn host_rx(&self, base: u32) -> HostRx {
        HostRx::new(self.ring.clone(), base, 0, self.doorbell.clone(), self.update.clone()).unwrap()
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        assert_eq!(self.ring.span_mut(offset as usize, bytes.len()).unwrap().write_from(bytes), bytes.len());
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        bytes_of(self.ring.span(offset as usize, len).unwrap())
    }

    /// Writes a packet as a program would that does not use our half.
    fn write_packet(&self, offset: u64, total: u16, meta: u16) {
        self.write(offset, &PacketHeader { total, meta }.encode().to_le_bytes());
    }

    /// What the card last told.
    fn told(&self) -> u64 {
        self.update.load(Ordering::Acquire)
    }
}

fn bytes_of(span: Span<'_>) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    span.read_into(&mut bytes);
    bytes
}

/// `len` bytes that only packet `number` has.
fn frame(number: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (number.wrapping_mul(0x9e37_79b9).wrapping_add(i * 31) >> 7) as u8).collect()
}

fn send(host: &mut HostTx, bytes: &[u8]) -> bool {
    let len = bytes.len() as u16;
    if !host.has_room(HostTx::stride(len)) {
        return false;
    }
    let at = host.frame_at(host.position());
    assert_eq!(host.ring().span_mut(at, bytes.len()).unwrap().write_from(bytes), bytes.len());
    host.push(len);
    true
}

/// Takes everything that is ready and gives it back.
fn receive_all(host: &mut HostRx) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let (start, ready) = (host.position(), host.ready());
    let mut position = start;
    while position.wrapping_sub(start) < ready {
        let packet = host.packet(position).unwrap();
        assert_eq!(packet.meta_len, 0);
        frames.push(host.ring().slice(packet.frame_at as usize, packet.frame_len.into()).unwrap().to_vec());
        position = position.wrapping_add(packet.stride);
    }
    host.put(position.wrapping_sub(start));
    frames
}

fn serve_all(card: &mut CardTx) -> (Served, Vec<Vec<u8>>) {
    let mut frames = Vec::new();
    card.pending();
    let served = card.serve(usize::MAX, &mut |frame: Span<'_>| {
        frames.push(bytes_of(frame));
        Accept::Taken
    });
    (served, frames)
}
