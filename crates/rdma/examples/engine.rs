//! What the transport costs: two engines back to back, packets handed over in memory.
//!
//! ```text
//! cargo run --release -p millrace-rdma --example engine
//! valgrind --tool=callgrind --callgrind-out-file=/tmp/out target/release/examples/engine 2000
//! ```
#[path = "../tests/common/mod.rs"]
mod common;

use common::link::{End, Random, origin_of};
use common::{Pair, Wish, connected};
use millrace_rdma::engine::Options;
use millrace_rdma::memory::Refused;
use millrace_rdma::number::{Key, Moment, Qpn};
use millrace_rdma::transport::{Origin, Out, Sent};
use millrace_rdma::wire::{Headers, Packet, Path};
use millrace_rdma::work::{Access, Completion, Data, Flags, Operation, Piece, Request, Status};
use std::time::{Duration, Instant};

/// Packets between two engines: memory that is used again and again.
struct Ring {
    headers: Vec<Headers>,
    payload: Vec<u8>,
    lens: Vec<usize>,
    count: usize,
    random: Random,
    /// Packets lost, of 10,000.
    loss: u64,
}

const SLOTS: usize = 64;
const SLOT: usize = 4096;

impl Ring {
    fn new(loss: u64) -> Self {
        Self {
            headers: Vec::with_capacity(SLOTS),
            payload: vec![0; SLOTS * SLOT],
            lens: Vec::with_capacity(SLOTS),
            count: 0,
            random: Random(1),
            loss,
        }
    }

    fn clear(&mut self) {
        self.headers.clear();
        self.lens.clear();
        self.count = 0;
    }
}

impl Out for Ring {
    fn packet<F>(&mut self, _path: &Path, _source: Qpn, headers: &Headers, len: usize, fill: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        if self.count == SLOTS {
            return Sent::Full;
        }
        if let Err(refused) = fill(&mut self.payload[self.count * SLOT..][..len]) {
            return Sent::Refused(refused);
        }
        if self.loss > 0 && self.random.below(10_000) < self.loss {
            return Sent::Taken;
        }
        self.headers.push(*headers);
        self.lens.push(len);
        self.count += 1;
        Sent::Taken
    }
}

struct Bench {
    ends: [End; 2],
    pairs: [Pair; 2],
    rings: [Ring; 2],
    origins: [Origin; 2],
    keys: [Key; 2],
    began: Instant,
    lines: Vec<Completion>,
}

impl Bench {
    fn new(extended: bool, loss: u64, mtu: u16) -> Self {
        let options = Options { extended, ..Options::default() };
        let wish = Wish { mtu, requests: 256, buffers: 512, timeout: 8, ..Wish::default() };
        let (mut ends, pairs) = connected([options; 2], &wish);
        let access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE).with(Access::REMOTE_READ);
        let mut keys = [Key::default(); 2];
        for at in 0..2 {
            keys[at] = ends[at].engine.memory().register(pairs[at].domain, 0, vec![7; 1 << 20], access);
        }
        let origins = [origin_of(&common::link::PATH[0]), origin_of(&common::link::PATH[1])];
        let rings = [Ring::new(loss), Ring::new(loss)];
        Self { ends, pairs, rings, origins, keys, began: Instant::now(), lines: vec![Completion::default(); 64] }
    }

    /// Both ends send, and get what the other has sent.
    fn turn(&mut self) {
        let now = Moment::new(self.began.elapsed().as_nanos() as u64);
        for from in 0..2 {
            let ring = &mut self.rings[from];
            ring.clear();
            self.ends[from].engine.transmit(now, SLOTS, ring);
            let origin = self.origins[from];
            for at in 0..ring.count {
                let payload = &ring.payload[at * SLOT..][..ring.lens[at]];
                let packet = Packet { headers: ring.headers[at], payload };
                self.ends[1 - from].engine.receive(now, &packet, &origin);
            }
        }
    }

    fn post(&mut self, operation: Operation, len: u32) -> bool {
        let piece = [Piece { address: 0, len, lkey: self.keys[0] }];
        let flags = Flags { signaled: true, ..Flags::default() };
        let request = Request { id: 1, operation, data: Data::Pieces(&piece), flags, target: None };
        self.ends[0].engine.post_send(self.pairs[0].qpn, &request).is_ok()
    }

    fn post_buffer(&mut self, len: u32) {
        let piece = [Piece { address: 0, len, lkey: self.keys[1] }];
        self.ends[1].engine.post_receive(self.pairs[1].qpn, 2, &piece).unwrap();
    }

    fn poll(&mut self, at: usize) -> usize {
        let count = self.ends[at].engine.poll(self.pairs[at].cq, &mut self.lines).unwrap();
        assert!(self.lines[..count].iter().all(|line| line.status == Status::Success), "{:?}", self.lines[0]);
        count
    }

    /// Does `total` requests, at most `depth` at a time. How long one took.
    fn run(&mut self, operation: Operation, len: u32, total: usize, depth: usize) -> Duration {
        let takes = matches!(operation, Operation::Send);
        if takes {
            (0..depth + 64).for_each(|_| self.post_buffer(len));
        }
        let begin = Instant::now();
        let (mut posted, mut ended) = (0, 0);
        while ended < total {
            while posted < total && posted - ended < depth && self.post(operation, len) {
                posted += 1;
            }
            self.turn();
            ended += self.poll(0);
            if takes {
                for _ in 0..self.poll(1) {
                    self.post_buffer(len);
                }
            }
        }
        begin.elapsed() / total as u32
    }
}

fn main() {
    // For a tool that counts instructions.
    if let Some(count) = std::env::args().nth(1) {
        let mut bench = Bench::new(true, 0, 4096);
        bench.run(Operation::Send, 64, count.parse().expect("how many SENDs of 64 bytes"), 1);
        return;
    }
    for extended in [false, true] {
        let name = if extended { "selective repeat" } else { "go-back-N" };
        let mut bench = Bench::new(extended, 0, 4096);
        let rkey = bench.keys[1];
        let write = Operation::Write { address: 0, rkey, immediate: None };
        println!("{name}:");
        for depth in [1, 32, 128] {
            let each = bench.run(write, 8, 1_000_000, depth);
            println!("  WRITE 8 B, {depth} at a time: {} ns each", each.as_nanos());
        }
        for depth in [1, 32] {
            let each = bench.run(Operation::Send, 64, 1_000_000, depth);
            println!("  SEND 64 B, {depth} at a time: {} ns each", each.as_nanos());
        }
        let big = |bench: &mut Bench, operation| {
            let each = bench.run(operation, 1 << 20, 2000, 4);
            f64::from(1 << 20) / each.as_nanos() as f64
        };
        let clean = big(&mut bench, write);
        println!("  WRITE 1 MiB: {clean:.2} GB/s");
        println!("  READ 1 MiB: {:.2} GB/s", big(&mut bench, Operation::Read { address: 0, rkey }));
        for loss in [10, 100, 500] {
            let mut bench = Bench::new(extended, loss, 4096);
            let got = big(&mut bench, write);
            let counters = *bench.ends[0].engine.counters();
            println!(
                "  WRITE 1 MiB, {:.1} % loss: {got:.2} GB/s, {:.2} of none; {:.3} of packets sent again, {} timeouts",
                loss as f64 / 100.0,
                got / clean,
                counters.repeated as f64 / counters.sent as f64,
                counters.timeouts
            );
        }
    }
}
