//! Forwards between two vhost-user sockets on one core, as fast as it can, and prints the rate and the time that a
//! frame takes every second: what the port costs without the card around it.
//!
//! `cargo run --release -p millrace-port --example vhost_forward -- SPEC SPEC [SECONDS]`

use millrace_dma::Span;
use millrace_port::{Accept, PortQueue, PortSpec, Sink, open};
use std::time::{Duration, Instant};

struct Onward<'a>(&'a mut dyn PortQueue);

impl Sink for Onward<'_> {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        if self.take_burst(&[frame]) == 1 { Accept::Taken } else { Accept::Full }
    }

    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        self.0.transmit_burst(frames).taken
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [one, other, rest @ ..] = &arguments[..] else { return Err("usage: vhost_forward SPEC SPEC [SECONDS]".into()) };
    let seconds: u64 = rest.first().map_or(Ok(10), |text| text.parse())?;
    let mut ports = [one, other].map(|spec| spec.parse::<PortSpec>().map_err(|error| error.to_string()));
    let [mut left, mut right] = [0, 1].map(|at| {
        let spec = std::mem::replace(&mut ports[at], Err(String::new())).unwrap_or_else(|error| panic!("{error}"));
        open(&spec).unwrap_or_else(|error| panic!("{error}"))
    });
    let begin = Instant::now();
    let (mut bursts, mut busy) = (0u64, Duration::ZERO);
    let (mut since, mut before) = (begin, 0);
    while begin.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..10_000 {
            for (left, right) in left.iter_mut().zip(&mut right) {
                let mut forward = |from: &mut dyn PortQueue, to: &mut dyn PortQueue| {
                    let start = Instant::now();
                    if from.receive(64, &mut Onward(to)) > 0 {
                        (bursts, busy) = (bursts + 1, busy + start.elapsed());
                    }
                };
                forward(&mut **left, &mut **right);
                forward(&mut **right, &mut **left);
            }
        }
        if since.elapsed() >= Duration::from_secs(1) {
            let ports = || left.iter().chain(&right).map(|port| port.counters());
            let now: u64 = ports().map(|counters| counters.tx_frames()).sum();
            let dropped: u64 = ports().map(|counters| counters.rx_offered() - counters.rx_frames()).sum();
            let frames = (now - before).max(1) as f64;
            let (burst, cost) = (frames / bursts.max(1) as f64, busy.as_nanos() as f64 / frames);
            let rate = (now - before) as f64 / since.elapsed().as_secs_f64() / 1e6;
            let modes: Vec<_> = ports().map(|counters| counters.mode()).collect();
            println!(
                "{rate:.3} Mpps, {burst:.1} frames per burst, {cost:.1} ns per frame in the loop, {dropped} dropped; {}",
                modes.join("; ")
            );
            (since, before, bursts, busy) = (Instant::now(), now, 0, Duration::ZERO);
        }
    }
    Ok(())
}
