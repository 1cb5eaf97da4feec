//! Time stamps before received frames, through every engine and mode: handed out beside the frame and never in it.

use crate::common::{PATIENCE, settled};
use millrace::{Device, Laggard, Mode, RxQueue, Sharing, TxQueue};
use millrace_abi::header::RxMetadata;
use std::time::{SystemTime, UNIX_EPOCH};

fn frame(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (number * 31 + i * 7) as u8 & 0xfe).collect()
}

fn nanoseconds() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

fn send(tx: &mut TxQueue, number: usize, len: usize) {
    let mut burst = tx.get(&[len as u16]).unwrap().expect("room for one frame");
    burst[0].copy_from_slice(&frame(number, len));
    burst.send().unwrap();
}

fn receive(rx: &mut RxQueue, number: usize, len: usize, sent_at: u128) {
    assert!(rx.wait(PATIENCE).unwrap(), "frame {number} of {len} bytes did not come");
    let burst = rx.get(8).unwrap();
    assert_eq!(burst.len(), 1);
    let packet = burst.packet(0);
    assert_eq!(packet.data, frame(number, len), "frame {number} of {len} bytes");
    assert_eq!((packet.header.len(), packet.flags & 3), (16, 0));
    let stamp = RxMetadata::decode(packet.header).unwrap();
    let time = u128::from(stamp.seconds) * 1_000_000_000 + u128::from(stamp.nanoseconds);
    // The two clocks are not the same one, but were set alike a moment ago.
    let slack = 50_000_000;
    assert!(time + slack > sent_at && time < nanoseconds() + slack, "sent {sent_at}, stamped {time}");
}

fn every_mode(engine: &str, lengths: &[usize]) {
    let device = Device::open(&format!("embedded:engine={engine},spin=20,tsu,ring=64K")).unwrap();
    for mode in [Mode::Direct, Mode::Mediated] {
        for sharing in [Sharing::Exclusive, Sharing::Shared(Laggard::Block)] {
            if engine == "dd" && (mode, sharing) != (Mode::Direct, Sharing::Exclusive) {
                continue;
            }
            let mut rx = device.rx(0).mode(mode).sharing(sharing).open().unwrap().start().unwrap();
            let mut tx = device.tx(0).open().unwrap().start().unwrap();
            // Often enough to go round the rings.
            for number in 0..3000 {
                let (len, sent_at) = (lengths[number % lengths.len()], nanoseconds());
                send(&mut tx, number, len);
                receive(&mut rx, number, len, sent_at);
            }
            tx.close().unwrap();
            rx.close().unwrap();
        }
    }
    settled(&device, |stats| stats.queues.iter().all(|queue| queue.drops.is_empty() && queue.offered == queue.passed));
}

#[test]
fn medusa_hands_out_stamps() {
    // 2032 bytes just fit into a buffer of 2048 with their metadata.
    every_mode("medusa", &[60, 61, 1500, 2032]);
}

#[test]
fn sze_hands_out_stamps() {
    every_mode("sze", &[60, 61, 62, 63, 64, 65, 66, 67, 1500, 9000]);
}

#[test]
fn calypte_hands_out_stamps() {
    // With and without a block more for the metadata.
    every_mode("calypte", &[60, 112, 113, 128, 1500, 9000]);
}

#[test]
fn dd_hands_out_stamps() {
    // They take nothing of the buffer.
    every_mode("dd", &[60, 61, 1500, 2048]);
}

#[test]
fn a_frame_too_long_for_its_buffer_with_a_stamp_is_dropped_and_counted() {
    let device = Device::open("embedded:spin=20,tsu").unwrap();
    let mut rx = device.rx(0).open().unwrap().start().unwrap();
    let mut tx = device.tx(0).open().unwrap().start().unwrap();
    send(&mut tx, 1, 2048);
    send(&mut tx, 2, 2033);
    let now = nanoseconds();
    send(&mut tx, 3, 2032);
    receive(&mut rx, 3, 2032, now);
    let stats = settled(&device, |stats| (stats.queues[0].offered, stats.ports[0].rx_frames) == (3, 3));
    assert_eq!((stats.queues[0].drops[0].reason.as_str(), stats.queues[0].drops[0].count), ("too-long", 2));
}

#[test]
fn without_the_unit_there_is_nothing_before_a_frame() {
    let device = Device::open("embedded:spin=20").unwrap();
    let mut rx = device.rx(0).open().unwrap().start().unwrap();
    let mut tx = device.tx(0).open().unwrap().start().unwrap();
    send(&mut tx, 1, 2048);
    assert!(rx.wait(PATIENCE).unwrap());
    let burst = rx.get(8).unwrap();
    assert_eq!((burst.packet(0).header, burst.packet(0).data), (&[][..], &frame(1, 2048)[..]));
}
