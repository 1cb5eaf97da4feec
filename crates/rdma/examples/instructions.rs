//! Builds and parses WRITE packets, for a tool that counts instructions: what is more with twice as many is theirs.
//!
//! ```text
//! cargo build --release -p millrace-rdma --example instructions
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/instructions slurpoe 8 1000
//! ```

use millrace_rdma::number::{Gid, Psn, Qpn};
use millrace_rdma::wire::{Format, Headers, Opcode, Path, Place, Prepared, Reth, Service, parse};
use std::hint::black_box;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [format, len, count] = words.as_slice() else { panic!("instructions slurpoe|roce BYTES COUNT") };
    let format = if format == "slurpoe" { Format::Slurpoe } else { Format::RoceV2 };
    let (len, count): (usize, u32) = (len.parse().expect("bytes"), count.parse().expect("how many"));
    let (here, there) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let path = Path {
        format,
        source_mac: here,
        destination_mac: there,
        source: Gid::link_local(here),
        destination: Gid::link_local(there),
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        source_port: 0xc000,
    };
    let prepared = Prepared::new(&path).expect("its addresses fit");
    let opcode = Opcode::Write { place: Place::Only, immediate: false };
    let mut headers = Headers::new(Service::ReliableConnection, opcode, Qpn::new(17), Psn::new(0));
    headers.reth = Some(Reth { address: 0x1000, rkey: Default::default(), len: len as u32 });
    let (payload, mut buffer) = (vec![0x5a; len], vec![0; 9216]);
    for _ in 0..count {
        headers.psn = headers.psn.next();
        let mut open = prepared.open(Qpn::new(9), black_box(&headers), len, &mut buffer).expect("there is room");
        open.payload().copy_from_slice(black_box(&payload));
        let frame_len = open.close();
        let parsed = parse(black_box(&buffer[..frame_len]));
        assert!(black_box(&parsed).is_ok(), "it is what was built");
    }
}
