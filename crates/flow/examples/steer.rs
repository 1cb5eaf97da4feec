//! What steering costs: packets of established connections with one worker and with two, alone, and while the other worker has new
//! connections, and what an attacker costs who sends Initial packets only. Nanoseconds of processor time per packet, medians of nine rounds.
//!
//!     cargo run --release -p millrace-flow --example steer

use millrace_flow::quic::{Group, GroupSpec, NameSpec, Path};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const CONNECTIONS: u32 = 10_000;
const ROUND: Duration = Duration::from_millis(200);
const ROUNDS: usize = 9;

fn path(client: u32) -> Path {
    Path { remote: ((0x0a01_0000 + client).to_be_bytes().into(), 5000), local: ([10, 0, 0, 1].into(), 443) }
}

/// A long header of version 1, filled up to the length of a first datagram.
fn long(first: u8, destination: &[u8], source: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first, 0, 0, 0, 1, destination.len() as u8];
    bytes.extend(destination);
    bytes.push(source.len() as u8);
    bytes.extend(source);
    bytes.extend(if first & 0x30 == 0 { &[0][..] } else { &[] });
    let len = 1200 - bytes.len() - 2;
    bytes.extend((0x4000 | len as u16).to_be_bytes());
    bytes.resize(1200, 0);
    bytes
}

fn server_id(client: u32) -> [u8; 8] {
    (u64::from(client) << 20 | 0x5e).to_be_bytes()
}

/// A group with established connections, and a short packet of each.
fn group(spec: &GroupSpec) -> (Group, Vec<(Path, Vec<u8>)>) {
    let group = Group::new(spec).expect("a group of this program");
    let packets = (0..CONNECTIONS).map(|client| {
        let (path, id) = (path(client), server_id(client));
        // In steps of time, so that budgets do not matter.
        let now_ns = u64::from(client) * 100_000;
        group.sent(now_ns, 0, &path, &long(0xc0, &[1, 2, 3, 4], &id));
        group.steer(now_ns, &path, &long(0xe0, &id, &[1, 2, 3, 4]));
        (path, [&[0x40][..], &id, &[7; 30]].concat())
    });
    let packets = packets.collect();
    assert_eq!(group.connections(), CONNECTIONS as usize);
    (group, packets)
}

/// Processor time of this thread so far, in nanoseconds: what others do on the core does not count.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn start() -> (Instant, u64) {
    (Instant::now(), u64::from(CONNECTIONS) * 100_000)
}

/// Nanoseconds per packet of established connections, until `ended` or for a round.
fn established(group: &Group, packets: &[(Path, Vec<u8>)], (start, from): (Instant, u64)) -> f64 {
    let (begin, busy, mut count) = (Instant::now(), processor_ns(), 0u64);
    while begin.elapsed() < ROUND {
        for burst in packets.chunks(64) {
            let now_ns = from + start.elapsed().as_nanos() as u64;
            for (path, packet) in burst {
                black_box(group.steer(now_ns, path, packet));
            }
            count += burst.len() as u64;
        }
    }
    (processor_ns() - busy) as f64 / count as f64
}

/// As many new connections as there is time for until `ended`; nanoseconds for each.
fn flood(group: &Group, (start, from): (Instant, u64), ended: &AtomicBool, number: &AtomicU64) -> f64 {
    let (busy, mut count) = (processor_ns(), 0u64);
    let mut initial = long(0xc0, &[0; 8], &[1, 2, 3, 4]);
    while !ended.load(Relaxed) {
        let now_ns = from + start.elapsed().as_nanos() as u64;
        for _ in 0..64 {
            let number = number.fetch_add(1, Relaxed);
            initial[6..14].copy_from_slice(&number.to_be_bytes());
            let path = Path { remote: ((number as u32 | 0x8000_0000).to_be_bytes().into(), 1), ..path(0) };
            black_box(group.steer(now_ns, &path, &initial));
            count += 1;
        }
    }
    (processor_ns() - busy) as f64 / count as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn show(what: &str, spec: &GroupSpec, measure: impl Fn(&Group, &[(Path, Vec<u8>)]) -> f64) {
    let values = (0..ROUNDS).map(|_| {
        let (group, packets) = group(spec);
        measure(&group, &packets)
    });
    println!("{:8.1} ns  {what}", median(values.collect()));
}

/// One worker has established connections, and the other whatever `other` does until it is told to end.
fn beside(group: &Group, packets: &[(Path, Vec<u8>)], other: impl Fn(&AtomicBool) + Sync) -> f64 {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| other(&ended));
        let cost = established(group, packets, start());
        ended.store(true, Relaxed);
        cost
    })
}

fn main() {
    let spec = GroupSpec::over(vec![0, 1, 2, 3]);
    let free = GroupSpec { arrivals: u32::MAX, decryptions: u32::MAX, ..spec.clone() };
    let name = NameSpec { sni: Some("example.com".to_owned()), alpn: None, queues: vec![0] };
    let named = GroupSpec { names: vec![name], ..spec.clone() };
    let number = AtomicU64::new(1 << 40);
    show("established, one worker", &spec, |group, packets| established(group, packets, start()));
    show("established, beside a worker that has established ones as well", &spec, |group, packets| {
        beside(group, packets, |_| {
            black_box(established(group, packets, start()));
        })
    });
    show("established, beside a worker with Initials only, with the usual budget", &spec, |group, packets| {
        beside(group, packets, |ended| {
            flood(group, start(), ended, &number);
        })
    });
    show("established, beside a worker with Initials only, without a budget", &free, |group, packets| {
        beside(group, packets, |ended| {
            flood(group, start(), ended, &number);
        })
    });
    let alone = |group: &Group| {
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| flood(group, start(), &ended, &number));
            std::thread::sleep(ROUND * 3);
            ended.store(true, Relaxed);
            flood.join().expect("a thread of this program")
        })
    };
    show("an Initial that is entered", &free, |group, _| alone(group));
    let none = GroupSpec { arrivals: 0, decryptions: 0, ..spec.clone() };
    show("an Initial beyond the budget", &none, |group, _| alone(group));
    show("an Initial, with the usual budget for some of them", &spec, |group, _| alone(group));
    let decrypted = GroupSpec { decryptions: u32::MAX, arrivals: u32::MAX, ..named.clone() };
    show("an Initial that is decrypted and no ClientHello", &decrypted, |group, _| alone(group));
    show("the same, with the usual budget for some of them", &named, |group, _| alone(group));
}
