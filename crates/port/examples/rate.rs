//! What a port does without a card: `rate receive SPEC`, `rate send SPEC` and `rate forward SPEC SPEC` print frames per
//! second, once a second, until they are interrupted or for as many seconds as a last argument says.
//!
//! ```text
//! cargo run --release -p millrace-port --example rate -- send af_xdp:veth0 5
//! ```

use millrace_dma::Span;
use millrace_port::{Accept, PortQueue, PortSpec, Sink, open};
use std::{
    error::Error,
    time::{Duration, Instant},
};

const BURST: usize = 64;

/// Sends what it is given.
struct Forward<'p>(&'p mut dyn PortQueue);

impl Sink for Forward<'_> {
    fn take(&mut self, frame: Span<'_>) -> Accept {
        if self.take_burst(&[frame]) == 1 { Accept::Taken } else { Accept::Full }
    }

    fn take_burst(&mut self, frames: &[Span<'_>]) -> usize {
        let taken = self.0.transmit_burst(frames).taken;
        self.0.flush();
        taken
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (what, rest) = arguments.split_first().ok_or("say receive, send or forward")?;
    let seconds = rest.last().and_then(|last| last.parse::<u64>().ok()).unwrap_or(u64::MAX);
    let mut ports = Vec::new();
    for spec in rest.iter().filter(|argument| argument.parse::<u64>().is_err()) {
        ports.push(open(&spec.parse::<PortSpec>()?)?.remove(0));
    }
    let mut ports = ports.iter_mut();
    let first = ports.next().ok_or("name a port")?;
    println!("{}", first.counters().mode());
    let frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5][..], &[0; 50]].concat();
    let burst = [Span::from_slice(&frame); BURST];
    let mut second = ports.next();
    for _ in 0..seconds {
        let start = Instant::now();
        let before = (first.counters().rx_frames(), first.counters().tx_frames());
        while start.elapsed() < Duration::from_secs(1) {
            for _ in 0..64 {
                match (what.as_str(), &mut second) {
                    ("receive", _) => drop(first.receive(BURST, &mut |_: Span<'_>| Accept::Taken)),
                    ("send", _) => {
                        let _ = first.transmit_burst(&burst);
                        first.flush();
                    }
                    ("forward", Some(second)) => {
                        first.receive(BURST, &mut Forward(second.as_mut()));
                        second.receive(BURST, &mut Forward(first.as_mut()));
                    }
                    _ => return Err("say receive SPEC, send SPEC or forward SPEC SPEC".into()),
                }
            }
        }
        let counters = first.counters();
        let seconds = start.elapsed().as_secs_f64();
        let (rx, tx) = (counters.rx_frames() - before.0, counters.tx_frames() - before.1);
        let dropped: u64 = counters.rx_drops().map(|(_, count)| count).sum();
        println!("rx {:.0} tx {:.0} pps, {dropped} dropped", rx as f64 / seconds, tx as f64 / seconds);
    }
    Ok(())
}
