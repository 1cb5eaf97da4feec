//! How long a lookup takes: hit and miss of the cache of a worker, and transactions a second, with and without a reader.
//!
//!     cargo run --release --example lookup
//!
//! Prints one JSON object per line. 10,000 flows; 1,000 and 10,000 rules in 20 masks. A hit is a lookup of a burst of 64
//! keys whose entries are there; a miss is one with a cache of eight entries, so that nearly every key is searched.

use millrace_flow::field::Field;
use millrace_flow::language::{parse_filter, parse_rule};
use millrace_flow::rss::{Group, GroupSpec, MICROSOFT_KEY};
use millrace_flow::table::{Classifier, VerdictId};
use millrace_flow::version::{Change, Limits, Writer};
use millrace_flow::{Ingress, Key, RuleSpec};
use millrace_packet::parse::Layers;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FLOWS: u64 = 10_000;
const BURST: usize = 64;
const ROUNDS: usize = 9;

/// Numbers that look random and are the same every time (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Rule `number`: one of 20 masks, with values that some flow may have.
fn rule(number: u64, random: &mut Random) -> RuleSpec {
    let (a, b, c) = (random.next() % 256, random.next() % 256, random.next() % 65536);
    let matching = match number % 20 {
        len @ 0..8 => format!("tcp,nw_dst=10.{a}.{b}.0/{},tcp_dst={c}", 17 + len),
        len @ 8..12 => format!("ip,nw_src=10.{a}.{b}.0/{}", 8 + 4 * (len - 8)),
        12 => format!("tcp,tcp_dst={c}"),
        13 => format!("udp,udp_src={c}"),
        14 => format!("in_port={a},dl_vlan={b}"),
        15 => format!("dl_dst=02:00:00:00:{a:02x}:{b:02x}"),
        16 => format!("tcp,nw_src=10.{a}.{b}.1,nw_dst=10.{b}.{a}.1"),
        17 => format!("tcp,tcp_flags=+syn-ack,tcp_dst={c}"),
        18 => format!("ip,ip_dscp={},nw_dst=10.{a}.{b}.0/24", a % 64),
        _ => format!("udp,nw_dst=10.{a}.{b}.0/24,udp_dst={c}"),
    };
    let text = format!("priority={},{matching},actions=queue:{}", 100 + number % 20, number % 8);
    parse_rule(&text).expect("a rule of this program")
}

fn flow(random: &mut Random) -> Key {
    let mut key = Key::ZERO;
    key.set(Field::DlType, 0x0800);
    key.set(Field::DlDst, 0x0200_0000_0000 | (random.next() % 65536));
    key.set(Field::NwProto, if random.next().is_multiple_of(4) { 17 } else { 6 });
    key.set(Field::NwSrc, (10 << 24) | (random.next() % (1 << 24)));
    key.set(Field::NwDst, (10 << 24) | (random.next() % (1 << 24)));
    key.set(Field::TpSrc, random.next() % 65536);
    key.set(Field::TpDst, random.next() % 65536);
    key.set(Field::NwTtl, 64);
    key
}

fn writer(rules: u64) -> Writer {
    let mut random = Random(1);
    let mut writer = Writer::new(2, Limits::default());
    let rules: Vec<_> = (0..rules).map(|number| rule(number, &mut random)).collect();
    writer.commit(vec![Change::Replace(rules)], 0).expect("rules of this program");
    writer
}

/// Nanoseconds that this thread has had a processor; others may use the machine as well.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Nanoseconds per key, the best of several rounds over all keys.
#[inline(never)]
fn per_key(classifier: &mut Classifier, keys: &[Key]) -> f64 {
    let mut ids = [VerdictId::default(); BURST];
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for burst in keys.chunks(BURST) {
            black_box(classifier.lookup(0, black_box(burst), &mut ids));
        }
        best = best.min(start.elapsed().as_nanos() as f64 / keys.len() as f64);
    }
    best
}

/// The frame of 64 bytes with a key of [`flow`].
fn frame(key: &Key) -> [u8; 64] {
    let number = |field| key.get(field).0[0];
    let mut frame = [0; 64];
    frame[..6].copy_from_slice(&number(Field::DlDst).to_be_bytes()[2..]);
    frame[12] = 8;
    frame[14..24].copy_from_slice(&[
        0x45,
        0,
        0,
        50,
        0,
        0,
        0,
        0,
        number(Field::NwTtl) as u8,
        number(Field::NwProto) as u8,
    ]);
    frame[26..30].copy_from_slice(&(number(Field::NwSrc) as u32).to_be_bytes());
    frame[30..34].copy_from_slice(&(number(Field::NwDst) as u32).to_be_bytes());
    frame[34..36].copy_from_slice(&(number(Field::TpSrc) as u16).to_be_bytes());
    frame[36..38].copy_from_slice(&(number(Field::TpDst) as u16).to_be_bytes());
    // A header of TCP has five words; a datagram has 30 bytes.
    if number(Field::NwProto) == 6 {
        frame[46] = 0x50
    } else {
        frame[39] = 30
    }
    frame
}

/// Nanoseconds per frame: parsing, key, and lookup.
#[inline(never)]
fn per_frame(classifier: &mut Classifier, frames: &[[u8; 64]]) -> f64 {
    let (mut keys, mut ids) = ([Key::ZERO; BURST], [VerdictId::default(); BURST]);
    let ingress = Ingress::default();
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for burst in frames.chunks(BURST) {
            for (key, frame) in keys.iter_mut().zip(burst) {
                *key = Key::extract(frame, &Layers::parse(frame), &ingress);
            }
            black_box(classifier.lookup(0, &keys[..burst.len()], &mut ids));
        }
        best = best.min(start.elapsed().as_nanos() as f64 / frames.len() as f64);
    }
    best
}

fn lookups(rules: u64, keys: &[Key]) {
    let writer = writer(rules);
    let mut large = writer.classifier(0, 32 * 1024);
    per_key(&mut large, keys);
    let hit = per_key(&mut large, keys);
    let frames: Vec<_> = keys.iter().map(frame).collect();
    let before = large.stats().misses;
    let framed = per_frame(&mut large, &frames);
    assert!(large.stats().misses - before < FLOWS / 10, "frames have the keys that they were made of");
    let mut small = writer.classifier(1, 8);
    let miss = per_key(&mut small, keys);
    let stats = small.stats();
    let share = stats.misses as f64 / (stats.hits + stats.misses) as f64;
    println!(
        r#"{{"rules":{rules},"flows":{FLOWS},"hit_ns":{hit:.1},"parse_and_hit_ns":{framed:.1},"miss_ns":{miss:.1},"miss_share":{share:.3}}}"#
    );
}

/// Single-rule transactions a second: adding and deleting in turns, while somebody looks up or nobody does.
fn updates(rules: u64, keys: &[Key], reader: bool) {
    let mut writer = writer(rules);
    let mut classifier = writer.classifier(0, 32 * 1024);
    let stop = AtomicBool::new(false);
    let (updates, lookups) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut lookups, mut ids) = (0u64, [VerdictId::default(); BURST]);
            while reader && !stop.load(Ordering::Relaxed) {
                for burst in keys.chunks(BURST) {
                    lookups += classifier.lookup(0, burst, &mut ids) as u64;
                }
            }
            lookups
        });
        let mut random = Random(7);
        let changes: Vec<RuleSpec> = (0..1000).map(|number| rule(number, &mut random)).collect();
        let changes: Vec<_> = changes.into_iter().map(|rule| RuleSpec { priority: 7, ..rule }).collect();
        let (start, cpu) = (Instant::now(), cpu_ns());
        let mut done = 0;
        while start.elapsed() < Duration::from_secs(1) {
            for rule in &changes {
                writer.commit(vec![Change::Add(rule.clone())], 0).expect("a rule of this program");
                let mut filter = parse_filter("strict,priority=7").expect("a filter of this program");
                (filter.table, filter.matching) = (Some(0), rule.matching);
                writer.commit(vec![Change::Delete(filter)], 0).expect("a filter of this program");
                done += 2;
            }
        }
        let rate = (done as f64 / start.elapsed().as_secs_f64(), (cpu_ns() - cpu) as f64 / done as f64);
        stop.store(true, Ordering::Relaxed);
        (rate, reading.join().unwrap_or(0))
    });
    let (rate, cpu) = updates;
    println!(
        r#"{{"rules":{rules},"reader":{reader},"rule_updates_per_s":{rate:.0},"cpu_ns_per_update":{cpu:.0},"lookups_meanwhile":{lookups}}}"#
    );
}

fn hashes(keys: &[Key]) {
    let group = Group::new(&GroupSpec::spread(&MICROSOFT_KEY, 8, 8)).expect("a group of this program");
    let mut ns = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for key in keys {
            black_box(group.queue(group.hash(black_box(key))));
        }
        ns = ns.min(start.elapsed().as_nanos() as f64 / keys.len() as f64);
    }
    println!(r#"{{"rss_ns":{ns:.1}}}"#);
}

fn main() {
    let mut random = Random(2);
    let keys: Vec<Key> = (0..FLOWS).map(|_| flow(&mut random)).collect();
    hashes(&keys);
    for rules in [1000, 10_000] {
        lookups(rules, &keys);
    }
    for reader in [false, true] {
        updates(10_000, &keys, reader);
    }
}
