//! Packets of every kind, and frames of them.

use super::super::{Aeth, AtomicEth, Deth, Format, Headers, Parts, Path, Prepared, Reth, Syndrome, decode};
use crate::number::{Gid, Key, Psn, Qpn};
use std::net::Ipv4Addr;

pub(super) const HERE: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
pub(super) const THERE: [u8; 6] = [0x02, 0, 0, 0, 0, 2];

/// A path of a format; of RoCE v2 over IPv4 or IPv6.
pub(super) fn path(format: Format, is_ipv4: bool) -> Path {
    let (source, destination) = if is_ipv4 {
        let of = |last| Gid::from_ipv4(Ipv4Addr::new(192, 0, 2, last));
        (of(1), of(2))
    } else {
        (Gid::link_local(HERE), Gid::link_local(THERE))
    };
    let has_network = format != Format::Slurpoe;
    Path {
        format,
        source_mac: HERE,
        destination_mac: THERE,
        source,
        destination,
        hop_limit: if has_network { 64 } else { 0 },
        traffic_class: if has_network { 0x6a } else { 0 },
        flow_label: if has_network && !is_ipv4 { 0x12345 } else { 0 },
        source_port: if format == Format::RoceV2 { 0xd234 } else { 0 },
    }
}

/// RoCE v2 over IPv4 and IPv6, RoCE v1, SLURPoE.
pub(super) fn paths() -> [Path; 4] {
    let v2 = Format::RoceV2;
    [path(v2, true), path(v2, false), path(Format::RoceV1, false), path(Format::Slurpoe, false)]
}

/// Headers of a packet with this opcode, whose fields come out of `number`; `None`: it is none.
pub(super) fn headers(opcode: u8, number: u64) -> Option<Headers> {
    let known = decode(opcode).ok()?;
    let bit = |at: u32| number >> at & 1 != 0;
    let (low, high) = (number as u32, (number >> 32) as u32);
    let psn = Psn::new(high ^ low);
    let mut headers = Headers::new(known.service, known.opcode, Qpn::new(low >> 5), psn);
    headers.solicited = bit(0);
    headers.ack_request = bit(1);
    headers.fecn_becn = (bit(2), bit(3));
    headers.extended = bit(4);
    headers.pkey = (low >> 3) as u16;
    let has = |part| known.parts.has(part);
    headers.deth = has(Parts::DETH).then_some(Deth { qkey: !low, source: Qpn::new(high) });
    headers.reth = has(Parts::RETH).then_some(Reth { address: !number, rkey: Key::new(high), len: low >> 1 });
    headers.atomic = has(Parts::ATOMIC).then_some(AtomicEth {
        address: number.rotate_left(7),
        rkey: Key::new(low),
        swap_add: number,
        compare: !number,
    });
    let syndrome = [
        Syndrome::Ack(low as u8 & 31),
        Syndrome::Rnr(high as u8 & 31),
        Syndrome::SequenceError,
        Syndrome::InvalidRequest,
        Syndrome::RemoteAccess,
        Syndrome::RemoteOperation,
    ][number as usize % 6];
    headers.aeth = has(Parts::AETH).then_some(Aeth { syndrome, msn: high & 0xff_ffff });
    headers.original = has(Parts::ORIGINAL).then_some(number);
    headers.immediate = has(Parts::IMMEDIATE).then_some(low.to_be_bytes());
    headers.invalidate = has(Parts::INVALIDATE).then_some(Key::new(high));
    Some(headers)
}

/// All opcodes there are.
pub(super) fn opcodes() -> impl Iterator<Item = u8> {
    (0..=255).filter(|byte| decode(*byte).is_ok())
}

/// Who sends: what a datagram says, or any.
pub(super) fn source(headers: &Headers) -> Qpn {
    headers.deth.map_or(Qpn::new(0x654321), |deth| deth.source)
}

/// A frame in a buffer that was full of other things.
pub(super) fn frame(prepared: &Prepared, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let len = prepared.frame_len(headers, payload.len()).unwrap();
    let mut buffer = vec![0xa5; len + 8];
    let mut open = prepared.open(source(headers), headers, payload.len(), &mut buffer).unwrap();
    open.payload().copy_from_slice(payload);
    assert_eq!(open.close(), len);
    assert_eq!(buffer[len..], [0xa5; 8]);
    buffer.truncate(len);
    buffer
}
