//! Frames by hand, one for each thing that can be wrong.

use super::super::{Format, Headers, Opcode, Path, Prepared, Reason, Service, Unbuildable, parse};
use super::build::{HERE, THERE, frame, headers, path, paths};
use crate::number::{Gid, Psn, Qpn};
use millrace_packet::checksum::Sum;

fn built(path: &Path, opcode: u8, payload: &[u8]) -> Vec<u8> {
    frame(&Prepared::new(path).unwrap(), &headers(opcode, 0x0123_4567_89ab_cdef).unwrap(), payload)
}

fn v4() -> Path {
    path(Format::RoceV2, true)
}

/// A frame with one byte changed, whose IPv4 header still sums up.
fn with(mut bytes: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    bytes[at] = byte;
    if bytes[12..14] == [8, 0] {
        bytes[24..26].fill(0);
        let sum = Sum::of(&bytes[14..34]).checksum();
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

#[test]
fn the_front_of_roce_v2_over_ipv4() {
    let bytes = built(&v4(), 0x0a, &[1; 5]);
    // 28 bytes of IP and UDP, 12 of BTH, 16 of RETH, 5 of payload and 3 of padding, 4 of ICRC.
    assert_eq!(bytes.len(), 14 + 68);
    assert_eq!(bytes[..14], [&THERE[..], &HERE, &[8, 0]].concat());
    assert_eq!(bytes[14..24], [0x45, 0x6a, 0, 68, 0, 0, 0x40, 0, 64, 17]);
    assert_eq!(Sum::of(&bytes[14..34]).checksum(), 0);
    assert_eq!(bytes[26..42], [192, 0, 2, 1, 192, 0, 2, 2, 0xd2, 0x34, 0x12, 0xb7, 0, 48, 0, 0]);
    assert_eq!((bytes[42], bytes[43] >> 4 & 3, &bytes[75..78]), (0x0a, 3, &[0, 0, 0][..]));
}

#[test]
fn the_front_of_roce_v1() {
    let bytes = built(&path(Format::RoceV1, false), 0x04, &[]);
    assert_eq!(bytes.len(), 14 + 40 + 12 + 4);
    assert_eq!(bytes[12..22], [0x89, 0x15, 0x66, 0xa1, 0x23, 0x45, 0, 16, 0x1b, 64]);
}

#[test]
fn short_frames_are_filled_up_behind_everything_else() {
    let bytes = built(&path(Format::Slurpoe, false), 0x04, &[9]);
    assert_eq!((bytes.len(), &bytes[32..]), (60, &[&[9][..], &[0; 27]].concat()[..]));
    let bytes = built(&v4(), 0x04, &[]);
    assert_eq!((bytes.len(), bytes[17], &bytes[58..]), (60, 44, &[0, 0][..]));
    assert!(parse(&bytes).is_ok());
}

#[test]
fn a_congestion_notification_has_sixteen_bytes_of_zeros() {
    for path in paths() {
        let bytes = built(&path, 0x81, &[]);
        let (packet, _) = parse(&bytes).unwrap();
        assert_eq!((packet.headers.opcode, packet.payload.len()), (Opcode::CongestionNotification, 0));
    }
    assert_eq!(built(&v4(), 0x81, &[])[54..70], [0; 16]);
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Frames that other people's cards have sent, as they stand in the tests of scapy (`test/contrib/roce.uts`).
#[test]
fn frames_of_cards() {
    // A congestion notification of a ConnectX-4 Lx.
    let notification = bytes(
        "e41d2dab2bc2 7cfe90643b32 0800 45c2003c718c400040119161 0a001101 0a001201 000012b700280000
         8100ffff40000118 00000000 00000000000000000000000000000000 82fd002a",
    );
    let (packet, from) = parse(&notification).unwrap();
    assert_eq!((packet.headers.opcode, packet.headers.fecn_becn), (Opcode::CongestionNotification, (false, true)));
    assert_eq!((packet.headers.destination, packet.payload.len()), (Qpn::new(0x118), 0));
    assert_eq!((from.back.destination.to_string().as_str(), from.back.source_port), ("::ffff:10.0.17.1", 0));
    // An unreliable SEND of 18 bytes of a card of the same maker, with a checksum of UDP and MigReq.
    let send = bytes(
        "248a07a8fa22 248a07a8fa22 0800 450100400478400040 11b4d5 c0a80007 c0a80007 c00012b7002caca2
         2460ffff000000d3 00cf1710 4630818be28935d90e9a95505401be885e50 0000 78f353f3",
    );
    let (packet, _) = parse(&send).unwrap();
    assert_eq!((packet.headers.service, packet.payload.len()), (Service::UnreliableConnection, 18));
    assert_eq!(packet.headers.psn, Psn::new(13_571_856));
}

#[test]
fn what_stands_before_a_datagram() {
    for (path, level) in paths().into_iter().zip([10, 9, 0, 0]) {
        let bytes = built(&path, 0x64, &[3; 8]);
        let (_, from) = parse(&bytes).unwrap();
        assert_eq!(from.service_level(), level);
        let grh = from.grh();
        match (path.format, level) {
            (_, 10) => {
                assert_eq!((&grh[..20], &grh[20..]), (&[0; 20][..], &bytes[14..34]));
                assert_eq!(Sum::of(&grh[20..]).checksum(), 0);
            }
            (Format::Slurpoe, _) => {
                assert_eq!(grh[..8], [0x60, 0, 0, 0, 0, 18 + 8 + 8, 0x1b, 1]);
                assert_eq!((&grh[8..24], &grh[24..]), (&path.source.0[..], &path.destination.0[..]));
            }
            _ => assert_eq!(grh[..], bytes[14..54]),
        }
    }
}

#[test]
fn marks_of_routers() {
    for (path, byte) in [(path(Format::RoceV2, true), 0x03), (path(Format::RoceV2, false), 0x31)] {
        let bytes = built(&path, 0x04, &[]);
        assert!(!parse(&bytes).unwrap().1.is_congested());
        let bytes = with(bytes, 15, byte);
        assert!(parse(&bytes).unwrap().1.is_congested(), "the invariant CRC does not cover it");
    }
}

/// Every reason there is, each with a frame of its own.
#[test]
fn why_a_frame_is_not_taken() {
    let (v6, v1, lean) = (path(Format::RoceV2, false), path(Format::RoceV1, false), path(Format::Slurpoe, false));
    let send = |path: &Path| built(path, 0x04, &[5; 32]);
    let sum = |mut bytes: Vec<u8>| {
        bytes[40] ^= 0x40;
        bytes
    };
    let options = {
        let mut bytes = [&send(&v4())[..34], &[1; 4], &send(&v4())[34..]].concat();
        bytes[17] += 4;
        with(bytes, 14, 0x46)
    };
    let mapped = with(send(&v6), 0, 2).into_iter().enumerate().map(|(at, byte)| match at {
        22..=31 => 0,
        32 | 33 => 0xff,
        _ => byte,
    });
    let checked = {
        let prepared = Prepared::new(&lean).unwrap().with_checksum(true);
        let mut bytes = frame(&prepared, &headers(0x04, 0).unwrap(), &[5; 32]);
        bytes[40] ^= 1;
        bytes
    };
    let too_long = {
        let mut bytes = built(&lean, 0x04, &[0; 8192]);
        bytes[16..18].copy_from_slice(&8193u16.to_be_bytes());
        bytes.push(0);
        bytes
    };
    let all: Vec<(Reason, Vec<u8>)> = vec![
        (Reason::NotRdma, with(send(&v4()), 23, 6)),
        (Reason::NotRdma, with(send(&v4()), 37, 0xb8)),
        (Reason::NotRdma, with(send(&v4()), 21, 1)),
        (Reason::NotRdma, with(send(&v6), 20, 0)),
        (Reason::NotRdma, with(send(&v6), 57, 0)),
        (Reason::NotRdma, with(send(&v1), 13, 0x16)),
        (Reason::Ethernet, send(&v4())[..13].to_vec()),
        (
            Reason::Ethernet,
            with(send(&v1), 12, 0x81)[..14]
                .iter()
                .map(|byte| if *byte == 0x15 { 0 } else { *byte })
                .chain([0])
                .collect(),
        ),
        (Reason::Tags, [&send(&v4())[..12], &[0x81, 0, 0, 1, 0x81, 0, 0, 1], &send(&v4())[12..]].concat()),
        (Reason::SourceMac, with(send(&v4()), 6, 3)),
        (Reason::GroupMac, with(send(&v4()), 0, 3)),
        (Reason::SourceAddress, with(send(&v4()), 26, 224)),
        (Reason::SourceAddress, with(send(&v6), 22, 0xff)),
        (Reason::SourceAddress, mapped.collect()),
        (Reason::IpHeader, with(send(&v4()), 17, 200)),
        (Reason::IpHeader, with(send(&v6), 14, 0x40)),
        (Reason::IpOptions, options),
        (Reason::IpChecksum, {
            let mut bytes = send(&v4());
            bytes[24] ^= 1;
            bytes
        }),
        (Reason::Fragment, with(send(&v4()), 20, 0x20)),
        (Reason::UdpLength, with(send(&v4()), 39, 50)),
        (Reason::RouteHeader, with(send(&v1), 20, 17)),
        (Reason::RouteHeader, with(send(&v1), 19, 255)),
        (Reason::TransportHeader, with(send(&v1), 19, 12)),
        (Reason::TransportVersion, with(send(&v1), 55, 1)),
        (Reason::Service, with(send(&v1), 54, 0x44)),
        (Reason::Operation, with(send(&v1), 54, 0x15)),
        (Reason::ExtendedHeaders, with(built(&v1, 0x04, &[5; 8]), 54, 0x0a)),
        (Reason::ExtendedHeaders, with(built(&lean, 0x04, &[5; 20]), 15, 0x13)),
        (Reason::Padding, with(built(&v1, 0x04, &[]), 55, 0x30)),
        (Reason::Padding, with(send(&v1), 19, 47)),
        (Reason::PayloadLength, too_long),
        (Reason::Syndrome, with(built(&v1, 0x11, &[]), 66, 0x40)),
        (Reason::Icrc, sum(send(&v1))),
        (Reason::LeanHeader, send(&lean)[..31].to_vec()),
        (Reason::LeanVersion, with(send(&lean), 14, 2)),
        (Reason::LeanFlags, with(send(&lean), 18, 2)),
        (Reason::LeanLength, send(&lean)[..63].to_vec()),
        (Reason::LeanLength, with(built(&lean, 0x04, &[5; 32]), 17, 33)),
        (Reason::LeanChecksum, checked),
    ];
    for (reason, bytes) in &all {
        assert_eq!(parse(bytes).map(drop), Err(*reason), "{reason:?}: {bytes:02x?}");
    }
    for reason in Reason::ALL {
        assert!(all.iter().any(|(other, _)| *other == reason), "{reason:?} has no frame");
    }
}

#[test]
fn what_cannot_be_built() {
    let mut mixed = v4();
    mixed.source = Gid::link_local(HERE);
    assert_eq!(Prepared::new(&mixed).unwrap_err(), Unbuildable::Addresses);
    let mut other = path(Format::Slurpoe, false);
    other.source.0[15] ^= 1;
    assert_eq!(Prepared::new(&other).unwrap_err(), Unbuildable::Identity);
    let prepared = Prepared::new(&v4()).unwrap();
    let read = Headers::new(Service::UnreliableConnection, Opcode::ReadRequest, Qpn::new(1), Psn::new(1));
    assert_eq!(prepared.frame_len(&read, 0), Err(Unbuildable::Operation));
    let send = headers(0x04, 0).unwrap();
    assert_eq!(prepared.frame_len(&send, 4097), Err(Unbuildable::Payload(4096)));
    let mut short = [7; 100];
    assert_eq!(prepared.open(Qpn::new(1), &send, 64, &mut short).unwrap_err(), Unbuildable::Room(122));
    assert_eq!(short, [7; 100]);
    let lean = Prepared::new(&path(Format::Slurpoe, false)).unwrap();
    assert_eq!(lean.frame_len(&send, 8192), Ok(14 + 18 + 8192));
}

#[test]
fn path_mtus() {
    let of = |format: Format, link: usize| format.path_mtu(link);
    assert_eq!(
        [1500, 4180, 4179, 9000, 300].map(|link| of(Format::RoceV2, link)),
        [Some(1024), Some(4096), Some(2048), Some(4096), None]
    );
    assert_eq!([1500, 9000, 8237].map(|link| of(Format::Slurpoe, link)), [Some(1024), Some(8192), Some(4096)]);
}
