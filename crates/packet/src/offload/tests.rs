use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

#[test]
fn what_can_be_left_to_somebody() {
    let checksum = Some(PartialChecksum { start: 34, offset: 16 });
    let segments = Some(Segments { kind: SegmentKind::Tcp6, ecn: false, size: 1440, header_len: 74 });
    assert!(Offloads::NONE.include(&Offload::default()) && Offload::default().is_done());
    assert!(!Offloads::NONE.include(&Offload { checksum, segments: None }));
    assert!(Offloads::ALL.include(&Offload { checksum, segments }));
    assert!(!Offloads { tcp6: false, ..Offloads::ALL }.include(&Offload { checksum, segments }));
    assert!(!Offloads { checksum: false, ..Offloads::ALL }.include(&Offload { checksum, segments }));
}

/// A large frame as Linux would hand it out.
#[derive(Clone, Debug)]
struct Large {
    bytes: Vec<u8>,
    offload: Offload,
    /// Bytes before the IP header, the transport header, the payload.
    places: [usize; 3],
}

/// Sum of 16-bit words, one after the other, carry at once: nothing in common with the code under test.
fn slow_sum(bytes: impl IntoIterator<Item = u8>) -> u16 {
    let bytes: Vec<u8> = bytes.into_iter().collect();
    bytes.chunks(2).fold(0u32, |sum, pair| {
        let sum = sum + (u32::from(pair[0]) << 8) + u32::from(*pair.get(1).unwrap_or(&0));
        (sum & 0xffff) + (sum >> 16)
    }) as u16
}

/// Pseudo header of RFC 793 and RFC 8200 for addresses found in the frame.
fn pseudo_header(frame: &[u8], ip: usize, protocol: u8, len: usize) -> Vec<u8> {
    let addresses = if frame[ip] >> 4 == 4 { ip + 12..ip + 20 } else { ip + 8..ip + 40 };
    let mut pseudo = frame[addresses].to_vec();
    pseudo.extend((len as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    pseudo
}

fn protocol_of(kind: SegmentKind) -> u8 {
    if kind == SegmentKind::Udp { 17 } else { 6 }
}

#[derive(Clone, Debug)]
struct Shape {
    kind: SegmentKind,
    v6: bool,
    vlans: usize,
    options: usize,
    extensions: Vec<u8>,
    flags: u8,
    size: u16,
    id: u16,
    sequence: u32,
}

fn build(shape: &Shape, payload: &[u8]) -> Large {
    let Shape { kind, v6, .. } = *shape;
    let protocol = protocol_of(kind);
    let mut bytes = vec![2; 12];
    for vlan in 0..shape.vlans {
        bytes.extend([if vlan == 0 { 0x88 } else { 0x81 }, if vlan == 0 { 0xa8 } else { 0 }, 0, 7]);
    }
    bytes.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
    let ip = bytes.len();
    let transport_len = if kind == SegmentKind::Udp { 8 } else { 20 + shape.options * 4 };
    if v6 {
        // Extension headers of eight bytes each; the last names the transport protocol.
        let chain: Vec<u8> = shape.extensions.iter().copied().chain([protocol]).collect();
        let len = shape.extensions.len() * 8 + transport_len + payload.len();
        bytes.extend([0x60, 0, 0, 0]);
        bytes.extend((len as u16).to_be_bytes());
        bytes.extend([chain[0], 64]);
        bytes.extend((0..32).map(|i| i * 3 + 1));
        chain[1..].iter().for_each(|next| bytes.extend([*next, 0, 1, 4, 0, 0, 0, 0]));
    } else {
        let header_len = 20 + shape.options * 4;
        bytes.extend([0x40 | (header_len / 4) as u8, 0]);
        bytes.extend(((header_len + transport_len + payload.len()) as u16).to_be_bytes());
        bytes.extend(shape.id.to_be_bytes());
        bytes.extend([0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.resize(ip + header_len, 1);
    }
    let transport = bytes.len();
    bytes.extend([0x30, 0x39, 0xd4, 0x31]);
    let len = transport_len + payload.len();
    let seed = slow_sum(pseudo_header(&bytes, ip, protocol, len));
    if kind == SegmentKind::Udp {
        bytes.extend((len as u16).to_be_bytes());
        bytes.extend(seed.to_be_bytes());
    } else {
        bytes.extend(shape.sequence.to_be_bytes());
        bytes.extend([0, 0, 0, 9, (transport_len as u8 / 4) << 4, shape.flags, 1, 0]);
        bytes.extend(seed.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.resize(transport + transport_len, 1);
    }
    let places = [ip, transport, bytes.len()];
    bytes.extend(payload);
    let offset = if kind == SegmentKind::Udp { 6 } else { 16 };
    let segments = Segments { kind, ecn: false, size: shape.size, header_len: places[2] as u16 };
    let checksum = PartialChecksum { start: transport as u16, offset };
    Large { bytes, offload: Offload { checksum: Some(checksum), segments: Some(segments) }, places }
}

fn word(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Whether one segment is a complete frame: lengths and checksums.
fn check_complete(large: &Large, segment: &[u8]) {
    let [ip, transport, _] = large.places;
    let kind = large.offload.segments.unwrap().kind;
    if segment[ip] >> 4 == 4 {
        assert_eq!(word(segment, ip + 2), segment.len() - ip);
        assert_eq!(slow_sum(segment[ip..ip + usize::from(segment[ip] & 15) * 4].to_vec()), 0xffff);
    } else {
        assert_eq!(word(segment, ip + 4), segment.len() - ip - 40);
    }
    if kind == SegmentKind::Udp {
        assert_eq!(word(segment, transport + 4), segment.len() - transport);
        assert_ne!(word(segment, transport + 6), 0, "zero is no checksum");
    }
    let pseudo = pseudo_header(segment, ip, protocol_of(kind), segment.len() - transport);
    assert_eq!(slow_sum(pseudo.into_iter().chain(segment[transport..].iter().copied())), 0xffff);
}

fn segments_of(large: &Large) -> Vec<Vec<u8>> {
    let mut segments = Vec::new();
    let mut frame = large.bytes.clone();
    let count = large.offload.finish(&mut frame, |segment| {
        segments.push(segment.to_vec());
        true
    });
    assert_eq!(count, Ok(segments.len()), "{large:?}");
    segments
}

/// Everything that makes the segments the frame that was cut.
fn check_cut(shape: &Shape, large: &Large) {
    let [ip, transport, payload] = large.places;
    let segments = segments_of(large);
    let size = usize::from(shape.size);
    let joined: Vec<u8> = segments.iter().flat_map(|segment| segment[payload..].to_vec()).collect();
    assert!(joined == large.bytes[payload..], "other payload");
    for (number, segment) in segments.iter().enumerate() {
        let last = number + 1 == segments.len();
        check_complete(large, segment);
        assert!(if last { segment.len() <= payload + size } else { segment.len() == payload + size });
        // What differs from the headers of the whole is what has to.
        let mut expected = large.bytes[..payload].to_vec();
        let mut same = |at: std::ops::Range<usize>| expected[at.clone()].copy_from_slice(&segment[at]);
        if shape.v6 {
            same(ip + 4..ip + 6);
        } else {
            assert_eq!(word(segment, ip + 4), usize::from(shape.id.wrapping_add(number as u16)));
            same(ip + 2..ip + 6);
            same(ip + 10..ip + 12);
        }
        if shape.kind == SegmentKind::Udp {
            same(transport + 4..transport + 8);
        } else {
            assert_eq!(long(segment, transport + 4), shape.sequence.wrapping_add((number * size) as u32));
            same(transport + 4..transport + 8);
            same(transport + 16..transport + 18);
            let kept = 0x76 | if last { 0x09 } else { 0 } | if number == 0 { 0x80 } else { 0 };
            expected[transport + 13] &= kept;
        }
        assert_eq!(segment[..payload], expected, "segment {number}");
    }
}

fn any_shape() -> impl Strategy<Value = Shape> {
    let kind = prop_oneof![
        Just((SegmentKind::Tcp4, false)),
        Just((SegmentKind::Tcp6, true)),
        any::<bool>().prop_map(|v6| (SegmentKind::Udp, v6))
    ];
    let extension = prop_oneof![Just(0u8), Just(43), Just(60)];
    let numbers = (any::<u8>(), prop_oneof![1..100u16, 1000..9000u16], any::<u16>(), any::<u32>());
    (kind, 0..3usize, 0..=10usize, vec(extension, 0..4), numbers).prop_map(
        |((kind, v6), vlans, options, extensions, (flags, size, id, sequence))| {
            let extensions = if v6 { extensions } else { Vec::new() };
            Shape { kind, v6, vlans, options, extensions, flags, size, id, sequence }
        },
    )
}

proptest! {
    #[test]
    fn segments_put_together_are_the_frame(shape in any_shape(), payload in vec(any::<u8>(), 0..1500)) {
        check_cut(&shape, &build(&shape, &payload));
    }

    #[test]
    fn a_partial_checksum_is_completed(shape in any_shape(), payload in vec(any::<u8>(), 0..300)) {
        let mut large = build(&shape, &payload);
        let mut frame = large.bytes.clone();
        let offload = Offload { checksum: large.offload.checksum, segments: None };
        prop_assert_eq!(offload.finish(&mut frame, |frame| { large.bytes = frame.to_vec(); true }), Ok(1));
        // The IPv4 header of the builder has no checksum; the rest is complete.
        let [ip, transport, _] = large.places;
        let pseudo = pseudo_header(&frame, ip, protocol_of(shape.kind), frame.len() - transport);
        prop_assert_eq!(slow_sum(pseudo.into_iter().chain(frame[transport..].iter().copied())), 0xffff);
        prop_assert_eq!(large.bytes, frame);
    }

    #[test]
    fn whatever_the_header_and_the_frame_say_nothing_panics(
        header: [u8; 10],
        mut frame in vec(any::<u8>(), 0..200),
    ) {
        if let Ok(offload) = Offload::from_virtio(&header, frame.len()) {
            let fits = offload.check(&frame, frame.len());
            prop_assert_eq!(fits, offload.finish(&mut frame, |_| true).map(drop));
        }
    }

    #[test]
    fn one_wrong_byte_in_the_headers_never_panics(
        shape in any_shape(), payload in vec(any::<u8>(), 0..300), at: prop::sample::Index, to: u8,
    ) {
        let mut large = build(&shape, &payload);
        let at = at.index(large.places[2]);
        large.bytes[at] = to;
        let fits = large.offload.check(&large.bytes, large.bytes.len());
        prop_assert_eq!(fits, large.offload.finish(&mut large.bytes, |_| true).map(drop));
    }
}

fn tcp4() -> Shape {
    Shape {
        kind: SegmentKind::Tcp4,
        v6: false,
        vlans: 0,
        options: 3,
        extensions: Vec::new(),
        flags: 0x99,
        size: 1448,
        id: 0xfffe,
        sequence: u32::MAX - 1000,
    }
}

#[test]
fn the_longest_frames_there_are() {
    let payload: Vec<u8> = (0..65_535u32).map(|i| ((i * i) >> 7) as u8).collect();
    let shape = tcp4();
    let large = build(&shape, &payload[..65_535 - 32 - 32]);
    check_cut(&shape, &large);
    let shape = Shape { kind: SegmentKind::Tcp6, v6: true, vlans: 2, ..tcp4() };
    let large = build(&shape, &payload[..65_535 - 32]);
    assert_eq!(large.bytes.len(), MAX_LARGE_FRAME_LEN);
    check_cut(&shape, &large);
}

#[test]
fn emitting_ends_when_nobody_takes_more() {
    let mut large = build(&tcp4(), &[7; 10_000]);
    let mut seen = 0;
    let count = large.offload.finish(&mut large.bytes, |_| {
        seen += 1;
        seen < 3
    });
    assert_eq!((seen, count), (3, Ok(3)));
}

#[test]
fn what_cannot_be_cut_is_refused_by_name() {
    let large = build(&tcp4(), &[7; 5000]);
    let refused = |change: &dyn Fn(&mut Large)| {
        let mut large = large.clone();
        change(&mut large);
        large.offload.finish(&mut large.bytes, |_| panic!("emitted")).expect_err("an error")
    };
    fn segments(large: &mut Large) -> &mut Segments {
        large.offload.segments.as_mut().unwrap()
    }
    let [ip, transport, _] = large.places;
    assert_eq!(refused(&|large| large.offload.checksum = None), Unfit::NoChecksum);
    assert_eq!(refused(&|large| large.offload.checksum.as_mut().unwrap().start += 2), Unfit::Checksum);
    assert_eq!(refused(&|large| large.offload.checksum.as_mut().unwrap().offset = 6), Unfit::Checksum);
    assert_eq!(refused(&|large| segments(large).size = 0), Unfit::Size);
    assert_eq!(refused(&|large| segments(large).size = 2), Unfit::Size);
    assert_eq!(refused(&|large| segments(large).kind = SegmentKind::Tcp6), Unfit::Protocol);
    assert_eq!(refused(&|large| segments(large).kind = SegmentKind::Udp), Unfit::Protocol);
    assert_eq!(refused(&|large| large.bytes[12] = 9), Unfit::Protocol);
    assert_eq!(refused(&|large| large.bytes[ip] = 0x44), Unfit::Headers);
    assert_eq!(refused(&|large| large.bytes[ip + 6] |= 0x20), Unfit::Fragment);
    assert_eq!(refused(&|large| large.bytes[transport + 12] = 0x40), Unfit::Headers);
    assert_eq!(refused(&|large| large.bytes.truncate(100)), Unfit::Length);
    assert_eq!(refused(&|large| large.bytes.truncate(transport)), Unfit::Length);
    assert_eq!(refused(&|large| large.bytes.truncate(20)), Unfit::Headers);
    let mut vlans: Vec<u8> = [0x81, 0, 0, 1].repeat(20_000);
    assert_eq!(large.offload.finish(&mut vlans, |_| panic!("emitted")), Err(Unfit::Headers));
    let chain = Shape { kind: SegmentKind::Tcp6, v6: true, extensions: vec![60; 80], ..tcp4() };
    let mut large = build(&chain, &[1; 4000]);
    assert_eq!(large.offload.finish(&mut large.bytes, |_| panic!("emitted")), Err(Unfit::Headers));
}

/// Outer headers around an inner frame: as Linux has them around a large one, whose checksum of UDP is the sum of the
/// pseudo header, or as they are on the wire.
fn wrap(inner: &[u8], v6: bool, geneve: bool, checksum: bool, id: u16, complete: bool) -> Vec<u8> {
    let tunnel: &[u8] =
        if geneve { &[2, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 1, 9, 9, 9, 9] } else { &[8, 0, 0, 0, 0, 0, 7, 0] };
    let mut bytes = vec![6; 12];
    let len = 8 + tunnel.len() + inner.len();
    bytes.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
    if v6 {
        bytes.extend([0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 17, 64]);
        bytes.extend((0..32).map(|i| i * 5 + 3));
    } else {
        bytes.extend([0x45, 0]);
        bytes.extend(((len + 20) as u16).to_be_bytes());
        bytes.extend(id.to_be_bytes());
        bytes.extend([0x40, 0, 64, 17, 0, 0, 10, 1, 0, 1, 10, 1, 0, 2]);
        let sum = !slow_sum(bytes[14..34].to_vec());
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    let udp = bytes.len();
    bytes.extend([0xc0, 1, 0x12, 0xb5, (len >> 8) as u8, len as u8, 0, 0]);
    bytes.extend(tunnel);
    bytes.extend(inner);
    if checksum {
        let mut sum = slow_sum(pseudo_header(&bytes, 14, 17, len));
        if complete {
            let pseudo = pseudo_header(&bytes, 14, 17, len);
            sum = match !slow_sum(pseudo.into_iter().chain(bytes[udp..].iter().copied())) {
                0 => 0xffff,
                sum => sum,
            };
        }
        bytes[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

proptest! {
    /// Cut within a tunnel is the same as cut first and put into a tunnel then.
    #[test]
    fn a_large_frame_in_a_tunnel_is_cut_there(
        shape in any_shape(), payload in vec(any::<u8>(), 0..1500), how: [bool; 3], id: u16,
    ) {
        let [v6, geneve, checksum] = how;
        let large = build(&shape, &payload);
        let wanted: Vec<Vec<u8>> = segments_of(&large).iter().enumerate().map(|(number, segment)| {
            wrap(segment, v6, geneve, checksum, id.wrapping_add(number as u16), true)
        }).collect();
        let bytes = wrap(&large.bytes, v6, geneve, checksum, id, false);
        let before = bytes.len() - large.bytes.len();
        let mut offload = large.offload;
        offload.checksum.as_mut().unwrap().start += before as u16;
        prop_assert_eq!(offload.passes_whole(&bytes, bytes.len()), Ok(false));
        prop_assert_eq!(large.offload.passes_whole(&large.bytes, large.bytes.len()), Ok(true));
        let places = large.places.map(|place| place + before);
        prop_assert_eq!(segments_of(&Large { bytes: bytes.clone(), offload, places }), wanted);
        // A tunnel that ends elsewhere than the frame is none.
        let mut damaged = bytes;
        damaged[if v6 { 58 } else { 38 }] ^= 1;
        prop_assert!(offload.check(&damaged, damaged.len()).is_err());
    }
}

#[test]
fn a_payload_of_one_segment_or_none_is_one_frame() {
    for payload in [0, 1, 1448] {
        let large = build(&tcp4(), &vec![5; payload]);
        assert_eq!(segments_of(&large).len(), 1);
        check_cut(&tcp4(), &large);
    }
}
