//! Both halves of Medusa on one thread, over one piece of memory.

mod golden;
mod hostile;
mod order;
mod runs;
mod rx;
mod tx;

use super::*;
use crate::{Accept, EngineFault, FrameLimits, RxOutcome, Served};
use millrace_abi::control::FaultKind;
use millrace_dma::{Access, Domain, Iotlb, Iova, Ordering, Region, Slots32, Slots64, Span, Window, Word64};
use std::sync::Arc;

/// Where the card believes the descriptor ring to be: only fault reports show it.
const RING_AT: Iova = Iova::new(0x7000_0000_0000);
/// Where buffers are mapped: two pages below a multiple of 1 GiB, so that 8 KiB on the upper address changes.
const DATA_AT: Iova = Iova::new((5 << 30) - 8192);
const DATA_LEN: usize = 1 << 20;

/// The memory of one queue.
struct Memory {
    descriptors: Slots64,
    headers: Slots32,
    doorbell: Word64,
    update: Word64,
    data: Window,
    domain: Arc<Domain>,
}

impl Memory {
    fn new(entries: u32, header_entries: u32) -> Self {
        let words = Region::heap(128);
        let descriptors = Region::heap(entries as usize * 8);
        let headers = Region::heap(header_entries as usize * 4);
        let data = Region::heap(DATA_LEN).window().clone();
        let domain = Arc::new(Domain::new());
        domain.map(data.clone(), Access::ReadWrite, Some(DATA_AT)).unwrap();
        Self {
            descriptors: descriptors.window().slots64(0, entries).unwrap(),
            headers: headers.window().slots32(0, header_entries).unwrap(),
            doorbell: words.window().word64(0).unwrap(),
            update: words.window().word64(64).unwrap(),
            data,
            domain,
        }
    }

    fn host_tx(&self) -> HostTx {
        HostTx::new(self.descriptors.clone(), self.doorbell.clone(), self.update.clone()).unwrap()
    }

    fn host_rx(&self) -> HostRx {
        let (descriptors, headers) = (self.descriptors.clone(), self.headers.clone());
        HostRx::new(descriptors, headers, self.doorbell.clone(), self.update.clone()).unwrap()
    }

    fn card_tx(&self, limits: FrameLimits) -> CardTx {
        let rings = TxRings {
            descriptors: self.descriptors.clone(),
            descriptors_at: RING_AT,
            doorbell: self.doorbell.clone(),
            update: self.update.clone(),
        };
        CardTx::new(rings, limits, Iotlb::new(self.domain.clone())).unwrap()
    }

    fn card_rx(&self, limits: FrameLimits) -> CardRx {
        let rings = RxRings {
            descriptors: self.descriptors.clone(),
            descriptors_at: RING_AT,
            headers: self.headers.clone(),
            doorbell: self.doorbell.clone(),
            update: self.update.clone(),
        };
        CardRx::new(rings, limits, Iotlb::new(self.domain.clone())).unwrap()
    }

    /// Writes descriptors as a program would that does not use our half, and announces them.
    fn post_raw(&self, descriptors: &[u64]) {
        for (slot, &word) in descriptors.iter().enumerate() {
            self.descriptors.store(slot as u32, word);
        }
        self.ring(descriptors.len() as u32, 0);
    }

    fn ring(&self, sdp: u32, shp: u32) {
        self.doorbell.store(Pointers { descriptors: sdp, headers: shp }.encode(), Ordering::Release);
    }

    /// What the card last told.
    fn told(&self) -> Pointers {
        Pointers::decode(self.update.load(Ordering::Acquire))
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert_eq!(self.data.span_mut(offset, bytes.len()).unwrap().write_from(bytes), bytes.len());
    }

    fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        bytes_of(self.data.span(offset, len).unwrap())
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

fn upper(iova: Iova) -> u64 {
    Descriptor::Upper(iova.get() >> 30).encode()
}

fn buffer(iova: Iova, len: u16) -> u64 {
    Descriptor::Buffer(Buffer::whole(iova, len)).encode()
}

fn piece(iova: Iova, len: u16) -> u64 {
    Descriptor::Buffer(Buffer { next: true, ..Buffer::whole(iova, len) }).encode()
}

fn at_entry(kind: FaultKind, entry: u64) -> EngineFault {
    EngineFault { kind, iova: RING_AT.plus(entry * 8) }
}

/// Looks at the doorbell and takes everything there is.
fn serve_all(card: &mut CardTx) -> (Served, Vec<Vec<u8>>) {
    let mut frames = Vec::new();
    card.pending();
    let served = card.serve(usize::MAX, &mut |frame: Span<'_>| {
        frames.push(bytes_of(frame));
        Accept::Taken
    });
    (served, frames)
}
