//! Packets through an embedded card and back, for every engine, mode and kind of sharing.

use crate::common::{self, PATIENCE};
use millrace::{Device, Laggard, Mode, Sharing};
use millrace_abi::register::map::Component;
use millrace_ring::calypte::Header;

fn frame(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (number * 31 + i * 7) as u8).collect()
}

/// Sends `count` frames of many lengths through loopback and checks every byte.
fn round_trip(device: &Device, mode: Mode, sharing: Sharing, count: usize) {
    let mut rx = device.rx(0).mode(mode).sharing(sharing).open().unwrap().start().unwrap();
    let mut tx = device.tx(0).mode(mode).open().unwrap().start().unwrap();
    let (mut sent, mut received) = (0, 0);
    let len_of = |number: usize| 60 + number * 37 % 1459;
    while received < count {
        let want = (count - sent).min(1 + sent % 32);
        let lengths: Vec<u16> = (sent..sent + want).map(|number| len_of(number) as u16).collect();
        if want > 0
            && sent - received < 256
            && let Some(mut burst) = tx.get(&lengths).unwrap()
        {
            for i in 0..burst.len() {
                burst[i].copy_from_slice(&frame(sent + i, len_of(sent + i)));
            }
            burst.send().unwrap();
            sent += want;
        }
        if sent > received && received + 256 < sent || sent == count {
            assert!(rx.wait(PATIENCE).unwrap(), "nothing came after {received} of {sent}");
        }
        let burst = rx.get(1 + received % 50).unwrap();
        for packet in burst.iter() {
            assert_eq!(packet.data, frame(received, len_of(received)), "frame {received}");
            received += 1;
        }
    }
    tx.close().unwrap();
    rx.close().unwrap();
}

fn check_equations(device: &Device) {
    common::check_equations(device);
    let stats = device.stats().unwrap();
    assert!(stats.queues.iter().all(|queue| queue.drops.is_empty()), "{stats:?}");
}

fn all_kinds(engine: &str) {
    let device = Device::open(&format!("embedded:engine={engine},spin=20")).unwrap();
    for mode in [Mode::Direct, Mode::Mediated] {
        for sharing in [Sharing::Exclusive, Sharing::Shared(Laggard::Block)] {
            // Twice: the second owner goes on where the first has stopped.
            for _ in 0..2 {
                round_trip(&device, mode, sharing, 3000);
            }
        }
    }
    check_equations(&device);
}

#[test]
fn medusa_carries_everything() {
    all_kinds("medusa");
}

#[test]
fn sze_carries_everything() {
    all_kinds("sze");
}

#[test]
fn calypte_carries_everything() {
    all_kinds("calypte");
}

#[test]
fn dd_carries_everything_for_one_who_has_it_alone() {
    let device = Device::open("embedded:engine=dd,spin=20").unwrap();
    for _ in 0..2 {
        round_trip(&device, Mode::Direct, Sharing::Exclusive, 3000);
    }
    check_equations(&device);
}

#[test]
fn several_subscribers_see_every_packet() {
    for engine in ["medusa", "sze", "calypte"] {
        let device = Device::open(&format!("embedded:engine={engine},spin=20")).unwrap();
        let sharing = Sharing::Shared(Laggard::Block);
        let modes = [Mode::Direct, Mode::Direct, Mode::Mediated];
        let mut readers: Vec<_> = modes
            .iter()
            .map(|&mode| device.rx(0).mode(mode).sharing(sharing).open().unwrap().start().unwrap())
            .collect();
        let mut tx = device.tx(0).open().unwrap().start().unwrap();
        let mut seen = [0; 3];
        for round in 0..200 {
            let mut burst = tx.get(&[100; 20]).unwrap().expect("room");
            for i in 0..20 {
                burst[i].copy_from_slice(&frame(round * 20 + i, 100));
            }
            burst.send().unwrap();
            for (reader, seen) in readers.iter_mut().zip(&mut seen) {
                while *seen < (round + 1) * 20 {
                    assert!(reader.wait(PATIENCE).unwrap());
                    for packet in reader.get(7).unwrap().iter() {
                        assert_eq!(packet.data, frame(*seen, 100));
                        *seen += 1;
                    }
                }
            }
        }
        assert_eq!(seen, [4000; 3]);
    }
}

#[test]
fn a_source_that_waits_for_a_listener_loses_nothing_before_the_first() {
    let kinds = [
        (Mode::Direct, Sharing::Exclusive),
        (Mode::Direct, Sharing::Shared(Laggard::Block)),
        (Mode::Mediated, Sharing::Exclusive),
        (Mode::Mediated, Sharing::Shared(Laggard::Block)),
    ];
    for engine in ["medusa", "sze", "calypte"] {
        for (mode, sharing) in kinds {
            let device = Device::open(&format!("embedded:engine={engine},port=(generator:size=64,count=500)")).unwrap();
            let mut rx = device.rx(0).mode(mode).sharing(sharing).open().unwrap().start().unwrap();
            let mut seen = 0;
            while seen < 500 {
                assert!(rx.wait(PATIENCE).unwrap(), "{engine} {mode} {sharing:?}: {seen} of 500");
                seen += rx.get(64).unwrap().len();
            }
            check_equations(&device);
        }
    }
}

#[test]
fn a_burst_may_be_nearly_as_long_as_a_small_ring() {
    for mode in [Mode::Direct, Mode::Mediated] {
        let device = Device::open("embedded:engine=medusa,buffers=128").unwrap();
        let mut tx = device.tx(0).mode(mode).open().unwrap().start().unwrap();
        let _rx = device.rx(0).open().unwrap().start().unwrap();
        tx.get(&[60; 125]).unwrap().expect("room in a new ring").send().unwrap();
        assert!(tx.get(&[60; 200]).is_err(), "more than the ring can ever hold");
        tx.close().unwrap();
    }
}

#[test]
fn what_is_written_to_the_components_of_the_second_bus_is_sent() {
    let device = Device::open("embedded:engine=calypte").unwrap();
    let mut rx = device.rx(1).open().unwrap().start().unwrap();
    // Opened, so the buffers are those of the opener, who leaves them to the registers.
    let tx = device.tx(1).open().unwrap().start().unwrap();
    let (data, headers) = (Component::TxData(1).base().unwrap(), Component::TxHeaders(1).base().unwrap());
    for number in 0..3000 {
        let (slot, len) = (number as u32 % 2048, 60 + number * 37 % 1459);
        let at = number as u32 * 1536 % 0x1_0000 / 32 * 32;
        device.write(data + at, &frame(number, len)).unwrap();
        let header = Header { len: len as u16, at: at as u16, ..Header::default() };
        device.write(headers + slot * 8, &header.encode(false).to_le_bytes()).unwrap();
        assert!(rx.wait(PATIENCE).unwrap(), "frame {number}");
        assert_eq!(&rx.get(2).unwrap()[0], frame(number, len), "frame {number}");
    }
    tx.close().unwrap();
    check_equations(&device);
}
