//! Any bytes as a frame of RDMA, as it is and with lengths that fit; what is taken is built again and has to say the same.

use millrace_rdma::neighbour::Neighbours;
use millrace_rdma::number::{Gid, Moment, Qpn};
use millrace_rdma::wire::{Path, Prepared, parse};
use std::hint::black_box;

/// EtherType and place of the first bytes that choose a way through the parser.
const FRONTS: [&[u8]; 4] = [
    &[0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17],
    &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, 64],
    &[0x89, 0x15, 0x60, 0, 0, 0, 0, 0, 0x1b, 64],
    &[0x88, 0xb5, 1],
];

/// Parses a frame in many ways; returns how many packets there were.
///
/// # Panics
/// What was parsed cannot be built, or says something else then.
pub fn rdma_wire(input: &[u8]) -> u64 {
    let mac = [2, 0, 0, 0, 0, 1];
    let mut neighbours = Neighbours::new(mac, vec![Gid::link_local(mac), Gid::from_ipv4([10, 0, 0, 1].into())]);
    neighbours.find(Moment::new(0), Gid::from_ipv4([10, 0, 0, 2].into()));
    neighbours.hear(Moment::new(1), input);
    neighbours.tick(Moment::new(input.len() as u64 * 100_000_000));
    let mut found = u64::from(look_at(input));
    for front in FRONTS {
        if let Some(frame) = behind(front, input) {
            neighbours.hear(Moment::new(2), &frame);
            found += u64::from(look_at(&frame));
        }
    }
    found
}

/// The input with another front, and with lengths, port and checksums that fit.
fn behind(front: &[u8], input: &[u8]) -> Option<Vec<u8>> {
    let mut frame = input.to_vec();
    frame.get_mut(12..12 + front.len())?.copy_from_slice(front);
    let len = u16::try_from(frame.len() - 14).ok()?;
    let mut put = |at: usize, value: u16| {
        frame.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
        Some(())
    };
    match front[0] {
        0x08 => {
            put(16, len)?;
            put(36, 4791)?;
            put(38, len.checked_sub(20)?)?;
            put(24, 0)?;
            let sum = millrace_packet::checksum::Sum::of(frame.get(14..34)?).checksum();
            frame.get_mut(24..26)?.copy_from_slice(&sum.to_be_bytes());
        }
        0x86 => {
            put(18, len.checked_sub(40)?)?;
            put(56, 4791)?;
            put(58, len.checked_sub(40)?)?;
        }
        0x89 => put(18, len.checked_sub(40)?)?,
        // A length that may fit, and only flags that there are but for a sum, which would not hold.
        _ => {
            *frame.get_mut(16)? &= 1;
            *frame.get_mut(18)? &= 0xe0;
        }
    }
    Some(frame)
}

/// Whether there is a packet in it, which is then built anew.
fn look_at(frame: &[u8]) -> bool {
    let Ok((packet, from)) = parse(frame) else { return false };
    black_box((from.grh(), from.is_congested(), from.service_level()));
    let way = Path {
        source_mac: from.back.destination_mac,
        destination_mac: from.back.source_mac,
        source: from.back.destination,
        destination: from.back.source,
        ..from.back
    };
    let prepared = Prepared::new(&way).expect("it came this way").with_checksum(from.is_checked);
    let len = prepared.frame_len(&packet.headers, packet.payload.len()).expect("it was in a frame");
    let mut buffer = vec![0; len];
    let source = from.source.unwrap_or(Qpn::new(0));
    let mut open = prepared.open(source, &packet.headers, packet.payload.len(), &mut buffer).expect("there is room");
    open.payload().copy_from_slice(packet.payload);
    assert_eq!(open.close(), len);
    let (again, _) = parse(&buffer).expect("it was built here");
    assert_eq!(again, packet);
    true
}

#[cfg(test)]
mod tests {
    use crate::short_run;

    #[test]
    fn short_run_of_rdma_wire() {
        // Only SLURPoE goes without a sum, so packets are its own.
        let found = short_run(super::rdma_wire, 20_000);
        assert!(found > 500, "{found} packets");
    }
}
