//! Several readers of one queue: each sees every frame, in its own time.
//!
//! `cargo run --release -p millrace --example shared_readers`. Here the readers are threads; they could as well be programs,
//! each with a device of its own on a card that runs (`millrace read --share block` is such a program).

use millrace::{Device, Error, Laggard, Sharing};
use std::thread;
use std::time::Duration;

const READERS: usize = 3;
const FRAMES: u64 = 10_000;

pub(crate) fn main() -> Result<(), Error> {
    let device = Device::open_default()?;
    // Nobody loses anything: the queue waits for the slowest. `Drop` would let it lose frames, `Evict` throw it out.
    let sharing = Sharing::Shared(Laggard::Block);
    let mut readers = Vec::new();
    for _ in 0..READERS {
        // A reader sees what comes after its start, so all of them start before anything is sent.
        let rx = device.rx(0).sharing(sharing).open()?.start()?;
        readers.push(thread::spawn(move || read(rx)));
    }

    let mut tx = device.tx(0).open()?.start()?;
    for number in 0..FRAMES {
        let mut slot = loop {
            match tx.get(&[64])? {
                Some(slot) => break slot,
                // Full, because a reader is behind.
                None => thread::yield_now(),
            }
        };
        slot[0].fill(0);
        slot[0][..8].copy_from_slice(&number.to_le_bytes());
        slot.put();
    }
    tx.flush()?;

    for (index, reader) in readers.into_iter().enumerate() {
        let seen = reader.join().expect("the reader ends by itself")?;
        println!("reader {index} has seen {seen} frames");
        assert_eq!(seen, FRAMES);
    }
    tx.close()
}

/// Reads until all frames are there, and says how many came in order.
fn read(mut rx: millrace::RxQueue) -> Result<u64, Error> {
    let mut next = 0;
    while next < FRAMES && rx.wait(Duration::from_secs(10))? {
        for packet in rx.get(64)?.iter() {
            assert_eq!(packet.data[..8], next.to_le_bytes(), "every frame, in order");
            next += 1;
        }
    }
    rx.close()?;
    Ok(next)
}
