//! Both halves of DD on one thread, over one piece of memory.

mod fixed;
mod golden;
mod hostile;
mod launch;
mod order;
mod runs;
mod rx;
mod tx;

use super::*;
use crate::{Accept, EngineFault, FrameLimits, RxOutcome, Served};
use millrace_abi::control::FaultKind;
use millrace_dma::{Access, Domain, Iotlb, Iova, Ordering, Region, Slots64, Span, Word64};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const LIMITS: FrameLimits = FrameLimits::ETHERNET;
const STRIDE: u32 = 2048;
/// Where the tests' rings lie, as the card is told.
const RING_AT: Iova = Iova::new(0x7000_0000);

/// The memory of one queue of either direction: a ring, and buffers in a domain.
struct Memory {
    words: Slots64,
    buffers: Region,
    first: Iova,
    domain: Arc<Domain>,
    tail: Word64,
    now: Arc<AtomicU64>,
}

impl Memory {
    fn new(entries: u32, buffers: u32) -> Self {
        let words = Region::heap(entries as usize * DESCRIPTOR).window().slots64(0, entries * 4).unwrap();
        let buffers = Region::heap((buffers * STRIDE) as usize);
        let domain = Arc::new(Domain::new());
        let first = domain.map(buffers.window().clone(), Access::ReadWrite, None).unwrap();
        let tail = Region::heap(8).window().word64(0).unwrap();
        let memory = Self { words, buffers, first, domain, tail, now: Arc::default() };
        memory.ring().clear();
        memory
    }

    fn ring(&self) -> Ring {
        Ring::new(self.words.clone()).unwrap()
    }

    fn host_tx(&self) -> HostTx {
        HostTx::new(self.ring(), self.tail.clone())
    }

    fn host_rx(&self) -> HostRx {
        HostRx::new(self.ring(), self.tail.clone())
    }

    fn card_tx(&self, limits: FrameLimits) -> CardTx {
        let now = self.now.clone();
        let clock = Box::new(move || now.load(Ordering::Relaxed));
        CardTx::new(self.ring(), RING_AT, limits, Iotlb::new(self.domain.clone()), clock)
    }

    fn card_rx(&self, limits: FrameLimits) -> CardRx {
        CardRx::new(self.ring(), RING_AT, limits, Iotlb::new(self.domain.clone()))
    }

    fn iova(&self, buffer: u32) -> Iova {
        self.first.plus(u64::from(buffer * STRIDE))
    }

    fn write(&self, buffer: u32, bytes: &[u8]) {
        let room = self.buffers.window().span_mut((buffer * STRIDE) as usize, bytes.len()).unwrap();
        assert_eq!(room.write_from(bytes), bytes.len());
    }

    fn read(&self, buffer: u32, len: u16) -> Vec<u8> {
        bytes_of(self.buffers.window().span((buffer * STRIDE) as usize, len.into()).unwrap())
    }

    /// A descriptor as it lies in memory.
    fn descriptor(&self, at: u32) -> [u64; 4] {
        [0, 1, 2, 3].map(|word| self.words.load(at * 4 + word))
    }

    fn set_status(&self, at: u32, word: u64) {
        self.words.store_release(at * 4 + 1, word);
    }

    /// A frame in `buffer`.
    fn frame(&self, buffer: u32, len: u16) -> Frame {
        Frame { iova: self.iova(buffer), len, ..Frame::default() }
    }
}

fn bytes_of(span: Span<'_>) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    span.read_into(&mut bytes);
    bytes
}

/// `len` bytes that only frame `number` has.
fn frame(number: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (number.wrapping_mul(0x9e37_79b9).wrapping_add(i * 31) >> 7) as u8).collect()
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
