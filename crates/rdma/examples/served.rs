//! How long a WRITE of 8 bytes takes that another thread's engine does, beside the round trip of a cache line between the two
//! threads; and how much processor a program needs for 1 GiB that it lets the other one move.
//!
//! `cargo run --release -p millrace-rdma --example served`. Two cores: one for the program, one for the card.

use millrace_dma::{Ordering, Pages, Protection, Region, Word64};
use millrace_rdma::engine::Options;
use millrace_rdma::memory::Refused;
use millrace_rdma::number::{Gid, Key, Moment, Psn, Qpn};
use millrace_rdma::served::{Account, Number, Program, Quota, ServeError, Service};
use millrace_rdma::transport::{Attributes, Capabilities, Init, Out, Sent, State};
use millrace_rdma::wire::{Format, Headers, Path, Service as Kind};
use millrace_rdma::work::{Access, Completion, Data, Flags, Operation, Piece, Request};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering as Std};
use std::time::{Duration, Instant};

const GID: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const LEN: usize = 1 << 20;
const ROUNDS: usize = 20_000;
const ALL: Access = Access(7);

struct NoWire;

impl Out for NoWire {
    fn packet<F>(&mut self, _: &Path, _: Qpn, _: &Headers, _: usize, _: F) -> Sent
    where
        F: FnOnce(&mut [u8]) -> Result<(), Refused>,
    {
        Sent::Full
    }
}

struct End {
    number: Number,
    program: Program,
    memory: Region,
    key: Key,
    queue: u32,
    qpn: Qpn,
}

fn again(region: &Region) -> Result<Region, Box<dyn Error>> {
    let fd = region.fd().ok_or("no descriptor")?.try_clone_to_owned()?;
    Ok(Region::map(fd, region.len(), Protection::ReadWrite, false)?)
}

fn end(service: &mut Service) -> Result<End, Box<dyn Error>> {
    let number = service.enter(Account { uid: 0, is_owner: true })?;
    let mut program = Program::new(again(service.memory_of(number)?)?.window())?;
    let memory = Region::allocate(LEN, Pages::Ordinary)?;
    let domain = service.create_domain(number)?;
    let key = service.register(number, domain, &again(&memory)?, Some(0), ALL)?.lkey;
    let (queue, ring) = service.create_queue(number, 256, |ring| again(ring).map_err(|_| ServeError::Gone))?;
    program.add_queue(queue, 256, ring.window())?;
    let capabilities = Capabilities { send_requests: 64, ..Capabilities::default() };
    let init = Init {
        service: Kind::ReliableConnection,
        general: false,
        domain,
        send_queue: queue,
        receive_queue: queue,
        shared_receive_queue: None,
        capabilities,
        signal_all: false,
        context: 0,
    };
    let (qpn, granted) = service.create_pair(number, &init)?;
    program.add_pair(qpn, &granted, false);
    Ok(End { number, program, memory, key, queue, qpn })
}

fn connect(service: &mut Service, one: &End, remote: Qpn) -> Result<(), Box<dyn Error>> {
    let path = Path {
        format: Format::RoceV2,
        source_mac: MAC,
        destination_mac: MAC,
        source: GID,
        destination: GID,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        source_port: 0xc000,
    };
    let init = Attributes { pkey_index: Some(0), port: Some(1), access: Some(ALL), ..Attributes::state(State::Init) };
    let receive = Attributes {
        path: Some(path),
        path_mtu: Some(4096),
        remote: Some(remote),
        receive_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(4),
        min_rnr_timer: Some(1),
        ..Attributes::state(State::ReadyToReceive)
    };
    let send = Attributes {
        send_psn: Some(Psn::new(0)),
        timeout: Some(14),
        retry_count: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(4),
        ..Attributes::state(State::ReadyToSend)
    };
    for told in [init, receive, send] {
        service.modify_pair(one.number, one.qpn, &told)?;
    }
    Ok(())
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

fn wait(word: &Word64, value: u64) {
    while word.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
    }
}

/// A word there and a word back.
fn cache_line() -> Result<u64, Box<dyn Error>> {
    let region = Region::allocate(4096, Pages::Ordinary)?;
    let (there, back) = (region.window().word64(0)?, region.window().word64(128)?);
    let (other_there, other_back) = (there.clone(), back.clone());
    let other = std::thread::spawn(move || {
        for round in 1..=ROUNDS as u64 {
            wait(&other_there, round);
            other_back.store(round, Ordering::Release);
        }
    });
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 1..=ROUNDS as u64 {
        let began = Instant::now();
        there.store(round, Ordering::Release);
        wait(&back, round);
        times.push(began.elapsed().as_nanos() as u64);
    }
    other.join().map_err(|_| "the other thread panicked")?;
    Ok(median(times))
}

fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

impl End {
    fn write(&mut self, id: u64, rkey: Key, len: u32, signaled: bool) -> bool {
        let piece = [Piece { address: 0, len, lkey: self.key }];
        let operation = Operation::Write { address: 0, rkey, immediate: None };
        let flags = Flags { signaled, ..Flags::default() };
        let request = Request { id, operation, data: Data::Pieces(&piece), flags, target: None };
        self.program.post_send(self.qpn, &request).is_ok()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut service = Service::new(Options::default(), MAC, &[GID], Quota::default());
    let (mut a, b) = (end(&mut service)?, end(&mut service)?);
    connect(&mut service, &a, b.qpn)?;
    connect(&mut service, &b, a.qpn)?;
    let ended = AtomicBool::new(false);
    let mut found = [Completion::default(); 64];
    let line = cache_line()?;
    std::thread::scope(|scope| {
        let stop = &ended;
        scope.spawn(move || {
            let began = Instant::now();
            for look in 0_u32.. {
                if stop.load(Std::Relaxed) {
                    break;
                }
                if !look.is_multiple_of(256) && !service.has_something() {
                    continue;
                }
                service.turn(Moment::new(began.elapsed().as_nanos() as u64), &mut NoWire);
            }
        });
        let done = measure(&mut a, &b, &mut found, line);
        ended.store(true, Std::Relaxed);
        done
    })
}

fn measure(a: &mut End, b: &End, found: &mut [Completion], line: u64) -> Result<(), Box<dyn Error>> {
    let (from, to) = (a.memory.window().word64(0)?, b.memory.window().word64(0)?);
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 1..=ROUNDS as u64 {
        from.store(round, Ordering::Release);
        let began = Instant::now();
        while !a.write(round, b.key, 8, round % 32 == 0) {
            a.program.poll(a.queue, found)?;
        }
        wait(&to, round);
        times.push(began.elapsed().as_nanos() as u64);
        if round % 32 == 0 {
            while a.program.poll(a.queue, found)? == 0 {}
        }
    }
    let write = median(times);
    println!(
        "WRITE of 8 bytes: {write} ns; a cache line there and back: {line} ns; ratio {:.2}",
        write as f64 / line as f64
    );
    let (began, before) = (Instant::now(), cpu());
    let (mut posted, mut ended) = (0, 0);
    while ended < 1024 {
        while posted < 1024 && a.write(posted, b.key, LEN as u32, true) {
            posted += 1;
        }
        ended += a.program.poll(a.queue, found)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let (took, used) = (began.elapsed(), cpu() - before);
    let percent = 100.0 * used.as_secs_f64() / took.as_secs_f64();
    let speed = (1_u64 << 30) as f64 / took.as_secs_f64() / 1e9;
    println!("1 GiB: {speed:.1} GB/s, {percent:.1} % of a core for the program");
    Ok(())
}
