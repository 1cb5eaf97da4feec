//! Frames of SLURPoE beside RoCE v2 with the same engine on the same wire, a vhost-user socket in shared memory, in turns: goodput of
//! writes of 1 MiB, and how long a write of 8 bytes takes there and back (with its acknowledgement).
//!
//! ```text
//! cargo run --release -p millrace-slurpoe --example compare
//! ```

use millrace_slurpoe::{Access, Address, Config, Endpoint, Notify, Region, Transfer, Wire};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

const SIZE: u32 = 1 << 20;
const ROUNDS: usize = 5;
const SOON: Duration = Duration::from_secs(20);

struct Rig {
    here: Endpoint,
    memory: Region,
    other: Address,
    key: u32,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Rig {
    fn new(wire: Wire, mtu: u16) -> Result<Self, Box<dyn Error>> {
        let path = std::env::temp_dir().join(format!("millrace-compare-{}-{wire:?}-{mtu}", std::process::id()));
        let open = |kind: &str| {
            let port = Some(format!("{kind}:{}", path.display()));
            Endpoint::open(&Config { port, wire, mtu: Some(mtu), ..Config::default() })
        };
        let (there, here) = (open("vhost-user")?, open("virtio-user")?);
        let target = there.allocate(SIZE as usize, Access::ALL)?;
        let (memory, other, key) = (here.allocate(SIZE as usize, Access::LOCAL)?, there.address(), target.key());
        here.connect(other, SOON)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = is_over.clone();
        // Relaxed: it orders nothing.
        let server = spawn(move || {
            let _target = target;
            while !stop.load(Ordering::Relaxed) {
                there.progress();
            }
        });
        Ok(Self { here, memory, other, key, is_over, server: Some(server) })
    }

    /// Writes of so many bytes, so many at a time, for half a second. How long each took.
    fn run(&self, len: u32, depth: usize) -> Result<Duration, Box<dyn Error>> {
        let write = [Transfer::write(self.memory.part(0, len)?, self.key, 0)];
        let (begin, mut done, mut posted) = (Instant::now(), 0_u32, 0_u32);
        while begin.elapsed() < Duration::from_millis(500) || done < posted {
            while posted - done < depth as u32 && begin.elapsed() < Duration::from_millis(500) {
                self.here.post(self.other, &write, 0, Notify::Poll)?;
                posted += 1;
            }
            if done < posted {
                let end = self.here.wait(SOON).ok_or("nothing ends")?;
                end.failed.map_or(Ok(()), Err)?;
                done += 1;
            }
        }
        Ok(begin.elapsed() / done.max(1))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.server.take().map(JoinHandle::join);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let kinds = [
        ("RoCE v2, 4096", Wire::RoceV2, 4096),
        ("SLURPoE, 4096", Wire::Slurpoe, 4096),
        ("SLURPoE, 8192", Wire::Slurpoe, 8192),
    ];
    let mut found = vec![[Vec::new(), Vec::new()]; kinds.len()];
    for _ in 0..ROUNDS {
        for ((_, wire, mtu), found) in kinds.iter().zip(&mut found) {
            let rig = Rig::new(*wire, *mtu)?;
            found[0].push(f64::from(SIZE) / rig.run(SIZE, 4)?.as_nanos() as f64);
            found[1].push(rig.run(8, 1)?.as_nanos() as f64);
        }
    }
    let medians: Vec<[f64; 2]> = found
        .into_iter()
        .map(|columns| {
            columns.map(|mut all| {
                all.sort_by(f64::total_cmp);
                all[all.len() / 2]
            })
        })
        .collect();
    for ((name, ..), [rate, time]) in kinds.iter().zip(&medians) {
        println!(
            "{name}: 1 MiB {rate:.3} GB/s ({:.2} of RoCE v2), 8 bytes there and back {time:.0} ns ({:.2})",
            rate / medians[0][0],
            time / medians[0][1]
        );
    }
    Ok(())
}
