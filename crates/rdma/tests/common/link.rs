//! A link between ends, which loses, doubles and delays packets, and a clock.

use super::memory::Flat;
use millrace_rdma::engine::Engine;
use millrace_rdma::memory::Refused;
use millrace_rdma::number::{Gid, Moment, Qpn};
use millrace_rdma::transport::{Origin, Out, Sent};
use millrace_rdma::wire::{Format, Headers, Packet, Path};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const fn gid(last: u8) -> Gid {
    Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last])
}

const fn path(from: u8, to: u8) -> Path {
    Path {
        format: Format::RoceV2,
        source_mac: [2, 0, 0, 0, 0, from],
        destination_mac: [2, 0, 0, 0, 0, to],
        source: gid(from),
        destination: gid(to),
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        source_port: 0xc000,
    }
}

/// The ways of both ends.
pub const PATH: [Path; 2] = [path(1, 2), path(2, 1)];

/// The way from one of several ends to another.
pub const fn path_between(from: u8, to: u8) -> Path {
    path(from, to)
}

/// What its receiver is told of a frame that went this way.
pub fn origin_of(path: &Path) -> Origin {
    Origin {
        path: Path {
            source_mac: path.destination_mac,
            destination_mac: path.source_mac,
            source: path.destination,
            destination: path.source,
            ..*path
        },
        grh: [0xee; 40],
        congested: false,
        service_level: 10,
    }
}

/// A packet on its way.
#[derive(Clone, Debug)]
pub struct Frame {
    pub path: Path,
    pub headers: Headers,
    pub payload: Vec<u8>,
    pub congested: bool,
}

/// Takes packets until it is full.
#[derive(Debug, Default)]
pub struct Outbox {
    pub frames: Vec<Frame>,
    pub spare: Vec<Vec<u8>>,
    pub room: usize,
}

impl Out for Outbox {
    fn packet<F>(&mut self, path: &Path, _source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        if self.room == 0 {
            return Sent::Full;
        }
        let mut payload = self.spare.pop().unwrap_or_default();
        payload.resize(len, 0);
        if let Err(refused) = fill(&mut payload) {
            return Sent::Refused(refused);
        }
        self.room -= 1;
        self.frames.push(Frame { path: *path, headers: *headers, payload, congested: false });
        Sent::Taken
    }
}

/// An engine and what it sends.
#[derive(Debug)]
pub struct End {
    pub engine: Engine<Flat>,
    pub outbox: Outbox,
}

impl End {
    pub fn new(engine: Engine<Flat>) -> Self {
        Self { engine, outbox: Outbox::default() }
    }

    pub fn give(&mut self, now: Moment, frame: &Frame) {
        let mut origin = origin_of(&frame.path);
        origin.congested = frame.congested;
        let packet = Packet { headers: frame.headers, payload: &frame.payload };
        self.engine.receive(now, &packet, &origin);
    }

    /// What it has to send now, at most `budget` packets.
    pub fn take(&mut self, now: Moment, budget: usize) -> Vec<Frame> {
        self.outbox.room = budget;
        // What needs no packet takes its turns, too.
        while self.engine.transmit(now, budget, &mut self.outbox) >= budget.max(1) && self.outbox.frames.is_empty() {}
        std::mem::take(&mut self.outbox.frames)
    }
}

/// Random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// What the link does to packets, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u64,
    pub doubled: u64,
    pub late: u64,
}

/// Two ends and the link between them.
#[derive(Debug)]
pub struct Link {
    pub ends: [End; 2],
    pub now: u64,
    pub faults: Faults,
    pub random: Random,
    /// An end that does not answer any more.
    pub dead: [bool; 2],
    /// Nanoseconds from one end to the other.
    pub delay: u64,
    /// Whether an end has got anything, and how many packets it has sent since that say that it does selective repeat.
    met: [bool; 2],
    pub says_so: [u64; 2],
    on_way: BinaryHeap<Reverse<(u64, u64, usize)>>,
    frames: Vec<Option<Frame>>,
    count: u64,
}

impl Link {
    pub fn new(ends: [End; 2], faults: Faults, seed: u64) -> Self {
        Self {
            ends,
            now: 0,
            faults,
            random: Random(seed),
            dead: [false; 2],
            delay: 1000,
            met: [false; 2],
            says_so: [0; 2],
            on_way: BinaryHeap::new(),
            frames: Vec::new(),
            count: 0,
        }
    }

    fn put(&mut self, to: usize, frame: Frame) {
        if self.random.below(1000) < self.faults.loss {
            return;
        }
        if self.random.below(1000) < self.faults.doubled {
            self.put_once(to, frame.clone());
        }
        self.put_once(to, frame);
    }

    fn put_once(&mut self, to: usize, frame: Frame) {
        let is_late = self.random.below(1000) < self.faults.late;
        let late = if is_late { self.random.below(20_000) } else { 0 };
        self.count += 1;
        self.on_way.push(Reverse((self.now + self.delay + late, self.count, self.frames.len() * 2 + to)));
        self.frames.push(Some(frame));
    }

    /// Lets both ends send, and gives them what has come. False: nothing is on its way, and no time is waited for before `until`.
    pub fn step(&mut self, until: u64) -> bool {
        let now = Moment::new(self.now);
        let mut came = false;
        for from in 0..2 {
            if self.dead[from] {
                continue;
            }
            let budget = 1 + self.random.below(64) as usize;
            for frame in self.ends[from].take(now, budget) {
                self.says_so[from] += u64::from(self.met[from] && frame.headers.extended);
                self.put(1 - from, frame);
                // There may be more, even if the link has lost all of these.
                came = true;
            }
        }
        while let Some(Reverse((time, _, place))) = self.on_way.peek().copied()
            && time <= self.now
        {
            self.on_way.pop();
            came = true;
            let (frame, to) = (self.frames[place / 2].take().unwrap(), place % 2);
            if !self.dead[to] {
                self.met[to] = true;
                self.ends[to].give(now, &frame);
            }
        }
        if came {
            return true;
        }
        self.sleep(until)
    }

    fn sleep(&mut self, until: u64) -> bool {
        if self.on_way.is_empty() {
            self.frames.clear();
        }
        let packet = self.on_way.peek().map(|Reverse((time, ..))| *time);
        let dead = self.dead;
        let timers = self.ends.iter().zip(dead).filter(|(_, dead)| !dead);
        let timer = timers.filter_map(|(end, _)| end.engine.next_deadline()).map(Moment::nanoseconds).min();
        let next = packet.into_iter().chain(timer).min();
        match next {
            Some(time) if time <= until => {
                self.now = time.max(self.now + 1);
                true
            }
            _ => false,
        }
    }

    /// Until nothing happens any more, or for that long.
    pub fn run(&mut self, time: u64) {
        let until = self.now + time;
        while self.now < until && self.step(until) {}
    }
}
