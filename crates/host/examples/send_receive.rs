//! Sends frames and receives them: a queue of each direction, bursts, and waiting.
//!
//! `cargo run --release -p millrace --example send_receive`, with a card inside the program that sends everything back;
//! with `MILLRACE_DEVICE=unix:/tmp/card.sock` on one that runs (`millrace card --listen /tmp/card.sock`).

use millrace::{Device, Error};
use std::time::Duration;

const FRAMES: usize = 100_000;
const BURST: usize = 64;
const LEN: u16 = 128;

pub(crate) fn main() -> Result<(), Error> {
    let device = Device::open_default()?;
    let mut rx = device.rx(0).open()?.start()?;
    let mut tx = device.tx(0).open()?.start()?;

    let (mut sent, mut received) = (0, 0);
    while received < FRAMES {
        // All slots of a burst or none: `None` says that the ring is full at the moment.
        let count = BURST.min(FRAMES - sent);
        if count > 0
            && let Some(mut burst) = tx.get(&[LEN; BURST][..count])?
        {
            for i in 0..count {
                burst[i].fill((sent + i) as u8);
            }
            burst.send()?;
            sent += count;
        }
        // Sleeps only when there is nothing to be done: not as long as frames can be sent.
        if sent == FRAMES && !rx.wait(Duration::from_secs(10))? {
            break;
        }
        // The frames are where the card has put them; dropping the burst gives their room back.
        for packet in rx.get(BURST)?.iter() {
            assert!(packet.data.iter().all(|&byte| byte == received as u8), "frame {received}");
            received += 1;
        }
    }
    println!("{sent} frames sent, {received} received");
    assert_eq!(received, FRAMES, "does this card send everything back?");

    // What has been sent leaves before the queue closes; dropping it would do the same, and hide errors.
    tx.close()?;
    rx.close()
}
