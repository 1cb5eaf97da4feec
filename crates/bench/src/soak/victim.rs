//! A program that opens queues, sends, sleeps and stops, in no order, until it is killed.

use std::thread;
use std::time::Duration;

use millrace_abi::queue::{Engine, Laggard, Mode, Sharing};
use millrace_tool::failure::{Failure, While};
use millrace_tool::host::{Device, Error};
use millrace_tool::options::Shared;
use millrace_tool::stop;

use super::pairs::engine_of;

/// Longest nap, in microseconds.
const NAP: u64 = 20_000;
/// Bytes of a frame.
const SIZE: u16 = 200;

/// Runs it.
pub fn run(shared: &Shared, seed: u64) -> Result<(), Failure> {
    thread::spawn(stop::with_standard_input);
    let mut random = fastrand::Rng::with_seed(seed);
    let name = shared.device.clone().unwrap_or_default();
    let queues = shared.queues();
    let mut device = Device::open(&name).doing(|| format!("cannot open card {name}"))?;
    while !stop::asked() {
        let pair = queues.indices()[random.usize(0..queues.indices().len())];
        // Somebody else has the queue, or has had it and its reader has fallen behind: this is a victim, not a judge.
        let _ = use_pair(&device, pair, &mut random);
        thread::sleep(Duration::from_micros(random.u64(0..NAP)));
        if random.u32(0..8) == 0 {
            device = Device::open(&name).doing(|| format!("cannot open card {name}"))?;
        }
    }
    Ok(())
}

fn use_pair(device: &Device, pair: u32, random: &mut fastrand::Rng) -> Result<(), Error> {
    let (mode, sharing) = match (engine_of(pair), random.u32(0..4)) {
        (Engine::Dd, _) | (_, 0) => (Mode::Direct, Sharing::Exclusive),
        (_, 1) => (Mode::Mediated, Sharing::Exclusive),
        (_, 2) => (Mode::Direct, Sharing::Shared(Laggard::Drop)),
        _ => (Mode::Direct, Sharing::Shared(Laggard::Evict)),
    };
    let mut rx = device.rx(pair).mode(mode).sharing(sharing).open()?.start()?;
    let mut tx = device.tx(pair).mode(mode).sharing(sharing).open()?.start()?;
    for _ in 0..random.u32(0..20) {
        if let Some(mut burst) = tx.get(&[SIZE; 4])? {
            (0..4).for_each(|at| burst[at].fill(0x77));
            burst.send()?;
        }
        match random.u32(0..3) {
            0 => drop(rx.get(64)?),
            1 => drop(rx.wait(Duration::from_micros(random.u64(0..NAP)))?),
            _ => thread::sleep(Duration::from_micros(random.u64(0..NAP))),
        }
    }
    if random.bool() {
        let idle = rx.stop()?;
        thread::sleep(Duration::from_micros(random.u64(0..NAP)));
        drop(idle.start()?);
    }
    Ok(())
}
