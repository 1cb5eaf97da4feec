//! Sockets of Linux behind queues of a card: frames of RX queues go to a port such as a tap, and what that sends goes to the TX
//! queue with the number of the first. With the tap in a namespace of its own, a server there is the program that serves the queues.
//!
//!     MILLRACE_DEVICE=unix:/tmp/card.sock queue_tap QUEUE[,QUEUE...] PORT STOP
//!
//! It ends when the file STOP is there, and prints as JSON what it has had of UDP: of each client, how many packets came, and when
//! it was answered first, in nanoseconds of the monotonic clock; of each queue, how many packets of which length.
//! tests/cases/quic-stacks.sh counts with that whose packets came to a server that had not answered them.

use millrace::{Device, RxQueue, TxQueue};
use millrace_dma::Span;
use millrace_flow::quic::Path;
use millrace_packet::parse::Layers;
use millrace_port::{Accept, PortQueue, TxOutcome, open};
use std::collections::BTreeMap;
use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Frames that are taken in one go.
const BURST: usize = 64;
/// Pause when there is nothing to do.
const PAUSE: Duration = Duration::from_micros(200);

/// What a client has had here.
#[derive(Default)]
struct Client {
    received: u64,
    answered_ns: Option<u64>,
}

struct Instance {
    /// With how many datagrams of which length came.
    rx: Vec<(RxQueue, BTreeMap<usize, u64>)>,
    tx: TxQueue,
    port: Box<dyn PortQueue>,
    clients: BTreeMap<IpAddr, Client>,
    /// From the port, on their way to the card.
    waiting: Vec<Vec<u8>>,
}

impl Instance {
    /// Takes frames of the card to the port. Returns whether there were any.
    fn down(&mut self) -> Result<bool, Box<dyn Error>> {
        let mut had_some = false;
        for (queue, lengths) in &mut self.rx {
            for packet in queue.get(BURST)?.iter() {
                had_some = true;
                if let Some((path, datagram)) = Path::received(&Layers::parse(packet.data), packet.data) {
                    self.clients.entry(path.remote.0).or_default().received += 1;
                    *lengths.entry(datagram.len()).or_default() += 1;
                }
                // What finds no room is lost, as on a wire.
                if self.port.transmit(Span::from_slice(packet.data)) == TxOutcome::Full {
                    eprintln!("no room for a frame");
                }
            }
        }
        self.port.flush();
        Ok(had_some)
    }

    /// Takes frames of the port to the card. Returns whether there were any.
    fn up(&mut self) -> Result<bool, Box<dyn Error>> {
        let waiting = &mut self.waiting;
        if waiting.is_empty() {
            self.port.receive(BURST, &mut |frame: Span<'_>| {
                let mut bytes = vec![0; frame.len()];
                frame.read_into(&mut bytes);
                waiting.push(bytes);
                Accept::Taken
            });
        }
        let count = self.waiting.len().min(BURST);
        let waiting = &self.waiting;
        let Some(mut burst) = self.tx.get_each(count, |at| waiting[at].len() as u16)? else { return Ok(false) };
        for (at, frame) in waiting[..count].iter().enumerate() {
            burst[at].copy_from_slice(frame);
            if let Some((path, _)) = Path::sent(&Layers::parse(frame), frame) {
                self.clients.entry(path.remote.0).or_default().answered_ns.get_or_insert_with(now_ns);
            }
        }
        burst.send()?;
        self.waiting.drain(..count);
        Ok(count > 0)
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(now).unwrap_or_default().as_nanos() as u64
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [queues, port, stop] = &words[..] else { return Err("QUEUE[,QUEUE...] PORT STOP".into()) };
    let queues: Vec<u32> = queues.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let device = Device::open_default()?;
    let rx = queues.iter().map(|queue| Ok((device.rx(*queue).open()?.start()?, BTreeMap::new())));
    let mut instance = Instance {
        rx: rx.collect::<Result<_, millrace::Error>>()?,
        tx: device.tx(queues[0]).open()?.start()?,
        port: open(&port.parse()?)?.remove(0),
        clients: BTreeMap::new(),
        waiting: Vec::new(),
    };
    let mut looked = Instant::now();
    loop {
        let (down, up) = (instance.down()?, instance.up()?);
        if !down && !up {
            std::thread::sleep(PAUSE);
        }
        if looked.elapsed() > Duration::from_millis(50) {
            if std::path::Path::new(stop).exists() {
                break;
            }
            looked = Instant::now();
        }
    }
    let clients = instance.clients.iter().map(|(address, Client { received, answered_ns })| {
        let answered = answered_ns.map_or("null".to_owned(), |time| time.to_string());
        format!("\"{address}\": {{\"received\": {received}, \"answered_ns\": {answered}}}")
    });
    let lengths = queues.iter().zip(&instance.rx).map(|(queue, (_, lengths))| {
        let lengths = lengths.iter().map(|(len, count)| format!("\"{len}\": {count}"));
        format!("\"{queue}\": {{{}}}", lengths.collect::<Vec<_>>().join(", "))
    });
    let (clients, lengths) = (clients.collect::<Vec<_>>().join(", "), lengths.collect::<Vec<_>>().join(", "));
    println!("{{\"clients\": {{{clients}}}, \"queues\": {{{lengths}}}}}");
    Ok(())
}
