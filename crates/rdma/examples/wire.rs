//! What it costs to build and to parse one frame: nanoseconds, the fastest of many rounds.
//!
//! `cargo run --release -p millrace-rdma --example wire`
//!
//! Beside it: `crc32fast` alone over as many bytes as the invariant CRC covers, and copying the payload alone.

use millrace_rdma::number::{Gid, Key, Psn, Qpn};
use millrace_rdma::wire::{Format, Headers, Opcode, Path, Place, Prepared, Reth, Service, parse};
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

const ROUNDS: usize = 300;
const FRAMES: usize = 512;

/// Nanoseconds of one call, in the fastest of all rounds.
fn fastest(mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        (0..FRAMES).for_each(|_| call());
        best = best.min(begin.elapsed().as_nanos() as f64 / FRAMES as f64);
    }
    best
}

fn path(format: Format, is_ipv4: bool) -> Path {
    let (source_mac, destination_mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let gid = |mac: [u8; 6]| {
        if is_ipv4 { Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, mac[5])) } else { Gid::link_local(mac) }
    };
    Path {
        format,
        source_mac,
        destination_mac,
        source: gid(source_mac),
        destination: gid(destination_mac),
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        source_port: 0xc000,
    }
}

fn main() {
    let reth = Reth { address: 0x7f00_0000_1000, rkey: Key::new(0x1234), len: 4096 };
    let opcode = Opcode::Write { place: Place::Only, immediate: false };
    let mut headers = Headers::new(Service::ReliableConnection, opcode, Qpn::new(17), Psn::new(0));
    headers.reth = Some(reth);
    println!(
        "{:<22} {:>8} {:>6} {:>8} {:>8} {:>10} {:>7}",
        "WRITE", "payload", "frame", "build", "parse", "crc alone", "copy"
    );
    let lean = path(Format::Slurpoe, false);
    let kinds = [
        ("RoCE v2, IPv4", Prepared::new(&path(Format::RoceV2, true))),
        ("RoCE v2, IPv6", Prepared::new(&path(Format::RoceV2, false))),
        ("RoCE v1", Prepared::new(&path(Format::RoceV1, false))),
        ("SLURPoE", Prepared::new(&lean)),
        ("SLURPoE with CRC-32C", Prepared::new(&lean).map(|prepared| prepared.with_checksum(true))),
    ];
    for (name, prepared) in kinds {
        let prepared = prepared.expect("its addresses fit");
        for len in [8, 64, 1024, 4096, 8192] {
            if prepared.frame_len(&headers, len).is_ok() {
                measure(name, &prepared, &mut headers, len);
            }
        }
    }
}

fn measure(name: &str, prepared: &Prepared, headers: &mut Headers, len: usize) {
    let payload = vec![0x5a; len];
    let mut buffer = vec![0; 9216];
    let frame_len = prepared.frame_len(headers, len).expect("there is such a frame");
    let build = fastest(|| {
        headers.psn = headers.psn.next();
        let mut open = prepared.open(Qpn::new(9), black_box(headers), len, &mut buffer).expect("there is room");
        open.payload().copy_from_slice(black_box(&payload));
        black_box(open.close());
    });
    let parsed = fastest(|| {
        // By reference: handing it on by value would be a copy of 300 bytes.
        let parsed = parse(black_box(&buffer[..frame_len]));
        assert!(black_box(&parsed).is_ok(), "it is what was built");
    });
    let covered = &buffer[14..frame_len - 4];
    let sum = fastest(|| {
        black_box(crc32fast::hash(black_box(covered)));
    });
    let mut to = vec![0; len];
    let copy = fastest(|| {
        black_box(&mut to[..]).copy_from_slice(black_box(&payload));
    });
    println!("{name:<22} {len:>8} {frame_len:>6} {build:>8.1} {parsed:>8.1} {sum:>10.1} {copy:>7.1}");
}
