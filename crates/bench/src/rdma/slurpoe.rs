//! Frames of SLURPoE and of RoCE v2: the same engine and the same wire, a vhost-user socket in shared memory, between two threads
//! that each work on their port themselves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millrace_slurpoe::{Access, Address, Config, Endpoint, Notify, Region, Transfer, Wire};
use millrace_tool::cores;

use super::Bench;
use super::ours::Work;
use crate::median::median;

/// How packets stand in frames, and bytes of payload in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frames {
    pub wire: Wire,
    pub mtu: u16,
}

/// How long something may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// Writes between two looks at the clock.
const BATCH: usize = 16;
/// Long writes that are on their way at a time.
const DEPTH: usize = 4;

/// The end that writes.
struct Writer {
    here: Endpoint,
    memory: Region,
    other: Address,
    key: u32,
    size: u32,
}

/// WRITEs from one end to the other: ns from posting one until it is acknowledged, or GB/s. Errors are sentences.
pub fn measure(bench: &Bench, frames: Frames, work: Work) -> Result<f64, String> {
    let folder = tempfile::Builder::new().prefix("millrace-bench-").tempdir();
    let folder = folder.map_err(|why| format!("cannot make a temporary folder: {why}"))?;
    let open = |kind: &str| {
        let port = Some(format!("{kind}:{}", folder.path().join("wire").display()));
        Endpoint::open(&Config { port, wire: frames.wire, mtu: Some(frames.mtu), ..Config::default() }).map_err(text)
    };
    let (there, here) = (open("vhost-user")?, open("virtio-user")?);
    let target = there.allocate(work.size as usize, Access::ALL).map_err(text)?;
    let memory = here.allocate(work.size as usize, Access::LOCAL).map_err(text)?;
    let writer = Writer { here, memory, other: there.address(), key: target.key(), size: work.size as u32 };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(bench.cores.card);
            // Relaxed: it orders nothing.
            while !is_over.load(Ordering::Relaxed) {
                there.progress();
            }
        });
        let writing = scope.spawn(|| {
            pin(bench.cores.app);
            let value = writer.here.connect(writer.other, PATIENCE).map_err(text).and_then(|()| match work.measure {
                "latency" => writer.latency(bench.seconds),
                _ => writer.rate(bench.seconds),
            });
            is_over.store(true, Ordering::Relaxed);
            value
        });
        writing.join().unwrap_or_else(|_| Err("the end that writes has failed".to_owned()))
    })
}

/// Whoever cannot be pinned was told so before.
fn pin(core: Option<usize>) {
    if let Some(core) = core {
        let _ = cores::pin(core);
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Writer {
    /// The median of writes of which one is on its way at a time.
    fn latency(&self, seconds: f64) -> Result<f64, String> {
        let (warm, begin, mut samples) = (Duration::from_secs_f64(seconds / 4.0), Instant::now(), Vec::new());
        while begin.elapsed() < warm.mul_f64(5.0) || samples.is_empty() {
            let since = Instant::now();
            for _ in 0..BATCH {
                self.post()?;
                self.end()?;
            }
            if begin.elapsed() > warm {
                samples.push(since.elapsed().as_nanos() as f64 / BATCH as f64);
            }
        }
        median(&samples).ok_or_else(|| "nothing was measured".to_owned())
    }

    /// How fast writes go of which some are on their way at a time.
    fn rate(&self, seconds: f64) -> Result<f64, String> {
        for _ in 0..DEPTH {
            self.post()?;
        }
        let count_for = |seconds: f64| {
            let (begin, mut done) = (Instant::now(), 0_u32);
            while done == 0 || begin.elapsed().as_secs_f64() < seconds {
                self.end()?;
                self.post()?;
                done += 1;
            }
            Ok::<_, String>(f64::from(done) * f64::from(self.size) / begin.elapsed().as_nanos() as f64)
        };
        count_for(seconds / 4.0)?;
        let rate = count_for(seconds)?;
        (0..DEPTH).try_for_each(|_| self.end())?;
        Ok(rate)
    }

    fn post(&self) -> Result<(), String> {
        let from = self.memory.part(0, self.size).map_err(text)?;
        self.here.post(self.other, &[Transfer::write(from, self.key, 0)], 0, Notify::Poll).map_err(text)
    }

    fn end(&self) -> Result<(), String> {
        let end = self.here.wait(PATIENCE).ok_or("nothing ends")?;
        end.failed.map_or(Ok(()), |why| Err(text(why)))
    }
}
