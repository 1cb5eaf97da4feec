//! What a turn may cost, whatever is in the ring: hostile rings of every protocol, and honest ones that must not
//! suffer.
#![cfg(not(loom))]

use millrace_abi::control::FaultKind;
use millrace_dma::{Access, Domain, Iotlb, Iova, Ordering, Region, Slots64, Span, Word64};
use millrace_ring::budget::{LOOKS, MAX_CHAIN, MOST_LOOKS};
use millrace_ring::medusa::{Buffer, Descriptor, Pointers};
use millrace_ring::{Accept, EngineFault, FrameLimits, RxOutcome, Served, calypte, dd, medusa, sze};
use std::sync::Arc;

const LIMITS: FrameLimits = FrameLimits::ETHERNET;
const DATA_AT: Iova = Iova::new(0x4000_0000);
const DATA_LEN: usize = 1 << 20;
/// Frames of a turn of the card.
const BUDGET: usize = 64;

fn domain() -> Arc<Domain> {
    let domain = Arc::new(Domain::new());
    domain.map(Region::heap(DATA_LEN).window().clone(), Access::ReadWrite, Some(DATA_AT)).unwrap();
    domain
}

fn word() -> Word64 {
    Region::heap(8).window().word64(0).unwrap()
}

fn slots(count: u32) -> Slots64 {
    Region::heap(count as usize * 8).window().slots64(0, count).unwrap()
}

fn take(_: Span<'_>) -> Accept {
    Accept::Taken
}

fn upper() -> u64 {
    Descriptor::Upper(DATA_AT.get() >> 30).encode()
}

fn whole(len: u16) -> u64 {
    Descriptor::Buffer(Buffer::whole(DATA_AT, len)).encode()
}

fn piece(len: u16) -> u64 {
    Descriptor::Buffer(Buffer { next: true, ..Buffer::whole(DATA_AT, len) }).encode()
}

/// The largest ring of Medusa, whose software writes what a test wants.
struct Medusa {
    descriptors: Slots64,
    doorbell: Word64,
    update: Word64,
    posted: u32,
}

impl Medusa {
    const ENTRIES: u32 = 32768;

    fn new() -> Self {
        Self { descriptors: slots(Self::ENTRIES), doorbell: word(), update: word(), posted: 0 }
    }

    fn tx(&self) -> medusa::CardTx {
        let (descriptors, doorbell, update) = (self.descriptors.clone(), self.doorbell.clone(), self.update.clone());
        let rings = medusa::TxRings { descriptors, descriptors_at: Iova::default(), doorbell, update };
        medusa::CardTx::new(rings, LIMITS, Iotlb::new(domain())).unwrap()
    }

    fn rx(&self) -> medusa::CardRx {
        let (descriptors, doorbell, update) = (self.descriptors.clone(), self.doorbell.clone(), self.update.clone());
        let headers = Region::heap(4096).window().slots32(0, 1024).unwrap();
        let rings = medusa::RxRings { descriptors, descriptors_at: Iova::default(), headers, doorbell, update };
        let mut card = medusa::CardRx::new(rings, LIMITS, Iotlb::new(domain())).unwrap();
        card.sync();
        card
    }

    fn post(&mut self, words: impl IntoIterator<Item = u64>) {
        for word in words {
            self.descriptors.store(self.posted, word);
            self.posted += 1;
        }
        let pointers = Pointers { descriptors: self.posted, headers: 0 };
        self.doorbell.store(pointers.encode(), Ordering::Release);
    }

    /// One turn, after which software must have heard of everything that left the ring, and of nothing else.
    fn turn(&self, card: &mut medusa::CardTx) -> Served {
        let before = card.hdp();
        card.pending();
        let served = card.serve(BUDGET, &mut take);
        assert!(served.looked <= LOOKS, "{served:?}");
        assert_eq!(Pointers::decode(self.update.load(Ordering::Acquire)).descriptors, card.hdp());
        assert_eq!(served.has_moved(), card.hdp() != before || served.fault.is_some());
        served
    }
}

#[test]
fn medusa_upper_addresses_cost_their_share_of_a_turn() {
    let mut ring = Medusa::new();
    let mut card = ring.tx();
    ring.post((0..1000).map(|_| upper()));
    for passed in [LOOKS, LOOKS, LOOKS, 1000 - 3 * LOOKS, 0] {
        let served = ring.turn(&mut card);
        assert_eq!((served.looked, served.frames), (passed, 0));
    }
    assert_eq!(card.hdp(), 1000);
}

#[test]
fn medusa_a_chain_is_looked_at_once_however_long_its_end_takes() {
    let mut ring = Medusa::new();
    let mut card = ring.tx();
    ring.post([upper()].into_iter().chain((0..100).map(|_| piece(1))));
    assert_eq!(ring.turn(&mut card).looked, 101);
    for _ in 0..10 {
        assert_eq!(ring.turn(&mut card), Served::default(), "nothing is new");
    }
    ring.post([piece(1)]);
    assert_eq!(ring.turn(&mut card).looked, 1);
    ring.post([whole(1)]);
    card.pending();
    let full = card.serve(BUDGET, &mut |_: Span<'_>| Accept::Full);
    assert_eq!((full.looked, full.has_moved()), (1, false));
    let served = ring.turn(&mut card);
    assert_eq!((served.looked, served.frames, served.bytes, card.hdp()), (0, 1, 102, 103));
}

#[test]
fn medusa_a_chain_without_an_end_is_a_fault() {
    let mut ring = Medusa::new();
    let mut card = ring.tx();
    ring.post([upper()].into_iter().chain((0..MAX_CHAIN + 1).map(|_| piece(1))));
    assert_eq!(ring.turn(&mut card).fault, None, "the turn is over");
    let served = ring.turn(&mut card);
    let iova = Iova::new(u64::from(1 + MAX_CHAIN) * 8);
    assert_eq!(served.fault, Some(EngineFault { kind: FaultKind::EndlessDescriptors, iova }));
    // One descriptor less is a frame.
    let mut ring = Medusa::new();
    let mut card = ring.tx();
    ring.post([upper()].into_iter().chain((1..MAX_CHAIN).map(|_| piece(1))).chain([whole(1)]));
    let served = [(); 2].map(|()| ring.turn(&mut card));
    assert_eq!((served[0].frames + served[1].frames, card.hdp()), (1, 1 + MAX_CHAIN));
}

#[test]
fn medusa_software_hears_of_every_kind_of_turn() {
    let chain = [piece(60), whole(60)];
    let turns = [&[whole(60)][..], &[upper()], &[whole(1)], &[whole(0x4000)], &chain, &[piece(1), whole(1)]];
    let mut ring = Medusa::new();
    let mut card = ring.tx();
    ring.post([upper()]);
    ring.turn(&mut card);
    for words in turns {
        ring.post(words.iter().copied());
        // `turn` compares the update word.
        assert!(ring.turn(&mut card).has_moved());
        assert_eq!(card.hdp(), ring.posted);
    }
}

#[test]
fn medusa_a_full_burst_is_one_turn() {
    let mut ring = Medusa::new();
    let mut card = ring.tx();
    ring.post((0..200).flat_map(|_| [upper(), whole(60)]));
    for frames in [64, 64, 64, 8] {
        assert_eq!(ring.turn(&mut card).frames, frames);
    }
}

fn frame(len: usize) -> Vec<u8> {
    vec![0x5a; len]
}

#[test]
fn medusa_a_ring_that_no_frame_fits_costs_one_walk_a_burst() {
    let mut ring = Medusa::new();
    let mut card = ring.rx();
    ring.post([upper()].into_iter().chain((0..32000).map(|number| piece(number % 2))));
    let long = frame(1000);
    for _ in 0..3 {
        card.sync();
        // There would be room behind the first 256 descriptors.
        assert_eq!(card.deliver(&[], Span::from_slice(&long)), Ok(RxOutcome::TooLong));
        for _ in 0..BUDGET {
            assert_eq!(card.deliver(&[], Span::from_slice(&long)), Ok(RxOutcome::NoRoom), "not looked at again");
        }
    }
    assert_eq!(card.hdp(), 0);
}

#[test]
fn medusa_a_ring_in_which_nothing_ever_fits_is_a_fault() {
    let iova = Iova::new(u64::from(MAX_CHAIN) * 8);
    let endless = Err(EngineFault { kind: FaultKind::EndlessDescriptors, iova });
    for word in [upper(), piece(0)] {
        let mut ring = Medusa::new();
        let mut card = ring.rx();
        ring.post([upper()].into_iter().chain((0..1000).map(|_| word)));
        assert_eq!(card.deliver(&[], Span::from_slice(&frame(60))), endless);
    }
    // 59 bytes in all that may be looked at: the shortest frame does not fit.
    let mut ring = Medusa::new();
    let mut card = ring.rx();
    ring.post([upper()].into_iter().chain((1..1000).map(|number| piece(u16::from(number < 60)))));
    assert_eq!(card.deliver(&[], Span::from_slice(&frame(60))), endless);
}

#[test]
fn medusa_long_frames_in_buffers_of_ordinary_size_have_all_they_need() {
    let mut ring = Medusa::new();
    let mut card = ring.rx();
    ring.post((0..BUDGET).flat_map(|_| (0..8).flat_map(|_| [upper(), piece(2048)])));
    let long = frame(0x3fff);
    for _ in 0..BUDGET {
        assert_eq!(card.deliver(&[], Span::from_slice(&long)), Ok(RxOutcome::Stored));
    }
}

const LIST_AT: Iova = Iova::new(0x1000_0000);
const SZE_SIZE: u32 = 1 << 20;

/// An SZE ring whose list leads through `jumps` descriptors to every page.
fn sze_rings(jumps: u64) -> (Arc<Domain>, sze::Rings) {
    let domain = domain();
    let list = Region::heap(1 << 20);
    let words = list.window().slots64(0, 1 << 17).unwrap();
    domain.map(list.window().clone(), Access::Read, Some(LIST_AT)).unwrap();
    let mut at = 0;
    for page in 0..u64::from(SZE_SIZE) / 4096 {
        for _ in 0..jumps {
            words.store(at, sze::Descriptor::Next(LIST_AT.plus(u64::from(at + 1) * 8)).encode());
            at += 1;
        }
        words.store(at, sze::Descriptor::Pages { at: DATA_AT.plus(page * 4096), count: 1 }.encode());
        at += 1;
    }
    words.store(at, sze::Descriptor::Next(LIST_AT).encode());
    (domain, sze::Rings { descriptors_at: LIST_AT, size: SZE_SIZE, doorbell: word(), update: word() })
}

#[test]
fn sze_a_list_that_leads_far_costs_its_share_of_a_turn() {
    for (jumps, most) in [(0, 64), (200, 2)] {
        let (domain, rings) = sze_rings(jumps);
        let (doorbell, update) = (rings.doorbell.clone(), rings.update.clone());
        let iotlb = Iotlb::new(domain.clone());
        for packet in 0..64 {
            let header = sze::PacketHeader::for_frame(4088).encode().to_le_bytes();
            iotlb.write(DATA_AT.plus(packet * 4096), 4).unwrap().write_from(&header);
        }
        let mut card = sze::CardTx::new(rings, LIMITS, iotlb).unwrap();
        doorbell.store(64 * 4096, Ordering::Release);
        card.pending();
        let (mut frames, mut turns) = (0, 0);
        while frames < 64 {
            let served = card.serve(BUDGET, &mut take);
            assert!(served.looked < MOST_LOOKS && (1..=most).contains(&served.frames), "{served:?}");
            assert_eq!(update.load(Ordering::Acquire), u64::from(card.hw()));
            (frames, turns) = (frames + served.frames, turns + 1);
        }
        assert!(turns >= 64 / most);
    }
}

#[test]
fn sze_a_burst_into_a_list_that_leads_far_has_an_allowance() {
    for (jumps, stored) in [(0, BUDGET), (200, 2)] {
        let (domain, rings) = sze_rings(jumps);
        let mut card = sze::CardRx::new(rings, LIMITS, Iotlb::new(domain)).unwrap();
        for _ in 0..2 {
            card.sync();
            let deliver = |_: &usize| card.deliver(&[], Span::from_slice(&frame(4088))) == Ok(RxOutcome::Stored);
            assert_eq!((0..BUDGET).take_while(deliver).count(), stored, "{jumps}");
        }
    }
}

#[test]
fn dd_and_calypte_look_at_one_entry_for_each_frame() {
    let ring = dd::Ring::new(slots(4 * 1024)).unwrap();
    // Zeroed memory is a ring of frames without a byte, all of which are the card's.
    let mut card = dd::CardTx::new(ring, Iova::default(), LIMITS, Iotlb::new(domain()), Box::new(|| 0));
    let served = card.serve(BUDGET, &mut take);
    assert_eq!((served.looked, served.too_short, served.has_moved()), (64, 64, true));
    let served = card.serve(usize::MAX, &mut take);
    assert_eq!((served.looked, served.too_short), (LOOKS, u64::from(LOOKS)));

    let (headers, update) = (slots(1024), word());
    for slot in 0..1024 {
        headers.store(slot, calypte::Header::default().encode(true));
    }
    let data = Region::allocate_doubled(32 << 10).unwrap().window().clone();
    let rings = calypte::TxRings { data, headers, update: update.clone() };
    let mut card = calypte::CardTx::new(rings, LIMITS).unwrap();
    let served = card.serve(BUDGET, &mut take);
    assert_eq!((served.looked, served.too_short, served.has_moved()), (64, 64, true));
    assert_eq!(update.load(Ordering::Acquire) >> 32, 64);
    assert_eq!(card.serve(usize::MAX, &mut take).looked, LOOKS);
}

mod virtio {
    use super::*;
    use millrace_ring::virtio::descriptor_flag::{NEXT, WRITE};
    use millrace_ring::virtio::{Descriptor, DeviceRx, DeviceTx, Fault, NetHeader, NetSink, Rings, feature};

    const SIZE: u16 = 4096;

    struct Bin;

    impl NetSink for Bin {
        fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
            frames.len()
        }

        fn take_unfinished(&mut self, _: &[u8; NetHeader::LEN], _: &mut [u8]) -> bool {
            true
        }
    }

    /// `SIZE / chain` chains of so many descriptors of `len` bytes, all of them available.
    fn rings(chain: u16, len: u32, flags: u16) -> Rings {
        let part = || Region::heap(usize::from(SIZE) * 16).window().clone();
        let rings = Rings::over(&part(), &part(), &part(), SIZE).unwrap();
        for index in 0..SIZE {
            let more = if (index + 1) % chain == 0 { 0 } else { NEXT };
            let next = (index + 1) % SIZE;
            rings.table.store(index, Descriptor { address: DATA_AT, len, flags: flags | more, next });
        }
        for number in 0..SIZE / chain {
            rings.avail.store(number.into(), number * chain);
        }
        rings.avail_index.store(SIZE / chain, Ordering::Release);
        rings
    }

    #[test]
    fn tx_chains_of_nothing_cost_their_share_of_a_turn() {
        let mut tx = DeviceTx::new(rings(128, 0, 0), feature::VERSION_1, false, LIMITS, Iotlb::new(domain()));
        for _ in 0..16 {
            let sent = tx.serve(BUDGET, &mut Bin);
            assert_eq!((sent.looked, sent.too_short), (LOOKS, 2));
        }
        assert_eq!(tx.serve(BUDGET, &mut Bin).looked, 0);
    }

    #[test]
    fn tx_a_chain_of_too_many_is_a_fault() {
        let mut tx = DeviceTx::new(rings(512, 0, 0), feature::VERSION_1, false, LIMITS, Iotlb::new(domain()));
        let sent = tx.serve(BUDGET, &mut Bin);
        assert_eq!((sent.looked, sent.fault), (MAX_CHAIN, Some(Fault::ChainLength)));
    }

    #[test]
    fn rx_all_chains_of_a_frame_together_have_one_limit() {
        let features = feature::VERSION_1 | feature::MRG_RXBUF;
        // 16 bytes in each chain of 16: 256 descriptors hold 256 bytes, the ring 4096.
        let mut rx = DeviceRx::new(rings(16, 1, WRITE), features, Iotlb::new(domain()));
        let (fits, long) = (frame(256 - NetHeader::LEN), frame(1000));
        for _ in 0..3 {
            let delivered = rx.deliver(&[Span::from_slice(&long); 8]);
            assert_eq!((delivered.taken, delivered.too_long, delivered.fault), (1, 1, None), "then there is no room");
            assert_eq!(rx.deliver(&[Span::from_slice(&long)]).taken, 0, "in this burst");
            rx.publish();
        }
        assert_eq!(rx.deliver(&[Span::from_slice(&fits)]).taken, 1);
        assert_eq!(rx.next(), 16);
    }

    #[test]
    fn rx_large_frames_in_buffers_of_ordinary_size_have_all_they_need() {
        let features = feature::VERSION_1 | feature::MRG_RXBUF;
        let mut rx = DeviceRx::new(rings(2, 768, WRITE), features, Iotlb::new(domain()));
        let large = frame(64 << 10);
        for number in 1..=40 {
            let delivered = rx.deliver_unfinished(NetHeader::default(), Span::from_slice(&large));
            assert_eq!((delivered.taken, delivered.too_long), (1, 0), "{number}");
        }
    }
}
