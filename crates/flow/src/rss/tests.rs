use super::toeplitz::{MAX_INPUT, definition};
use super::{Choices, Group, GroupError, GroupSpec, KEY_LEN, MICROSOFT_KEY, Toeplitz, Tuple};
use crate::field::{Field, Wide};
use crate::key::Key;
use proptest::prelude::*;
use std::net::IpAddr;

fn key(protocol: u8, source: &str, from: u16, target: &str, to: u16) -> Key {
    let mut key = Key::ZERO;
    match (source.parse().unwrap(), target.parse().unwrap()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            key.set(Field::DlType, 0x0800);
            key.set(Field::NwSrc, u64::from(source.to_bits()));
            key.set(Field::NwDst, u64::from(target.to_bits()));
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            key.set(Field::DlType, 0x86dd);
            key.set(Field::Ipv6Src, Wide::from_u128(source.to_bits()));
            key.set(Field::Ipv6Dst, Wide::from_u128(target.to_bits()));
        }
        _ => panic!("two versions of IP"),
    }
    key.set(Field::NwProto, u64::from(protocol));
    key.set(Field::TpSrc, u64::from(from));
    key.set(Field::TpDst, u64::from(to));
    key
}

fn group(change: impl FnOnce(&mut GroupSpec)) -> Group {
    let mut spec = GroupSpec::spread(&MICROSOFT_KEY, 8, 8);
    change(&mut spec);
    Group::new(&spec).unwrap()
}

/// Microsoft, "Verifying the RSS hash calculation": destination, source, hash of the addresses, hash with TCP ports.
#[test]
fn published_vectors() {
    let group = group(|_| ());
    for (target, to, source, from, two, four) in [
        ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e_8fc2, 0x51cc_c178),
        ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718_262a, 0xc626_b0ea),
        ("12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0_a5de, 0x5c2b_394a),
        ("209.142.163.6", 2217, "38.27.205.30", 48228, 0x8298_9176, 0xafc7_327f),
        ("202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d18_09c5, 0x10e8_28a2),
        ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc1_8cd5, 0x4020_7d3d),
        ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c_461c, 0xdde5_1bbf),
        ("fe80::200:f8ff:fe21:67cf", 38024, "3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, 0x4b61_e985, 0x02d1_feef),
    ] {
        assert_eq!(group.hash(&key(6, source, from, target, to)), Some(four), "{source}");
        assert_eq!(group.hash(&key(47, source, from, target, to)), Some(two), "{source}");
    }
}

proptest! {
    #[test]
    fn tables_are_the_definition(key in proptest::collection::vec(any::<u8>(), KEY_LEN..=64), input in proptest::collection::vec(any::<u8>(), 0..=MAX_INPUT)) {
        prop_assert_eq!(Toeplitz::new(&key).hash(&input), definition(&key, &input));
    }

    #[test]
    fn the_short_way_leads_to_the_same_queue(
        hash_key in proptest::collection::vec(any::<u8>(), KEY_LEN..=64),
        source: u32, target: u32, from: u16, to: u16, fragment in 0_u64..2,
        protocol in proptest::sample::select(vec![6, 17, 132, 1]), tuple in 0..4_usize, symmetric: bool,
    ) {
        let mut spec = GroupSpec::spread(&hash_key, 500, 500);
        let tuple = [Tuple::None, Tuple::Two, Tuple::Four, Tuple::Five][tuple];
        spec.choices = Choices { tcp4: tuple, udp4: tuple, ..spec.choices };
        spec.symmetric = symmetric;
        let group = Group::new(&spec).unwrap();
        let mut key = key(protocol, "0.0.0.0", from, "0.0.0.0", to);
        key.set(Field::NwSrc, u64::from(source));
        key.set(Field::NwDst, u64::from(target));
        key.set(Field::IpFrag, fragment);
        prop_assert_eq!(group.queue_of(&key), group.queue(group.hash(&key)));
    }

    #[test]
    fn symmetric_is_symmetric(source: u32, target: u32, from: u16, to: u16) {
        let group = group(|spec| spec.symmetric = true);
        let mut there = key(6, "0.0.0.0", from, "0.0.0.0", to);
        let mut back = key(6, "0.0.0.0", to, "0.0.0.0", from);
        for (key, one, other) in [(&mut there, source, target), (&mut back, target, source)] {
            key.set(Field::NwSrc, u64::from(one));
            key.set(Field::NwDst, u64::from(other));
        }
        prop_assert_eq!(group.hash(&there), group.hash(&back));
    }
}

#[test]
fn what_counts_is_chosen() {
    let five = group(|spec| {
        spec.choices = Choices { udp4: Tuple::Five, tcp4: Tuple::Five, tcp6: Tuple::None, ..spec.choices }
    });
    let (tcp, udp) = (key(6, "10.0.0.1", 1, "10.0.0.2", 2), key(17, "10.0.0.1", 1, "10.0.0.2", 2));
    assert_ne!(five.hash(&tcp), five.hash(&udp));
    assert_eq!(five.hash(&udp), Some(definition(&MICROSOFT_KEY, &[10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 17])));
    assert_eq!(five.hash(&key(6, "::1", 1, "::2", 2)), None);
    let mut fragment = udp;
    fragment.set(Field::IpFrag, 1);
    assert_eq!(five.hash(&fragment), Some(definition(&MICROSOFT_KEY, &[10, 0, 0, 1, 10, 0, 0, 2])));
    assert_eq!(five.hash(&Key::ZERO), None);
    assert_eq!(five.queue(None), 0);
}

#[test]
fn queues_are_even() {
    let spec = GroupSpec::spread(&MICROSOFT_KEY, 1000, 3);
    let group = Group::new(&spec).unwrap();
    assert_eq!((0..4).map(|hash| group.queue(Some(hash))).collect::<Vec<_>>(), [0, 1, 2, 0]);
    assert_eq!(spec.table.len(), 128);
    assert_eq!(GroupSpec::spread(&MICROSOFT_KEY, 200, 200).table.len(), 256);
    assert_eq!(group.spec(), spec);
}

#[test]
fn what_is_refused() {
    let wrong = |change: fn(&mut GroupSpec)| {
        let mut spec = GroupSpec::spread(&MICROSOFT_KEY, 4, 4);
        change(&mut spec);
        Group::new(&spec).unwrap_err()
    };
    assert_eq!(wrong(|spec| spec.key.truncate(39)), GroupError::Key(39));
    assert_eq!(wrong(|spec| spec.table.truncate(100)), GroupError::Table(100));
    assert_eq!(wrong(|spec| spec.table.clear()), GroupError::Table(0));
    assert_eq!(wrong(|spec| spec.table.resize(1024, 0)), GroupError::Table(1024));
}
