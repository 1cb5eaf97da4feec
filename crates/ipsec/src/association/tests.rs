use super::*;
use crate::algorithm::Keys;
use crate::cipher::{Context, Sequence};
use crate::ip::{self, Header, protocol};
use crate::refusal::Refusal;
use millrace_packet::checksum::Sum;
use proptest::prelude::*;
use std::ops::Range;

const GCM: &str = "rfc4106(gcm(aes))";
const ROOM: usize = 128;
const NOW: u64 = 1_700_000_000;

fn all_keys() -> Vec<Keys> {
    let aead = |name, len| Keys::aead(name, &(0..len).collect::<Vec<u8>>(), 128).unwrap();
    let hmac = |cipher, len: u8, hash, hash_len: u8, bits| {
        let keys = ((0..len).collect::<Vec<_>>(), (0..hash_len).collect::<Vec<_>>());
        Keys::separate((cipher, &keys.0), (hash, &keys.1, bits)).unwrap()
    };
    vec![
        aead(GCM, 20),
        aead(GCM, 28),
        aead(GCM, 36),
        aead("rfc7539esp(chacha20,poly1305)", 36),
        hmac("cbc(aes)", 16, "hmac(sha256)", 32, 128),
        hmac("cbc(aes)", 24, "hmac(sha384)", 48, 192),
        hmac("cbc(aes)", 32, "hmac(sha512)", 64, 256),
        hmac("ecb(cipher_null)", 0, "hmac(sha256)", 32, 96),
    ]
}

fn parameters(keys: Keys) -> Parameters {
    let id = Id { destination: "192.0.2.2".parse().unwrap(), spi: 0x1234_5678 };
    Parameters::tunnel("192.0.2.1".parse().unwrap(), id, keys)
}

fn gcm() -> Parameters {
    parameters(all_keys().remove(0))
}

fn v6(mut parameters: Parameters) -> Parameters {
    parameters.source = "2001:db8::1".parse().unwrap();
    parameters.id.destination = "2001:db8::2".parse().unwrap();
    parameters
}

/// Both ends.
fn pair(parameters: &Parameters) -> (Association, Association) {
    (Association::new(parameters.clone(), NOW).unwrap(), Association::new(parameters.clone(), NOW).unwrap())
}

fn udp_packet(is_v4: bool, len: usize, class: u8) -> Vec<u8> {
    let (source, destination) = if is_v4 { ("10.1.0.1", "10.2.0.9") } else { ("2001:db8:1::1", "2001:db8:2::9") };
    let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
    let header = if is_v4 { 20 } else { 40 };
    let mut packet = vec![0; header + 8 + len];
    let outer = ip::Outer { class, protocol: protocol::UDP, is_whole: true, id: 1 };
    assert!(ip::write(&mut packet, source, destination, outer));
    packet[header..header + 6].copy_from_slice(&[0, 53, 0, 99, ((len + 8) >> 8) as u8, (len + 8) as u8]);
    for (at, byte) in packet[header + 8..].iter_mut().enumerate() {
        *byte = at as u8;
    }
    let sum = ip::transport_checksum(source, destination, protocol::UDP, &packet[header..]);
    packet[header + 6..header + 8].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn in_room(packet: &[u8]) -> (Vec<u8>, Range<usize>) {
    let mut buffer = vec![0xee; ROOM + packet.len() + 1400 + ROOM];
    buffer[ROOM..ROOM + packet.len()].copy_from_slice(packet);
    (buffer, ROOM..ROOM + packet.len())
}

fn sealed(association: &mut Association, packet: &[u8]) -> Result<Vec<u8>, Refusal> {
    let (mut buffer, place) = in_room(packet);
    let place = association.seal(&mut buffer, place, NOW)?;
    Ok(buffer[place].to_vec())
}

fn opened(association: &mut Association, packet: &[u8]) -> Result<Vec<u8>, Refusal> {
    let arrival = Arrival::find(packet, 4500)?.expect("there is ESP in it");
    let (mut buffer, place) = in_room(packet);
    let opened = association.open(&mut buffer, place, &arrival, NOW)?;
    Ok(buffer[opened.packet].to_vec())
}

#[derive(Clone, Copy, Debug)]
struct Case {
    keys: usize,
    is_tunnel: bool,
    outer_v4: bool,
    inner_v4: bool,
    is_extended: bool,
    in_udp: bool,
    fill_to: u16,
}

fn case() -> impl Strategy<Value = Case> {
    (0..8usize, any::<[bool; 5]>(), prop_oneof![Just(0u16), Just(600), Just(1400)]).prop_map(|(keys, bits, fill_to)| {
        let [is_tunnel, outer_v4, inner_v4, is_extended, in_udp] = bits;
        Case {
            keys,
            is_tunnel,
            outer_v4,
            inner_v4: if is_tunnel { inner_v4 } else { outer_v4 },
            is_extended,
            in_udp,
            fill_to,
        }
    })
}

proptest! {
    #[test]
    fn what_is_sealed_is_opened(case in case(), lens in prop::collection::vec(0..1500usize, 1..6), class: u8) {
        let mut parameters = parameters(all_keys().remove(case.keys));
        parameters.mode = if case.is_tunnel { Mode::Tunnel } else { Mode::Transport };
        parameters.is_extended = case.is_extended;
        parameters.fill_to = case.fill_to;
        parameters.encapsulation =
            case.in_udp.then_some(Encapsulation { source_port: 4500, destination_port: 4500 });
        if !case.outer_v4 {
            parameters = v6(parameters);
        }
        parameters.progress.sent = if case.is_extended { 0xffff_fffe } else { 0 };
        parameters.progress.received = parameters.progress.sent;
        let (mut here, mut there) = pair(&parameters);
        for len in lens {
            let packet = udp_packet(case.inner_v4, len, class);
            let wire = sealed(&mut here, &packet).unwrap();
            let header = Header::parse(&wire).unwrap();
            prop_assert_eq!(header.total, wire.len());
            prop_assert_eq!(header.protocol, if case.in_udp { 17 } else { 50 });
            prop_assert!(!case.outer_v4 || Sum::of(&wire[..header.len]).folded() == 0xffff);
            if case.in_udp && !case.outer_v4 {
                let sum = ip::transport_checksum(header.source, header.destination, 17, &wire[40..]);
                prop_assert!(sum == 0 || sum == 0xffff, "the checksum of UDP over IPv6 is right");
            }
            if case.is_tunnel {
                prop_assert_eq!((header.source, header.destination), (parameters.source, parameters.id.destination));
                prop_assert_eq!(header.class, class);
                prop_assert!(wire.len() >= usize::from(case.fill_to));
            }
            prop_assert_eq!(opened(&mut there, &wire).unwrap(), packet);
            prop_assert_eq!(opened(&mut there, &wire).unwrap_err(), Refusal::Replayed);
        }
        // As in Linux, what was filled up counts for who receives it.
        prop_assert!(case.fill_to > 0 || here.lifetime().usage.bytes == there.lifetime().usage.bytes);
        prop_assert_eq!(here.sent(), there.received());
    }

    #[test]
    fn nothing_changed_is_let_in(keys in 0..8usize, is_tunnel: bool, is_extended: bool, at: prop::sample::Index, bit in 0..8u32) {
        let mut parameters = parameters(all_keys().remove(keys));
        parameters.mode = if is_tunnel { Mode::Tunnel } else { Mode::Transport };
        parameters.is_extended = is_extended;
        let (mut here, mut there) = pair(&parameters);
        let mut wire = sealed(&mut here, &udp_packet(true, 100, 0)).unwrap();
        // The outer header is nobody's; SPI, number, text and check value are.
        let place = 20 + at.index(wire.len() - 20);
        wire[place] ^= 1 << bit;
        let refusal = opened(&mut there, &wire).unwrap_err();
        prop_assert!([Refusal::Integrity, Refusal::TooOld].contains(&refusal), "{refusal:?}");
        prop_assert_eq!(there.received(), 0, "nothing is noted of what is not genuine");
        prop_assert_eq!(there.lifetime().usage.packets, 0);
    }

    #[test]
    fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..200), keys in 0..8usize, is_tunnel: bool) {
        let mut parameters = parameters(all_keys().remove(keys));
        parameters.mode = if is_tunnel { Mode::Tunnel } else { Mode::Transport };
        let (mut here, mut there) = pair(&parameters);
        let _ = sealed(&mut here, &bytes);
        // Encrypted with the right key, as by a peer that means ill.
        let context = Context::new(&parameters.keys).unwrap();
        let Shape { iv, block, check } = context.shape();
        let text = bytes.len() / block * block;
        let mut esp = [&[0x12, 0x34, 0x56, 0x78, 0, 0, 0, 1][..], &vec![0; iv], &bytes[..text], &vec![0; check]].concat();
        context.seal(&mut esp, Sequence { number: 1, is_extended: false }).unwrap();
        let mut wire = [&[0; 20][..], &esp].concat();
        let outer = ip::Outer { class: 3, protocol: 50, is_whole: false, id: 0 };
        prop_assert!(ip::write(&mut wire, parameters.source, parameters.id.destination, outer));
        let _ = opened(&mut there, &wire);
    }
}

/// A packet with this text, encrypted.
fn wire_of(parameters: &Parameters, number: u32, text: &[u8], class: u8) -> Vec<u8> {
    let context = Context::new(&parameters.keys).unwrap();
    let Shape { iv, check, .. } = context.shape();
    let mut esp =
        [&parameters.id.spi.to_be_bytes(), &number.to_be_bytes()[..], &vec![0; iv], text, &vec![0; check]].concat();
    context.seal(&mut esp, Sequence { number: u64::from(number), is_extended: false }).unwrap();
    let mut wire = [&[0; 20][..], &esp].concat();
    let outer = ip::Outer { class, protocol: 50, is_whole: false, id: 0 };
    assert!(ip::write(&mut wire, parameters.source, parameters.id.destination, outer));
    wire
}

#[test]
fn texts_that_are_no_packets() {
    let mut there = Association::new(gcm(), NOW).unwrap();
    let packet = udp_packet(true, 10, 0);
    // Padding of so much, or of more than there is.
    let text = |packet: &[u8], pad: u8, follows: u8| {
        let fill = (packet.len() + 2).wrapping_neg() & 3;
        [packet, &vec![0; fill], &[if pad == 255 { pad } else { fill as u8 }, follows]].concat()
    };
    let cases = [
        (text(&packet, 2, 4), None),
        (text(&packet, 255, 4), Some(Refusal::Padding)),
        (text(&packet, 2, 59), Some(Refusal::Dummy)),
        (text(&packet, 2, 41), Some(Refusal::InnerHeader)),
        (text(&packet, 2, 17), Some(Refusal::InnerHeader)),
        (text(&packet[..30], 0, 4), Some(Refusal::InnerHeader)),
        (text(&[], 2, 4), Some(Refusal::InnerHeader)),
        // More behind the packet than padding: against those who count.
        (text(&[&packet[..], &[0; 400]].concat(), 2, 4), None),
    ];
    for (number, (text, refusal)) in (1..).zip(cases) {
        let result = opened(&mut there, &wire_of(&gcm(), number, &text, 0));
        match refusal {
            None => assert_eq!(result.unwrap(), packet),
            Some(refusal) => assert_eq!(result.unwrap_err(), refusal, "{number}"),
        }
        assert_eq!(there.received(), u64::from(number), "genuine packets are noted whatever is in them");
    }
}

#[test]
fn too_short_or_no_blocks() {
    let mut there = Association::new(gcm(), NOW).unwrap();
    let whole = wire_of(&gcm(), 1, &[0; 32], 0);
    for len in [28, 35, 51, 53, 54] {
        let mut wire = whole[..len].to_vec();
        wire[3] = len as u8;
        assert_eq!(opened(&mut there, &wire).unwrap_err(), Refusal::Truncated, "{len}");
    }
    let mut wire = whole[..27].to_vec();
    wire[3] = 27;
    assert_eq!(Arrival::find(&wire, 4500), Err(Refusal::Truncated));
    let mut fragment = whole.clone();
    fragment[6] = 0x20;
    assert_eq!(Arrival::find(&fragment, 4500), Err(Refusal::Fragment));
    let arrival = Arrival::find(&whole, 4500).unwrap().unwrap();
    assert_eq!(
        there.open(&mut whole.clone(), 0..50, &arrival, NOW).unwrap_err(),
        Refusal::Header,
        "not all of it is there"
    );
}

#[test]
fn congestion_as_in_rfc_6040() {
    // Inner, outer, what comes out: figure 4.
    let table = [
        [Some(0), Some(0), Some(0), None],
        [Some(1), Some(1), Some(1), Some(3)],
        [Some(2), Some(1), Some(2), Some(3)],
        [Some(3), Some(3), Some(3), Some(3)],
    ];
    for is_v4 in [true, false] {
        let mut parameters = gcm();
        for (inner, row) in (0..).zip(table) {
            for (outer, wanted) in (0..).zip(row) {
                for dscp_in in [false, true] {
                    parameters.headers.dscp_in = dscp_in;
                    let mut there = Association::new(parameters.clone(), NOW).unwrap();
                    let packet = udp_packet(is_v4, 2, 0x20 | inner);
                    let follows = if is_v4 { 4 } else { 41 };
                    let fill = (packet.len() + 2).next_multiple_of(4) - packet.len() - 2;
                    let text = [&packet[..], &vec![0; fill], &[fill as u8, follows]].concat();
                    let result = opened(&mut there, &wire_of(&parameters, 1, &text, 0xb8 | outer));
                    let dscp = if dscp_in { 0xb8 } else { 0x20 };
                    let class = result.map(|packet| {
                        assert!(!is_v4 || Sum::of(&packet[..20]).folded() == 0xffff);
                        Header::parse(&packet).unwrap().class
                    });
                    assert_eq!(class, wanted.map(|ecn| dscp | ecn).ok_or(Refusal::Congestion), "{inner} {outer}");
                }
            }
        }
    }
    let mut plain = gcm();
    plain.headers = HeaderRules { dscp_out: false, dscp_in: false, ecn: false, df: false };
    let (mut here, mut there) = pair(&plain);
    let wire = sealed(&mut here, &udp_packet(true, 5, 0xbb)).unwrap();
    assert_eq!((wire[1], wire[6]), (0, 0));
    assert_eq!(opened(&mut there, &wire).unwrap()[1], 0xbb);
}

#[test]
fn the_path_is_not_overrun() {
    for keys in all_keys() {
        for (is_tunnel, in_udp, outer_v4) in
            [(true, false, true), (true, true, false), (false, false, true), (false, true, false)]
        {
            let mut parameters = parameters(keys.clone());
            parameters.mode = if is_tunnel { Mode::Tunnel } else { Mode::Transport };
            parameters.encapsulation = in_udp.then_some(Encapsulation { source_port: 1, destination_port: 2 });
            if !outer_v4 {
                parameters = v6(parameters);
            }
            let mut here = Association::new(parameters, NOW).unwrap();
            here.set_mtu(1400);
            let header = if outer_v4 { 28 } else { 48 };
            let most = here.inner_mtu();
            let wire = sealed(&mut here, &udp_packet(outer_v4, most - header, 0)).unwrap();
            assert!(wire.len() <= 1400 && wire.len() > 1400 - 16, "{}", wire.len());
            assert_eq!(sealed(&mut here, &udp_packet(outer_v4, most - header + 1, 0)), Err(Refusal::TooBig));
            let mut may_be_cut = udp_packet(true, most - 27, 0);
            may_be_cut[6] = 0;
            if outer_v4 {
                assert_eq!(sealed(&mut here, &may_be_cut), Err(Refusal::NeedsFragments));
            }
            assert_eq!(here.sent(), 1, "no number is used for what is not sent");
            here.set_mtu(20);
            assert_eq!(here.inner_mtu(), 0);
        }
    }
}

#[test]
fn no_room_is_said() {
    let mut here = Association::new(gcm(), NOW).unwrap();
    let packet = udp_packet(true, 100, 0);
    let (head, tail) = (here.headroom(), here.tailroom());
    assert_eq!((head, tail), (36, 21));
    let mut buffer = vec![0; head + packet.len() + tail];
    buffer[head..head + packet.len()].copy_from_slice(&packet);
    let place = head..head + packet.len();
    let before = buffer.clone();
    assert_eq!(here.seal(&mut buffer[1..], place.start - 1..place.end - 1, NOW), Err(Refusal::NoRoom));
    assert_eq!(here.seal(&mut buffer[..place.end + 17], place.clone(), NOW), Err(Refusal::NoRoom));
    assert_eq!(here.seal(&mut buffer, place.start..1 << 40, NOW), Err(Refusal::NoRoom));
    assert_eq!(here.seal(&mut buffer, place.start..place.start + 10, NOW), Err(Refusal::Header));
    assert_eq!(buffer, before);
    here.seal(&mut buffer, place, NOW).unwrap();
}

#[test]
fn numbers_end_and_extended_ones_go_on() {
    let mut short = gcm();
    short.progress.sent = u64::from(u32::MAX) - 1;
    let (mut here, _) = pair(&short);
    let packet = udp_packet(true, 10, 0);
    assert!(sealed(&mut here, &packet).is_ok());
    assert_eq!(sealed(&mut here, &packet), Err(Refusal::SequenceOver));
    assert_eq!(here.take_end(), Some(End::Hard));
    assert_eq!(here.take_end(), None);

    short.is_extended = true;
    short.progress.received = short.progress.sent;
    let (mut here, mut there) = pair(&short);
    for _ in 0..5 {
        let wire = sealed(&mut here, &packet).unwrap();
        assert_eq!(opened(&mut there, &wire).unwrap(), packet);
    }
    assert_eq!(there.received(), (1 << 32) + 3);
    // The right lower half and another upper one is another number.
    let mut behind = Association::new(Parameters { progress: Progress::default(), ..short.clone() }, NOW).unwrap();
    let wire = sealed(&mut here, &packet).unwrap();
    assert_eq!(opened(&mut behind, &wire).unwrap_err(), Refusal::Integrity);
    short.progress.sent = u64::MAX;
    let (mut here, _) = pair(&short);
    assert_eq!(sealed(&mut here, &packet), Err(Refusal::SequenceOver));
}

#[test]
fn lives_end() {
    let mut parameters = gcm();
    parameters.limits = Limits { soft_packets: 2, hard_packets: 3, ..Limits::NONE };
    let (mut here, mut there) = pair(&parameters);
    let packet = udp_packet(true, 72, 0);
    let mut wires: Vec<Vec<u8>> = Vec::new();
    let mut ends = Vec::new();
    for _ in 0..3 {
        wires.push(sealed(&mut here, &packet).unwrap());
        ends.push(here.take_end());
    }
    assert_eq!(ends, [None, Some(End::Soft), Some(End::Hard)]);
    assert_eq!(sealed(&mut here, &packet), Err(Refusal::Expired));
    assert_eq!((here.lifetime().usage.bytes, here.lifetime().usage.packets), (300, 3));
    for wire in &wires {
        opened(&mut there, wire).unwrap();
    }
    assert_eq!(opened(&mut there, &wires[0]).unwrap_err(), Refusal::Expired);
    assert_eq!(there.take_end(), Some(End::Hard));
    parameters.limits = Limits { hard_added: 60, ..Limits::NONE };
    let (mut here, _) = pair(&parameters);
    here.tick(NOW + 59);
    assert!(!here.has_news());
    here.tick(NOW + 60);
    assert_eq!(here.take_end(), Some(End::Hard));
}

#[test]
fn translators() {
    let mut parameters = gcm();
    parameters.encapsulation = Some(Encapsulation { source_port: 4500, destination_port: 4500 });
    let (mut here, mut there) = pair(&parameters);
    let packet = udp_packet(true, 10, 0);
    let mut wire = sealed(&mut here, &packet).unwrap();
    assert_eq!(wire[26..28], [0, 0], "no checksum over IPv4");
    // The translator has made it come from elsewhere.
    wire[12..16].copy_from_slice(&[198, 51, 100, 7]);
    wire[20..22].copy_from_slice(&9999u16.to_be_bytes());
    let mut forged = wire.clone();
    forged[40] ^= 1;
    assert!(opened(&mut there, &forged).is_err() && there.take_move().is_none(), "only genuine packets move it");
    assert_eq!(opened(&mut there, &wire).unwrap(), packet);
    assert_eq!(there.take_move(), Some(("198.51.100.7".parse().unwrap(), 9999)));
    assert_eq!(there.take_move(), None);
    // In UDP and not.
    let mut bare = Association::new(gcm(), NOW).unwrap();
    let wire = sealed(&mut here, &packet).unwrap();
    assert_eq!(opened(&mut bare, &wire).unwrap_err(), Refusal::Encapsulation);
    let other = Arrival::find(&wire, 4501).unwrap();
    assert_eq!(other, None, "UDP to other ports is not ours");
    let mut keepalive = wire[..29].to_vec();
    (keepalive[3], keepalive[28]) = (29, 0xff);
    assert_eq!(Arrival::find(&keepalive, 4500), Ok(None));
    let mut ike = wire;
    ike[28..32].fill(0);
    assert_eq!(Arrival::find(&ike, 4500), Ok(None));
}

#[test]
fn transport_through_a_translator_gets_its_checksum_back() {
    let mut parameters = gcm();
    parameters.mode = Mode::Transport;
    parameters.encapsulation = Some(Encapsulation { source_port: 4500, destination_port: 4500 });
    let (mut here, mut there) = pair(&parameters);
    let mut wire = sealed(&mut here, &udp_packet(true, 33, 0)).unwrap();
    wire[12..16].copy_from_slice(&[198, 51, 100, 7]);
    let packet = opened(&mut there, &wire).unwrap();
    let header = Header::parse(&packet).unwrap();
    assert_eq!(ip::transport_checksum(header.source, header.destination, 17, &packet[20..]), 0);
}

#[test]
fn selectors_of_associations_count() {
    let mut parameters = gcm();
    let (mut here, _) = pair(&parameters);
    parameters.selector.protocol = protocol::TCP;
    let mut there = Association::new(parameters, NOW).unwrap();
    let wire = sealed(&mut here, &udp_packet(true, 10, 0)).unwrap();
    assert_eq!(opened(&mut there, &wire).unwrap_err(), Refusal::Selector);
}

#[test]
fn what_cannot_be_made_is_said() {
    let change = |change: fn(&mut Parameters)| {
        let mut parameters = gcm();
        change(&mut parameters);
        Association::new(parameters, NOW).err()
    };
    assert_eq!(change(|_| ()), None);
    assert_eq!(change(|made| made.id.spi = 255), Some(Unsupported::Spi(255)));
    assert_eq!(change(|made| made.window = 4097), Some(Unsupported::Window(4097)));
    assert_eq!(change(|made| (made.window, made.is_extended) = (0, true)), Some(Unsupported::NoWindow));
    assert_eq!(change(|made| made.source = "::1".parse().unwrap()), Some(Unsupported::Family));
}

#[test]
fn news_do_not_turn_numbers_back() {
    let (mut here, _) = pair(&gcm());
    let packet = udp_packet(true, 10, 0);
    for _ in 0..5 {
        sealed(&mut here, &packet).unwrap();
    }
    let mut news = gcm();
    news.limits.hard_packets = 6;
    assert!(here.renew(&news));
    assert_eq!(here.sent(), 5);
    news.progress.sent = 9;
    assert!(here.renew(&news));
    sealed(&mut here, &packet).unwrap();
    assert_eq!(here.sent(), 10);
    assert_eq!(sealed(&mut here, &packet), Err(Refusal::Expired));
    news.keys = all_keys().remove(2);
    assert!(!here.renew(&news), "another key is another association");
}
