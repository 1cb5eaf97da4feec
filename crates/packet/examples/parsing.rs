//! What finding the headers of a frame costs, beside `etherparse`.
//!
//! ```text
//! cargo build --release -p millrace-packet --example parsing
//! target/release/examples/parsing                                  # nanoseconds of all: the fastest of many rounds, in turns
//! for frame in udp4 tcp4 udp6 vlan vxlan; do for parser in nothing layers etherparse; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no --toggle-collect='*parse_one*' \
//!         target/release/examples/parsing $frame $parser 2>&1 | grep -E 'frames|Collected'
//! done; done
//! ```
//!
//! What is collected, divided by the frames printed, is what a change of the parser must not raise. Both hand out the same:
//! place and kind of the transport header, and the payload. What `nothing` costs is the call.

use etherparse::{SlicedPacket, TransportSlice};
use millrace_packet::parse::{Layers, Transport};
use std::hint::black_box;
use std::time::Instant;

const FRAMES: u32 = 10_000;
/// Short ones, so that some of them are not disturbed.
const ROUNDS: usize = 500;
const ROUND: u32 = 1000;

type Parser = fn(&[u8]) -> u64;
const PARSERS: [(&str, Parser); 3] = [("nothing", nothing), ("layers", layers), ("etherparse", etherparse)];
const NAMES: [&str; 5] = ["udp4", "tcp4", "udp6", "vlan", "vxlan"];

fn main() {
    let mut words = std::env::args().skip(1);
    if let (Some(frame), Some(parser)) = (words.next(), words.next()) {
        let (_, parser) = PARSERS.iter().find(|(name, _)| *name == parser).expect("nothing, layers or etherparse");
        let bytes = frame_of(&frame);
        for _ in 0..FRAMES {
            parse_one(&bytes, *parser);
        }
        println!("{frame}: {FRAMES} frames");
        return;
    }
    for name in NAMES {
        let bytes = frame_of(name);
        let mut fastest = [f64::INFINITY; PARSERS.len()];
        for _ in 0..ROUNDS {
            for (fastest, (_, parser)) in fastest.iter_mut().zip(PARSERS) {
                *fastest = fastest.min(nanoseconds(&bytes, parser));
            }
        }
        for (fastest, (parser, _)) in fastest.iter().zip(PARSERS) {
            println!("{name} {parser}: {fastest:.1} ns");
        }
    }
}

/// What callgrind counts.
#[inline(never)]
fn parse_one(frame: &[u8], parser: Parser) {
    black_box(parser(black_box(frame)));
}

fn nanoseconds(frame: &[u8], parser: Parser) -> f64 {
    let begin = Instant::now();
    for _ in 0..ROUND {
        parse_one(frame, parser);
    }
    begin.elapsed().as_nanos() as f64 / f64::from(ROUND)
}

fn nothing(frame: &[u8]) -> u64 {
    frame.len() as u64
}

fn layers(frame: &[u8]) -> u64 {
    let layers = Layers::parse(frame);
    let kind = match layers.transport() {
        Some((Transport::Udp, at)) => at as u64 + 1000,
        Some((_, at)) => at as u64,
        None => 0,
    };
    kind + layers.payload(frame).len() as u64
}

fn etherparse(frame: &[u8]) -> u64 {
    let Ok(packet) = SlicedPacket::from_ethernet(frame) else { return 0 };
    let place = |slice: &[u8]| (slice.as_ptr().addr() - frame.as_ptr().addr()) as u64;
    match &packet.transport {
        Some(TransportSlice::Udp(udp)) => place(udp.slice()) + 1000 + udp.payload().len() as u64,
        Some(TransportSlice::Tcp(tcp)) => place(tcp.slice()) + tcp.payload().len() as u64,
        _ => 0,
    }
}

/// One of [`NAMES`], 18 bytes of payload.
fn frame_of(name: &str) -> Vec<u8> {
    let payload = [7; 18];
    let udp = |port: u16, payload: &[u8]| {
        let [len, low] = (8 + payload.len() as u16).to_be_bytes();
        let [port, port_low] = port.to_be_bytes();
        [&[0x30, 0x39, port, port_low, len, low, 0, 0], payload].concat()
    };
    let ipv4 = |protocol: u8, payload: &[u8]| {
        let [len, low] = (20 + payload.len() as u16).to_be_bytes();
        [&[0x45, 0, len, low, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2], payload].concat()
    };
    let ethernet = |head: &[u8], payload: &[u8]| [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], head, payload].concat();
    let tcp = [&[0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0][..], &payload].concat();
    match name {
        "udp4" => ethernet(&[8, 0], &ipv4(17, &udp(53, &payload))),
        "tcp4" => ethernet(&[8, 0], &ipv4(6, &tcp)),
        "udp6" => {
            let udp = udp(53, &payload);
            ethernet(&[0x86, 0xdd], &[&[0x60, 0, 0, 0, 0, udp.len() as u8, 17, 64][..], &[1; 32], &udp].concat())
        }
        "vlan" => ethernet(&[0x81, 0, 0, 5, 8, 0], &ipv4(17, &udp(53, &payload))),
        "vxlan" => {
            let inner = ethernet(&[8, 0], &ipv4(6, &tcp));
            ethernet(&[8, 0], &ipv4(17, &udp(4789, &[&[8, 0, 0, 0, 0, 0, 7, 0][..], &inner].concat())))
        }
        _ => panic!("one of {NAMES:?}"),
    }
}
