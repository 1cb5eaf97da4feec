//! What a card costs in memory.

use crate::common::*;
use millrace::{Mode, Sharing};

#[test]
fn sixteen_idle_pairs_stay_under_a_hundred_mebibytes() {
    let daemon = Daemon::start("queues=16,buffers=1024,buffer=2048");
    let device = daemon.device();
    let empty = daemon.resident();
    let queues: Vec<_> = (0..16)
        .map(|index| {
            let receiver = rx(&device, index, Mode::Direct, Sharing::Exclusive);
            (receiver, tx(&device, index, Mode::Direct, Sharing::Exclusive))
        })
        .collect();
    let idle = daemon.resident();
    println!("resident: {empty} KiB without queues, {idle} KiB with 16 idle pairs");
    assert!(idle < 100 << 10, "{idle} KiB");
    drop(queues);
    check_equations(&device);
}
