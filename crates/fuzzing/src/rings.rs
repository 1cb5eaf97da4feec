//! The rings of the card's own protocols, under both halves of each.
//!
//! What is checked, besides that nothing panics: that a frame which comes out has a legal length and readable bytes, that
//! no call does more than its ring can hold or looks at more than a turn may, and that every frame is counted once.

use arbitrary::{Arbitrary, Unstructured};
use millrace_dma::{Access, Domain, Iotlb, Iova, Ordering, Region, Span, Window, Word64};
use millrace_ring::budget::{LOOKS, MAX_CHAIN, MOST_LOOKS};
use millrace_ring::{Accept, FrameLimits, RxOutcome, Served, calypte, dd, medusa, sze};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Most steps of one input: enough for any state, few enough for thousands of inputs in a second.
const MOST_STEPS: usize = 64;
const DATA_LEN: usize = 16 << 10;
/// One piece of memory appears here several times: below and above a multiple of 1 GiB, and at the ends of the space.
const PLACES: [u64; 4] = [0, (1 << 30) - 8192, 0x1234_4000_0000, u64::MAX - DATA_LEN as u64 + 1];

/// Which of [`PLACES`] are mapped, and whether for writing.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Layout {
    mapped: u8,
    writable: u8,
}

/// An address that is more interesting than a random one.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Address {
    place: u8,
    offset: u16,
    wild: bool,
}

impl Address {
    fn iova(self) -> Iova {
        let base = PLACES[usize::from(self.place) % PLACES.len()];
        let offset =
            if self.wild { u64::from(self.offset) << 16 } else { u64::from(self.offset) % (DATA_LEN as u64 + 64) };
        Iova::new(base.wrapping_add(offset))
    }
}

fn domain_of(layout: Layout, data: &Window) -> Arc<Domain> {
    let domain = Arc::new(Domain::new());
    for (bit, &place) in PLACES.iter().enumerate() {
        if layout.mapped >> bit & 1 == 0 {
            continue;
        }
        let access = if layout.writable >> bit & 1 == 0 { Access::Read } else { Access::ReadWrite };
        domain.map(data.clone(), access, Some(Iova::new(place))).expect("places do not overlap");
    }
    domain
}

/// Takes some frames, touches every byte of them, and counts.
struct Sink {
    limits: FrameLimits,
    room: usize,
    frames: u64,
    bytes: u64,
    touched: u8,
}

impl Sink {
    fn new(limits: FrameLimits, room: usize) -> Self {
        Self { limits, room, frames: 0, bytes: 0, touched: 0 }
    }

    fn take(&mut self, frame: Span<'_>) -> Accept {
        assert!((usize::from(self.limits.min)..=usize::from(self.limits.max)).contains(&frame.len()));
        let mut copy = vec![0; frame.len()];
        assert_eq!(frame.read_into(&mut copy), frame.len());
        self.touched ^= copy.iter().fold(0, |all, byte| all ^ byte);
        if self.room == 0 {
            return Accept::Full;
        }
        self.room -= 1;
        self.frames += 1;
        self.bytes += frame.len() as u64;
        Accept::Taken
    }

    /// Compares with what the engine says; `most` frames could be in the ring.
    fn check(&self, served: Served, budget: usize, most: u32) {
        assert_eq!((self.frames, self.bytes), (served.frames, served.bytes));
        let done = served.frames + served.too_short + served.too_long + served.too_far;
        assert!(done <= budget as u64 && done <= u64::from(most), "{served:?} of {most}");
        assert!(served.looked < MOST_LOOKS, "{served:?}");
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Word {
    Raw(u64),
    Upper(Address),
    Buffer {
        at: Address,
        len: u16,
        next: bool,
    },
    Small {
        at: Address,
        len: u8,
        next: bool,
    },
    /// Type 0 and type 2 that belong together, in two slots.
    Both {
        at: Address,
        len: u16,
    },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum MedusaStep {
    Descriptor { slot: u8, word: Word },
    Doorbell { descriptors: u8, headers: u8 },
    RawDoorbell(u64),
    CardServes { budget: u8, room: u8 },
    CardDelivers { meta: bool, len: u16 },
    CardPublishes,
    Update { descriptors: u8, headers: u8 },
    RawUpdate(u64),
    Header { slot: u8, word: u32 },
    Map { place: u8 },
    SoftwareSends { count: u8, len: u16 },
    SoftwareReads { count: u8 },
    Flush,
}

#[derive(Arbitrary, Debug)]
struct MedusaSetup {
    layout: Layout,
    ring: u8,
    headers: u8,
    buffers: u8,
    first: u32,
    buffer: Address,
    min: u8,
    max: u16,
}

/// Any descriptors, pointers and headers, under all four halves of Medusa at once. Returns how many frames the card
/// took or stored.
pub fn medusa(input: &[u8]) -> u64 {
    let mut moved = 0;
    let mut input = Unstructured::new(input);
    let Ok(setup) = MedusaSetup::arbitrary(&mut input) else { return moved };
    let (entries, header_entries) = (2u32 << (setup.ring % 10), 2u32 << (setup.headers % 6));
    let data = Region::heap(DATA_LEN).window().clone();
    let domain = domain_of(setup.layout, &data);
    let words = Region::heap(256);
    let ring = Region::heap(entries as usize * 8);
    let headers = Region::heap(header_entries as usize * 4);
    let descriptors = ring.window().slots64(0, entries).expect("a power of two");
    let headers = headers.window().slots32(0, header_entries).expect("a power of two");
    let word = |at| words.window().word64(at).expect("inside");
    let (doorbell, update): (Word64, Word64) = (word(0), word(64));
    let limits = FrameLimits { min: setup.min.into(), max: setup.max };
    let card_tx = || {
        let (descriptors, doorbell, update) = (descriptors.clone(), doorbell.clone(), word(128));
        let rings = medusa::TxRings { descriptors, descriptors_at: Iova::default(), doorbell, update };
        medusa::CardTx::new(rings, limits, Iotlb::new(domain.clone())).expect("two entries at least")
    };
    let card_rx = || {
        let (descriptors, headers) = (descriptors.clone(), headers.clone());
        let (doorbell, update) = (doorbell.clone(), word(192));
        let rings = medusa::RxRings { descriptors, descriptors_at: Iova::default(), headers, doorbell, update };
        medusa::CardRx::new(rings, limits, Iotlb::new(domain.clone())).expect("two entries at least")
    };
    let (mut tx, mut rx) = (card_tx(), card_rx());
    let count_of_buffers = 1u64 << (setup.buffers % 6);
    let buffers: Box<[Iova]> = (0..count_of_buffers).map(|i| setup.buffer.iova().plus(i * 1024)).collect();
    let host_tx = medusa::HostTx::new(descriptors.clone(), doorbell.clone(), update.clone()).expect("as above");
    let host_rx = medusa::HostRx::new(descriptors.clone(), headers.clone(), doorbell.clone(), update.clone());
    let mut software_tx = medusa::FixedTx::new(host_tx, buffers.clone(), setup.first);
    let mut software_rx = medusa::FixedRx::new(host_rx.expect("as above"), buffers, 1024, setup.first);
    let frame = vec![0x5a; 1 << 16];
    for _ in 0..MOST_STEPS {
        let Ok(step) = MedusaStep::arbitrary(&mut input) else { return moved };
        if input.is_empty() {
            return moved;
        }
        match step {
            MedusaStep::Descriptor { slot, word } => {
                let slot = u32::from(slot);
                let buffer = |at: Address, len, next| {
                    let buffer = medusa::Buffer { next, ..medusa::Buffer::whole(at.iova(), len) };
                    medusa::Descriptor::Buffer(buffer).encode()
                };
                let upper = |at: Address| medusa::Descriptor::Upper(at.iova().get() >> 30).encode();
                match word {
                    Word::Raw(word) => descriptors.store(slot, word),
                    Word::Upper(at) => descriptors.store(slot, upper(at)),
                    Word::Buffer { at, len, next } => descriptors.store(slot, buffer(at, len, next)),
                    Word::Small { at, len, next } => descriptors.store(slot, buffer(at, len.into(), next)),
                    Word::Both { at, len } => {
                        descriptors.store(slot, upper(at));
                        descriptors.store(slot + 1, buffer(at, len, false));
                    }
                }
            }
            MedusaStep::Doorbell { descriptors, headers } => {
                let pointers = medusa::Pointers { descriptors: descriptors.into(), headers: headers.into() };
                doorbell.store(pointers.encode(), Ordering::Relaxed);
            }
            MedusaStep::RawDoorbell(word) => doorbell.store(word, Ordering::Relaxed),
            MedusaStep::CardServes { budget, room } => {
                let pending = tx.pending();
                assert!(pending < entries);
                let mut sink = Sink::new(limits, room.into());
                let served = tx.serve(budget.into(), &mut |frame: Span<'_>| sink.take(frame));
                moved += served.frames;
                sink.check(served, budget.into(), pending);
                assert!(tx.hdp() < entries && served.looked <= LOOKS);
                if served.has_advanced {
                    let told = medusa::Pointers::decode(word(128).load(Ordering::Relaxed));
                    assert_eq!(told.descriptors, tx.hdp(), "software hears of it");
                }
                if served.fault.is_some() {
                    tx = card_tx();
                }
            }
            MedusaStep::CardDelivers { meta, len } => {
                rx.sync();
                let before = (rx.hdp(), rx.hhp());
                let meta = if meta { &frame[..16] } else { &[] };
                match rx.deliver(meta, Span::from_slice(&frame[..usize::from(len)])) {
                    Ok(RxOutcome::Stored) => {
                        moved += 1;
                        assert!(len <= limits.max && rx.hhp() == (before.1 + 1) % header_entries);
                        let header = medusa::RxHeader::decode(headers.load(before.1));
                        assert_eq!((header.len, header.header_len), (len + meta.len() as u16, meta.len() as u8));
                        let used = rx.hdp().wrapping_sub(before.0) % entries;
                        assert_eq!(u32::from(header.freed), used.min(3));
                        assert!(used <= MAX_CHAIN);
                    }
                    Ok(_) => assert_eq!((rx.hdp(), rx.hhp()), before),
                    Err(_) => {
                        assert_eq!((rx.hdp(), rx.hhp()), before);
                        rx = card_rx();
                    }
                }
            }
            MedusaStep::CardPublishes => {
                rx.publish();
            }
            MedusaStep::Update { descriptors, headers } => {
                let pointers = medusa::Pointers { descriptors: descriptors.into(), headers: headers.into() };
                update.store(pointers.encode(), Ordering::Relaxed);
            }
            MedusaStep::RawUpdate(word) => update.store(word, Ordering::Relaxed),
            MedusaStep::Header { slot, word } => headers.store(slot.into(), word),
            MedusaStep::Map { place } => {
                // Mapped already is as good.
                let place = Iova::new(PLACES[usize::from(place) % PLACES.len()]);
                let _ = domain.map(data.clone(), Access::ReadWrite, Some(place));
            }
            MedusaStep::SoftwareSends { count, len } => {
                let Some(queue) = &mut software_tx else { continue };
                if queue.take(count.into()).is_some() {
                    for _ in 0..count {
                        assert!(queue.post(len), "what was taken has room in the ring");
                    }
                }
                assert!(queue.in_flight() < entries && queue.available() < entries);
            }
            MedusaStep::SoftwareReads { count } => {
                let Some(queue) = &mut software_rx else { continue };
                let ready = queue.ready();
                assert!(ready < header_entries && u64::from(ready) <= count_of_buffers);
                for ahead in 0..ready {
                    queue.header(ahead);
                }
                queue.put(ready.min(count.into()));
            }
            MedusaStep::Flush => {
                software_tx.iter_mut().for_each(medusa::FixedTx::flush);
                software_rx.iter_mut().for_each(medusa::FixedRx::flush);
            }
        }
    }
    moved
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum SzeWord {
    Raw(u64),
    Ring { page: u8, count: u8 },
    Pages { at: Address, count: u16 },
    Next { slot: u8 },
    NextAt(Address),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum SzeStep {
    Descriptor { slot: u8, word: SzeWord },
    Header { at: u16, total: u16, meta: u8 },
    SmallHeader { at: u16, total: u8 },
    RawHeader { at: u16, word: u64 },
    Doorbell(u16),
    RawDoorbell(u64),
    CardServes { budget: u8, room: u8 },
    CardDelivers { meta: bool, len: u16 },
    CardPublishes,
    Update(u16),
    RawUpdate(u64),
    SoftwareSends { count: u8, len: u16 },
    SoftwareReads { most: u8 },
    Flush,
}

#[derive(Arbitrary, Debug)]
struct SzeSetup {
    layout: Layout,
    size: u8,
    /// Begin with the list of an honest program.
    honest: bool,
    offset: u8,
    min: u8,
    max: u16,
}

/// Any descriptor lists, packet headers and pointers, under all four halves of SZE at once. Returns how many frames the
/// card took or stored.
pub fn sze(input: &[u8]) -> u64 {
    let mut moved = 0;
    let mut input = Unstructured::new(input);
    let Ok(setup) = SzeSetup::arbitrary(&mut input) else { return moved };
    let size = 4096u32 << (setup.size % 3);
    let pages = u64::from(size) / 4096;
    let Ok(region) = Region::allocate_doubled(size as usize) else { return moved };
    let ring = region.window().clone();
    let once = ring.part(0, size as usize).expect("inside");
    let list = Region::heap(DATA_LEN).window().clone();
    // The list itself stands at the places too: a descriptor may lead anywhere, a list may contain itself.
    let domain = domain_of(setup.layout, &list);
    let (list_at, ring_at) = (Iova::new(0x5000_0000), Iova::new(0x6000_0000));
    domain.map(list.part(0, 4096).expect("inside"), Access::Read, Some(list_at)).expect("free");
    domain.map(once, Access::ReadWrite, Some(ring_at)).expect("free");
    let slots = list.slots64(0, 512).expect("inside");
    if setup.honest {
        let offset = u64::from(setup.offset) % pages * 4096;
        for (slot, word) in sze::descriptor_list(ring_at, size.into(), offset, list_at).into_iter().enumerate() {
            slots.store(slot as u32, word);
        }
    }
    let words = Region::heap(256);
    let word = |at| words.window().word64(at).expect("inside");
    let (doorbell, update): (Word64, Word64) = (word(0), word(64));
    let limits = FrameLimits { min: setup.min.into(), max: setup.max % 0x4000 };
    let rings = |update| sze::Rings { descriptors_at: list_at, size, doorbell: doorbell.clone(), update };
    let card_tx = || sze::CardTx::new(rings(word(128)), limits, Iotlb::new(domain.clone())).expect("a page at least");
    let card_rx = || sze::CardRx::new(rings(word(192)), limits, Iotlb::new(domain.clone())).expect("a page at least");
    let (mut tx, mut rx) = (card_tx(), card_rx());
    let base = u32::from(setup.offset) * 4096;
    let mut software_tx = sze::HostTx::new(ring.clone(), base, doorbell.clone(), update.clone()).expect("doubled");
    let mut software_rx = sze::HostRx::new(ring.clone(), base, 0, doorbell.clone(), update.clone()).expect("doubled");
    let headers = ring.slots64(0, size / 8).expect("inside");
    let frame = vec![0x5a; 1 << 16];
    for _ in 0..MOST_STEPS {
        let Ok(step) = SzeStep::arbitrary(&mut input) else { return moved };
        if input.is_empty() {
            return moved;
        }
        match step {
            SzeStep::Descriptor { slot, word } => {
                let pages = |at: Iova, count| sze::Descriptor::Pages { at, count }.encode();
                let word = match word {
                    SzeWord::Raw(word) => word,
                    SzeWord::Ring { page, count } => pages(ring_at.plus(u64::from(page % 8) * 4096), count.into()),
                    SzeWord::Pages { at, count } => pages(at.iova(), count.into()),
                    SzeWord::Next { slot } => sze::Descriptor::Next(list_at.plus(u64::from(slot % 16) * 8)).encode(),
                    SzeWord::NextAt(at) => sze::Descriptor::Next(at.iova()).encode(),
                };
                slots.store(u32::from(slot % 16), word);
            }
            SzeStep::Header { at, total, meta } => {
                headers.store(at.into(), sze::PacketHeader { total, meta: meta.into() }.encode().into());
            }
            SzeStep::SmallHeader { at, total } => {
                headers.store(at.into(), sze::PacketHeader { total: total.into(), meta: 0 }.encode().into());
            }
            SzeStep::RawHeader { at, word } => headers.store(at.into(), word),
            SzeStep::Doorbell(pointer) => doorbell.store(u64::from(pointer) * 8, Ordering::Relaxed),
            SzeStep::RawDoorbell(pointer) => doorbell.store(pointer, Ordering::Relaxed),
            SzeStep::CardServes { budget, room } => {
                let pending = tx.pending();
                assert!(pending < size);
                let mut sink = Sink::new(limits, room.into());
                let served = tx.serve(budget.into(), &mut |frame: Span<'_>| sink.take(frame));
                moved += served.frames;
                sink.check(served, budget.into(), pending / 8);
                assert!(tx.hw() < size && tx.hw().is_multiple_of(8));
                if served.fault.is_some() {
                    tx = card_tx();
                }
            }
            SzeStep::CardDelivers { meta, len } => {
                rx.sync();
                let before = rx.hw();
                let meta = if meta { &frame[..16] } else { &[] };
                match rx.deliver(meta, Span::from_slice(&frame[..usize::from(len)])) {
                    Ok(RxOutcome::Stored) => {
                        moved += 1;
                        assert!(len <= limits.max);
                        let header = sze::PacketHeader::with_meta(meta.len(), len.into()).expect("it was stored");
                        assert_eq!(rx.hw(), (before + header.stride()) % size);
                    }
                    Ok(_) => assert_eq!(rx.hw(), before),
                    Err(_) => {
                        assert_eq!(rx.hw(), before);
                        rx = card_rx();
                    }
                }
            }
            SzeStep::CardPublishes => {
                rx.publish();
            }
            SzeStep::Update(pointer) => update.store(u64::from(pointer) * 8, Ordering::Relaxed),
            SzeStep::RawUpdate(pointer) => update.store(pointer, Ordering::Relaxed),
            SzeStep::SoftwareSends { count, len } => {
                let len = len % 0x4000;
                for _ in 0..count {
                    if !software_tx.has_room(sze::HostTx::stride(len)) {
                        break;
                    }
                    let at = software_tx.frame_at(software_tx.position());
                    let slot = software_tx.ring().slice_mut(at, len.into()).expect("a slot that was granted is inside");
                    slot.fill(0x77);
                    software_tx.push(len);
                    software_tx.flush_if_far();
                }
                assert!(software_tx.in_flight() < size);
            }
            SzeStep::SoftwareReads { most } => {
                let (start, ready) = (software_rx.position(), software_rx.ready());
                assert!(ready < size);
                let (mut position, mut count) = (start, 0);
                while position.wrapping_sub(start) < ready && count < most {
                    let Ok(packet) = software_rx.packet(position) else { break };
                    let window = software_rx.ring();
                    window.slice(packet.frame_at as usize, packet.frame_len.into()).expect("inside");
                    window.slice(packet.meta_at as usize, packet.meta_len.into()).expect("inside");
                    assert!(packet.stride >= 8);
                    position = position.wrapping_add(packet.stride);
                    count += 1;
                }
                assert!(position.wrapping_sub(start) <= ready);
                software_rx.put(position.wrapping_sub(start));
            }
            SzeStep::Flush => {
                software_tx.flush();
                software_rx.flush();
            }
        }
    }
    moved
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum CalypteStep {
    /// A header that might be right, for the lap that is (`true`) or is not expected.
    Header {
        slot: u8,
        len: u16,
        at: u8,
        valid: bool,
    },
    RawHeader {
        slot: u8,
        word: u64,
    },
    Doorbell {
        data: u8,
        headers: u8,
    },
    RawDoorbell(u64),
    CardServes {
        budget: u8,
        room: u8,
    },
    CardDelivers {
        meta: bool,
        len: u16,
    },
    CardPublishes,
    Update {
        data: u16,
        headers: u8,
    },
    RawUpdate(u64),
    SoftwareSends {
        count: u8,
        len: u16,
    },
    SoftwareReads {
        most: u8,
    },
    Flush,
}

#[derive(Arbitrary, Debug)]
struct CalypteSetup {
    ring: u8,
    headers: u8,
    min: u8,
    max: u16,
}

/// Any headers and pointers, under all four halves of Calypte at once. Returns how many frames the card took or stored.
pub fn calypte(input: &[u8]) -> u64 {
    let mut moved = 0;
    let mut input = Unstructured::new(input);
    let Ok(setup) = CalypteSetup::arbitrary(&mut input) else { return moved };
    let size = 4096u32 << (setup.ring % 3);
    let (blocks, entries) = (size / calypte::BLOCK, calypte::header_entries(size) << (setup.headers % 2));
    let Ok(region) = Region::allocate_doubled(size as usize) else { return moved };
    let data = region.window().clone();
    let words = Region::heap(256);
    let headers = Region::heap(entries as usize * 8).window().slots64(0, entries).expect("a power of two");
    let word = |at| words.window().word64(at).expect("inside");
    let (doorbell, update): (Word64, Word64) = (word(0), word(64));
    let limits = FrameLimits { min: setup.min.into(), max: setup.max };
    let card_tx = || {
        let rings = calypte::TxRings { data: data.clone(), headers: headers.clone(), update: word(128) };
        calypte::CardTx::new(rings, limits).expect("powers of two")
    };
    let once = data.part(0, size as usize).expect("inside");
    let rings =
        calypte::RxRings { data: once, headers: headers.clone(), doorbell: doorbell.clone(), update: word(192) };
    let (mut tx, mut rx) = (card_tx(), calypte::CardRx::new(rings, limits).expect("powers of two"));
    let mut software_tx = calypte::HostTx::new(size, headers.clone(), update.clone()).expect("enough headers");
    let mut software_rx =
        calypte::HostRx::new(blocks, headers.clone(), doorbell.clone(), update.clone()).expect("powers of two");
    let frame = vec![0x5a; 1 << 16];
    for _ in 0..MOST_STEPS {
        let Ok(step) = CalypteStep::arbitrary(&mut input) else { return moved };
        if input.is_empty() {
            return moved;
        }
        match step {
            CalypteStep::Header { slot, len, at, valid } => {
                let (len, at) = (len % 0x1000, u16::from(at) * 32);
                headers.store(slot.into(), calypte::Header { len, at, ..Default::default() }.encode(valid));
            }
            CalypteStep::RawHeader { slot, word } => headers.store(slot.into(), word),
            CalypteStep::Doorbell { data, headers } => {
                let pointers = calypte::Pointers { data: data.into(), headers: headers.into() };
                doorbell.store(pointers.encode(), Ordering::Relaxed);
            }
            CalypteStep::RawDoorbell(word) => doorbell.store(word, Ordering::Relaxed),
            CalypteStep::CardServes { budget, room } => {
                let mut sink = Sink::new(limits, room.into());
                let served = tx.serve(budget.into(), &mut |frame: Span<'_>| sink.take(frame));
                moved += served.frames;
                sink.check(served, budget.into(), entries);
                assert!(tx.hdp() < size && tx.hdp().is_multiple_of(calypte::FRAME_ALIGN) && tx.hhp() < entries);
                if served.fault.is_some() {
                    tx = card_tx();
                }
            }
            CalypteStep::CardDelivers { meta, len } => {
                let before = (rx.hdp(), rx.hhp());
                let meta = if meta { &frame[..16] } else { &[] };
                match rx.deliver(meta, Span::from_slice(&frame[..usize::from(len)])) {
                    Ok(RxOutcome::Stored) => {
                        moved += 1;
                        assert!(len <= limits.max && rx.hhp() == (before.1 + 1) % entries);
                        let took = (u32::from(len) + meta.len() as u32).div_ceil(calypte::BLOCK);
                        assert_eq!(rx.hdp(), (before.0 + took) % blocks);
                    }
                    Ok(_) => assert_eq!((rx.hdp(), rx.hhp()), before),
                    Err(fault) => panic!("nothing in an RX queue is impossible: {fault}"),
                }
            }
            CalypteStep::CardPublishes => {
                rx.publish();
            }
            CalypteStep::Update { data, headers } => {
                let pointers = calypte::Pointers { data: data.into(), headers: headers.into() };
                update.store(pointers.encode(), Ordering::Relaxed);
            }
            CalypteStep::RawUpdate(word) => update.store(word, Ordering::Relaxed),
            CalypteStep::SoftwareSends { count, len } => {
                let len = len % 0x1000;
                for _ in 0..count {
                    if !software_tx.has_room(calypte::HostTx::stride(len)) {
                        break;
                    }
                    let at = software_tx.frame_at() as usize;
                    let slot = data.span_mut(at, len.into()).expect("a slot that was granted is inside");
                    slot.write_from(&frame);
                    software_tx.push(len);
                }
                assert!(software_tx.in_flight() < size && software_tx.staged() < entries);
            }
            CalypteStep::SoftwareReads { most } => {
                let ready = software_rx.ready(most.into());
                assert!(ready < entries && software_rx.published() < entries);
                for ahead in 0..ready {
                    software_rx.header(ahead);
                }
                software_rx.put(ready.min(most.into()));
            }
            CalypteStep::Flush => {
                software_tx.flush();
                software_rx.flush();
            }
        }
    }
    moved
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum DdStep {
    /// A descriptor that might be right, of the card or of the software.
    Descriptor {
        slot: u8,
        buffer: u8,
        len: u16,
        launch: u8,
        done: bool,
    },
    RawWord {
        word: u8,
        value: u64,
    },
    Time(u16),
    CardServes {
        budget: u8,
        room: u8,
        at_once: bool,
    },
    CardCompletes(u8),
    CardDelivers {
        meta: bool,
        len: u16,
    },
    CardTakes,
    CardSwaps {
        which: u8,
        len: u16,
    },
    CardGivesUp,
    CardPublishes,
    SoftwareSends {
        count: u8,
        len: u16,
    },
    SoftwareReads {
        most: u8,
    },
    Flush,
}

#[derive(Arbitrary, Debug)]
struct DdSetup {
    entries: u8,
    min: u8,
    max: u16,
}

/// Any descriptors, under all four halves of DD at once. Returns how many frames the card took or stored.
pub fn dd(input: &[u8]) -> u64 {
    const SIZE: u32 = 2048;
    let mut moved = 0;
    let mut input = Unstructured::new(input);
    let Ok(setup) = DdSetup::arbitrary(&mut input) else { return moved };
    let entries = 2u32 << (setup.entries % 7);
    let words = Region::heap(entries as usize * dd::DESCRIPTOR).window().slots64(0, entries * 4).expect("inside");
    let ring = dd::Ring::new(words.clone()).expect("a power of two");
    ring.clear();
    let data = Region::heap((entries * SIZE) as usize);
    let domain = Arc::new(Domain::new());
    let first = domain.map(data.window().clone(), Access::ReadWrite, None).expect("an empty domain");
    let tail = Region::heap(8).window().word64(0).expect("inside");
    let limits = FrameLimits { min: setup.min.into(), max: setup.max };
    let now = Arc::new(AtomicU64::new(0));
    let card_tx = || {
        let now = now.clone();
        let clock = Box::new(move || now.load(Ordering::Relaxed));
        dd::CardTx::new(ring.clone(), Iova::default(), limits, Iotlb::new(domain.clone()), clock)
    };
    let card_rx = || dd::CardRx::new(ring.clone(), Iova::default(), limits, Iotlb::new(domain.clone()));
    let (mut tx, mut rx, mut ahead) = (card_tx(), card_rx(), Vec::new());
    let mut software_tx = dd::FixedTx::new(dd::HostTx::new(ring.clone(), tail.clone()), first, SIZE);
    let host = dd::HostRx::new(ring.clone(), tail.clone());
    let mut software_rx = dd::FixedRx::new(host, first, SIZE, SIZE as u16).expect("a distance between buffers");
    let frame = vec![0x5a; 1 << 16];
    for _ in 0..MOST_STEPS {
        let Ok(step) = DdStep::arbitrary(&mut input) else { return moved };
        if input.is_empty() {
            return moved;
        }
        match step {
            DdStep::Descriptor { slot, buffer, len, launch, done } => {
                let slot = u32::from(slot) * 4;
                words.store(slot, first.get() + u64::from(buffer) * u64::from(SIZE));
                words.store(slot + 2, launch.into());
                words.store_release(slot + 1, dd::Status { done, ..dd::Status::given(len % 0x1000) }.encode());
            }
            DdStep::RawWord { word, value } => words.store(word.into(), value),
            DdStep::Time(time) => now.store(time.into(), Ordering::Relaxed),
            DdStep::CardServes { budget, room, at_once } => {
                let mut sink = Sink::new(limits, room.into());
                let served = match at_once {
                    true => tx.serve(budget.into(), &mut |frame: Span<'_>| sink.take(frame)),
                    false => tx.serve_deferred(budget.into(), |_, frame| sink.take(frame)),
                };
                moved += served.frames;
                // What changes while it is served may be seen again, once the ring is round.
                sink.check(served, budget.into(), u32::MAX);
                assert!(tx.in_flight() <= entries);
                if served.fault.is_some() {
                    tx = card_tx();
                }
            }
            DdStep::CardCompletes(count) => {
                tx.complete(count.into());
                assert!(tx.launch_in().is_none_or(|left| left.as_nanos() <= dd::HORIZON.into()));
            }
            DdStep::CardDelivers { meta, len } => {
                let before = (rx.in_flight(), rx.done());
                let meta = if meta { &frame[..16] } else { &[] };
                match rx.deliver(meta, Span::from_slice(&frame[..usize::from(len)])) {
                    Ok(RxOutcome::Stored) => {
                        moved += 1;
                        assert!(len <= limits.max && rx.done() == (before.1 + 1) % entries);
                    }
                    Ok(_) => assert_eq!(rx.done(), before.1),
                    Err(_) => (rx, ahead) = (card_rx(), Vec::new()),
                }
                assert_eq!(rx.in_flight() as usize, ahead.len());
            }
            DdStep::CardTakes => match rx.take_posted() {
                Ok(posted) => ahead.extend(posted),
                Err(_) => (rx, ahead) = (card_rx(), Vec::new()),
            },
            DdStep::CardSwaps { which, len } => {
                let buffer = if ahead.is_empty() { None } else { Some(ahead.remove(usize::from(which) % ahead.len())) };
                let iova = buffer.map_or(first, |buffer| buffer.iova);
                assert_eq!(rx.deliver_swapped(iova, len, &[]), buffer.is_some());
            }
            DdStep::CardGivesUp => {
                rx.untake(ahead.drain(..).map(|posted| posted.iova));
                assert_eq!(rx.in_flight(), 0);
            }
            DdStep::CardPublishes => {
                rx.publish();
            }
            DdStep::SoftwareSends { count, len } => {
                let count = u32::from(count) % entries;
                if let Some(number) = software_tx.take(count) {
                    let at = (number % entries * SIZE) as usize;
                    data.window().span_mut(at, SIZE as usize).expect("a buffer that was granted is inside");
                    (0..count).for_each(|_| assert!(software_tx.post(len % 0x1000)));
                }
                assert!(software_tx.in_flight() <= entries);
            }
            DdStep::SoftwareReads { most } => {
                let ready = software_rx.ready(most.into()).min(most.into());
                assert!(ready <= entries);
                let mut found = 0;
                while found < ready
                    && let Ok(frame) = software_rx.find(found)
                {
                    assert!(frame.buffer < entries && u32::from(frame.len) <= SIZE);
                    found += 1;
                }
                software_rx.put(found);
                if found < ready {
                    // Software of a card that lies gives up.
                    return moved;
                }
            }
            DdStep::Flush => {
                software_tx.flush();
                software_rx.flush();
            }
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::short_run;

    #[test]
    fn medusa_over_20000_inputs() {
        // Inputs that get nowhere would find nothing.
        let moved = short_run(medusa, 20_000);
        assert!(moved > 2_000, "only {moved} frames");
    }

    #[test]
    fn calypte_over_20000_inputs() {
        let moved = short_run(calypte, 20_000);
        assert!(moved > 2_000, "only {moved} frames");
    }

    #[test]
    fn dd_over_20000_inputs() {
        let moved = short_run(dd, 20_000);
        assert!(moved > 2_000, "only {moved} frames");
    }

    #[test]
    fn sze_over_20000_inputs() {
        let moved = short_run(sze, 20_000);
        assert!(moved > 2_000, "only {moved} frames");
    }
}
