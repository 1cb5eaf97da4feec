//! The traffic of the switches: one thread that sends and receives as a virtual machine would, with our own half of the
//! virtqueues, and so little work per frame that the switch is what is measured. Sent frames lie in their buffers from
//! the beginning, unless they are of more flows than there are buffers; of received ones only the used ring is read.
//!
//! Against a thread that does nothing but recycle, this source sends and receives more than 100 million frames a
//! second.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use millrace_dma::Span;
use millrace_port::virtio_user::{Device, DeviceError, Pair, Size, Wishes};
use millrace_tool::clock::Clock;
use millrace_tool::distribution::Distribution;
use millrace_tool::stop;

use super::forwarder::Forwarder;
use super::process::LONGEST_WAIT;
use super::traffic::{Change, Frames, Traffic, udp};

/// Descriptors of a queue: what QEMU has by default, and where testpmd is fastest.
const RING: u16 = 256;
/// Frames that are sent together.
const BURST: u16 = 32;
/// Turns of a loop between two looks at the clock.
const TURNS: u32 = 64;
/// How long frames flow before they are counted.
const WARM_UP: Duration = Duration::from_millis(200);
/// More flows than that are learned until the rate of one look is within a twentieth of that of the look before.
const FEW_FLOWS: usize = 1000;
const LOOK: Duration = Duration::from_millis(250);
const SHORTEST_WARM_UP: Duration = Duration::from_secs(1);
const LONGEST_WARM_UP: Duration = Duration::from_secs(20);
/// A frame that is not back by then is lost.
const LOST_AFTER: Duration = Duration::from_millis(100);
/// A switch that is still busy with its new port is asked that often, and needs this core in between.
const RETRY_AFTER: Duration = Duration::from_millis(2);

/// Millions of frames of one size per second from the first socket to the second. Errors are sentences.
pub fn forward(forwarder: &mut Forwarder, size: u16, seconds: f64) -> Result<f64, String> {
    let traffic = Traffic::new(Frames::one(&udp::frame(size, 0)), Change::None);
    Ends::connect(forwarder)?.rate(forwarder, Way::There, &traffic, seconds)
}

/// From which socket to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the first to the second.
    There,
    /// The other way.
    Back,
}

/// Two sockets of a forwarder.
pub struct Ends {
    ends: [Device; 2],
}

impl Ends {
    /// Errors are sentences.
    pub fn connect(forwarder: &Forwarder) -> Result<Self, String> {
        Ok(Self { ends: [connect(&forwarder.sockets[0])?, connect(&forwarder.sockets[1])?] })
    }

    /// Millions of frames that arrive per second. Errors are sentences.
    pub fn rate(
        &mut self,
        forwarder: &mut Forwarder,
        way: Way,
        traffic: &Traffic,
        seconds: f64,
    ) -> Result<f64, String> {
        let [first, second] = &mut self.ends;
        let (from, to) = if way == Way::There { (first, second) } else { (second, first) };
        let (tx, rx) = (&mut from.pairs[0], &mut to.pairs[0]);
        let mut sender = Sender::new(tx, &traffic.frames)?;
        await_first(forwarder, &mut sender, rx, traffic)?;
        warm_up(&mut sender, rx, traffic)?;
        let (start, mut arrived) = (Instant::now(), 0);
        // Where others want the cores, too, it may take longer than that until it is the forwarder's turn.
        while arrived == 0 && start.elapsed() < LONGEST_WAIT && !stop::asked() {
            arrived = run(&mut sender, rx, Duration::from_secs_f64(seconds))?;
        }
        let rate = arrived as f64 / start.elapsed().as_secs_f64();
        sender.finish(rx)?;
        forwarder.check()?;
        if arrived == 0 && !stop::asked() {
            return Err(format!("no frame arrived in {} s", LONGEST_WAIT.as_secs()));
        }
        Ok(rate / 1e6)
    }
}

/// Times of the round trip of one frame that comes back at the socket it went in by. Errors are sentences.
pub fn round_trips(forwarder: &mut Forwarder, size: u16, seconds: f64) -> Result<Distribution, String> {
    let times = round_trips_at(&forwarder.sockets[0].clone(), size, seconds, false, || forwarder.check())?;
    forwarder.check()?;
    Ok(times)
}

/// The same at a socket, while `check` finds nothing wrong. `shares`: who sends the frame back has the same core, and gets it while
/// this one waits.
pub fn round_trips_at(
    socket: &Path,
    size: u16,
    seconds: f64,
    shares: bool,
    mut check: impl FnMut() -> Result<(), String>,
) -> Result<Distribution, String> {
    let mut device = connect(socket)?;
    let pair = &mut device.pairs[0];
    let mut traveller = Traveller { frame: udp::frame(size, 0), number: 0, clock: Clock::start(), shares };
    let start = Instant::now();
    while traveller.go(pair, RETRY_AFTER)?.is_none() {
        check()?;
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
        // On a shared core a trip takes as long as others keep it.
        for _ in 0..if shares { 1 } else { TURNS } {
            match traveller.go(pair, LOST_AFTER)? {
                Some(time) if elapsed > WARM_UP => times.record(time),
                Some(_) => {}
                None => lost += 1,
            }
        }
    }
    if lost > 0 && !stop::asked() {
        return Err(format!("{lost} frames did not come back: such a measurement is none"));
    }
    Ok(times)
}

/// The other half of a vhost-user socket. Errors are sentences.
pub fn connect(socket: &Path) -> Result<Device, String> {
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

/// Sends until a frame arrives that is what becomes of one that was sent. A switch may say something by itself before.
fn await_first(
    forwarder: &mut Forwarder,
    from: &mut Sender<'_>,
    to: &mut Pair,
    traffic: &Traffic,
) -> Result<(), String> {
    let (start, mut others) = (Instant::now(), 0);
    loop {
        from.send();
        if to.rx.poll(1) == 1 {
            let mut arrived = vec![0; to.rx.frame(0).len()];
            to.rx.frame(0).read_into(&mut arrived);
            to.rx.recycle();
            to.publish();
            if traffic.may_become(&arrived) {
                return Ok(());
            }
            others += 1;
        }
        forwarder.check()?;
        if start.elapsed() > LONGEST_WAIT || stop::asked() {
            let seconds = start.elapsed().as_secs();
            return Err(format!("no frame arrived as it should be in {seconds} s, and {others} others"));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Sends until the rate is what it stays: a switch learns flows, and does so more slowly than it forwards.
fn warm_up(from: &mut Sender<'_>, to: &mut Pair, traffic: &Traffic) -> Result<(), String> {
    run(from, to, WARM_UP)?;
    if traffic.frames.count() <= FEW_FLOWS {
        return Ok(());
    }
    let (start, mut before) = (Instant::now(), 0);
    while start.elapsed() < LONGEST_WARM_UP && !stop::asked() {
        let arrived = run(from, to, LOOK)?;
        if start.elapsed() > SHORTEST_WARM_UP && arrived.abs_diff(before) * 20 < before {
            break;
        }
        before = arrived;
    }
    Ok(())
}

/// Sends and receives for a while and returns how many frames arrived.
fn run(from: &mut Sender<'_>, to: &mut Pair, time: Duration) -> Result<u64, String> {
    let start = Instant::now();
    let mut arrived = 0;
    while start.elapsed() < time && !stop::asked() {
        for _ in 0..TURNS {
            let sent = from.send();
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
    match (from.pair.tx.broken(), to.rx.broken()) {
        (None, None) => Ok(arrived),
        (Some(why), _) | (_, Some(why)) => Err(why.to_string()),
    }
}

/// Who sends frames, again and again.
pub struct Sender<'a> {
    pair: &'a mut Pair,
    frames: &'a Frames,
    /// The one that is copied into a buffer next; `None` where the buffers hold what is sent.
    next: Option<usize>,
}

impl<'a> Sender<'a> {
    /// Frames that are no more than buffers stay in these; others are copied into a buffer each time.
    pub fn new(pair: &'a mut Pair, frames: &'a Frames) -> Result<Self, String> {
        if !pair.tx.fill(frames.get(0)) {
            return Err(format!("a frame of {} bytes does not fit a buffer", frames.get(0).len()));
        }
        if frames.count() == 1 {
            return Ok(Self { pair, frames, next: None });
        }
        // One into each buffer; then these are sent as they are, or go on being replaced.
        for number in 0..usize::from(RING) {
            pair.tx.push(Span::from_slice(frames.get(number % frames.count())), None);
        }
        pair.publish();
        let next = (frames.count() > usize::from(RING)).then_some(usize::from(RING));
        Ok(Self { pair, frames, next })
    }

    /// Sends a burst if there is room for it; how many that was.
    #[inline(always)]
    pub fn send(&mut self) -> u16 {
        if self.pair.tx.room() < BURST {
            return 0;
        }
        let sent = match &mut self.next {
            None => self.pair.tx.send_again(BURST),
            Some(next) => {
                for _ in 0..BURST {
                    self.pair.tx.push(Span::from_slice(self.frames.get(*next)), None);
                    *next = if *next + 1 == self.frames.count() { 0 } else { *next + 1 };
                }
                BURST
            }
        };
        self.pair.publish();
        sent
    }

    /// Waits until nothing is on its way any more.
    fn finish(self, to: &mut Pair) -> Result<(), String> {
        let start = Instant::now();
        while !self.pair.tx.is_drained() || to.rx.poll(usize::from(2 * BURST)) > 0 {
            to.rx.recycle();
            to.publish();
            if start.elapsed() > LONGEST_WAIT || stop::asked() {
                return Err("what was sent last was not taken".to_owned());
            }
        }
        Ok(())
    }
}

/// One frame that goes out and comes back again and again.
struct Traveller {
    frame: Vec<u8>,
    number: u64,
    clock: Clock,
    shares: bool,
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
                    if self.shares {
                        thread::yield_now();
                    }
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
