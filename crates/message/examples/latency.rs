//! What a doorbell and a message of eight bytes take one way, beside a bare cache line, in one run: two processes of one memory, each on a
//! core of its own, which do nothing but look. Turns of the three follow one another, so that each meets the same machine.
//!
//! `cargo run --release -p millrace-message --example latency [SIZE]`

use millrace_dma::{Ordering, Pages, Protection, Region, Word64};
use millrace_message::bell::{Filter, Owner, Receiver, Sender};
use millrace_message::channel::{CHANNEL_LEN, Channel, Side, Taken, doorbells};
use millrace_message::control::Tag;
use millrace_message::engine::{Engine, Limits, PairId, Way};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::error::Error;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Round trips of a turn, and turns.
const TRIPS: u64 = 20_000;
const TURNS: usize = 30;
/// Behind the channel: a word of each side, on lines of their own.
const LEN: usize = CHANNEL_LEN.next_multiple_of(4096) + 4096;

struct End {
    channel: Channel,
    bells_out: Sender,
    bells_in: Receiver,
    engine: Engine,
    pair: PairId,
    filter: Filter,
    own: Word64,
    other: Word64,
    trips: u64,
    is_first: bool,
    bytes: Vec<u8>,
    into: Vec<u8>,
}

impl End {
    fn new(region: &Region, side: Side, size: usize) -> Result<Self, Box<dyn Error>> {
        let channel = Channel::new(region.window(), side)?;
        let (bells_out, bells_in) = doorbells(region.window(), side)?;
        let mut filter = Filter::default();
        filter.claim(0..=u16::MAX, Owner(0))?;
        bells_in.publish(&filter);
        let mut engine = Engine::new(Limits::default())?;
        let pair = engine.connect(Way::Mapped, engine.terms()).ok_or("no such end")?;
        let word = |number: usize| region.window().word64(LEN - 4096 + number * 256);
        let is_first = side == Side::Maker;
        let (own, other) = if is_first { (word(0)?, word(1)?) } else { (word(1)?, word(0)?) };
        let (bytes, into) = (vec![7; size], vec![0; size]);
        Ok(Self { channel, bells_out, bells_in, engine, pair, filter, own, other, trips: 0, is_first, bytes, into })
    }

    /// So many round trips.
    fn run(&mut self, send: impl Fn(&mut Self), receive: impl Fn(&mut Self)) {
        for _ in 0..TRIPS {
            self.trips += 1;
            if self.is_first {
                send(self);
                receive(self);
            } else {
                receive(self);
                send(self);
            }
        }
    }

    fn line(&mut self) {
        self.run(
            |end| end.own.store(end.trips, Ordering::Release),
            |end| {
                while end.other.load(Ordering::Acquire) != end.trips {
                    core::hint::spin_loop();
                }
            },
        );
    }

    fn bell(&mut self) {
        self.run(
            |end| {
                while end.bells_out.ring(end.trips as u16).is_err() {
                    core::hint::spin_loop();
                }
            },
            |end| {
                loop {
                    match end.bells_in.take(&end.filter) {
                        Ok(Some(bell)) => break assert_eq!(bell.number, end.trips as u16),
                        Ok(None) => core::hint::spin_loop(),
                        Err(error) => panic!("{error}"),
                    }
                }
            },
        );
    }

    fn message(&mut self) {
        self.run(
            |end| {
                while !end.channel.send(&mut end.engine, end.pair, Tag(end.trips), &end.bytes) {
                    // Credits, which are said and heard like all else.
                    end.channel.say(&mut end.engine, end.pair, 8, |_| &[]);
                    let _ = end.channel.hear(&mut end.engine, end.pair, 1, |_, _, _| {});
                }
            },
            |end| {
                loop {
                    let tag = Tag(end.trips);
                    match end.channel.receive(&mut end.engine, end.pair, tag, u64::MAX, &mut end.into) {
                        Ok(Some(Taken::Message { len, .. })) => break assert_eq!(len, end.bytes.len()),
                        Ok(_) => core::hint::spin_loop(),
                        Err(error) => panic!("{error}"),
                    }
                }
            },
        );
    }
}

fn pin(core: usize) -> Result<(), Box<dyn Error>> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

fn measure(size: usize) -> Result<(), Box<dyn Error>> {
    pin(0)?;
    let region = Region::allocate(LEN, Pages::Ordinary)?;
    let fd = region.fd().ok_or("no file")?.as_raw_fd();
    let mut first = End::new(&region, Side::Maker, size)?;
    let path = format!("/proc/{}/fd/{fd}", std::process::id());
    let mut other = Command::new(std::env::current_exe()?).args([&size.to_string(), &path]).spawn()?;
    // It says that it is there.
    while first.other.load(Ordering::Acquire) != u64::MAX {
        std::thread::yield_now();
    }
    let mut found: [Vec<f64>; 3] = Default::default();
    for _ in 0..TURNS {
        let works: [fn(&mut End); 3] = [End::line, End::bell, End::message];
        for (work, found) in works.into_iter().zip(&mut found) {
            let begin = Instant::now();
            work(&mut first);
            found.push(begin.elapsed().as_nanos() as f64 / TRIPS as f64 / 2.0);
        }
    }
    other.wait()?;
    let median = |list: &mut Vec<f64>| {
        list.sort_by(f64::total_cmp);
        list[list.len() / 2]
    };
    let [line, bell, message] = found.each_mut().map(median);
    println!("one way, median of {TURNS} turns of {TRIPS} round trips");
    println!("cache line   {line:8.1} ns");
    println!("doorbell     {bell:8.1} ns  {:.2} times a cache line", bell / line);
    println!("{size:4} bytes   {message:8.1} ns  {:.2} times a cache line", message / line);
    Ok(())
}

fn answer(size: usize, path: &str) -> Result<(), Box<dyn Error>> {
    pin(1)?;
    let file: OwnedFd = File::options().read(true).write(true).open(path)?.into();
    let region = Region::map(file, LEN, Protection::ReadWrite, false)?;
    let mut end = End::new(&region, Side::Taker, size)?;
    end.own.store(u64::MAX, Ordering::Release);
    for _ in 0..TURNS {
        end.line();
        end.bell();
        end.message();
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let size = words.next().map_or(Ok(8), |word| word.parse());
    let done = match (size, words.next()) {
        (Ok(size), None) => measure(size),
        (Ok(size), Some(path)) => answer(size, &path),
        (Err(error), _) => Err(error.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("latency: {error}");
            ExitCode::FAILURE
        }
    }
}
