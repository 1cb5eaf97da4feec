//! Who is woken in a split virtqueue, under every order in which two processors may see each other's stores, as far as loom
//! can enumerate them: whoever asks to be told, looks once more and then sleeps, is told or sees the entry.
//!
//! Both halves are the real ones, over the model memory of `millrace-dma` (see `loom.rs`). A ring has two descriptors, so that
//! both sides come to sleep: the one for want of frames, the other for want of room. A wake-up that is lost is a deadlock,
//! which loom reports. Each model names the weakenings that it was seen to catch.
//!
//! `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p millrace-ring --profile model --test ring loom_virtio`
#![cfg(loom)]

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use millrace_dma::{Access, Domain, Iotlb, Iova, Span, Window};
use millrace_ring::FrameLimits;
use millrace_ring::virtio::driver::{Agreed, Place, RxQueue, Size, TxQueue};
use millrace_ring::virtio::{DeviceRx, DeviceTx, NetHeader, NetSink, feature};

/// One word is a frame.
const LIMITS: FrameLimits = FrameLimits { min: 8, max: 8 };
const STRIDE: usize = 128;
const BUFFERS_AT: u64 = 0x1000;
const SIZE: Size = Size::new(2).unwrap();
const FRAMES: u64 = 3;

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

fn place() -> (Place, Iotlb) {
    let buffers = Window::model(SIZE.buffers_len(STRIDE));
    let domain = std::sync::Arc::new(Domain::new());
    domain.map(buffers.clone(), Access::ReadWrite, Some(Iova::new(BUFFERS_AT))).unwrap();
    let place = Place { ring: Window::model(SIZE.ring_len()), buffers, stride: STRIDE, buffers_at: BUFFERS_AT };
    (place, Iotlb::new(domain))
}

fn agreed(event_index: bool) -> (Agreed, u64) {
    let features = feature::VERSION_1 | if event_index { feature::RING_EVENT_IDX } else { 0 };
    (Agreed { event_index, ..Agreed::default() }, features)
}

/// An eventfd that somebody sleeps on.
#[derive(Default)]
struct Event {
    signalled: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    fn signal(&self) {
        *self.signalled.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut signalled = self.signalled.lock().unwrap();
        while !*signalled {
            signalled = self.changed.wait(signalled).unwrap();
        }
        *signalled = false;
    }
}

/// Counts frames, which are numbers.
struct Counter(u64);

impl NetSink for Counter {
    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        for frame in frames {
            let mut bytes = [0; 8];
            frame.read_into(&mut bytes);
            self.0 += 1;
            assert_eq!(u64::from_le_bytes(bytes), self.0);
        }
        frames.len()
    }

    fn take_unfinished(&mut self, _: &[u8; NetHeader::LEN], _: &mut [u8]) -> bool {
        unreachable!("no offload was agreed on")
    }
}

/// The driver sends, and sleeps when there is no room; the device sleeps when there is nothing.
fn sending(event_index: bool) {
    model(move || {
        let ((place, iotlb), (agreed, features)) = (place(), agreed(event_index));
        let mut tx = TxQueue::new(&place, SIZE, agreed).unwrap();
        let mut device = DeviceTx::new(place.rings(SIZE).unwrap(), features, false, LIMITS, iotlb);
        tx.want_signal(false);
        let (kick, call) = (Arc::new(Event::default()), Arc::new(Event::default()));
        let (bell, room) = (kick.clone(), call.clone());
        let driver = thread::spawn(move || {
            for number in 1..=FRAMES {
                while tx.room() == 0 {
                    // `true`: there is room by now.
                    if !tx.want_signal(true) {
                        room.wait();
                    }
                    tx.want_signal(false);
                }
                assert!(tx.push(Span::from_slice(&number.to_le_bytes()), None));
                if tx.publish() {
                    bell.signal();
                }
            }
        });
        let mut counter = Counter(0);
        let mut serve = |device: &mut DeviceTx| {
            let sent = device.serve(9, &mut counter);
            assert_eq!(sent.fault, None);
            if device.must_notify() {
                call.signal();
            }
            (sent.frames, counter.0)
        };
        loop {
            let (frames, all) = serve(&mut device);
            if all == FRAMES {
                break;
            }
            if frames > 0 {
                continue;
            }
            device.want_notifications(true);
            if serve(&mut device).0 == 0 {
                kick.wait();
            }
            device.want_notifications(false);
        }
        driver.join().unwrap();
    });
}

/// The device delivers, and sleeps when there are no buffers; the driver sleeps when there is nothing.
fn receiving(event_index: bool) {
    model(move || {
        let ((place, iotlb), (agreed, features)) = (place(), agreed(event_index));
        let mut rx = RxQueue::new(&place, SIZE, agreed).unwrap();
        rx.want_signal(false);
        let _ = rx.publish();
        let mut device = DeviceRx::new(place.rings(SIZE).unwrap(), features, iotlb);
        let (kick, call) = (Arc::new(Event::default()), Arc::new(Event::default()));
        let (bell, frames) = (kick.clone(), call.clone());
        let driver = thread::spawn(move || {
            let mut counter = Counter(0);
            while counter.0 < FRAMES {
                let count = rx.poll(9);
                (0..count).for_each(|at| assert_eq!(counter.take_burst(&[rx.frame(at)]), 1));
                rx.recycle();
                if rx.publish() {
                    bell.signal();
                }
                if count == 0 {
                    // `true`: there are some by now.
                    if !rx.want_signal(true) {
                        frames.wait();
                    }
                    rx.want_signal(false);
                }
            }
        });
        let deliver = |device: &mut DeviceRx, number: u64| {
            let delivered = device.deliver(&[Span::from_slice(&number.to_le_bytes())]);
            assert_eq!(delivered.fault, None);
            device.publish();
            if device.must_notify() {
                call.signal();
            }
            delivered.taken == 1
        };
        for number in 1..=FRAMES {
            while !deliver(&mut device, number) {
                device.want_notifications(true);
                let delivered = deliver(&mut device, number);
                if !delivered {
                    kick.wait();
                }
                device.want_notifications(false);
                if delivered {
                    break;
                }
            }
        }
        driver.join().unwrap();
    });
}

/// Catches: the fences in the driver's `publish` and `want_signal`, and in the device's `must_notify` and
/// `want_notifications`.
#[test]
fn who_sleeps_while_a_driver_sends_is_woken_by_flags() {
    sending(false);
}

/// As above.
#[test]
fn who_sleeps_while_a_driver_sends_is_woken_by_events() {
    sending(true);
}

/// As above.
#[test]
fn who_sleeps_while_a_driver_receives_is_woken_by_flags() {
    receiving(false);
}

/// As above.
#[test]
fn who_sleeps_while_a_driver_receives_is_woken_by_events() {
    receiving(true);
}
