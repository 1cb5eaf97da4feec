//! Thousands of queues: configured, opened, and one of them with traffic.

use millrace::Device;
use std::time::{Duration, Instant};

/// Sends one packet and waits for it.
fn round_trip(rx: &mut millrace::RxQueue, tx: &mut millrace::TxQueue, byte: u8) {
    let mut slots = tx.get(&[64]).unwrap().unwrap();
    slots[0].fill(byte);
    slots.send().unwrap();
    assert!(rx.wait(Duration::from_secs(10)).unwrap(), "the packet does not come back");
    let burst = rx.get(1).unwrap();
    assert_eq!(burst[0], [byte; 64]);
}

#[test]
fn of_4096_configured_pairs_one_carries_traffic() {
    let card = Device::open("embedded:queues=4096,engine=sze@0-1023,engine=calypte@1024-2047").unwrap();
    assert_eq!((card.rx_queues(), card.tx_queues()), (4096, 4096));
    for index in [0, 1024, 4095] {
        let (mut rx, mut tx) =
            (card.rx(index).open().unwrap().start().unwrap(), card.tx(index).open().unwrap().start().unwrap());
        (0..100).for_each(|byte| round_trip(&mut rx, &mut tx, byte));
        tx.close().unwrap();
    }
    let stats = card.stats().unwrap();
    assert_eq!(stats.queues.len(), 8192);
    for queue in &stats.queues {
        let used = [0, 1024, 4095].contains(&queue.queue.index);
        assert_eq!((queue.offered, queue.passed), if used { (100, 100) } else { (0, 0) }, "{}", queue.queue);
    }
}

/// As many as the descriptors of this process allow.
#[test]
fn many_pairs_are_open_and_all_carry_traffic() {
    let wanted = 1000;
    let card = Device::open("embedded:queues=1000,buffers=128").unwrap();
    let start = Instant::now();
    let mut pairs = Vec::new();
    for index in 0..wanted {
        let pair =
            card.rx(index).open().and_then(|rx| rx.start()).and_then(|rx| Ok((rx, card.tx(index).open()?.start()?)));
        match pair {
            Ok(pair) => pairs.push(pair),
            Err(error) => {
                println!("skipped: only {index} pairs can be open here: {error}");
                break;
            }
        }
    }
    println!("{} pairs opened and started in {:?}", pairs.len(), start.elapsed());
    assert!(pairs.len() > 100, "{} pairs", pairs.len());
    let start = Instant::now();
    for (at, (rx, tx)) in pairs.iter_mut().enumerate() {
        round_trip(rx, tx, at as u8);
    }
    println!("a round trip on each in {:?}", start.elapsed());
    let start = Instant::now();
    drop(pairs);
    println!("closed in {:?}", start.elapsed());
}
