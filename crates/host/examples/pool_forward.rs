//! Forwards between two wires without touching a frame: buffers of a pool go from queue to queue.
//!
//! `cargo run --release -p millrace --example pool_forward`. The two wires are made up, so that the example runs anywhere:
//! a generator, and one that leads nowhere. With `af_xdp:IFACE` or `virtio-user:PATH` in their place the frames arrive in
//! the pool without any copy, and leave from there (docs/ports.md); `millrace forward` is the program for that.

use millrace::{Buffer, Device, Error};
use std::time::Duration;

const FRAMES: u64 = 50_000;
const CARD: &str = "embedded:rx=2,tx=2,engine=dd,port=(generator:size=200),port=null";

pub(crate) fn main() -> Result<(), Error> {
    // Queue 0 belongs to the first port, queue 1 to the second.
    let device = Device::open(CARD)?;
    let pool = device.pool(2048, 2048)?;
    let mut rx = device.rx(0).open_on(&pool, 256)?;
    let mut tx = device.tx(1).open_on(&pool, 256)?;

    let mut frames: Vec<Buffer> = Vec::with_capacity(64);
    let mut forwarded = 0;
    while forwarded < FRAMES && rx.wait(Duration::from_secs(10))? {
        rx.receive(&mut frames, 64)?;
        for frame in &mut frames {
            // Where a router would change the header, in place.
            frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        }
        while !frames.is_empty() {
            // Takes from the front what there is room for.
            match tx.send(&mut frames)? {
                0 => drop(tx.wait(Duration::from_secs(10))?),
                sent => forwarded += sent as u64,
            }
        }
    }
    tx.close()?;
    rx.close()?;
    println!("{forwarded} frames forwarded; all {} buffers are back: {}", pool.buffers(), pool.free());
    assert_eq!(pool.free(), pool.buffers() as usize);
    Ok(())
}
