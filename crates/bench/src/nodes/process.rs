//! What a sender and a receiver do. Both are on one core where there are only two, and give it to each other while they wait.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use millrace_dma::Span;
use millrace_port::virtio_user::Pair;
use millrace_tool::failure::Failure;
use millrace_tool::output::put;
use millrace_tool::stop;

use crate::peers::source::{Sender, connect, round_trips_at};
use crate::peers::traffic::{Frames, udp};

/// Flows of a sender: as many as it has buffers.
const FLOWS: usize = 256;
/// Frames that are taken together.
const BURST: usize = 64;
/// How long frames flow before they count.
const WARM_UP: Duration = Duration::from_millis(200);

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Sends as fast as it can, until it is killed.
    Send,
    /// Says how many millions of frames come per second.
    Count,
    /// Sends one frame at a time, and says the median of the nanoseconds until it is back.
    Travel,
    /// Sends what comes back to whom it came from, until it is killed.
    Reflect,
}

impl Part {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Part::Send => "send",
            Part::Count => "count",
            Part::Travel => "travel",
            Part::Reflect => "reflect",
        }
    }

    /// At which socket of the card it is.
    pub fn socket(self) -> usize {
        match self {
            Part::Send | Part::Travel => 0,
            Part::Count | Part::Reflect => 1,
        }
    }
}

/// Options of the hidden command.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// What it does
    part: Part,
    /// The vhost-user socket of a card
    socket: PathBuf,
    /// Bytes of a frame
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(60..=2000))]
    frame: u16,
    /// How long it counts
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

/// Runs it. Senders and reflectors end when they are killed.
pub fn run(args: &NodeArgs) -> Result<(), Failure> {
    let value = match args.part {
        Part::Travel => {
            let times = round_trips_at(&args.socket, args.frame, args.seconds, true, || Ok(()));
            let median = times.map_err(Failure::Found)?.quantile(0.5);
            median.map(|nanos| nanos as f64).ok_or_else(|| Failure::Found("no frame came back".to_owned()))?
        }
        part => {
            let mut device = connect(&args.socket).map_err(Failure::Found)?;
            let pair = &mut device.pairs[0];
            match part {
                Part::Send => send(pair, args.frame),
                Part::Reflect => reflect(pair),
                _ => return Ok(put(&count(pair, args.seconds).to_string())?),
            }
            .map_err(Failure::Found)?;
            return Ok(());
        }
    };
    Ok(put(&value.to_string())?)
}

fn send(pair: &mut Pair, size: u16) -> Result<(), String> {
    let frames = Frames::many(FLOWS, |flow| udp::frame(size, flow as u16));
    let mut sender = Sender::new(pair, &frames)?;
    while !stop::asked() {
        if sender.send() == 0 {
            thread::yield_now();
        }
    }
    Ok(())
}

fn count(pair: &mut Pair, seconds: f64) -> f64 {
    // From the first frame on.
    while take(pair) == 0 && !stop::asked() {}
    let warm = Instant::now();
    while warm.elapsed() < WARM_UP && !stop::asked() {
        take(pair);
    }
    let (start, mut frames) = (Instant::now(), 0);
    while start.elapsed().as_secs_f64() < seconds && !stop::asked() {
        frames += take(pair);
    }
    frames as f64 / start.elapsed().as_secs_f64() * 1e-6
}

/// Takes what has come; gives the core away if that is nothing.
fn take(pair: &mut Pair) -> u64 {
    let received = pair.rx.poll(BURST);
    if received > 0 {
        pair.rx.recycle();
        pair.publish();
    } else {
        thread::yield_now();
    }
    received as u64
}

/// With Ethernet and IPv4 addresses exchanged, so that a tunnel has its own back. That changes no checksum.
fn reflect(pair: &mut Pair) -> Result<(), String> {
    let mut frame = Vec::new();
    while !stop::asked() {
        if pair.rx.poll(1) == 0 {
            thread::yield_now();
            continue;
        }
        frame.resize(pair.rx.frame(0).len(), 0);
        pair.rx.frame(0).read_into(&mut frame);
        pair.rx.recycle();
        if frame.len() >= 34 {
            let (ethernet, ip) = frame.split_at_mut(26);
            let (one, other) = ethernet.split_at_mut(6);
            one.swap_with_slice(&mut other[..6]);
            let (source, destination) = ip.split_at_mut(4);
            source.swap_with_slice(&mut destination[..4]);
        }
        if pair.tx.room() > 0 {
            pair.tx.push(Span::from_slice(&frame), None);
        }
        pair.publish();
    }
    Ok(())
}
