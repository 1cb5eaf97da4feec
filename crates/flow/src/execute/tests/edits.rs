//! Random edits of random frames: checksums are those computed anew, the key is that of the tables, and the rest is untouched.

use super::build::{frame, recomputed};
use super::{World, actions, edited};
use crate::action::Action;
use crate::execute::{Emissions, Frame, HEADROOM, Stop, execute};
use crate::extract::Ingress;
use crate::field::{Field, Wide};
use crate::generate::{mask, value};
use crate::key::Key;
use crate::matching::Match;
use crate::rule::Plan;
use millrace_packet::parse::Layers;
use proptest::prelude::*;
use proptest::sample::select;

/// Registers and metadata are in no frame: they go from table to table by way of the key.
const UNSEEN: [Field; 5] = [Field::Reg0, Field::Reg1, Field::Reg2, Field::Reg3, Field::Metadata];

fn action() -> BoxedStrategy<Action> {
    let settable: Vec<_> = Field::ALL.iter().copied().filter(|field| field.row().settable).collect();
    let set = select(settable).prop_flat_map(|field| {
        let parts = (Just(field), value(field, false), mask(field));
        parts.prop_map(|(field, value, mask)| Action::SetField { field, value: value.and(mask), mask })
    });
    prop_oneof![
        20 => set,
        1 => Just(Action::PushVlan(0x88a8)),
        1 => Just(Action::PopVlan),
        1 => Just(Action::DecTtl),
    ]
    .boxed()
}

/// What a rule for this key may do, and what leaves the headers such that a key tells all of them.
fn fits(action: &Action, key: &Key) -> bool {
    let number = |field: Field| key.get(field).0[0];
    let is_fragment = number(Field::IpFrag) != 0;
    match action {
        // The id of a tunnel is in its header.
        Action::SetField { field: Field::TunId, .. } => number(Field::NwProto) != 47,
        // Of a third tag the key knows nothing.
        Action::PushVlan(_) => number(Field::InnerVlanTci) == 0,
        Action::DecTtl => [0x0800, 0x86dd].contains(&number(Field::DlType)),
        Action::SetField { field, .. } => {
            let of_transport = field.row().place.word == 7 && field.row().place.shift < 32 || *field == Field::NdTarget;
            // Other types have, or lack, a target.
            let retyped = *field == Field::IcmpType && number(Field::NwProto) == 58;
            field.row().needs.met(&Match::of(key)) && !(of_transport && is_fragment) && !retyped
        }
        _ => true,
    }
}

fn key_of(frame: &[u8], ingress: &Ingress) -> Key {
    Key::extract(frame, &Layers::parse(frame), ingress)
}

/// What is behind all that can be edited: data and padding.
fn tail(frame: &[u8]) -> &[u8] {
    let layers = Layers::parse(frame);
    let more = match (layers.ether_type(), layers.protocol()) {
        // Of ARP, SCTP, UDP-Lite and neighbour discovery the parser says where they begin.
        (0x0806, _) => 28,
        (_, Some(132 | 136)) => 12,
        (_, Some(58)) => 16,
        _ => 0,
    };
    frame.get(layers.payload_offset() + more..).unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn same_as_the_key_and_checksums_computed_anew(frame in frame(), wanted in prop::collection::vec(action(), 0..6)) {
        prop_assert_eq!(&recomputed(&frame), &frame);
        let ingress = Ingress { port: 7, ..Ingress::default() };
        let mut key = key_of(&frame, &ingress);
        let (mut done, mut stop) = (Vec::new(), Ok(()));
        for action in wanted {
            if !fits(&action, &key) {
                continue;
            }
            done.push(action.clone());
            if action == Action::DecTtl && key.get(Field::NwTtl).0[0] <= 1 {
                stop = Err(Stop::Ttl);
                break;
            }
            Plan::new(&[action, Action::GotoTable(1)]).rewrite(&mut key);
        }
        // A port may make a tunnel of anything.
        prop_assume!(![4789, 6081].contains(&key.get(Field::TpDst).0[0]));
        let mut buffer = vec![0xee; frame.len() + HEADROOM];
        let mut after = Frame::new(&frame, &mut buffer, ingress);
        prop_assert_eq!(execute(&done, &mut after, &mut World::new(), &mut Emissions::new(9, 0)), stop);
        let mut seen = after.key();
        for field in UNSEEN {
            seen.set(field, key.get(field));
        }
        prop_assert_eq!(seen, key);
        prop_assert_eq!(recomputed(after.bytes()), after.bytes());
        prop_assert_eq!(tail(after.bytes()), tail(&frame));
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// Checksums that are wrong stay wrong by the same amount: a damaged packet is not made good.
    #[test]
    fn damage_stays(frame in frame(), wanted in prop::collection::vec(action(), 1..4), at: prop::sample::Index, bit in 0..8) {
        let layers = Layers::parse(&frame);
        prop_assume!(layers.ipv4(&frame).is_some() && layers.payload(&frame).len() > 1 && layers.transport().is_some());
        let wanted: Vec<_> = wanted.into_iter().filter(|action| fits(action, &key_of(&frame, &Ingress::default()))).collect();
        let mut damaged = frame.clone();
        let at = layers.payload_offset() + at.index(layers.payload(&frame).len());
        damaged[at] ^= 1u8 << bit;
        let (whole, hurt) = (edited(&frame, &wanted), edited(&damaged, &wanted));
        prop_assume!(whole.is_ok());
        let (whole, hurt) = (whole.unwrap(), hurt.unwrap());
        let differing = whole.iter().zip(&hurt).filter(|(a, b)| a != b).count();
        prop_assert_eq!((whole.len(), differing), (hurt.len(), 1));
    }

    /// Whatever the bytes are, and whatever is done: nothing panics, and the frame is no longer than headers make it.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..120), wanted in prop::collection::vec(action(), 0..6)) {
        if let Ok(after) = edited(&bytes, &wanted) {
            prop_assert!(after.len() <= bytes.len() + 4 * wanted.len());
        }
    }
}

#[test]
fn a_field_that_the_frame_does_not_have() {
    let arp = [&super::build::MACS[..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &[0; 20]].concat();
    let all = "set_field:10.0.0.9->nw_src,set_field:7->tcp_src,set_field:7->nw_ttl,dec_ttl,set_field:7->inner_vlan,pop_vlan,\
        pop_pppoe,set_field:9->mpls_label,set_field:1->metadata";
    assert_eq!(edited(&arp, &actions(all)), Ok(arp));
}

#[test]
fn wide_masks_reach_both_words() {
    let frame = super::build::ethernet(&[], 0x86dd, &super::build::ipv6(59, &[]));
    let value = Wide([0, 1 << 63, 0]);
    let done = edited(&frame, &[Action::SetField { field: Field::Ipv6Src, value: Wide::ZERO, mask: value }]).unwrap();
    assert_eq!((done[14 + 16], frame[14 + 16]), (0x7d, 0xfd));
}
