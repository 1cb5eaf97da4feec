//! The fuzz target `driver_message` with pseudo-random inputs: messages as programs send them, with anything in their
//! fields, in any order; messages with bytes changed; and bytes that are no messages.

mod body;

use body::{Target, driver_message};
use millrace_abi::flow::{FlowChange, FlowOptions, FlowRequest, FlowTap, FlowTapWants};
use millrace_abi::message::{Buffers, ErrorCode, Handle, Locked, Reply, Request, VERSION, encode};
use millrace_abi::queue::{Direction, Joiners, Laggard, Mode, QueueId, Sharing};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 32) % bound
    }

    /// Mostly small, sometimes at an edge, sometimes anything.
    fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => self.next(),
            1 => u64::MAX - self.below(3),
            2 => (1 << self.below(64)) - self.below(2),
            _ => self.below(40),
        }
    }

    fn request(&mut self) -> Request {
        // Handles are given from 1 on for each connection.
        let handle = Handle(if self.below(20) == 0 { self.number() as u32 } else { self.below(12) as u32 });
        match self.below(30) {
            0 => Request::Hello { version: if self.below(4) == 0 { self.number() as u32 } else { VERSION } },
            1 => Request::DeviceTree,
            20 => Request::Clients { after: self.number() },
            21 => Request::EndClient { id: self.number() },
            22 => Request::Locks { skip: self.number() as u32 },
            23 if self.below(2) == 0 => Request::EndLocks { whose: Locked::Client(self.number()) },
            23 => Request::EndLocks { whose: Locked::Component("/mac".repeat(self.below(3) as usize)) },
            25..=29 => Request::Flow(self.flow_request()),
            24 => Request::Use { after: (self.below(2) == 0).then(|| self.number() as u32) },
            2 => Request::Read { address: self.address(), len: self.number() as u32 },
            3 | 4 => {
                let len = if self.below(10) == 0 { 5000 } else { self.below(17) };
                Request::Write { address: self.address(), bytes: (0..len).map(|_| self.number() as u8).collect() }
            }
            5 => Request::Lock { component: "/mac".repeat(self.below(3) as usize), bits: self.number() },
            6 => Request::Unlock { component: "/mac".repeat(self.below(3) as usize), bits: self.number() },
            7 => {
                let at = (self.below(2) == 0).then(|| self.number());
                let len = if self.below(2) == 0 { 1 << 16 } else { self.number() };
                Request::Map { len, writable: self.below(2) == 0, at }
            }
            8 => Request::Unmap { iova: if self.below(2) == 0 { 1 << 32 } else { self.number() } },
            9..=11 => {
                let direction = if self.below(2) == 0 { Direction::Rx } else { Direction::Tx };
                let sharing = match self.below(4) {
                    0 => Sharing::Exclusive,
                    1 => Sharing::Shared(Laggard::Block),
                    2 => Sharing::Shared(Laggard::Drop),
                    _ => Sharing::Shared(Laggard::Evict),
                };
                let buffers = match self.below(6) {
                    0 => Buffers::Program { entries: self.number() as u32 },
                    1 => Buffers::Program { entries: 64 },
                    2 => Buffers::Pool {
                        entries: 64,
                        at: if self.below(2) == 0 { 1 << 32 } else { self.number() },
                        size: self.number() as u32,
                        stride: self.number() as u32,
                        count: self.below(100) as u32,
                    },
                    _ => Buffers::Driver,
                };
                let mode = if self.below(2) == 0 { Mode::Direct } else { Mode::Mediated };
                let queue = QueueId { direction, index: self.below(4) as u32 };
                let flag = |random: &mut Self| random.below(2) == 0;
                let joiners = flag(self).then(|| Joiners { block: flag(self), drop: flag(self), evict: flag(self) });
                Request::Open { queue, mode, sharing, buffers, joiners }
            }
            12 | 13 => Request::Start { handle },
            14 => Request::Stop { handle, force: self.below(3) > 0, position: self.number() },
            15 => Request::Close { handle },
            16 => Request::RxSync { handle, release: self.number() as u32, want: self.number() as u32 },
            17 => {
                let len = self.below(30) as u16;
                let commit = (0..len).map(|_| if self.below(5) == 0 { self.number() as u16 } else { 64 }).collect();
                Request::TxSync { handle, commit, want: self.number() as u32 }
            }
            18 => Request::Call { handle },
            19 => Request::CountTooLong { handle, frames: self.number() as u32 },
            _ => Request::Stats,
        }
    }

    fn flow_request(&mut self) -> FlowRequest {
        let flag = |random: &mut Self| random.below(3) == 0;
        let options = FlowOptions { keep: flag(self), everyone: flag(self), replace: flag(self), brief: flag(self) };
        match self.below(15) {
            0 | 1 => FlowRequest::Begin(options),
            2 | 3 => FlowRequest::Add(self.flow_changes()),
            4 => FlowRequest::Commit { dry_run: flag(self) },
            5 => FlowRequest::Abort,
            6 => FlowRequest::List { filter: self.filter(), version: flag(self).then(|| self.number()) },
            7 => FlowRequest::More,
            8 => FlowRequest::Watch { removed: flag(self) },
            9 => FlowRequest::Events { after: self.number() },
            10 => FlowRequest::Explain {
                version: flag(self).then(|| self.number()),
                port: self.number() as u32,
                frame: (0..self.below(80)).map(|_| self.number() as u8).collect(),
                better: self.number() as u32,
            },
            11 => FlowRequest::Tap(FlowTap {
                wants: match self.below(5) {
                    0 => FlowTapWants::Port(self.number() as u32),
                    1 => FlowTapWants::Rule(self.number()),
                    2 => FlowTapWants::Cookie { cookie: self.number(), mask: self.number() },
                    3 => FlowTapWants::Expired,
                    _ => FlowTapWants::All,
                },
                snap: self.number() as u32,
                after: flag(self),
                rate: self.number() as u32,
            }),
            12 => FlowRequest::Heard,
            13 => FlowRequest::Untap,
            _ if flag(self) => FlowRequest::Info,
            _ => FlowRequest::Once { options, changes: self.flow_changes(), dry_run: flag(self) },
        }
    }

    fn flow_changes(&mut self) -> Vec<FlowChange> {
        let change = |random: &mut Self| match random.below(10) {
            0 => FlowChange::Add(format!("group={},rss,queues=0-2", random.number())),
            1 => FlowChange::Add(format!("meter={},rate={}kpps,burst=9", random.number(), random.number())),
            2 => FlowChange::Add("miss=drop".to_owned()),
            3 => FlowChange::Delete(random.filter()),
            4 => FlowChange::Modify(format!("{},actions=queue:{}", random.filter(), random.number())),
            5 => FlowChange::DeleteGroup(random.number() as u32),
            6 => FlowChange::DeleteMeter(random.number() as u32),
            7 => FlowChange::Add(format!("hard_timeout=1,{},actions=rss:{}", random.filter(), random.below(4))),
            8 => FlowChange::Renew(format!("hard_timeout=1,{},actions=queue:2", random.filter())),
            _ => FlowChange::Add(format!("{},actions=queue:1", random.filter())),
        };
        (0..self.below(4)).map(|_| change(self)).collect()
    }

    fn filter(&mut self) -> String {
        match self.below(6) {
            0 => String::new(),
            1 => format!("table={},tcp,strict", self.number()),
            2 => "x=".repeat(self.below(40) as usize),
            3 => "ip,nw_src=10.0.0.0/8".to_owned(),
            _ => format!("in_port={}", self.number()),
        }
    }

    fn address(&mut self) -> u32 {
        match self.below(4) {
            0 => self.number() as u32,
            1 => 0x8000 + self.below(0x400) as u32,
            2 => 0x0100_0000 + self.below(0x200) as u32,
            _ => 0x0120_0000 + self.below(0x200) as u32,
        }
    }

    fn input(&mut self) -> Vec<u8> {
        let mut input = Vec::new();
        for _ in 0..1 + self.below(6) {
            let mut bytes = match self.below(12) {
                0 => (0..self.below(64)).map(|_| self.next() as u8).collect(),
                _ => encode(&self.request()).unwrap(),
            };
            if self.below(8) == 0 && !bytes.is_empty() {
                let at = self.below(bytes.len() as u64) as usize;
                match self.below(3) {
                    0 => bytes.truncate(at),
                    1 => bytes[at] ^= 1 << self.below(8),
                    _ => bytes.push(self.next() as u8),
                }
            }
            let mut flags = (self.below(4) == 0) as u8;
            flags |= ((self.below(60) == 0) as u8) << 1;
            input.push(flags);
            input.extend((bytes.len() as u16).to_le_bytes());
            input.extend(bytes);
        }
        input
    }
}

#[test]
fn twenty_thousand_inputs() {
    let mut random = Random(0x0011_2233_4455_6677);
    for _ in 0..20_000 {
        driver_message(&random.input());
    }
}

#[test]
fn inputs_that_found_something_once() {
    driver_message(&[]);
    driver_message(&[0]);
    driver_message(&[0, 0, 0]);
    driver_message(&[3, 0xff, 0xff, 9]);
}

#[test]
fn who_closes_a_full_connection_may_come_again_at_once() {
    let mut target = Target::new();
    let map = encode(&Request::Map { len: 1 << 12, writable: false, at: None }).unwrap();
    for _ in 0..10 {
        let full = |reply: Option<Reply>| matches!(reply, Some(Reply::Error { code: ErrorCode::System, .. }));
        while !full(target.ask(&map, true)) {}
        target.come_again();
    }
}
