use super::{Field, Format, MAX_CID, TAG_PRESENT, Wide, text};
use crate::key::{Key, WORDS};
use crate::matching::Match;

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = Field::ALL.iter().flat_map(|field| field.row().names).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn fields_lie_within_the_key() {
    for field in Field::ALL {
        let place = field.row().place;
        assert!(usize::from(place.word) + place.words() <= WORDS, "{field:?}");
        assert!(place.words() == 1 || place.shift == 0, "{field:?}");
        assert!(place.words() > 1 || place.shift + place.width <= 64, "{field:?}");
    }
}

/// Fields that share bits need different things, or are views of one another.
#[test]
fn fields_that_share_bits_exclude_each_other() {
    const VIEWS: &[(Field, Field)] = &[
        (Field::DlVlan, Field::VlanTci),
        (Field::DlVlanPcp, Field::VlanTci),
        (Field::InnerVlan, Field::InnerVlanTci),
        (Field::InnerVlanPcp, Field::InnerVlanTci),
        (Field::NwTos, Field::IpDscp),
        (Field::QuicCid, Field::QuicCidLen),
        (Field::TcpSrc, Field::TpSrc),
        (Field::TcpDst, Field::TpDst),
        (Field::UdpSrc, Field::TpSrc),
        (Field::UdpDst, Field::TpDst),
    ];
    for (at, &one) in Field::ALL.iter().enumerate() {
        for &other in &Field::ALL[at + 1..] {
            let (mut left, mut right) = (Key::ZERO, Key::ZERO);
            left.set(one, one.full());
            right.set(other, other.full());
            let shared = (0..WORDS).any(|word| left.words()[word] & right.words()[word] != 0);
            if !shared || VIEWS.contains(&(one, other)) {
                continue;
            }
            // A rule on both cannot be completed.
            let mut both = Match::ANY;
            both.put(one, Wide::ZERO, one.full());
            both.put(other, Wide::ZERO, other.full());
            both.put(Field::DlType, Wide::ZERO, Wide::ZERO);
            assert_ne!(one.row().needs, other.row().needs, "{one:?} {other:?}");
        }
    }
}

#[test]
fn values_as_text() {
    for (name, given, value, mask, printed) in [
        ("in_port", "7", 7, 0xffff_ffff, "7"),
        ("in_port", "local", 0xffff_fffe, 0xffff_ffff, "local"),
        ("in_port", "0xfffffffe", 0xffff_fffe, 0xffff_ffff, "local"),
        ("dl_type", "0x0800", 0x800, 0xffff, "0x800"),
        ("dl_src", "02:00:00:00:00:0a", 0x0200_0000_000a, 0xffff_ffff_ffff, "02:00:00:00:00:0a"),
        ("dl_dst", "01:00:00:00:00:00/01:00:00:00:00:00", 1 << 40, 1 << 40, "01:00:00:00:00:00/01:00:00:00:00:00"),
        ("nw_src", "10.1.2.3/8", 0x0a00_0000, 0xff00_0000, "10.0.0.0/8"),
        ("nw_src", "10.0.0.1/255.0.0.255", 0x0a00_0001, 0xff00_00ff, "10.0.0.1/255.0.0.255"),
        ("nw_tos", "184", 46, 0x3f, "184"),
        ("tcp_flags", "+syn-ack", 2, 0x12, "+syn-ack"),
        ("tcp_flags", "0x012", 0x12, 0xfff, "0x012"),
        ("ip_frag", "later", 3, 3, "later"),
        ("ip_frag", "not_later", 0, 2, "not_later"),
        ("tp_src", "0x50/0xfff0", 0x50, 0xfff0, "0x50/0xfff0"),
        ("tun_id", "5000", 5000, 0xffff_ffff, "0x1388"),
        ("tun_src", "192.0.2.0/24", 0xc000_0200, 0xffff_ff00, "192.0.2.0/24"),
    ] {
        let field = Field::named(name).unwrap();
        let read = text::parse(field, given).unwrap();
        assert_eq!(read, (Wide::new(value), Wide::new(mask)), "{name}={given}");
        assert_eq!(text::print(field, read.0, read.1), printed);
    }
}

#[test]
fn ipv6_values() {
    let read = text::parse(Field::Ipv6Src, "2001:db8:1::5/32").unwrap();
    assert_eq!(read.0.as_u128(), 0x2001_0db8 << 96);
    assert_eq!(read.1.as_u128(), 0xffff_ffff << 96);
    assert_eq!(text::print(Field::Ipv6Src, read.0, read.1), "2001:db8::/32");
    let odd = text::parse(Field::Ipv6Dst, "::1/::ffff").unwrap();
    assert_eq!(text::print(Field::Ipv6Dst, odd.0, odd.1), "::1/::ffff");
}

#[test]
fn connection_ids() {
    let whole = text::parse(Field::QuicCid, "0x8394c8f03e515708").unwrap();
    assert_eq!(whole.0, Wide([0x8394_c8f0_3e51_5708, 0, 8]));
    assert_eq!(whole.1, Wide([u64::MAX, 0, 0xff]));
    assert_eq!(text::print(Field::QuicCid, whole.0, whole.1), "0x8394c8f03e515708");
    let part = text::parse(Field::QuicCid, "0x8300/0xff00").unwrap();
    assert_eq!(part, (Wide([0x83 << 56, 0, 0]), Wide([0xff << 56, 0, 0])));
    assert_eq!(text::print(Field::QuicCid, part.0, part.1), "0x83/0xff");
    let long = format!("0x{}", "ab".repeat(MAX_CID));
    let read = text::parse(Field::QuicCid, &long).unwrap();
    assert_eq!(text::print(Field::QuicCid, read.0, read.1), long);
    assert!(text::parse(Field::QuicCid, &format!("{long}ab")).is_err());
}

#[test]
fn wrong_values_say_what_is_right() {
    for (name, given, says) in [
        ("tcp_dst", "70000", "a number"),
        ("tcp_dst", "+80", "a number"),
        ("nw_src", "10.0.0", "an address such as 10.0.0.1"),
        ("nw_src", "10.0.0.0/33", "an address such as 10.0.0.1"),
        ("dl_src", "02:00:00:00:00", "an address such as 02:"),
        ("dl_src", "02:00:00:00:00:00:00", "an address such as 02:"),
        ("nw_tos", "3", "divisible by 4"),
        ("tcp_flags", "+syn+syn", "flags"),
        ("tcp_flags", "+seen", "flags"),
        ("nw_ttl", "64/0xf0", "no mask"),
        ("quic_cid", "0x123", "up to 20 bytes"),
        ("quic_cid", "0x", "up to 20 bytes"),
        ("ip_frag", "maybe", "'first'"),
    ] {
        let error = text::parse(Field::named(name).unwrap(), given).unwrap_err();
        assert!(error.contains(says), "{name}={given}: {error}");
    }
}

#[test]
fn views_of_a_tag_ask_for_the_tag() {
    let tagged = Match::ANY.with(Field::DlVlan, 5).unwrap();
    assert_eq!(tagged.key().get(Field::VlanTci), Wide::new(5 | TAG_PRESENT));
    assert_eq!(tagged.mask().get(Field::VlanTci), Wide::new(0x1fff));
    let untagged = Match::ANY.with(Field::DlVlan, 0xffff).unwrap();
    assert_eq!((untagged.key(), untagged.mask().get(Field::VlanTci)), (&Key::ZERO, Wide::new(0xffff)));
    let mut key = Key::ZERO;
    key.assign(Field::InnerVlanPcp, Wide::new(3), Wide::new(7));
    assert_eq!(key, Key::ZERO, "there is no inner tag without an outer one");
    key.assign(Field::DlVlan, Wide::new(9), Wide::new(0xfff));
    key.assign(Field::InnerVlanPcp, Wide::new(3), Wide::new(7));
    assert_eq!(key.get(Field::InnerVlanTci), Wide::new(3 << 13 | TAG_PRESENT));
    key.assign(Field::VlanTci, Wide::ZERO, Wide::new(0xffff));
    assert_eq!(
        key.get(Field::VlanTci),
        Wide::new(3 << 13 | TAG_PRESENT),
        "without the outer tag the inner one is the outer"
    );
    assert_eq!(key.get(Field::InnerVlanTci), Wide::ZERO);
}

#[test]
fn every_format_has_an_example() {
    for field in Field::ALL {
        let format = field.row().format;
        assert!(!text::example(format).is_empty());
        assert!(format != Format::Cid || *field == Field::QuicCid);
    }
}
