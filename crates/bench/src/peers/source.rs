//! The traffic of the switches: one thread that sends and receives as a virtual machine would, with our own half of the
//! virtqueues, and so little work per frame that the switch is what is measured. Sent frames lie in their buffers from
//! the beginning; of received ones only the used ring is read.
//!
//! Against a thread that does nothing but recycle, this source sends and receives more than 100 million frames a
//! second.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use millrace_dma::Span;
use millrace_packet::checksum::Sum;
use millrace_port::virtio_user::{Device, DeviceError, Pair, Size, Wishes};
use millrace_tool::clock::Clock;
use millrace_tool::distribution::Distribution;
use millrace_tool::stop;

use super::forwarder::Forwarder;
use super::process::LONGEST_WAIT;

/// Descriptors of a queue: what QEMU has by default, and where testpmd is fastest.
const RING: u16 = 256;
/// Frames that are sent together.
const BURST: u16 = 32;
/// Turns of a loop between two looks at the clock.
const TURNS: u32 = 64;
/// How long frames flow before they are counted.
const WARM_UP: Duration = Duration::from_millis(200);
/// A frame that is not back by then is lost.
const LOST_AFTER: Duration = Duration::from_millis(100);
/// A switch that is still busy with its new port is asked that often, and needs this core in between.
const RETRY_AFTER: Duration = Duration::from_millis(2);

/// Frames of one size per second from the first socket to the second. Errors are sentences.
pub fn forward(forwarder: &mut Forwarder, size: u16, seconds: f64) -> Result<f64, String> {
    let mut from = connect(&forwarder.sockets[0])?;
    let mut to = connect(&forwarder.sockets[1])?;
    let (tx, rx) = (&mut from.pairs[0], &mut to.pairs[0]);
    let frame = frame(size);
    if !tx.tx.fill(&frame) {
        return Err(format!("a frame of {size} bytes does not fit a buffer"));
    }
    await_first(forwarder, tx, rx, &frame)?;
    run(tx, rx, WARM_UP)?;
    let start = Instant::now();
    let arrived = run(tx, rx, Duration::from_secs_f64(seconds))?;
    let rate = arrived as f64 / start.elapsed().as_secs_f64();
    forwarder.check()?;
    if arrived == 0 && !stop::asked() {
        return Err("no frame arrived".to_owned());
    }
    Ok(rate / 1e6)
}

/// Times of the round trip of one frame that comes back at the socket it went in by. Errors are sentences.
pub fn round_trips(forwarder: &mut Forwarder, size: u16, seconds: f64) -> Result<Distribution, String> {
    let mut device = connect(&forwarder.sockets[0])?;
    let pair = &mut device.pairs[0];
    let mut traveller = Traveller { frame: frame(size), number: 0, clock: Clock::start() };
    let start = Instant::now();
    while traveller.go(pair, RETRY_AFTER)?.is_none() {
        forwarder.check()?;
        thread::sleep(RETRY_AFTER);
        if start.elapsed() > LONGEST_WAIT {
            return Err(format!("no frame came back in {} s", LONGEST_WAIT.as_secs()));
        }
    }
    let mut times = Distribution::new();
    let mut lost = 0;
    let (start, seconds) = (Instant::now(), WARM_UP.as_secs_f64() + seconds);
    loop {
        let elapsed = start.elapsed();
        if elapsed.as_secs_f64() > seconds || stop::asked() {
            break;
        }
        for _ in 0..TURNS {
            match traveller.go(pair, LOST_AFTER)? {
                Some(time) if elapsed > WARM_UP => times.record(time),
                Some(_) => {}
                None => lost += 1,
            }
        }
    }
    forwarder.check()?;
    if lost > 0 && !stop::asked() {
        return Err(format!("{lost} frames did not come back: such a measurement is none"));
    }
    Ok(times)
}

fn connect(socket: &Path) -> Result<Device, String> {
    let size = Size::new(RING).expect("a power of two");
    let wishes = Wishes { pairs: 1, size, mergeable: false, event_index: false, in_order: true, offloads: false };
    let start = Instant::now();
    loop {
        match Device::connect(socket, wishes) {
            Ok(device) => return Ok(device),
            // The socket is there before somebody listens, and OVS hangs up when it is busy with another port.
            Err(DeviceError::Connect(_) | DeviceError::Request { .. })
                if start.elapsed() < LONGEST_WAIT && !stop::asked() =>
            {
                thread::sleep(Duration::from_millis(20));
            }
            Err(why) => return Err(format!("{}: {why}", socket.display())),
        }
    }
}

/// Sends until something arrives, and compares it.
fn await_first(forwarder: &mut Forwarder, from: &mut Pair, to: &mut Pair, frame: &[u8]) -> Result<(), String> {
    let start = Instant::now();
    loop {
        send(from);
        if to.rx.poll(1) == 1 {
            let mut arrived = vec![0; to.rx.frame(0).len()];
            to.rx.frame(0).read_into(&mut arrived);
            to.rx.recycle();
            return if arrived == frame { Ok(()) } else { Err("another frame arrived than was sent".to_owned()) };
        }
        forwarder.check()?;
        if start.elapsed() > LONGEST_WAIT || stop::asked() {
            return Err(format!("no frame arrived in {} s", start.elapsed().as_secs()));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Sends and receives for a while and returns how many frames arrived.
fn run(from: &mut Pair, to: &mut Pair, time: Duration) -> Result<u64, String> {
    let start = Instant::now();
    let mut arrived = 0;
    while start.elapsed() < time && !stop::asked() {
        for _ in 0..TURNS {
            let sent = send(from);
            let received = to.rx.poll(usize::from(2 * BURST));
            if received > 0 {
                arrived += received as u64;
                to.rx.recycle();
                to.publish();
            } else if sent == 0 {
                // Every look takes the line of an index away from the core that wants to write it.
                (0..8).for_each(|_| std::hint::spin_loop());
            }
        }
    }
    match (from.tx.broken(), to.rx.broken()) {
        (None, None) => Ok(arrived),
        (Some(why), _) | (_, Some(why)) => Err(why.to_string()),
    }
}

#[inline(always)]
fn send(pair: &mut Pair) -> u16 {
    if pair.tx.room() < BURST {
        return 0;
    }
    let sent = pair.tx.send_again(BURST);
    pair.publish();
    sent
}

/// A UDP datagram over IPv4: something that every switch can read.
fn frame(size: u16) -> Vec<u8> {
    let mut frame = vec![0; usize::from(size)];
    let ip_len = (size - 14).to_be_bytes();
    let udp_len = (size - 34).to_be_bytes();
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, ip_len[0], ip_len[1], 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let checksum = Sum::of(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame[34..42].copy_from_slice(&[0x10, 0, 0x20, 0, udp_len[0], udp_len[1], 0, 0]);
    frame
}

/// One frame that goes out and comes back again and again.
struct Traveller {
    frame: Vec<u8>,
    number: u64,
    clock: Clock,
}

impl Traveller {
    /// One round trip; its nanoseconds, or `None` if the frame did not come back in time.
    #[inline]
    fn go(&mut self, pair: &mut Pair, patience: Duration) -> Result<Option<u64>, String> {
        self.number += 1;
        let at = self.frame.len() - 8;
        let start = self.clock.now();
        self.frame[at..].copy_from_slice(&self.number.to_le_bytes());
        if pair.tx.room() == 0 || !pair.tx.push(Span::from_slice(&self.frame), None) {
            return Err("there is no room for a frame".to_owned());
        }
        pair.publish();
        let deadline = start.nanos() + patience.as_nanos() as u64;
        loop {
            for _ in 0..TURNS {
                if pair.rx.poll(1) == 0 {
                    continue;
                }
                let mut number = [0; 8];
                let frame = pair.rx.frame(0);
                let is_whole = frame.len() == self.frame.len();
                if is_whole {
                    frame.split_at(at).1.read_into(&mut number);
                }
                let end = self.clock.now();
                pair.rx.recycle();
                pair.publish();
                // One that had been given up may come before the one that is waited for.
                if is_whole && u64::from_le_bytes(number) == self.number {
                    return Ok(Some(end.nanos_since(start)));
                }
            }
            if let Some(why) = pair.tx.broken().or(pair.rx.broken()) {
                return Err(why.to_string());
            }
            if self.clock.now().nanos() > deadline || stop::asked() {
                return Ok(None);
            }
        }
    }
}
