use super::*;
use crate::pcap::Writer;
use proptest::prelude::*;

/// A block with its lengths, in that byte order.
fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let word = |number: u32| if big { number.to_be_bytes() } else { number.to_le_bytes() };
    let padded = body.len().next_multiple_of(4);
    let len = word(padded as u32 + 12);
    [&word(kind)[..], &len, body, &vec![0; padded - body.len()], &len].concat()
}

fn halves(big: bool, halves: &[u16]) -> Vec<u8> {
    halves.iter().flat_map(|half| if big { half.to_be_bytes() } else { half.to_le_bytes() }).collect()
}

fn words(big: bool, words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| if big { word.to_be_bytes() } else { word.to_le_bytes() }).collect()
}

fn section(big: bool) -> Vec<u8> {
    block(big, 0x0a0d_0d0a, &[words(big, &[0x1a2b_3c4d]), halves(big, &[1, 0]), vec![0xff; 8]].concat())
}

fn interface(big: bool, link: u16, unit: Option<u8>) -> Vec<u8> {
    let mut body = [halves(big, &[link, 0]), words(big, &[0])].concat();
    if let Some(unit) = unit {
        body.extend([halves(big, &[2, 2]), vec![b'e', b'0', 0, 0], halves(big, &[9, 1]), vec![unit, 0, 0, 0]].concat());
        body.extend(halves(big, &[0, 0]));
    }
    block(big, 1, &body)
}

fn enhanced(big: bool, interface: u32, ticks: u64, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    let head = words(big, &[interface, (ticks >> 32) as u32, ticks as u32, len, len + 4]);
    block(big, 6, &[&head[..], data].concat())
}

/// Time, link and bytes.
type Seen = (u64, u32, Vec<u8>);

/// Every packet, and the errors on the way.
fn read(file: &[u8]) -> (Vec<Seen>, Vec<ReadError>) {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    let mut packets = Packets::named(file, "x").unwrap();
    loop {
        match packets.next_packet() {
            Ok(Some(packet)) => found.push((packet.time.nanos(), packet.link, packet.data.to_vec())),
            Ok(None) => return (found, errors),
            Err(error) => errors.push(error),
        }
    }
}

#[test]
fn sections_of_both_orders_with_interfaces_of_their_own() {
    let mut file = Vec::new();
    for big in [false, true] {
        file.extend(section(big));
        file.extend(interface(big, 1, None));
        file.extend(interface(big, 113, Some(9)));
        file.extend(block(big, 5, &[1, 2, 3]));
        file.extend(enhanced(big, 0, 5, &[7; 61]));
        file.extend(enhanced(big, 1, 5, &[8; 3]));
        file.extend(block(big, 3, &[words(big, &[2]), vec![9; 2]].concat()));
        file.extend(block(big, 2, &[halves(big, &[1, 0]), words(big, &[0, 6, 1, 1]), vec![6]].concat()));
    }
    let (packets, errors) = read(&file);
    let one = [(5000, 1, vec![7; 61]), (5, 113, vec![8; 3]), (0, 1, vec![9; 2]), (6, 113, vec![6])];
    assert_eq!(packets, [&one[..], &one[..]].concat());
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn classic_captures_of_any_link() {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file).unwrap();
    (0..3).for_each(|at| writer.write(CaptureTime::from_nanos(at), &[at as u8; 60]).unwrap());
    drop(writer);
    // Radiotap, with bits above that tell about the FCS.
    file[20..24].copy_from_slice(&0x3000_007f_u32.to_le_bytes());
    let (packets, errors) = read(&file);
    assert_eq!(packets, [0, 1, 2].map(|at| (u64::from(at), 127, vec![at; 60])));
    assert!(errors.is_empty() && link_name(127).contains("RADIOTAP"));
    assert!(matches!(Reader::new(&file[..]), Err(ReadError::LinkType { number: 127, .. })));
}

#[test]
fn what_is_wrong_is_said_and_what_can_be_read_is_read() {
    let good = [section(false), interface(false, 1, Some(0xff)), enhanced(false, 0, 1, &[1; 60])].concat();
    let unknown = enhanced(false, 3, 0, &[1; 60]);
    let (packets, errors) = read(&[&good[..], &unknown, &enhanced(false, 0, 0, &vec![0; 20_000]), &good].concat());
    assert_eq!(packets.len(), 2);
    assert!(matches!(
        errors[..],
        [ReadError::Interface { record: 2, interface: 3, .. }, ReadError::TooLong { record: 3, .. }]
    ));
    for cut in good.len() - 91..good.len() {
        let (packets, errors) = read(&good[..cut]);
        assert!(
            packets.is_empty() && matches!(errors[..], [ReadError::Truncated { record: 1, .. }]),
            "{cut}: {errors:?}"
        );
    }
    // A packet that is longer than its block, and a block that cannot be one.
    let mut long = good.clone();
    let at = long.len() - 4 - 60 - 8;
    long[at] = 200;
    let huge = [&good[..], &words(false, &[6, 0x7fff_fff0, 0])].concat();
    for (file, wanted) in [(long, 0), (huge, 1)] {
        let (packets, errors) = read(&file);
        assert_eq!(packets.len(), wanted);
        assert!(matches!(errors[..], [ReadError::Damaged { .. }]), "{errors:?}");
    }
}

proptest! {
    #[test]
    fn nothing_panics_and_everything_ends(noise in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..200, xor in any::<u8>()) {
        let mut file = [section(false), interface(false, 1, Some(6)), enhanced(false, 0, 1, &[1; 60])].concat();
        file.extend(noise);
        let at = at % file.len();
        file[at] ^= xor;
        if let Ok(mut packets) = Packets::named(&file[..], "x") {
            let mut calls = 0;
            while !matches!(packets.next_packet(), Ok(None)) {
                calls += 1;
                prop_assert!(calls < 100);
            }
        }
    }
}
