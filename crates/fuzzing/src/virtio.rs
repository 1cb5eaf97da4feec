//! The rings of a virtio driver that writes anything into them and into its memory, under both halves of the device.

use arbitrary::{Arbitrary, Unstructured};
use millrace_dma::{Access, Domain, Iotlb, Iova, Ordering, Region, Span, Window};
use millrace_ring::budget::MOST_LOOKS;
use millrace_ring::virtio::{Descriptor, DeviceRx, DeviceTx, NetHeader, NetSink, Rings, feature};
use millrace_ring::{Accept, FrameLimits};
use std::sync::Arc;

/// Most steps of one input.
const MOST_STEPS: usize = 96;
const SIZE: u16 = 16;
const DATA_LEN: usize = 64 << 10;
/// Where the driver's memory lies: the second time at the end of all addresses.
const PLACES: [u64; 2] = [0x10_0000, u64::MAX - DATA_LEN as u64 + 1];
const LIMITS: FrameLimits = FrameLimits { min: 14, max: 0x3fff };

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    /// A descriptor that might be right, and perhaps its head among those available.
    Descriptor {
        slot: u8,
        at: u16,
        high: bool,
        len: u16,
        flags: u8,
        next: u8,
        available: bool,
    },
    /// A descriptor in the driver's memory, for indirect tables.
    Indirect {
        at: u8,
        to: u16,
        len: u16,
        flags: u8,
        next: u8,
    },
    RawWord {
        word: u16,
        value: u64,
    },
    RawData {
        word: u16,
        value: u64,
    },
    Index(u16),
    Serves {
        budget: u8,
        room: u8,
    },
    Delivers {
        count: u8,
        len: u16,
    },
    DeliversUnfinished {
        len: u16,
        gso: u8,
    },
    Wants(bool),
}

#[derive(Arbitrary, Debug)]
struct Setup {
    event_index: bool,
    indirect: bool,
    mergeable: bool,
    offloads: bool,
    read_only: bool,
}

impl Setup {
    fn features(&self) -> u64 {
        let chosen = [
            (self.event_index, feature::RING_EVENT_IDX),
            (self.indirect, feature::RING_INDIRECT_DESC),
            (self.mergeable, feature::MRG_RXBUF),
        ];
        feature::VERSION_1 | chosen.iter().filter(|(on, _)| *on).map(|(_, bit)| bit).sum::<u64>()
    }
}

/// Takes some frames and touches every byte of them.
struct Sink {
    room: usize,
    frames: u64,
    bytes: u64,
    /// Those on which something was left to do, which only the sink counts.
    unfinished: u64,
}

impl Sink {
    fn touch(&mut self, frame: Span<'_>, most: usize) -> Accept {
        assert!((usize::from(LIMITS.min)..=most).contains(&frame.len()));
        if self.room == 0 {
            return Accept::Full;
        }
        let mut copy = vec![0; frame.len()];
        assert_eq!(frame.read_into(&mut copy), frame.len());
        self.room -= 1;
        Accept::Taken
    }
}

impl NetSink for Sink {
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        let refused = |frame: &Span<'_>| self.touch(*frame, LIMITS.max.into()) == Accept::Full;
        let taken = frames.iter().position(refused).unwrap_or(frames.len());
        self.frames += taken as u64;
        self.bytes += frames[..taken].iter().map(|frame| frame.len() as u64).sum::<u64>();
        taken
    }

    fn take_unfinished(&mut self, _: &[u8; NetHeader::LEN], frame: &mut [u8]) -> bool {
        frame.reverse();
        self.unfinished += 1;
        self.touch(Span::from_slice(frame), usize::MAX) == Accept::Taken
    }
}

/// The rings of one queue, and all of their memory as words.
struct Bench {
    memory: Region,
    rings: Rings,
    posted: u16,
}

impl Bench {
    fn new() -> Self {
        let memory = Region::heap(4096);
        let part = |offset| memory.part(offset, 1024).expect("inside");
        let rings = Rings::over(&part(0), &part(1024), &part(2048), SIZE).expect("a power of two");
        Self { memory, rings, posted: 0 }
    }

    fn post(&mut self, head: u8) {
        self.rings.avail.store(self.posted.into(), head.into());
        self.posted = self.posted.wrapping_add(1);
        self.rings.avail_index.store(self.posted, Ordering::Release);
    }
}

fn store(window: &Window, word: u16, value: u64) {
    let words = window.len() as u32 / 8;
    let slots = window.slots64(0, words).expect("a power of two");
    slots.store(u32::from(word), value);
}

/// Any rings and any memory, under both halves of the device at once. Returns how many frames were taken or stored.
pub fn virtio(input: &[u8]) -> u64 {
    let mut moved = 0;
    let mut input = Unstructured::new(input);
    let Ok(setup) = Setup::arbitrary(&mut input) else { return moved };
    let data = Region::heap(DATA_LEN);
    let domain = Arc::new(Domain::new());
    for place in PLACES {
        let access = if setup.read_only { Access::Read } else { Access::ReadWrite };
        domain.map(data.window().clone(), access, Some(Iova::new(place))).expect("places do not overlap");
    }
    let (features, iotlb) = (setup.features(), || Iotlb::new(domain.clone()));
    let (mut out, mut back) = (Bench::new(), Bench::new());
    let device_tx = |bench: &Bench| DeviceTx::new(bench.rings.clone(), features, setup.offloads, LIMITS, iotlb());
    let device_rx = |bench: &Bench| DeviceRx::new(bench.rings.clone(), features, iotlb());
    let (mut tx, mut rx) = (device_tx(&out), device_rx(&back));
    let frame = vec![0x5a; 0x1_0000];
    for number in 0..MOST_STEPS {
        let Ok(step) = Step::arbitrary(&mut input) else { return moved };
        if input.is_empty() {
            return moved;
        }
        let bench = if number % 2 == 0 { &mut out } else { &mut back };
        match step {
            Step::Descriptor { slot, at, high, len, flags, next, available } => {
                let address = Iova::new(PLACES[usize::from(high)].wrapping_add(at.into()));
                // Mostly one piece, and the flag of the direction that it is for: all else ends the queue too soon.
                let more = if flags < 192 { 0 } else { u16::from(flags & 0b101) };
                let flags = more | if number % 2 == 0 { 0 } else { 2 };
                let descriptor = Descriptor { address, len: u32::from(len), flags, next: next.into() };
                bench.rings.table.store(slot.into(), descriptor);
                if available {
                    bench.post(slot % SIZE as u8);
                }
            }
            Step::Indirect { at, to, len, flags, next } => {
                let address = PLACES[0].wrapping_add(to.into());
                let words = [address, u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48];
                store(data.window(), u16::from(at) * 2, words[0]);
                store(data.window(), u16::from(at) * 2 + 1, words[1]);
            }
            Step::RawWord { word, value } => store(bench.memory.window(), word, value),
            Step::RawData { word, value } => store(data.window(), word, value),
            Step::Index(index) => bench.rings.avail_index.store(index, Ordering::Release),
            Step::Serves { budget, room } => {
                let mut sink = Sink { room: room.into(), frames: 0, bytes: 0, unfinished: 0 };
                let sent = tx.serve(budget.into(), &mut sink);
                moved += sent.frames + sink.unfinished;
                assert_eq!((sent.frames, sent.bytes), (sink.frames, sink.bytes));
                let gone = sent.frames + sent.no_room + sent.too_short + sent.too_long + sink.unfinished;
                assert!(gone <= u64::from(budget).min(SIZE.into()) && sent.looked < MOST_LOOKS, "{sent:?}");
                tx.must_notify();
                if tx.fault().is_some() {
                    tx = device_tx(&out);
                }
            }
            Step::Delivers { count, len } => {
                let len = usize::from(len % 0x4000).max(14);
                let frames = vec![Span::from_slice(&frame[..len]); usize::from(count % 40)];
                let delivered = rx.deliver(&frames);
                assert!(delivered.taken <= frames.len() && delivered.too_long <= delivered.taken as u64);
                moved += delivered.taken as u64 - delivered.too_long;
                rx.publish();
                rx.must_notify();
                if rx.fault().is_some() {
                    rx = device_rx(&back);
                }
            }
            Step::DeliversUnfinished { len, gso } => {
                let header = NetHeader { gso_type: gso, ..NetHeader::default() };
                let delivered = rx.deliver_unfinished(header, Span::from_slice(&frame[..usize::from(len).max(14)]));
                assert!(delivered.taken <= 1);
                rx.publish();
                if rx.fault().is_some() {
                    rx = device_rx(&back);
                }
            }
            Step::Wants(wanted) => {
                tx.want_notifications(wanted);
                rx.want_notifications(wanted);
            }
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use crate::short_run;

    #[test]
    fn virtio_over_20000_inputs() {
        let moved = short_run(super::virtio, 20_000);
        // Inputs that get nowhere would find nothing.
        assert!(moved > 2_000, "only {moved} frames");
    }
}
