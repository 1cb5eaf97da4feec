//! Generated frames: against the judge, and what holds for all of them.

use super::super::{Layers, Transport};
use super::build::*;
use super::judge::compare;
use proptest::prelude::*;

fn bytes(most: usize) -> BoxedStrategy<Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..most).boxed()
}

/// Whole words of four bytes, which are no options most of the time.
fn words(most: usize) -> BoxedStrategy<Vec<u8>> {
    prop::collection::vec(any::<[u8; 4]>(), 0..=most).prop_map(|words| words.concat()).boxed()
}

/// A protocol and its packet.
fn transport() -> BoxedStrategy<(u8, Vec<u8>)> {
    let port = prop_oneof![Just(4789), Just(6081), Just(4791), Just(319), any::<u16>()];
    prop_oneof![
        (words(10), bytes(40)).prop_map(|(options, data)| (6, tcp(&options, &data))),
        (port, bytes(60)).prop_map(|(port, data)| (17, udp(port, &data))),
        (0..2u32, inner()).prop_map(|(vni, frame)| (17, udp(4789, &vxlan(vni, &frame)))),
        (words(4), inner()).prop_map(|(options, frame)| (17, udp(6081, &geneve(0x6558, 1, &options, &frame)))),
        inner().prop_map(|frame| (47, gre(0x6558, 1, &frame))),
        (prop_oneof![Just(1), Just(58), Just(47), Just(50), Just(51), Just(2), any::<u8>()], bytes(60)),
    ]
    .boxed()
}

/// A frame without tunnels.
fn inner() -> BoxedStrategy<Vec<u8>> {
    bytes(20).prop_map(|data| ethernet(0x0800, &ipv4(6, &[], 0, &tcp(&[], &data)))).boxed()
}

/// An EtherType and its packet.
fn network() -> BoxedStrategy<(u16, Vec<u8>)> {
    let word = prop_oneof![6 => Just(0), 1 => Just(0x2000), 1 => any::<u16>()];
    let v4 = (transport(), words(10), word)
        .prop_map(|((protocol, packet), options, word)| (0x0800, ipv4(protocol, &options, word, &packet)));
    let kinds = prop_oneof![Just(0u8), Just(43), Just(44), Just(51), Just(60)];
    let chain = prop::collection::vec((kinds, 0..3u8, any::<u16>()), 0..10);
    let v6 = (transport(), chain).prop_map(|((protocol, packet), chain)| {
        let (next, packet) = chain.into_iter().fold((protocol, packet), |(next, packet), (kind, units, word)| {
            let packet = match kind {
                44 => fragment(next, if units == 0 { word } else { 0 }, &packet),
                51 => ah(next, &packet),
                _ => extension(next, units, &packet),
            };
            (kind, packet)
        });
        (0x86dd, ipv6(next, &packet))
    });
    let arp = (0..8u8, 0..8u8, bytes(32)).prop_map(|(hardware, protocol, addresses)| {
        (0x0806, [&[0, 1, 8, 0, hardware, protocol, 0, 1][..], &addresses].concat())
    });
    let other = (prop_oneof![Just(0x8847), Just(0x8864), Just(20), any::<u16>()], bytes(60));
    let session = v4.clone().prop_map(|(_, packet)| (0x8864, pppoe(0x21, &packet)));
    prop_oneof![4 => v4, 4 => v6, 1 => arp, 1 => session, 1 => other].boxed()
}

/// Frames that are right for the most part: some end early, in some a byte is another.
fn frame() -> BoxedStrategy<Vec<u8>> {
    let tag = (prop_oneof![Just(0x8100), Just(0x88a8), Just(0x9100)], any::<u16>());
    let whole =
        (network(), prop::collection::vec(tag, 0..4), bytes(8)).prop_map(|((ether_type, packet), tags, trailer)| {
            let (ether_type, packet) = tags
                .into_iter()
                .fold((ether_type, packet), |(ether_type, packet), (tpid, tci)| (tpid, vlan(tci, ether_type, &packet)));
            [ethernet(ether_type, &packet), trailer].concat()
        });
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let cut = prop_oneof![2 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)];
    (whole, damage, cut)
        .prop_map(|(mut frame, damage, cut)| {
            for (at, byte) in damage {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            let len = cut.map_or(frame.len(), |cut| cut.index(frame.len()));
            frame.truncate(len);
            frame
        })
        .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn etherparse_says_the_same(frame in frame()) {
        compare(&frame);
    }

    #[test]
    fn etherparse_says_the_same_of_any_bytes(frame in bytes(100), ether_type in prop_oneof![Just(0x0800u16), Just(0x86dd)]) {
        compare(&ethernet(ether_type, &frame));
        compare(&frame);
    }

    /// Places are in order and inside, and what is reported can be read.
    #[test]
    fn places_are_inside(frame in frame()) {
        let mut layers = Layers::parse(&frame);
        let mut outer_end = frame.len();
        loop {
            prop_assert!(layers.start() <= layers.network() && layers.network() <= layers.payload_offset());
            prop_assert!(layers.payload_offset() <= layers.end() && layers.end() <= outer_end);
            prop_assert!(layers.ip().is_none_or(|ip| layers.network() <= ip && ip < layers.payload_offset()));
            prop_assert_eq!(layers.ipv4(&frame).is_some() || layers.ipv6(&frame).is_some(), layers.ip().is_some());
            if let Some((kind, at)) = layers.transport() {
                prop_assert!(layers.ip().is_some_and(|ip| ip < at) && at < layers.payload_offset());
                prop_assert_eq!(layers.tcp(&frame).is_some(), kind == Transport::Tcp);
                prop_assert_eq!(layers.udp(&frame).is_some(), kind == Transport::Udp);
                prop_assert_eq!(layers.icmp(&frame).is_some(), kind == Transport::Icmp);
                prop_assert_eq!(layers.icmpv6(&frame).is_some(), kind == Transport::Icmpv6);
                prop_assert_eq!(layers.gre(&frame).is_some(), kind == Transport::Gre);
                prop_assert_eq!(layers.esp(&frame).is_some(), kind == Transport::Esp);
                prop_assert_eq!(layers.ah(&frame).is_some(), kind == Transport::Ah);
            }
            prop_assert_eq!(layers.vxlan(&frame).is_some() || layers.geneve(&frame).is_some(),
                layers.tunnel().is_some() && layers.udp(&frame).is_some());
            let Some(inner) = layers.parse_inner(&frame) else { break };
            outer_end = layers.end();
            layers = inner;
        }
    }

    /// What Ethernet pads changes nothing about a packet of IP.
    #[test]
    fn padding_changes_nothing(frame in frame(), padding in bytes(50)) {
        let layers = Layers::parse(&frame);
        if layers.ip().is_some() {
            let padded = [frame, padding].concat();
            prop_assert_eq!(Layers::parse(&padded), layers);
        }
    }
}
