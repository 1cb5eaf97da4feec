//! How many instructions the card's halves spend on a frame: honest full bursts, counted by callgrind.
//!
//! ```text
//! cargo build --release -p millrace-ring --example instructions
//! for engine in medusa-tx medusa-rx medusa-tx-noted medusa-rx-noted sze-tx sze-rx calypte-tx calypte-rx dd-tx dd-rx; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no --toggle-collect='*card_side*' \
//!         target/release/examples/instructions $engine 2>&1 | grep -E 'frames|Collected'
//! done
//! ```
//!
//! `-noted`: where it is noted how far the card is, as with a keeper.
//!
//! What is collected, divided by the frames printed, is what a change of an engine must not raise.

use millrace_dma::{Access, Domain, Iotlb, Iova, Region, Slots64, Span, Window, Word64};
use millrace_ring::{Accept, EngineFault, FrameLimits, RxOutcome, calypte, dd, medusa, sze};
use std::hint::black_box;
use std::sync::Arc;

const BURST: u32 = 64;
const BURSTS: u32 = 200;
const ENTRIES: u32 = 1024;
const LEN: u16 = 64;
const STRIDE: u64 = 2048;
const RING_LEN: usize = 64 << 10;

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    let engine: fn() = match name.as_str() {
        "medusa-tx" => || medusa_tx(None),
        "medusa-rx" => || medusa_rx(None),
        "medusa-tx-noted" => || medusa_tx(note()),
        "medusa-rx-noted" => || medusa_rx(note()),
        "sze-tx" => sze_tx,
        "sze-rx" => sze_rx,
        "calypte-tx" => calypte_tx,
        "calypte-rx" => calypte_rx,
        "dd-tx" => dd_tx,
        "dd-rx" => dd_rx,
        _ => panic!("usage: instructions (medusa|sze|calypte|dd)-(tx|rx), or medusa-(tx|rx)-noted"),
    };
    engine();
    println!("{name}: {} frames", BURST * BURSTS);
}

/// What callgrind counts.
#[inline(never)]
fn card_side(burst: &mut dyn FnMut()) {
    burst();
}

/// Memory of an owner, and the address at which the card finds it.
fn buffers() -> (Arc<Domain>, Iova) {
    let memory = Region::heap((u64::from(ENTRIES) * STRIDE) as usize);
    let domain = Arc::new(Domain::new());
    let at = domain.map(memory.window().clone(), Access::ReadWrite, None).expect("an empty domain");
    (domain, at)
}

fn buffer(first: Iova, number: u32) -> Iova {
    first.plus(u64::from(number % ENTRIES) * STRIDE)
}

fn word() -> Word64 {
    Region::heap(8).window().word64(0).expect("inside")
}

fn slots(count: u32) -> Slots64 {
    Region::heap(count as usize * 8).window().slots64(0, count).expect("a power of two")
}

fn ring() -> Window {
    Region::allocate_doubled(RING_LEN).expect("memory").window().clone()
}

fn take(frame: Span<'_>) -> Accept {
    black_box(frame.len());
    Accept::Taken
}

/// Delivers a burst of frames, all of which have room.
fn fill(mut deliver: impl FnMut(Span<'_>) -> Result<RxOutcome, EngineFault>) {
    let frame = [0x5a; LEN as usize];
    for _ in 0..BURST {
        assert_eq!(deliver(Span::from_slice(black_box(&frame))), Ok(RxOutcome::Stored));
    }
}

/// A place in a control page.
fn note() -> Option<medusa::Note> {
    medusa::Note::new(Region::heap(4096).window())
}

fn medusa_tx(note: Option<medusa::Note>) {
    let (domain, first) = buffers();
    let (descriptors, doorbell, update) = (slots(ENTRIES), word(), word());
    let mut host = medusa::HostTx::new(descriptors.clone(), doorbell.clone(), update.clone()).expect("a ring");
    let rings = medusa::TxRings { descriptors, descriptors_at: Iova::default(), doorbell, update };
    let mut card = medusa::CardTx::new(rings, FrameLimits::ETHERNET, Iotlb::new(domain)).expect("a ring").noted(note);
    for number in 0..BURSTS * BURST {
        assert!(host.post(buffer(first, number), LEN));
        if (number + 1) % BURST == 0 {
            host.flush();
            card_side(&mut || {
                card.pending();
                assert_eq!(card.serve(BURST as usize, &mut take).frames, BURST.into());
            });
            host.completed();
        }
    }
}

fn medusa_rx(note: Option<medusa::Note>) {
    let (domain, first) = buffers();
    let (descriptors, doorbell, update) = (slots(ENTRIES), word(), word());
    let headers = Region::heap(ENTRIES as usize * 4).window().slots32(0, ENTRIES).expect("a power of two");
    let (words, others) = ((doorbell.clone(), update.clone()), (descriptors.clone(), headers.clone()));
    let mut host = medusa::HostRx::new(others.0, others.1, words.0, words.1).expect("a ring");
    let rings = medusa::RxRings { descriptors, descriptors_at: Iova::default(), headers, doorbell, update };
    let mut card = medusa::CardRx::new(rings, FrameLimits::ETHERNET, Iotlb::new(domain)).expect("a ring").noted(note);
    for burst in 0..BURSTS {
        (0..BURST).for_each(|number| assert!(host.post(buffer(first, burst * BURST + number), STRIDE as u16)));
        host.flush();
        card_side(&mut || {
            card.sync();
            fill(|frame| card.deliver(&[], frame));
            card.publish();
        });
        let ready = host.ready();
        host.release(ready);
    }
}

fn sze_rings(ring: &Window) -> (Arc<Domain>, sze::Rings) {
    let (list_at, ring_at) = (Iova::new(0x5000_0000), Iova::new(0x6000_0000));
    let list = Region::heap(4096);
    let words = list.window().slots64(0, 512).expect("inside");
    let all = sze::descriptor_list(ring_at, RING_LEN as u64, 0, list_at);
    all.into_iter().enumerate().for_each(|(slot, word)| words.store(slot as u32, word));
    let domain = Arc::new(Domain::new());
    domain.map(list.window().clone(), Access::Read, Some(list_at)).expect("free");
    let once = ring.part(0, RING_LEN).expect("inside");
    domain.map(once, Access::ReadWrite, Some(ring_at)).expect("free");
    (domain, sze::Rings { descriptors_at: list_at, size: RING_LEN as u32, doorbell: word(), update: word() })
}

fn sze_tx() {
    let ring = ring();
    let (domain, rings) = sze_rings(&ring);
    let mut host = sze::HostTx::new(ring, 0, rings.doorbell.clone(), rings.update.clone()).expect("a ring");
    let mut card = sze::CardTx::new(rings, FrameLimits::ETHERNET, Iotlb::new(domain)).expect("a ring");
    for _ in 0..BURSTS {
        for _ in 0..BURST {
            assert!(host.has_room(sze::HostTx::stride(LEN)));
            host.push(LEN);
        }
        host.flush();
        card_side(&mut || {
            card.pending();
            assert_eq!(card.serve(BURST as usize, &mut take).frames, BURST.into());
        });
    }
}

fn sze_rx() {
    let ring = ring();
    let (domain, rings) = sze_rings(&ring);
    let mut host = sze::HostRx::new(ring, 0, 0, rings.doorbell.clone(), rings.update.clone()).expect("a ring");
    let mut card = sze::CardRx::new(rings, FrameLimits::ETHERNET, Iotlb::new(domain)).expect("a ring");
    for _ in 0..BURSTS {
        card_side(&mut || {
            card.sync();
            fill(|frame| card.deliver(&[], frame));
            card.publish();
        });
        let bytes = host.ready();
        host.put(bytes);
        host.flush();
    }
}

fn calypte_tx() {
    let (data, headers, update) = (ring(), slots(calypte::header_entries(RING_LEN as u32)), word());
    let mut host = calypte::HostTx::new(RING_LEN as u32, headers.clone(), update.clone()).expect("a ring");
    let rings = calypte::TxRings { data, headers, update };
    let mut card = calypte::CardTx::new(rings, FrameLimits::ETHERNET).expect("a ring");
    for _ in 0..BURSTS {
        for _ in 0..BURST {
            assert!(host.has_room(calypte::HostTx::stride(LEN)));
            host.push(LEN);
        }
        host.flush();
        card_side(&mut || {
            card.pending();
            assert_eq!(card.serve(BURST as usize, &mut take).frames, BURST.into());
        });
    }
}

fn calypte_rx() {
    let data = ring().part(0, RING_LEN).expect("inside");
    let (headers, doorbell, update) = (slots(ENTRIES), word(), word());
    let blocks = RING_LEN as u32 / calypte::BLOCK;
    let mut host = calypte::HostRx::new(blocks, headers.clone(), doorbell.clone(), update.clone()).expect("a ring");
    let rings = calypte::RxRings { data, headers, doorbell, update };
    let mut card = calypte::CardRx::new(rings, FrameLimits::ETHERNET).expect("a ring");
    for _ in 0..BURSTS {
        card_side(&mut || {
            fill(|frame| card.deliver(&[], frame));
            card.publish();
        });
        let ready = host.ready(BURST);
        host.put(ready);
        host.flush();
    }
}

fn dd_ring() -> dd::Ring {
    let ring = dd::Ring::new(slots(ENTRIES * 4)).expect("a power of two");
    ring.clear();
    ring
}

fn dd_tx() {
    let (domain, first) = buffers();
    let ring = dd_ring();
    let mut host = dd::HostTx::new(ring.clone(), word());
    let clock = Box::new(|| 0);
    let mut card = dd::CardTx::new(ring, Iova::default(), FrameLimits::ETHERNET, Iotlb::new(domain), clock);
    for number in 0..BURSTS * BURST {
        assert!(host.post(dd::Frame { iova: buffer(first, number), len: LEN, ..dd::Frame::default() }));
        if (number + 1) % BURST == 0 {
            host.flush();
            card_side(&mut || {
                assert!(card.pending());
                assert_eq!(card.serve(BURST as usize, &mut take).frames, BURST.into());
            });
            host.reclaim();
        }
    }
}

fn dd_rx() {
    let (domain, first) = buffers();
    let ring = dd_ring();
    let mut host = dd::HostRx::new(ring.clone(), word());
    let mut card = dd::CardRx::new(ring, Iova::default(), FrameLimits::ETHERNET, Iotlb::new(domain));
    for burst in 0..BURSTS {
        (0..BURST).for_each(|number| assert!(host.post(buffer(first, burst * BURST + number), STRIDE as u16, 0)));
        card_side(&mut || {
            card.sync();
            fill(|frame| card.deliver(&[], frame));
            card.publish();
        });
        let ready = host.ready(BURST);
        host.release(ready);
    }
}
