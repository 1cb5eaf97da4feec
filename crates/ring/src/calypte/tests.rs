//! Both halves of Calypte on one thread, over one piece of memory.

mod golden;
mod hostile;
mod order;
mod rx;
mod tx;

use super::*;
use crate::{Accept, EngineFault, FrameLimits, RxOutcome, Served};
use millrace_abi::control::FaultKind;
use millrace_dma::{Iova, Ordering, Region, Slots64, Span, Window, Word64};

const LIMITS: FrameLimits = FrameLimits::ETHERNET;

/// The memory of one queue of either direction.
struct Memory {
    region: Region,
    headers: Slots64,
    doorbell: Word64,
    update: Word64,
}

impl Memory {
    /// A data ring of `bytes` (whole pages), and a header ring of `entries`.
    fn new(bytes: usize, entries: u32) -> Self {
        let words = Region::heap(128);
        let headers = Region::heap(entries as usize * 8).window().slots64(0, entries).unwrap();
        let (doorbell, update) = (words.window().word64(0).unwrap(), words.window().word64(64).unwrap());
        Self { region: Region::allocate_doubled(bytes).unwrap(), headers, doorbell, update }
    }

    /// The data ring, twice in a row.
    fn data(&self) -> &Window {
        self.region.window()
    }

    fn host_tx(&self) -> HostTx {
        HostTx::new(self.region.len() as u32, self.headers.clone(), self.update.clone()).unwrap()
    }

    fn card_tx(&self, limits: FrameLimits) -> CardTx {
        let (data, headers, update) = (self.data().clone(), self.headers.clone(), self.update.clone());
        CardTx::new(TxRings { data, headers, update }, limits).unwrap()
    }

    fn host_rx(&self) -> HostRx {
        let blocks = self.region.len() as u32 / BLOCK;
        HostRx::new(blocks, self.headers.clone(), self.doorbell.clone(), self.update.clone()).unwrap()
    }

    fn card_rx(&self, limits: FrameLimits) -> CardRx {
        let data = self.region.part(0, self.region.len()).unwrap();
        let (headers, doorbell, update) = (self.headers.clone(), self.doorbell.clone(), self.update.clone());
        CardRx::new(RxRings { data, headers, doorbell, update }, limits).unwrap()
    }

    /// What the card last told.
    fn told(&self) -> Pointers {
        Pointers::decode(self.update.load(Ordering::Acquire))
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert_eq!(self.data().span_mut(offset, bytes.len()).unwrap().write_from(bytes), bytes.len());
    }

    fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        bytes_of(self.data().span(offset, len).unwrap())
    }

    /// The packet behind a header of an RX queue.
    fn packet(&self, header: Header) -> Vec<u8> {
        self.read(usize::from(header.at) * BLOCK as usize, header.len.into())
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

/// Writes a frame where the next packet belongs and pushes it; `false` without room.
fn send(host: &mut HostTx, memory: &Memory, bytes: &[u8]) -> bool {
    let len = bytes.len() as u16;
    if !host.has_room(HostTx::stride(len)) {
        return false;
    }
    memory.write(host.frame_at() as usize, bytes);
    host.push(len);
    true
}

/// Takes everything there is.
fn serve_all(card: &mut CardTx) -> (Served, Vec<Vec<u8>>) {
    let mut frames = Vec::new();
    let served = card.serve(usize::MAX, &mut |frame: Span<'_>| {
        frames.push(bytes_of(frame));
        Accept::Taken
    });
    (served, frames)
}

fn deliver(card: &mut CardRx, bytes: &[u8]) -> RxOutcome {
    card.deliver(&[], Span::from_slice(bytes)).unwrap()
}
