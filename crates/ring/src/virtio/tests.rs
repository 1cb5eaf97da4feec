use super::*;
use crate::FrameLimits;
use millrace_dma::{Access, Domain, Iotlb, Iova, Ordering, Region, Span, Window};
use std::sync::Arc;

const SIZE: u16 = 8;
const DATA: u64 = 0x10_0000;
const LIMITS: FrameLimits = FrameLimits { min: 14, max: 0x3fff };
const BASICS: u64 = feature::VERSION_1 | feature::RING_INDIRECT_DESC;

/// A driver that writes into its rings whatever a test wants.
struct Bench {
    memory: Region,
    rings: Rings,
    domain: Arc<Domain>,
    posted: u16,
}

impl Bench {
    fn new() -> Self {
        let memory = Region::heap(128 << 10);
        let part = |offset| memory.part(offset, 1024).unwrap();
        let rings = Rings::over(&part(0), &part(1024), &part(2048), SIZE).unwrap();
        let domain = Arc::new(Domain::new());
        domain.map(memory.part(4096, 124 << 10).unwrap(), Access::ReadWrite, Some(Iova::new(DATA))).unwrap();
        Self { memory, rings, domain, posted: 0 }
    }

    fn data(&self) -> Window {
        self.memory.part(4096, 124 << 10).unwrap()
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert_eq!(self.data().span_mut(offset, bytes.len()).unwrap().write_from(bytes), bytes.len());
    }

    fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        self.data().slice(offset, len).unwrap().to_vec()
    }

    fn describe(&self, index: u16, offset: u64, len: u32, flags: u16, next: u16) {
        self.rings.table.store(index, Descriptor { address: Iova::new(DATA.wrapping_add(offset)), len, flags, next });
    }

    fn post(&mut self, head: u16) {
        self.rings.avail.store(u32::from(self.posted), head);
        self.posted = self.posted.wrapping_add(1);
        self.rings.avail_index.store(self.posted, Ordering::Release);
    }

    fn used(&self) -> Vec<(u32, u32)> {
        let count = self.rings.used_index.load(Ordering::Acquire);
        (0..count).map(|at| self.rings.used.load(at)).map(|used| (used.head, used.len)).collect()
    }

    fn tx(&self, features: u64, offloads: bool) -> DeviceTx {
        DeviceTx::new(self.rings.clone(), features, offloads, LIMITS, Iotlb::new(self.domain.clone()))
    }

    fn rx(&self, features: u64) -> DeviceRx {
        DeviceRx::new(self.rings.clone(), features, Iotlb::new(self.domain.clone()))
    }
}

#[derive(Default)]
struct Bin {
    room: usize,
    frames: Vec<Vec<u8>>,
    unfinished: Vec<(NetHeader, usize)>,
}

impl Bin {
    fn with_room(room: usize) -> Self {
        Self { room, ..Self::default() }
    }
}

fn bytes(span: Span<'_>) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    span.read_into(&mut bytes);
    bytes
}

impl NetSink for Bin {
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        let taken = frames.len().min(self.room);
        self.room -= taken;
        self.frames.extend(frames[..taken].iter().map(|&frame| bytes(frame)));
        taken
    }

    fn take_unfinished(&mut self, header: &[u8; NetHeader::LEN], frame: &mut [u8]) -> bool {
        self.unfinished.push((NetHeader::decode(*header), frame.len()));
        true
    }
}

fn frame(number: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| number.wrapping_add(at as u8)).collect()
}

fn behind_header(frame: &[u8]) -> Vec<u8> {
    [&[0xff; NetHeader::LEN], frame].concat()
}

#[test]
fn frames_of_every_shape_come_out_whole() {
    let mut bench = Bench::new();
    let mut tx = bench.tx(BASICS, false);
    let made: Vec<_> = (0..4).map(|number| frame(number, 100 + usize::from(number))).collect();
    // One piece.
    bench.write(0, &behind_header(&made[0]));
    bench.describe(5, 0, 112, 0, 0);
    bench.post(5);
    // The header by itself.
    bench.write(2012, &made[1]);
    bench.describe(0, 2000, 12, descriptor_flag::NEXT, 7);
    bench.describe(7, 2012, 101, 0, 0);
    bench.post(0);
    // Header and frame cut in the middle, an empty piece between.
    let whole = behind_header(&made[2]);
    bench.write(4000, &whole[..5]);
    bench.write(4100, &whole[5..60]);
    bench.write(4200, &whole[60..]);
    bench.describe(1, 4000, 5, descriptor_flag::NEXT, 2);
    bench.describe(2, 4100, 55, descriptor_flag::NEXT, 3);
    bench.describe(3, u64::MAX - DATA, 0, descriptor_flag::NEXT, 4);
    bench.describe(4, 4200, 54, 0, 0);
    bench.post(1);
    // The same by an indirect table of three.
    let whole = behind_header(&made[3]);
    bench.write(6000, &whole[..12]);
    bench.write(6100, &whole[12..50]);
    bench.write(6200, &whole[50..]);
    for (index, (offset, len)) in [(6000, 12u64), (6100, 38), (6200, 65)].into_iter().enumerate() {
        let flags = if index < 2 { descriptor_flag::NEXT } else { 0 };
        let entry = Descriptor { address: Iova::new(DATA + offset), len: len as u32, flags, next: index as u16 + 1 };
        for (half, word) in entry.encode().into_iter().enumerate() {
            bench.write(8000 + index * 16 + half * 8, &word.to_le_bytes());
        }
    }
    bench.describe(6, 8000, 48, descriptor_flag::INDIRECT, 0);
    bench.post(6);
    let mut bin = Bin::with_room(10);
    let sent = tx.serve(32, &mut bin);
    assert_eq!(bin.frames, made);
    assert_eq!(sent, Sent { frames: 4, bytes: 406, copies: 2, looked: 10, ..Sent::default() });
    assert_eq!(bench.used(), [(5, 0), (0, 0), (1, 0), (6, 0)]);
    assert_eq!(tx.serve(32, &mut bin), Sent::default());
    assert_eq!(tx.next(), 4);
}

#[test]
fn frames_without_room_and_of_wrong_length_are_counted() {
    let mut bench = Bench::new();
    let mut tx = bench.tx(BASICS, false);
    bench.describe(0, 0, 72, 0, 0);
    bench.describe(1, 0, 12 + 13, 0, 0);
    bench.describe(2, 0, 12 + 0x4000, 0, 0);
    bench.describe(3, 0, 11, 0, 0);
    for head in [0, 1, 2, 3, 0, 0] {
        bench.post(head);
    }
    let mut bin = Bin::with_room(2);
    let first = tx.serve(5, &mut bin);
    assert_eq!(first, Sent { frames: 2, bytes: 120, too_short: 2, too_long: 1, looked: 5, ..Sent::default() });
    assert_eq!(tx.serve(5, &mut bin), Sent { no_room: 1, looked: 1, full: true, ..Sent::default() });
    assert_eq!(bench.used().len(), 6, "every chain goes back");
}

#[test]
fn only_headers_that_were_agreed_on_mean_something() {
    let mut bench = Bench::new();
    let header = NetHeader { flags: 1, gso_type: gso::TCPV4, gso_size: 1000, ..NetHeader::default() };
    bench.write(0, &header.encode());
    bench.describe(0, 0, 12 + 40_000, 0, 0);
    bench.describe(1, 20, 12 + 60, 0, 0);
    bench.describe(2, 0, 12 + 70_000, 0, 0);
    [0, 1, 2].into_iter().for_each(|head| bench.post(head));
    let mut bin = Bin::with_room(2);
    let sent = bench.tx(BASICS, true).serve(32, &mut bin);
    assert_eq!(sent, Sent { frames: 1, bytes: 60, too_long: 1, copies: 1, looked: 3, ..Sent::default() });
    assert_eq!(bin.unfinished, [(header, 40_000)]);
    assert_eq!(bin.frames.len(), 1);
    bench.rings.used_index.store(0, Ordering::Relaxed);
    assert_eq!(bench.tx(BASICS, false).serve(32, &mut bin).too_long, 2);
}

#[test]
fn every_lie_of_a_driver_stops_its_queue() {
    use descriptor_flag::{INDIRECT, NEXT, WRITE};
    fn fault_of(features: u64, lie: impl Fn(&mut Bench)) -> Option<Fault> {
        let mut bench = Bench::new();
        bench.describe(0, 0, 72, 0, 0);
        bench.post(0);
        lie(&mut bench);
        let mut tx = bench.tx(features, false);
        let sent = tx.serve(32, &mut Bin::with_room(100));
        assert_eq!(sent.fault, tx.fault());
        if sent.fault.is_some() {
            assert_eq!(tx.serve(32, &mut Bin::with_room(100)), Sent::default(), "stays stopped, says so once");
        }
        if sent.fault.is_some_and(|fault| fault != Fault::AvailableIndex) {
            assert_eq!(sent.frames, 1, "what came before is done");
        }
        sent.fault
    }
    let chain = |at: u64, len: u32, flags: u16, next: u16| {
        move |bench: &mut Bench| {
            bench.describe(1, at, len, flags, next);
            bench.post(1);
        }
    };
    let wild = 0u64.wrapping_sub(DATA);
    assert_eq!(
        fault_of(BASICS, |bench| bench.rings.avail_index.store(9, Ordering::Relaxed)),
        Some(Fault::AvailableIndex)
    );
    assert_eq!(
        fault_of(BASICS, |bench| bench.rings.avail_index.store(0xffff, Ordering::Relaxed)),
        Some(Fault::AvailableIndex)
    );
    assert_eq!(fault_of(BASICS, |bench| bench.post(SIZE)), Some(Fault::Head));
    assert_eq!(fault_of(BASICS, |bench| bench.post(0xffff)), Some(Fault::Head));
    assert_eq!(fault_of(BASICS, chain(0, 72, NEXT, SIZE)), Some(Fault::Next));
    assert_eq!(fault_of(BASICS, chain(0, 72, NEXT, 1)), Some(Fault::ChainLength));
    assert_eq!(fault_of(BASICS, chain(0, 72, WRITE, 0)), Some(Fault::Direction));
    assert_eq!(fault_of(BASICS, chain(wild, 72, 0, 0)), Some(Fault::Unmapped));
    assert_eq!(fault_of(BASICS, chain((124 << 10) - 71, 72, 0, 0)), Some(Fault::Unmapped));
    assert_eq!(fault_of(BASICS, chain(u64::MAX - DATA - 5, 72, 0, 0)), Some(Fault::Unmapped));
    assert_eq!(fault_of(BASICS, chain(0, u32::MAX, 0, 0)), Some(Fault::Unmapped));
    for bad in [0, 15, 24, 16 * (u32::from(SIZE) + 1), u32::MAX] {
        assert_eq!(fault_of(BASICS, chain(0, bad, INDIRECT, 0)), Some(Fault::Indirect), "{bad} bytes");
    }
    assert_eq!(fault_of(BASICS, chain(0, 16, INDIRECT | NEXT, 0)), Some(Fault::Indirect));
    assert_eq!(fault_of(feature::VERSION_1, chain(0, 16, INDIRECT, 0)), Some(Fault::Indirect), "not agreed on");
    assert_eq!(fault_of(BASICS, chain(wild, 16, INDIRECT, 0)), Some(Fault::Unmapped));
    assert_eq!(fault_of(BASICS, chain(4, 16, INDIRECT, 0)), Some(Fault::Unmapped), "not aligned");
    let nested = |bench: &mut Bench| {
        let inner = Descriptor { address: Iova::new(DATA), len: 16, flags: INDIRECT, next: 0 }.encode();
        bench.write(0, &inner[0].to_le_bytes());
        bench.write(8, &inner[1].to_le_bytes());
        chain(0, 16, INDIRECT, 0)(bench);
    };
    assert_eq!(fault_of(BASICS, nested), Some(Fault::Indirect));
    assert_eq!(fault_of(BASICS, chain(0, 72, 0, 0)), None);
}

#[test]
fn received_frames_fill_one_buffer_or_several() {
    let mut bench = Bench::new();
    let mut rx = bench.rx(BASICS | feature::MRG_RXBUF);
    for index in 0..6 {
        bench.describe(index, 1000 * u64::from(index), 112, descriptor_flag::WRITE, 0);
    }
    let (short, exact, long) = (frame(1, 60), frame(2, 100), frame(3, 250));
    assert_eq!(rx.deliver(&[Span::from_slice(&short)]), Delivered::default(), "no buffers");
    [4, 0, 1, 2, 3].into_iter().for_each(|head| bench.post(head));
    let frames = [&short, &exact, &long].map(|frame| Span::from_slice(frame));
    assert_eq!(rx.deliver(&frames), Delivered { taken: 3, ..Delivered::default() });
    assert_eq!(bench.used(), [], "not published");
    rx.publish();
    assert_eq!(bench.used(), [(4, 72), (0, 112), (1, 112), (2, 112), (3, 38)]);
    assert_eq!(bench.read(4000, 72), [&NetHeader::of_buffers(1).encode()[..], &short].concat());
    assert_eq!(bench.read(0, 112), [&NetHeader::of_buffers(1).encode()[..], &exact].concat());
    let parts = [bench.read(1000, 112), bench.read(2000, 112), bench.read(3000, 38)].concat();
    assert_eq!(parts, [&NetHeader::of_buffers(3).encode()[..], &long].concat());
    // Half of the buffers that are needed: none is used.
    bench.post(0);
    bench.post(1);
    assert_eq!(rx.deliver(&frames[2..]).taken, 0);
    // More than all buffers there can be.
    [2, 3, 4, 5, 0, 1].into_iter().for_each(|head| bench.post(head));
    let giant = frame(9, 2000);
    let delivered = rx.deliver(&[Span::from_slice(&giant), frames[0]]);
    assert_eq!(delivered, Delivered { taken: 2, too_long: 1, too_long_bytes: 2000, fault: None });
}

#[test]
fn without_mergeable_buffers_a_frame_has_to_fit_one_chain() {
    let mut bench = Bench::new();
    let mut rx = bench.rx(BASICS);
    bench.describe(0, 0, 12, descriptor_flag::WRITE | descriptor_flag::NEXT, 1);
    bench.describe(1, 100, 100, descriptor_flag::WRITE, 0);
    bench.post(0);
    bench.post(0);
    let (long, fits) = (frame(1, 101), frame(2, 100));
    let delivered = rx.deliver(&[Span::from_slice(&long), Span::from_slice(&fits)]);
    assert_eq!(delivered, Delivered { taken: 2, too_long: 1, too_long_bytes: 101, fault: None });
    rx.publish();
    assert_eq!(bench.used(), [(0, 112)]);
    assert_eq!(bench.read(100, 100), fits);
    let header = NetHeader { flags: 1, csum_start: 34, csum_offset: 6, ..NetHeader::default() };
    assert_eq!(rx.deliver_unfinished(header, Span::from_slice(&fits)).taken, 1);
    assert_eq!(bench.read(0, 12), NetHeader { num_buffers: 1, ..header }.encode());
}

#[test]
fn receive_buffers_that_lie_stop_the_queue() {
    use descriptor_flag::{NEXT, WRITE};
    let fault_of = |at: u64, len: u32, flags: u16| {
        let mut bench = Bench::new();
        bench.describe(0, at, len, flags, 0);
        bench.post(0);
        let mut rx = bench.rx(BASICS | feature::MRG_RXBUF);
        let delivered = rx.deliver(&[Span::from_slice(&frame(0, 60))]);
        assert_eq!((delivered.taken, delivered.fault), (0, rx.fault()));
        delivered.fault
    };
    assert_eq!(fault_of(0, 72, 0), Some(Fault::Direction));
    assert_eq!(fault_of(0, 20, WRITE | NEXT), Some(Fault::ChainLength));
    assert_eq!(fault_of(0, 0, WRITE), Some(Fault::Empty));
    assert_eq!(fault_of((124 << 10) - 10, 72, WRITE), Some(Fault::Unmapped));
    assert_eq!(fault_of(u64::MAX - DATA, 2000, WRITE), Some(Fault::Unmapped));
}

#[test]
fn notifications_follow_flags_or_events() {
    let mut bench = Bench::new();
    bench.describe(0, 0, 72, 0, 0);
    let mut bin = Bin::with_room(100);
    let mut tx = bench.tx(BASICS, false);
    assert_eq!(bench.rings.used_flags.load(Ordering::Relaxed), USED_NO_NOTIFY, "a device that polls");
    tx.want_notifications(true);
    assert_eq!(bench.rings.used_flags.load(Ordering::Relaxed), 0);
    assert!(!tx.must_notify(), "nothing new");
    bench.post(0);
    tx.serve(1, &mut bin);
    assert!(tx.must_notify() && !tx.must_notify());
    bench.rings.avail_flags.store(AVAIL_NO_INTERRUPT, Ordering::Relaxed);
    bench.post(0);
    tx.serve(1, &mut bin);
    assert!(!tx.must_notify());

    let mut bench = Bench::new();
    bench.describe(0, 0, 72, 0, 0);
    let mut tx = bench.tx(BASICS | feature::RING_EVENT_IDX, false);
    let event = |bench: &Bench| bench.rings.avail_event.load(Ordering::Relaxed);
    assert!(!needs_event(event(&bench), 1, 0), "a device that polls");
    tx.want_notifications(true);
    assert!(needs_event(event(&bench), 1, 0));
    bench.rings.used_event.store(2, Ordering::Relaxed);
    for told in [false, false, true, false] {
        bench.post(0);
        tx.serve(1, &mut bin);
        assert_eq!(tx.must_notify(), told);
    }
}

#[test]
fn a_queue_goes_on_where_the_used_index_stands() {
    let mut bench = Bench::new();
    bench.describe(3, 0, 72, 0, 0);
    bench.posted = 0xfffe;
    bench.rings.used_index.store(0xfffe, Ordering::Relaxed);
    let mut tx = bench.tx(BASICS, false);
    (0..4).for_each(|_| bench.post(3));
    assert_eq!(tx.serve(32, &mut Bin::with_room(9)).frames, 4);
    assert_eq!((tx.next(), bench.rings.used_index.load(Ordering::Relaxed)), (2, 2));
}
