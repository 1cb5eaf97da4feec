use super::*;
use crate::FrameLimits;
use crate::virtio::{DeviceRx, DeviceTx, NetSink, Rings, RingsError, Used, feature};
use millrace_dma::{Access, Domain, Iotlb, Iova, Ordering, Region, Span};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

mod lent;

const BUFFERS_AT: u64 = 0x40_0000;
const LIMITS: FrameLimits = FrameLimits { min: 14, max: 0x3fff };

/// One queue: its memory, and the view of it that a device has.
struct Bench {
    place: Place,
    rings: Rings,
    size: Size,
    domain: Arc<Domain>,
    _memory: Region,
}

impl Bench {
    fn new(size: u16) -> Self {
        let size = Size::new(size).unwrap();
        let buffers_at = size.ring_len().next_multiple_of(4096);
        let memory = Region::heap(buffers_at + size.buffers_len(STRIDE));
        let place = Place {
            ring: memory.part(0, size.ring_len()).unwrap(),
            buffers: memory.part(buffers_at, size.buffers_len(STRIDE)).unwrap(),
            buffers_at: BUFFERS_AT,
            stride: STRIDE,
        };
        let domain = Arc::new(Domain::new());
        domain.map(place.buffers.clone(), Access::ReadWrite, Some(Iova::new(BUFFERS_AT))).unwrap();
        Self { rings: place.rings(size).unwrap(), place, size, domain, _memory: memory }
    }

    fn tx(&self, agreed: Agreed) -> TxQueue {
        TxQueue::new(&self.place, self.size, agreed).unwrap()
    }

    fn rx(&self, agreed: Agreed) -> RxQueue {
        let mut rx = RxQueue::new(&self.place, self.size, agreed).unwrap();
        let _ = rx.publish();
        rx
    }

    fn device_tx(&self, features: u64) -> DeviceTx {
        DeviceTx::new(self.rings.clone(), features, false, LIMITS, Iotlb::new(self.domain.clone()))
    }

    fn device_rx(&self, features: u64) -> DeviceRx {
        DeviceRx::new(self.rings.clone(), features, Iotlb::new(self.domain.clone()))
    }

    /// What a device does that says it has used `head`.
    fn use_one(&self, head: u32, len: u32) {
        let index = self.rings.used_index.load(Ordering::Relaxed);
        self.rings.used.store(index, Used { head, len });
        self.rings.used_index.store(index.wrapping_add(1), Ordering::Release);
    }
}

#[derive(Default)]
struct Bin(VecDeque<Vec<u8>>);

impl NetSink for Bin {
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        self.0.extend(frames.iter().map(bytes));
        frames.len()
    }

    fn take_unfinished(&mut self, _: &[u8; NetHeader::LEN], _: &mut [u8]) -> bool {
        unreachable!("no offload was agreed on")
    }
}

fn bytes(span: &Span<'_>) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    span.read_into(&mut bytes);
    bytes
}

fn frame(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + at) as u8).collect()
}

fn agreed() -> impl Strategy<Value = (Agreed, u64)> {
    any::<[bool; 3]>().prop_map(|[event_index, in_order, mergeable]| {
        let bits =
            [(event_index, feature::RING_EVENT_IDX), (in_order, feature::IN_ORDER), (mergeable, feature::MRG_RXBUF)];
        let chosen = bits.into_iter().filter(|(chosen, _)| *chosen).map(|(_, bit)| bit);
        (Agreed { event_index, in_order, mergeable }, feature::VERSION_1 | chosen.sum::<u64>())
    })
}

proptest! {
    /// Whatever the bursts: what one half sends the other receives, in order, whole and once.
    #[test]
    fn frames_to_the_device_arrive(
        (agreed, features) in agreed(),
        size in 1u32..5,
        turns in prop::collection::vec((prop::collection::vec(prop_oneof![14usize..CAPACITY, CAPACITY..9000], 0..12), 0usize..12), 1..60),
    ) {
        let bench = Bench::new(1 << size);
        let (mut tx, mut device) = (bench.tx(agreed), bench.device_tx(features));
        let (mut bin, mut sent, mut number) = (Bin::default(), VecDeque::new(), 0);
        for (lengths, budget) in turns {
            for len in lengths {
                let made = frame(number, len);
                let room = tx.pieces(len).is_some_and(|pieces| pieces <= tx.room());
                prop_assert_eq!(tx.push(Span::from_slice(&made), None), room);
                if room {
                    sent.push_back(made);
                    number += 1;
                }
            }
            let _ = tx.publish();
            let report = device.serve(budget, &mut bin);
            prop_assert_eq!(report.fault, None);
            while let Some(arrived) = bin.0.pop_front() {
                prop_assert_eq!(Some(arrived), sent.pop_front());
            }
        }
        device.serve(usize::MAX, &mut bin);
        prop_assert_eq!(&bin.0, &sent);
        prop_assert!(tx.is_drained() && tx.broken().is_none());
    }

    #[test]
    fn frames_from_the_device_arrive(
        (agreed, features) in agreed(),
        size in 1u32..5,
        turns in prop::collection::vec((prop::collection::vec(14usize..5000, 0..12), 0usize..12), 1..60),
    ) {
        let bench = Bench::new(1 << size);
        let (mut rx, mut device) = (bench.rx(agreed), bench.device_rx(features));
        let (mut sent, mut number) = (VecDeque::new(), 0);
        for (lengths, budget) in turns {
            for len in lengths {
                let made = frame(number, len);
                let delivered = device.deliver(&[Span::from_slice(&made)]);
                prop_assert_eq!(delivered.fault, None);
                if delivered.taken as u64 > delivered.too_long {
                    sent.push_back(made);
                    number += 1;
                }
            }
            device.publish();
            for at in 0..rx.poll(budget) {
                prop_assert_eq!(Some(bytes(&rx.frame(at))), sent.pop_front());
            }
            rx.recycle();
            let _ = rx.publish();
        }
        loop {
            let frames = rx.poll(3);
            for at in 0..frames {
                prop_assert_eq!(Some(bytes(&rx.frame(at))), sent.pop_front());
            }
            rx.recycle();
            if frames == 0 {
                break;
            }
        }
        prop_assert!(sent.is_empty() && rx.broken().is_none());
    }

    /// No device, whatever it writes, makes the driver panic, loop, or show bytes outside its buffers.
    #[test]
    fn a_device_that_writes_anything_is_survived(
        mergeable: bool,
        in_order: bool,
        writes in prop::collection::vec((0u32..12, prop_oneof![0u32..4200, any::<u32>()], -2i32..10, any::<u16>()), 1..40),
    ) {
        let agreed = Agreed { mergeable, in_order, event_index: false };
        let (to, from) = (Bench::new(8), Bench::new(8));
        let (mut tx, mut rx) = (to.tx(agreed), from.rx(agreed));
        for (head, len, step, count) in writes {
            tx.push(Span::from_slice(&[7; 64]), None);
            tx.push(Span::from_slice(&[7; 5000]), None);
            let _ = tx.publish();
            for bench in [&to, &from] {
                let index = bench.rings.used_index.load(Ordering::Relaxed);
                bench.rings.used.store(index, Used { head, len });
                bench.rings.used_index.store(index.wrapping_add(step as u16), Ordering::Release);
            }
            for id in 0..8 {
                let at = id * STRIDE + BEFORE_HEADER + 10;
                from.place.buffers.span_mut(at, 2).unwrap().write_from(&count.to_le_bytes());
            }
            prop_assert!(tx.room() <= 8);
            let (frames, bytes) = tx.unused();
            prop_assert!(frames <= 8 && bytes <= 8 * CAPACITY as u64);
            let frames = rx.poll(8);
            prop_assert!(frames <= 8);
            (0..frames).for_each(|at| assert!(rx.frame(at).len() <= 8 * (CAPACITY + NetHeader::LEN)));
            rx.recycle();
            let _ = rx.publish();
        }
    }
}

#[test]
fn wrong_use_is_named_and_ends_the_queue() {
    let plain = Agreed::default();
    let bench = Bench::new(4);
    let mut tx = bench.tx(plain);
    bench.use_one(0, 0);
    assert_eq!((tx.room(), tx.broken()), (4, Some(Broken::Index { used: 1, had: 0 })));

    let bench = Bench::new(4);
    let mut tx = bench.tx(plain);
    assert!(tx.push(Span::from_slice(&[0; 60]), None));
    assert!(tx.publish(), "a device that has said nothing wants to be kicked");
    bench.use_one(3, 0);
    assert_eq!((tx.room(), tx.broken()), (3, Some(Broken::Descriptor(3))));

    for (len, why) in [(11, Broken::Length(11)), (STRIDE as u32, Broken::Length(STRIDE as u32))] {
        let bench = Bench::new(4);
        let mut rx = bench.rx(plain);
        bench.use_one(2, len);
        assert_eq!((rx.poll(4), rx.broken()), (0, Some(why)));
        bench.use_one(1, 76);
        assert_eq!(rx.poll(4), 0, "broken for good");
    }

    let bench = Bench::new(4);
    let mut rx = bench.rx(plain);
    bench.use_one(2, 76);
    bench.use_one(2, 76);
    assert_eq!((rx.poll(4), rx.broken()), (1, Some(Broken::Descriptor(2))), "the same one twice");

    let bench = Bench::new(4);
    let mut rx = bench.rx(Agreed { mergeable: true, ..plain });
    bench.place.buffers.span_mut(BEFORE_HEADER + 10, 2).unwrap().write_from(&[3, 0]);
    bench.use_one(0, 76);
    bench.use_one(1, 76);
    assert_eq!((rx.poll(4), rx.broken()), (0, Some(Broken::Spread(3))));
}

#[test]
fn descriptors_may_come_back_in_any_order() {
    let bench = Bench::new(4);
    let mut tx = bench.tx(Agreed::default());
    for number in 0..4 {
        assert!(tx.push(Span::from_slice(&frame(number, 60)), None));
    }
    assert!(!tx.push(Span::from_slice(&[0; 60]), None), "full");
    let _ = tx.publish();
    for head in [2, 0, 3, 1] {
        bench.use_one(head, 0);
    }
    assert_eq!(tx.room(), 4);
    assert!(tx.push(Span::from_slice(&frame(9, 60)), None));
    let _ = tx.publish();
    assert_eq!(bench.rings.avail.load(4), 2, "the first that came back");
}

#[test]
fn a_long_frame_takes_several_descriptors_and_gives_them_back() {
    let bench = Bench::new(8);
    let (mut tx, mut device) = (bench.tx(Agreed::default()), bench.device_tx(feature::VERSION_1));
    let most = CAPACITY + 7 * (CAPACITY + NetHeader::LEN);
    for (len, pieces) in [(CAPACITY, Some(1)), (CAPACITY + 1, Some(2)), (most, Some(8)), (most + 1, None)] {
        assert_eq!(tx.pieces(len), pieces, "{len}");
    }
    let (short, long) = (frame(1, 100), frame(2, 3 * CAPACITY));
    for _ in 0..20 {
        assert!(tx.push(Span::from_slice(&short), None) && tx.push(Span::from_slice(&long), None));
        assert!(tx.push(Span::from_slice(&long), None) && tx.push(Span::from_slice(&short), None));
        assert_eq!(tx.unused(), (4, 2 * (short.len() + long.len()) as u64));
        assert!(!tx.push(Span::from_slice(&long[..CAPACITY + 1]), None), "no room");
        let _ = tx.publish();
        let mut bin = Bin::default();
        assert_eq!(device.serve(9, &mut bin).frames, 4);
        assert_eq!(bin.0, [&short[..], &long, &long, &short]);
        assert_eq!((tx.room(), tx.unused()), (8, (0, 0)));
    }
    // The inner descriptor of a chain is not the device's to give back.
    assert!(tx.push(Span::from_slice(&long), None));
    let _ = tx.publish();
    let head = bench.rings.avail.load(80);
    let inner = bench.rings.table.load(head).next;
    bench.use_one(u32::from(inner), 0);
    assert_eq!((tx.room(), tx.broken()), (5, Some(Broken::Descriptor(u32::from(inner)))));
    assert!(bench.tx(Agreed { in_order: true, ..Agreed::default() }).pieces(CAPACITY + 1).is_none());
}

#[test]
fn a_frame_can_be_worked_on_in_private() {
    let bench = Bench::new(8);
    let agreed = Agreed { mergeable: true, ..Agreed::default() };
    let (mut rx, mut device) = (bench.rx(agreed), bench.device_rx(feature::VERSION_1 | feature::MRG_RXBUF));
    let (short, long) = (frame(1, 100), frame(2, 5000));
    assert_eq!(device.deliver(&[Span::from_slice(&short), Span::from_slice(&long)]).taken, 2);
    device.publish();
    assert_eq!(rx.poll(8), 2);
    assert_eq!([rx.is_merged(0), rx.is_merged(1)], [false, true]);
    rx.frame_mut(0)[0] ^= 0xff;
    rx.frame_mut(1)[0] ^= 0xff;
    assert_eq!(bytes(&rx.frame(0)), short, "a copy");
    assert_eq!(rx.frame_mut(0), &short);
    assert_eq!((rx.frame_mut(1)[0], &rx.frame_mut(1)[1..]), (long[0] ^ 0xff, &long[1..]));
}

#[test]
fn buffers_have_room_for_a_header() {
    let bench = Bench::new(4);
    for stride in [0, BEFORE_FRAME, (1 << 16) + 1, usize::MAX] {
        let place = Place { stride, ..bench.place.clone() };
        assert!(matches!(place.rings(bench.size), Err(RingsError::Stride(_))), "{stride}");
    }
}

#[test]
fn a_header_stays_with_its_frame() {
    let bench = Bench::new(2);
    let mut tx = bench.tx(Agreed::default());
    let header = NetHeader { flags: 1, csum_start: 14, ..NetHeader::default() };
    let header_at = |id: usize| bytes(&bench.place.buffers.span(id * STRIDE + BEFORE_HEADER, NetHeader::LEN).unwrap());
    assert!(tx.push(Span::from_slice(&[0; 60]), Some(&header.encode())));
    assert_eq!(header_at(0), header.encode());
    let _ = tx.publish();
    bench.use_one(0, 0);
    assert_eq!(tx.room(), 2);
    for _ in 0..2 {
        assert!(tx.push(Span::from_slice(&[0; 60]), None));
    }
    assert_eq!(header_at(0), [0; NetHeader::LEN]);
}

#[test]
fn signals_are_asked_for_and_missed_ones_are_seen() {
    for event_index in [false, true] {
        let features = if event_index { feature::VERSION_1 | feature::RING_EVENT_IDX } else { feature::VERSION_1 };
        let bench = Bench::new(4);
        let (mut rx, mut device) = (bench.rx(Agreed { event_index, ..Agreed::default() }), bench.device_rx(features));
        let deliver = |device: &mut DeviceRx| {
            assert_eq!(device.deliver(&[Span::from_slice(&[1; 60])]).taken, 1);
            device.publish();
            device.must_notify()
        };
        assert!(!rx.want_signal(false));
        assert!(!deliver(&mut device));
        assert!(rx.want_signal(true), "one is there already");
        assert_eq!(rx.poll(4), 1);
        rx.recycle();
        assert!(!rx.want_signal(true));
        assert!(deliver(&mut device));
    }
}

#[test]
fn what_fills_the_buffers_is_sent_again_and_again() {
    for in_order in [false, true] {
        let bench = Bench::new(8);
        let mut tx = bench.tx(Agreed { in_order, ..Agreed::default() });
        let mut device = bench.device_tx(feature::VERSION_1);
        assert!(tx.fill(&frame(3, 64)));
        let mut bin = Bin::default();
        for _ in 0..50 {
            tx.room();
            assert_eq!(tx.send_again(5), 5);
            let _ = tx.publish();
            assert!(!tx.fill(&[0; 64]), "something is on its way");
            device.serve(5, &mut bin);
        }
        assert_eq!(bin.0.len(), 250);
        assert!(bin.0.iter().all(|arrived| *arrived == frame(3, 64)));
    }
}
